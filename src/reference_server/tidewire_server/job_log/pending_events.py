"""Pending events of a job (`PendingEvents`): changes of its state that were applied and encoded, and wait for a commit.

A change is applied to the document and encoded as JSON at once, from any thread. It is then added to the pending events:

  change                | where it is
  ----------------------+------------------------------------------------------------------------------------------
  append to a text      | in the last event if this event consists of appends and rows, with one op for each path;
  or an array           | otherwise, or if the event is full, in a new event
  row                   | in the last or a new event, like an append, but always as a separate op
  any other change      | in a separate event; in several events if it has more than `max_event_ops` ops
  end of an item        | in a separate event
  a change longer than  | in a separate event, which is a snapshot of the state after it
  `max_event_bytes`     |

If `merge_window` is 0, each call makes a separate event. A commit takes the whole list, in blocks of about `BLOCK_BYTES`.

An event contains the text checks that are due (see `text_check_schedule`). The checks are computed when the event can no
longer grow, because they describe the texts after the event.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Final

import orjson
from pydantic import JsonValue

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.diff import DiffError, Op
from tidewire_server.errors import StreamClosedError
from tidewire_server.job_log.backlog_limit import MAX_PENDING_BYTES, Backlog
from tidewire_server.job_log.event_blocks import EventBlocks, diff_fields
from tidewire_server.job_log.limited_state import LimitedState
from tidewire_server.job_log.open_event import (
    ARRAY_END,
    TEXT_END,
    Addition,
    EncodedRow,
    OpenEvent,
    text_head,
    to_json,
)
from tidewire_server.job_log.snapshot_events import snapshot_fields
from tidewire_server.job_log.text_check_schedule import (
    CHECK_EVERY,
    checks_of,
    note_change,
    note_growth,
    nothing_unchecked,
    split_checks,
    take_below,
)
from tidewire_server.store.log_interface import Block, StateAt

_FRAMING: Final = 512
"""Part of `max_event_bytes` that is reserved for an event's member `check`, its field names and its line ends, in bytes."""


