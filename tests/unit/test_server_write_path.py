"""Number of classes whose methods run between `Stream.append` and `Log.append`."""

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import tidewire.protocol.document
from support.stream_harness import StreamHarness, on_event_loop

MAX_CLASSES = 6
"""Stream, ItemWriter, LogWriter, Document, GroupCommit, and the log."""

DOCUMENT = tidewire.protocol.document.__name__
"""The document package counts as one class, because its ropes and views belong to the document."""


def class_of(frame: FrameType) -> str | None:
    """Return the class whose method a frame runs, or None for a plain function."""
    owner, _, _ = frame.f_code.co_qualname.partition(".<locals>")[0].rpartition(".")
    module = frame.f_globals.get("__name__", "")
    if not owner or not module.startswith(("tidewire.", "tidewire_server.")):
        return None
    return DOCUMENT if module.startswith(f"{DOCUMENT}.") else f"{module}.{owner}"


async def classes_up_to_the_log(write: Callable[[], None]) -> set[str]:
    """Return the classes whose methods run from the call up to `Log.append_at_once`, inclusive."""
    passed: set[str] = set()
    reached = False

    def note(frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal reached
        if event == "call" and not reached and (found := class_of(frame)) is not None:
            passed.add(found)
            reached = frame.f_code.co_name == "append_at_once"

    sys.setprofile(note)
    try:
        write()
        while not reached:
            await asyncio.sleep(0)
    finally:
        sys.setprofile(None)
    return passed


@pytest.mark.parametrize("merge_window", [0.0, 0.005])
@on_event_loop
async def test_append_runs_methods_of_at_most_six_classes(merge_window):
    job = StreamHarness("", merge_window=merge_window)
    first = await classes_up_to_the_log(lambda: job.stream.append("x"))
    next_one = await classes_up_to_the_log(lambda: job.stream.append("y"))
    assert job.stream.value == "xy"
    for passed in (first, next_one):
        assert len(passed) <= MAX_CLASSES, sorted(passed)
        assert DOCUMENT in passed
        assert any(name.endswith(".MemoryLog") for name in passed)


@on_event_loop
async def test_row_runs_methods_of_at_most_six_classes():
    job = StreamHarness({"text": "", "ids": []}, ("/text", "/ids"))
    first = await classes_up_to_the_log(lambda: job.stream.row("a", 1))
    next_one = await classes_up_to_the_log(lambda: job.stream.row("b", 2))
    assert job.stream.value == {"text": "ab", "ids": [1, 2]}
    for passed in (first, next_one):
        assert len(passed) <= MAX_CLASSES, sorted(passed)


@pytest.mark.parametrize("merge_window", [0.0, 1.0])
@on_event_loop
async def test_string_append_to_an_array_is_refused(merge_window):
    """An append to the only column is encoded as a bare string, which a reader would apply as a row."""
    job = StreamHarness([], merge_window=merge_window)
    for _ in range(3):
        with pytest.raises(ValueError, match="only an array can be appended to an array"):
            job.stream.append("x")
    job.stream.append(["y"])
    assert job.stream.value == await job.read() == ["y"]
