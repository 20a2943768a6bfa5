"""Merge consecutive appends and rows into one diff for a slow reader, so that fewer events and bytes are sent.

If an event contains only one token, most of its bytes are its id and its framing. `EventMerger` merges events that only append
to texts and arrays, or add rows. All other events are sent as they were logged.

The rules come from section 5.5 of the specification:

- The merged diff has the id of the last event that it replaces. Its member `on` is the sequence number of the event before
  the first replaced event.
- A check describes a text after all ops of its diff. An event with checks is therefore the last event that a merged diff
  replaces. The merged diff contains these checks.
- The merged diff exceeds neither `max_event_bytes` nor `max_event_ops`, and is never larger than the events that it
  replaces.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import orjson

from tidewire.protocol.cursor import Cursor

_OVERHEAD: Final = 256
"""Number of bytes of a merged diff that are reserved for all members except its ops."""

_APPENDS: Final = (b'"', b'[["a",', b'[["r",', b'{"ops":[["a",', b'{"ops":[["r",')
"""First bytes of diffs that can consist of appends and rows. Other diffs are not parsed, because they can be long."""


class EventMerger:
    """Merges the logged events that follow a reader's cursor. Call `add` for each event, and then `frames` once."""

    def __init__(self, after: Cursor, columns: Sequence[str], *, max_bytes: int, max_ops: int) -> None:
        """Create a merger for the events after the reader's cursor.

        Args:
            after: Id of the last event that the reader has received.
            columns: JSON Pointers of the columns in the epoch of `after`.
            max_bytes: Maximum size of a merged diff.
            max_ops: Maximum number of ops of a merged diff.
        """
        self.merged = 0
        """Number of logged events that were replaced by merged diffs."""
        self._columns: Sequence[str] | None = columns
        self._max_bytes = max_bytes - _OVERHEAD
        self._max_ops = max_ops
        self._seq = after.seq
        self._sent: list[bytes] = []
        # The attributes below belong to the current diff, into which the next appends are merged.
        self._events: list[bytes] = []
        self._ops: list[tuple[Any, ...]] = []
        self._added: dict[str, list[Any]] = {}
        """Path → strings or arrays that its op appends. Later appends to this path extend the list."""
        self._checks: list[Any] = []
        self._size = 0

    def add(self, event: bytes) -> None:
        """Add the next event in this server's encoding of events, without the blank line at its end."""
        head, _, data = event.partition(b"\ndata:")
        ops, checks = self._parse(head, data)
        if (
            not ops
            or self._checks
            or self._size + len(data) > self._max_bytes
            or len(self._ops) + len(ops) > self._max_ops
        ):
            self._close()
        if ops:
            for op in ops:
                self._add_op(op)
            self._events.append(event)
            self._checks = checks
            self._size += len(data)
        else:
            self._sent.append(event)
        self._seq += 1

    def frames(self) -> bytes:
        """Finish merging, and return the merged events."""
        self._close()
        return b"\n\n".join([*self._sent, b""])

    def _parse(self, head: bytes, data: bytes) -> tuple[list[Any], list[Any]]:
        """Return the ops and checks of a diff that only appends or adds rows. For another event, return no ops."""
        if (
            b"\n" in head
        ):  # The event is a snapshot or `done`. A snapshot may begin an epoch with other columns.
            self._columns = None
        if self._columns is None or not data.startswith(_APPENDS):
            return [], []
        content = orjson.loads(data)
        if type(content) is str:
            return [["a", self._columns[0], content]], []
        ops, checks = (content["ops"], content.get("check", [])) if type(content) is dict else (content, [])
        return (ops, checks) if all(op[0] in {"a", "r"} for op in ops) else ([], [])

    def _add_op(self, op: list[Any]) -> None:
        if op[0] == "r":
            # A later append to a column must stay after the row, because the row extends the column.
            self._added.clear()
            self._ops.append(tuple(op))
        elif (added := self._added.get(op[1])) is not None:
            added.append(op[2])
        else:
            self._added[op[1]] = added = [op[2]]
            self._ops.append(("a", op[1], added))

    def _close(self) -> None:
        """Finish the current diff. If it is not smaller than the events that it replaces, use these events instead."""
        events, on = self._events, self._seq - len(self._events)
        if len(events) > 1:
            ops = [("a", op[1], _joined(op[2])) if op[0] == "a" else op for op in self._ops]
            content = {"ops": ops, "on": on} | ({"check": self._checks} if self._checks else {})
            data = orjson.dumps(content)
            diff = b"%b\ndata:%b" % (events[-1].partition(b"\n")[0], data)
            if len(data) <= self._max_bytes + _OVERHEAD and len(diff) < sum(map(len, events)):
                self.merged += len(events)
                events = [diff]
        self._sent += events
        self._events, self._ops, self._added, self._checks, self._size = [], [], {}, [], 0


def _joined(added: list[Any]) -> Any:
    return "".join(added) if type(added[0]) is str else [*chain.from_iterable(added)]