class PendingEvents:
    """Accepts the changes of a job, and keeps them as encoded events until a commit takes them.

    Attributes:
        state: The state, including the pending events.
        lock: Lock of the state. Every method acquires it. Hold it to make several changes, or a read and a change, atomic.
        columns: Paths of the columns, which are texts and arrays in the state. A row appends to all of them.
        backlog: Size of the pending events.
        blocks: All pending events except the open event.
        urgent: Whether the pending events must be committed at once, without waiting for changes to merge.
    """

    __slots__ = (
        "_event_bytes",
        "_event_ops",
        "_merges",
        "_open",
        "_signalled",
        "_texts",
        "_unchecked",
        "_wake",
        "backlog",
        "blocks",
        "columns",
        "lock",
        "state",
        "urgent",
    )

    def __init__(
        self,
        state: LimitedState,
        backlog: Backlog,
        wake: Callable[[], None],
        *,
        merges: bool,
        max_event_bytes: int,
        max_event_ops: int,
    ) -> None:
        """Create the object without pending events.

        Args:
            state: The state after the events that are already in the log. Each change is applied to it.
            backlog: Counts the pending bytes.
            wake: Function that schedules a commit. It is called for the first pending event after a commit, and again for
                the first urgent change.
            merges: Whether appends and rows extend the last event.
            max_event_bytes: The setting with this name.
            max_event_ops: The setting with this name.
        """
        self.state = state
        self.lock = state.lock
        self.columns = state.document.columns
        self.backlog = backlog
        self.urgent: bool = False
        self._wake: Callable[[], None] | None = wake
        """The argument `wake`. None after `close`."""
        self._merges = merges
        self._event_bytes = max_event_bytes - _FRAMING
        self._event_ops = max_event_ops
        self._signalled = False
        """Whether a commit of the pending events is already scheduled."""
        self.blocks = EventBlocks(state, backlog)
        self._open = OpenEvent()
        """The last pending event, which follows the events in `blocks`."""
        self._unchecked = nothing_unchecked()
        """Number of logged changes of each text since its last check, by path."""
        self._texts: dict[str, bytes] = {}
        """Path of each text to which `append_text` may append → result of `text_head`."""

    # ---- appends and rows, from any thread ---------------------------------------------------------------------

    def allow_appends(self, path: str) -> None:
        """Permit `append_text` to append to the text at a path. The caller must hold the lock."""
        self._texts[path] = text_head(path)

    def forbid_appends(self, path: str) -> None:
        """Make `append_text` refuse the text at a path, for example because its item has ended."""
        if path in self._texts:
            with self.lock:
                self._texts.pop(path, None)

    def append_text(self, path: str, piece: str, *, is_open: bool = False) -> bool:
        """Append a piece to a text, if this is possible without further checks.

        This is the fast path for a single token: it needs one call where `append` needs ten.
        tests/unit/test_server_write_path.py counts the calls.

        Args:
            path: JSON Pointer of the text.
            piece: The piece.
            is_open: True if the caller knows that the item has not ended. Otherwise, `allow_appends` must have been called.

        Returns:
            False if the caller must use `append`, because appends to the text are not allowed, a limit is near, or the
            piece is not a string, is empty, or is not valid Unicode.
        """
        with self.lock:
            head = text_head(path) if is_open and self._wake is not None else self._texts.get(path)
            if head is None or not piece or type(piece) is not str or self.backlog.size > MAX_PENDING_BYTES:
                return False
            event, state = self._open, self.state
            op = event.appends.get(path)
            try:
                inner = orjson.dumps(piece)[1:-1]
                size = len(inner) + (0 if op is not None else len(head) + len(TEXT_END) + 1)
                used = event.size + size
                if size > state.room or used > self._event_bytes or len(event.ops) >= self._event_ops:
                    return False
                state.document.append(path, piece)
            except (TypeError, DiffError):
                return False
            if op is None:
                event.appends[path] = op = [head, inner, TEXT_END]
                event.ops.append(op)
                if not (event.has_row and path in event.texts):
                    changes = self._unchecked.changes
                    count = changes.get(path, CHECK_EVERY) + 1
                    if count < CHECK_EVERY:
                        changes[path] = count
                    else:
                        event.due += note_growth(self._unchecked, (path,))
            else:
                op.insert(-1, inner)
            event.size = used
            state.room -= size
            self.backlog.size += size
            if not self._merges:
                self.blocks.end(self._open)
            if not self._signalled and self._wake is not None:
                self._signalled = True
                self._wake()
            return True

    def append(self, additions: Sequence[Addition]) -> None:
        """Append to the texts or arrays at several paths in one event.

        Raises:
            DiffError: The value at a path is not a text (for a string) or an array (for elements).
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        with self.lock:
            self._check_not_ended()
            if additions := [added for added in additions if added.x]:
                self._append(additions)
                self._signal()

    def append_rows(self, rows: Iterable[EncodedRow]) -> None:
        """Append rows. A row has one string or element for each column of the job.

        Raises:
            DiffError: The number of members differs from the number of columns, or a member has the wrong type.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        with self.lock:
            self._check_not_ended()
            for row in rows:
                self._append_row(row)
            self._signal()

    def _append(self, additions: Sequence[Addition]) -> None:
        size = sum([len(added.head) + len(added.inner) + len(ARRAY_END) + 1 for added in additions])
        if size > self._event_bytes or len(additions) > self._event_ops:
            self._change([["a", path, x] for path, x, _ in additions])
            return
        self._make_room(size, len(additions))
        self.state.append([(path, x) for path, x, _ in additions], size)
        event = self._open
        grown = [path for path, x, _ in additions if type(x) is str and not event.counts(path)]
        for added in additions:
            event.append(added)
        self.backlog.size += size
        event.due += note_growth(self._unchecked, dict.fromkeys(grown))

    def _append_row(self, row: EncodedRow) -> None:
        op, encoded = row
        size = len(encoded) + 1
        if size > self._event_bytes and len(op) == len(self.columns) + 1:
            columns = zip(self.columns, self.state.column_kinds(), op[1:], strict=True)
            self._change([["a", path, x if is_text else [x]] for path, is_text, x in columns])
            return
        self._make_room(size, 1)
        self.state.append_row(op, size)
        event = self._open
        event.ops.append([encoded])
        event.size += size
        self.backlog.size += size
        if event.appends or not event.has_row:
            texts = compress(self.columns, self.state.column_kinds())
            event.due += note_growth(self._unchecked, event.add_row_of(texts))

    def _make_room(self, size: int, ops: int) -> None:
        """End the open event if `ops` more ops with a total of `size` bytes do not fit into it."""
        event = self._open
        if event.size + size > self._event_bytes or len(event.ops) + ops > self._event_ops:
            self.blocks.end(self._open)

    # ---- other changes, from any thread --------------------------------------------------------------------------

    def change(
        self,
        ops: Sequence[Op],
        *,
        check_below: str | None = None,
        reserved: bool = False,
        urgent: bool = True,
    ) -> None:
        """Write a change to the log as a separate event.

        Args:
            ops: The ops of the diff.
            check_below: If this path is set, the event also contains the pending checks of all texts at or below the
                path.
            reserved: Whether the change may use the reserved part of `max_state_bytes`.
            urgent: Whether to commit the change at once.

        Raises:
            DiffError: An op cannot be applied.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        with self.lock:
            self._check_not_ended()
            self._change(ops, check_below, reserved=reserved)
            self._signal(urgent=urgent)

    def _change(self, ops: Sequence[Op], check_below: str | None = None, *, reserved: bool = False) -> None:
        self.blocks.end(self._open)
        encoded = to_json(ops)
        if len(encoded) > self._event_bytes:
            self._write_snapshot(ops, len(encoded), check_below, reserved=reserved)
        elif len(ops) <= self._event_ops:
            self._write_diff(ops, encoded, check_below, reserved=reserved)
        else:
            for start in range(0, len(ops), self._event_ops):
                part, rest = ops[start : start + self._event_ops], ops[start + self._event_ops :]
                self._write_diff(part, to_json(part), None if rest else check_below, reserved=reserved)

    def _write_diff(
        self, ops: Sequence[Op], encoded: bytes, check_below: str | None, *, reserved: bool
    ) -> None:
        self.state.apply([*ops], len(encoded), reserved=reserved)
        checks = checks_of(note_change(self._unchecked, ops, self.state.document), self.state.document)
        if check_below is not None:
            below = self.pending_checks(check_below)
            if len(to_json(below)) <= _FRAMING // 2:
                checks += below
            else:
                self._add_checks(below)
        self.blocks.add(diff_fields(encoded[1:-1], checks))

    def _write_snapshot(
        self, ops: Sequence[Op], size: int, check_below: str | None, *, reserved: bool
    ) -> None:
        """Write a change as a snapshot of the state after it [TW-FRM-081]. A snapshot contains no checks. Checks that are due
        because an item ends are added to the event before it. Checks of the changed texts are added to the event after it.
        """
        if check_below is not None:
            self._add_checks(self.pending_checks(check_below))
        self.state.apply([*ops], size, reserved=reserved)
        document = self.state.document
        self.blocks.add(snapshot_fields(document.value(), self.columns, "compacted"))
        if checks := checks_of(note_change(self._unchecked, ops, document), document):
            self.blocks.add(diff_fields(b"", checks))

    def _add_checks(self, checks: list[JsonValue]) -> None:
        """Add events that contain only checks."""
        for part in split_checks(checks, self._event_bytes):
            self.blocks.add(diff_fields(b"", part))

    # ---- commits and the end ---------------------------------------------------------------------------------------

    def take(self, after: Cursor) -> Block | None:
        """Remove the oldest pending events, and return them as one block. The block follows the event `after`. Return None if
        there are no events.
        """
        with self.lock:
            blocks = self.blocks
            blocks.end(self._open)
            if blocks.full:
                events, mark = blocks.take_full()
                # Schedule a commit of the remaining events, because no later change may do so.
                self._signalled = self.urgent = True
                if self._wake is not None:
                    self._wake()
            else:
                self._signalled = self.urgent = False
                events = blocks.events
                if not events:
                    return None
                mark = self.state.document.mark()
                blocks.events = []
                blocks.size = self.backlog.size = 0
            if self.backlog.fell is not None:
                self.backlog.fell.notify_all()
        epoch, seq = after
        frames = []
        for fields in events:
            seq += 1
            frames.append(b"id:%d-%d\n%b\n\n" % (epoch, seq, fields))
        return Block(frames, StateAt(Cursor(epoch, seq), self.columns, mark))

    def pending_checks(self, below: str = "") -> list[JsonValue]:
        """Return the checks (length and CRC-32) that are due for the texts at or below a path, and count them as sent.

        The caller must hold the lock.
        """
        return checks_of(take_below(self._unchecked, below), self.state.document)

    @property
    def closed(self) -> bool:
        """Whether later changes are refused."""
        return self._wake is None

    def close(self) -> None:
        """Refuse later changes. The pending events can still be taken."""
        with self.lock:
            self._wake = None
            self._texts.clear()
            self.backlog.stop()

    def _check_not_ended(self) -> None:
        if self._wake is None:
            raise StreamClosedError("this job has ended, so nothing more can be written to its stream")

    def _signal(self, *, urgent: bool = False) -> None:
        if not self._merges:
            self.blocks.end(self._open)
        if self._wake is not None and not (self._signalled and (self.urgent or not urgent)):
            self._signalled = True
            self.urgent = self.urgent or urgent
            self._wake()
