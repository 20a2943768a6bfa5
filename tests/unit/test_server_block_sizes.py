"""Sizes of the blocks that a log writer passes to its store: bounded, and each with the state after its events."""

import asyncio
import json
import random

import pytest

from support.stream_harness import StreamHarness, pending_events
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.sse import Decoder
from tidewire_server.job_log import event_blocks
from tidewire_server.job_log.open_event import addition

BOUND = 1500
EVENT = 1000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(event_blocks, "BLOCK_BYTES", BOUND)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("merge", [True, False])
def test_each_block_is_bounded_and_has_the_state_after_its_last_event(seed, merge):
    draw = random.Random(seed)
    value = {"text": "", "large": ""}
    pending = pending_events(value, ("/text",), merge=merge, max_event_bytes=EVENT)
    follower, head, blocks = Document(value, ("/text",)), Cursor(1, 1), []
    for _ in range(draw.randrange(1, 120)):
        match draw.randrange(4):
            case 0:
                pending.change([["s", "/large", "x" * draw.randrange(2 * EVENT)]], check_below="/text")
            case 1:
                pending.change([["s", "/text", ""]])
            case _:
                pending.append([addition("/text", "é" * draw.randrange(1, 300))])
        if draw.random() < 0.1:
            blocks.append(pending.take(head))
    blocks += iter(lambda: pending.take(Cursor(1, 1)), None)
    assert pending.backlog.size == 0
    for block in filter(None, blocks):
        # The last change filled the block. A snapshot has an event with checks before it and one after it.
        earlier = block.frames[:-3]
        assert sum(len(frame.partition(b"\n")[2].strip()) for frame in earlier) < BOUND
        for event in Decoder().feed(b"".join(block.frames)):
            content = json.loads(event.data)
            if event.type == "snapshot":
                follower = Document(content["state"], content["columns"])
            else:
                follower.apply(content)
        assert block.state.view.value() == follower.value()
    assert follower.value() == pending.state.document.value()


async def test_all_blocks_are_committed_without_another_change():
    """A commit takes one block. The next block must not wait for a change that may never come."""
    job = StreamHarness("", max_event_bytes=1024)
    pieces = [f"{number:03}" * 100 for number in range(100)]
    for piece in pieces:
        job.stream.append(piece)
    assert len(job.log_writer.pending.blocks.full) > 10
    async with asyncio.timeout(10):
        while job.log_writer.backlog:
            await asyncio.sleep(0.001)
    state = await job.log.state()
    assert state.view.value()["items"][0]["value"] == await job.read() == "".join(pieces)
