"""Checkpoints of a job's state in a database: when to write one, and where to trim the log.

A checkpoint is written whenever the events since the previous checkpoint are larger than the state. Replaying the events
after a checkpoint therefore takes no longer than loading the checkpoint, and the checkpoints at most double the number of
bytes written. A log that exceeds its size limit is trimmed up to one of its checkpoints.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from tidewire.protocol.cursor import Cursor
from tidewire_server.store.log_interface import Block

CHECKPOINT_EVERY: Final = 256 * 1024
"""Minimum number of event bytes between two state checkpoints."""

LARGE_BYTES: Final = 512 * 1024
"""Size in bytes from which an append is large. A store writes large appends separately, so that the appends of other jobs do
not wait for them."""

MIN_CHECKPOINTS: Final = 8
"""Minimum number of checkpoints in a log of `max_log_bytes`, even if they are closer together than
`CHECKPOINT_EVERY`.
"""


class StateCheckpoint(NamedTuple):
    """Checkpoint of a job's state. A log can be trimmed up to any of its checkpoints."""

    cursor: Cursor
    written: int
    """Total size in bytes of the log's events up to and including the event at `cursor`."""


class CheckpointPlan(NamedTuple):
    """Changes that an append makes in addition to inserting the block."""

    write: bool
    """Whether to write a checkpoint of the state after the block."""
    cut: StateCheckpoint | None
    """Checkpoint up to which to trim the log, or None."""
    large: bool = False
    """Whether the block and its checkpoint together have `LARGE_BYTES` or more. The size of the previous checkpoint is used as
    an estimate."""


class CheckpointSchedule:
    """Checkpoints of one log. Only the writer of the log needs this object."""

    def __init__(
        self, max_bytes: int, *, written: int, checkpoints: Iterable[StateCheckpoint], state_bytes: int
    ) -> None:
        """Create the schedule.

        Args:
            max_bytes: Size limit of the log.
            written: Total size in bytes of the log's events.
            checkpoints: The checkpoints, oldest first.
            state_bytes: Size of the newest checkpoint.
        """
        self._max_bytes = max_bytes
        self._written = written
        self._checkpoints = deque(checkpoints)
        self._state_bytes = state_bytes
        self._cut = 0

    @classmethod
    def of_rows(
        cls, max_bytes: int, rows: Sequence[tuple[int, int]], states: Sequence[tuple[int, int, int]]
    ) -> "CheckpointSchedule":
        """Create the schedule of a log that is stored.

        Args:
            max_bytes: Size limit of the log.
            rows: Last sequence number and size of each row of events, in their order.
            states: Sequence number, epoch and size of each checkpoint, in their order.
        """
        ends = list(accumulate(size for _, size in rows))
        lasts = [last for last, _ in rows]
        checkpoints = []
        for seq, epoch, _ in states:
            place = bisect_right(lasts, seq)
            checkpoints.append(StateCheckpoint(Cursor(epoch, seq), ends[place - 1] if place else 0))
        return cls(max_bytes, written=ends[-1], checkpoints=checkpoints, state_bytes=states[-1][2])

    def plan(self, after: Cursor, block: Block, size: int) -> CheckpointPlan:
        """Decide whether an append of `size` bytes after the cursor `after` writes a checkpoint, and where it trims the log."""
        written = self._written + size
        since = written - (self._checkpoints[-1].written if self._checkpoints else 0)
        min_bytes = min(CHECKPOINT_EVERY, self._max_bytes // MIN_CHECKPOINTS)
        due = max(min_bytes, min(self._state_bytes, self._max_bytes // 2))
        write = block.ended is not None or block.first.epoch != after.epoch or since >= due
        if self._checkpoints and self._checkpoints[-1].cursor == block.state.cursor:
            write = False  # The block consists of `done`, which does not change the state.
        cut = None
        if written - self._cut > self._max_bytes:
            fitting = (each for each in self._checkpoints if written - each.written <= self._max_bytes)
            cut = next(fitting, self._checkpoints[-1] if self._checkpoints else None)
        large = size + (self._state_bytes if write else 0) >= LARGE_BYTES
        return CheckpointPlan(write, cut, large)

    def added(self, block: Block, size: int, plan: CheckpointPlan, state_bytes: int | None) -> None:
        """Update the schedule after a block was appended.

        Args:
            block: The block.
            size: Size of the block in bytes.
            plan: The plan of the append.
            state_bytes: Size of the checkpoint that was written, or None.
        """
        self._written += size
        if state_bytes is not None:
            self._state_bytes = state_bytes
            self._checkpoints.append(StateCheckpoint(block.state.cursor, self._written))
        if plan.cut is not None:
            self._cut = plan.cut.written
            while self._checkpoints and self._checkpoints[0].written <= self._cut:
                self._checkpoints.popleft()
