"""Blocks of encoded events that wait for a commit (`EventBlocks`). The store writes one block at a time."""

from collections import deque
from typing import Any, Final, NamedTuple

import orjson
from pydantic import JsonValue

from tidewire_server.job_log.backlog_limit import Backlog
from tidewire_server.job_log.limited_state import LimitedState
from tidewire_server.job_log.open_event import OpenEvent, text_head
from tidewire_server.job_log.text_check_schedule import checks_of

BLOCK_BYTES: Final = 1024 * 1024
"""Size in bytes at which a block of events is full. If a job has many pending events, other jobs wait only for one block."""

EVENT_BYTES: Final = 64
"""Bytes that the backlog counts for each pending event in addition to its ops, for its id and the object that holds it."""


class _FullBlock(NamedTuple):
    """Pending events that form one full block, and the state after them."""

    events: list[bytes]
    mark: tuple[list[Any], int]
    size: int
    """Size of the events as counted in the backlog, in bytes."""


class EventBlocks:
    """The pending events of a job that can no longer grow, in blocks. The caller must hold the lock of the state.

    Attributes:
        full: The oldest events, if there are more than fit into one block. Only `take_full` removes them.
        events: The fields of the later events, which are in the last block. They are encoded at once: a worker thread can write
            thousands of small events before the event loop commits them, and an object for each event would be many times as
            large. `PendingEvents.take` empties this list and sets `size` to 0 directly, which saves a call for each isolated
            event.
        size: Size of these fields, in bytes.
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
        """The beginning of an op that appends to the first column, if it is a text."""
        self.full: deque[_FullBlock] = deque()
        self.events: list[bytes] = []
        self.size = 0

    def end(self, event: OpenEvent) -> None:
        """Complete the open event: compute its checks, encode it, and empty it. All events are then in blocks, and the state is
        the one after the last of them.
        """
        if event.ops:
            of_column = len(event.ops) == len(self._columns) == 1 and event.ops[0][0] == self._column_head
            # If an event appends to the only column, which is a text, its shortest form is a string, or a row if it has checks.
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
        """Add an event that was never open. Until the next call of `end`, the state may be the one before this event."""
        self.events.append(fields)
        self.size += len(fields)
        self._backlog.size += len(fields) + EVENT_BYTES

    def take_full(self) -> tuple[list[bytes], tuple[list[Any], int]]:
        """Remove the oldest full block, and return the fields of its events and the mark of the state after them."""
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
