"""Encoded events that wait for a commit, divided into blocks (`EventBlocks`). The store writes one block at a time."""

from collections import deque
from typing import Any, Final, NamedTuple

import orjson
from pydantic import JsonValue

from tidewire_server.job_log.backlog_limit import Backlog
from tidewire_server.job_log.limited_state import LimitedState
from tidewire_server.job_log.open_event import OpenEvent, text_head
from tidewire_server.job_log.text_check_schedule import checks_of

BLOCK_BYTES: Final = 1024 * 1024
"""Size in bytes at which a block is full. If a job has many pending events, other jobs wait for at most one block."""

EVENT_BYTES: Final = 64
"""Bytes that the backlog counts for each pending event in addition to its ops. They cover its id and its Python object."""


class _FullBlock(NamedTuple):
    """Pending events that form one full block, and a mark of the state after them."""

    events: list[bytes]
    mark: tuple[list[Any], int]
    size: int
    """Size of the events as counted in the backlog, in bytes."""


class EventBlocks:
    """Pending events of a job that can no longer grow, divided into blocks. The caller must hold the lock of the state.

    Attributes:
        full: Full blocks with the oldest events. Only `take_full` removes them.
        events: The encoded fields of all later events, which form the last block. A worker thread can write thousands of small
            events before the event loop commits them, and unencoded events would take many times as much memory.
            `PendingEvents.take` empties this list and sets `size` to 0 directly, which saves a call for each isolated event.
        size: Size of `events`, in bytes.
    """

    __slots__ = ("_backlog", "_column_head", "_columns", "_state", "events", "full", "size")

    def __init__(self, state: LimitedState, backlog: Backlog) -> None:
        """Create an empty list of blocks.

        Args:
            state: The state after the pending events.
            backlog: Counts the bytes of the pending events.
        """
        self._state = state
        self._backlog = backlog
        self._columns = columns = state.document.columns
        self._column_head = text_head(columns[0]) if columns else b""
        """JSON of an op that appends to the first column, up to the appended text. Empty if there are no columns."""
        self.full: deque[_FullBlock] = deque()
        self.events: list[bytes] = []
        self.size = 0

    def end(self, event: OpenEvent) -> None:
        """Complete the open event: compute its checks, encode it into a block, and empty the object. All events are then in
        blocks.
        """
        if event.ops:
            of_column = len(event.ops) == len(self._columns) == 1 and event.ops[0][0] == self._column_head
            # The shortest encoding of an append to the only column is a string if the column is a text. With checks, it is a row.
            if of_column and not event.due:
                fields = b'data:"%b"' % b"".join(event.ops[0][1:-1])
            else:
                parts = [[b'["r","', *event.ops[0][1:]]] if of_column else event.ops
                ops = b",".join(map(b"".join, parts))
                fields = diff_fields(ops, checks_of(event.due, self._state.document))
                event.due = []
            self.events.append(fields)
            self.size += len(fields)
            event.ops.clear()
            event.appends.clear()
            if event.has_row:
                event.texts.clear()
                event.has_row = False
            event.size = 0
            # The ops were counted when they were added to the event.
            self._backlog.size += EVENT_BYTES
        if self.size >= BLOCK_BYTES:
            self._end_block()

    def add(self, fields: bytes) -> None:
        """Add an event that was never open. The caller may apply it to the state later, but before the next call of `end`."""
        self.events.append(fields)
        self.size += len(fields)
        self._backlog.size += len(fields) + EVENT_BYTES

    def take_full(self) -> tuple[list[bytes], tuple[list[Any], int]]:
        """Remove the oldest full block. Return the fields of its events, and the mark of the state after them."""
        events, mark, size = self.full.popleft()
        self._backlog.size -= size
        return events, mark

    def _end_block(self) -> None:
        size = self._backlog.size - sum(block.size for block in self.full)
        self.full.append(_FullBlock(self.events, self._state.document.mark(), size))
        self.events, self.size = [], 0


def diff_fields(ops: bytes, checks: list[JsonValue]) -> bytes:
    """Return the fields of an event that is a diff.

    Args:
        ops: The ops as JSON, without the brackets around them.
        checks: The checks of texts that the event contains.
    """
    if checks:
        return b'data:{"ops":[%b],"check":%b}' % (ops, orjson.dumps(checks))
    return b"data:[%b]" % ops
