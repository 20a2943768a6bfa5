"""Number of calls from `Stream.append` to the bytes of the event, for a token that is not merged."""

import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tidewire
import tidewire_server
from support.stream_harness import StreamHarness
from tidewire_server.store.log_interface import Block

SOURCES = tuple(str(Path(package.__file__ or "").parent) for package in (tidewire, tidewire_server))


async def calls_of_one_token(job: StreamHarness) -> list[str]:
    """Return the names of the functions in `src` that run from the append of a token to the delivery of its event."""
    delivered = asyncio.Event()
    calls: list[str] = []

    def deliver(block: Block | None) -> None:
        sys.setprofile(None)
        delivered.set()

    def note(frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCES):
            calls.append(frame.f_code.co_qualname)

    stop = job.log.watch(deliver)
    sys.setprofile(note)
    try:
        job.stream.append("token ")
        await delivered.wait()
    finally:
        sys.setprofile(None)
        stop()
    return calls


async def test_isolated_token_takes_few_calls_to_the_subscriber():
    job = StreamHarness("")
    for _ in range(3):
        # The first append to a text looks the text up.
        job.stream.append("token ")
        await job.log_writer.commit()
    job.log_writer.committed_at = float("-inf")
    calls = await calls_of_one_token(job)
    # `_on_log_change` and `write_at_once` of a reader's stream follow, so that 14 calls lead to the socket.
    assert len(calls) <= 12, calls
    assert calls[0] == "Stream.append"
    assert await job.read() == "token " * 4


@pytest.mark.parametrize("merge_window", [0.0, 1.0])
async def test_string_append_to_an_array_is_refused(merge_window):
    """An append to the only column is encoded as a bare string, which a reader would apply as a row."""
    job = StreamHarness([], merge_window=merge_window)
    for _ in range(3):
        with pytest.raises(ValueError, match="only an array can be appended to an array"):
            job.stream.append("x")
    job.stream.append(["y"])
    assert job.stream.value == await job.read() == ["y"]
