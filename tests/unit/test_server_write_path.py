"""From `Stream.append` to `Log.append`, a call passes methods of few classes."""

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import tidewire.protocol.document
from support.stream_harness import Written, on_a_loop

MAX_CLASSES = 6
"""Stream, ItemWriter, LogWriter, Document, GroupCommit, and the log."""

DOCUMENT = tidewire.protocol.document.__name__
"""Counts as one class: its base class, ropes and views are the document's own."""


def class_of(frame: FrameType) -> str | None:
    """The class whose method a frame runs, None for a function."""
    owner, _, _ = frame.f_code.co_qualname.partition(".<locals>")[0].rpartition(".")
    module = frame.f_globals.get("__name__", "")
    if not owner or not module.startswith(("tidewire.", "tidewire_server.")):
        return None
    return DOCUMENT if module.startswith(f"{DOCUMENT}.") else f"{module}.{owner}"


async def classes_up_to_the_log(write: Callable[[], None]) -> set[str]:
    """The classes whose methods run from a call up to and including `Log.append_at_once`."""
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
@on_a_loop
async def test_an_append_passes_at_most_six_classes_on_its_way_to_the_log(merge_window):
    job = Written("", merge_window=merge_window)
    first = await classes_up_to_the_log(lambda: job.stream.append("x"))
    next_one = await classes_up_to_the_log(lambda: job.stream.append("y"))
    assert job.stream.value == "xy"
    for passed in (first, next_one):
        assert len(passed) <= MAX_CLASSES, sorted(passed)
        assert DOCUMENT in passed
        assert any(name.endswith(".MemoryLog") for name in passed)


@on_a_loop
async def test_a_row_passes_at_most_six_classes_on_its_way_to_the_log():
    job = Written({"text": "", "ids": []}, ("/text", "/ids"))
    first = await classes_up_to_the_log(lambda: job.stream.row("a", 1))
    next_one = await classes_up_to_the_log(lambda: job.stream.row("b", 2))
    assert job.stream.value == {"text": "ab", "ids": [1, 2]}
    for passed in (first, next_one):
        assert len(passed) <= MAX_CLASSES, sorted(passed)


@pytest.mark.parametrize("merge_window", [0.0, 1.0])
@on_a_loop
async def test_a_string_is_not_appended_to_an_array(merge_window):
    """The writer encodes an append to the one column as a bare string, which a reader takes for a row."""
    job = Written([], merge_window=merge_window)
    for _ in range(3):
        with pytest.raises(ValueError, match="only an array can be appended to an array"):
            job.stream.append("x")
    job.stream.append(["y"])
    assert job.stream.value == await job.read() == ["y"]
