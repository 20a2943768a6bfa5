"""Which appends write a checkpoint, and which are large: those whose block and checkpoint reach `LARGE_BYTES` together."""

import pytest

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire_server.store.database.state_checkpoints import LARGE_BYTES, CheckpointSchedule, StateCheckpoint
from tidewire_server.store.log_interface import Block, StateAt
from tidewire_server.store.records import JobRecord

BLOCK = Block([b"id:1-2\ndata:[]\n\n"], StateAt(Cursor(1, 2), (), Document({}).mark()))


@pytest.mark.parametrize(
    ("size", "state_bytes", "writes", "large"),
    [
        (LARGE_BYTES - 1, 2 * LARGE_BYTES, False, False),
        (LARGE_BYTES, 2 * LARGE_BYTES, False, True),
        (LARGE_BYTES // 2, LARGE_BYTES // 2 - 1, True, False),
        (LARGE_BYTES // 2, LARGE_BYTES // 2, True, True),
    ],
)
def test_an_append_is_large_at_its_limit_with_its_checkpoint(size, state_bytes, writes, large):
    schedule = CheckpointSchedule(1 << 30, written=0, checkpoints=(), state_bytes=state_bytes)
    plan = schedule.plan(Cursor(1, 1), BLOCK, size)
    assert (plan.write, plan.large) == (writes, large)


@pytest.mark.parametrize(("last", "writes"), [(Cursor(1, 2), False), (Cursor(1, 1), True)])
def test_a_state_that_has_a_checkpoint_already_gets_no_second_one(last, writes):
    ended = Block(
        [b"id:1-3\nevent:done\ndata:{}\n\n"], BLOCK.state, ended=JobRecord("a", "e", "ada", False, 0.0)
    )
    schedule = CheckpointSchedule(1 << 30, written=0, checkpoints=[StateCheckpoint(last, 0)], state_bytes=10)
    assert schedule.plan(Cursor(1, 2), ended, 100).write is writes
