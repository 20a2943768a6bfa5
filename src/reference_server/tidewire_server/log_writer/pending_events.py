"""Pending events of a job: the changes of its state that wait for a commit, each already applied and encoded.

A change is applied to the document and encoded as JSON at once, from any thread. It then stands in the list of pending
events:

  change                | where it stands
  ----------------------+------------------------------------------------------------------------------------------
  append to a text      | in the last event if this event consists of appends and rows, with one op for each path;
  or an array           | otherwise, or if the event is full, in a new event
  row                   | likewise, with an op of its own
  any other change      | in an event of its own; in several events if it exceeds the limits of an event
  end of an item        | in an event of its own; as a snapshot if it exceeds the limits of an event

If `merge_window` is 0, each call makes an event of its own. A commit takes the whole list.

An event contains the text checks that are due (see `text_check_schedule`). They describe the texts after the event, so they
are computed when the event can no longer grow.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from pydantic import JsonValue

from tidewire.protocol import strict_json
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.diff import DiffError, Op
from tidewire.protocol.document import Document
from tidewire_server.errors import StateTooLargeError, StreamClosedError
from tidewire_server.log_writer.backlog import MAX_PENDING_BYTES, Backlog
from tidewire_server.log_writer.op_splitting import split_in_document
from tidewire_server.log_writer.size_limits import SizeLimits
from tidewire_server.log_writer.snapshot_events import snapshot_fields
from tidewire_server.log_writer.text_check_schedule import (
    CHECK_EVERY,
    is_text,
    note_change,
    note_growth,
    nothing_unchecked,
    take_below,
)
from tidewire_server.store.interfaces import Block, StateAt

_TEXT_END: Final = b'"]'
_ARRAY_END: Final = b"]]"
"""Last bytes of an op that appends to a text or to an array."""

Addition = tuple[str, str | list[Any], bytes]
"""An append: a path, the string or the elements to append there, and their JSON without quotation marks or brackets."""


@dataclass(slots=True)
class PendingEvent:
    """An event that waits for a commit."""

    ops: list[list[bytes]] = field(default_factory=list)
    """The ops as JSON, each in pieces. An append is extended by another piece before its last one."""
    appends: dict[str, list[bytes]] = field(default_factory=dict)
    """The ops that later appends extend, by path. An op before a row is not extended, because that would change the order of
    the elements."""
    texts: set[str] = field(default_factory=set)
    """Paths of the texts that grow in this event, each of which was counted for the schedule of text checks."""
    checks: list[JsonValue] = field(default_factory=list)
    size: int = 0
    """Size of the ops with their separators, in bytes."""
    snapshot: bytes = b""
    """The fields of a snapshot, which replaces the ops; empty if the event is a diff."""


class PendingEvents:
    """Accepts the changes of a job, and keeps them as encoded events until a commit takes them.

    Attributes:
        lock: Lock of all methods. Hold it to make several changes, or a read and a change, atomic.
        columns: Paths of the columns, which are texts and arrays in the state. A row appends to all of them.
        backlog: Size of the pending events.
        urgent: Whether the pending events must be committed at once, even if the time in which changes are merged has not
            passed.
    """

    __slots__ = (
        "_document",
        "_due",
        "_events",
        "_limits",
        "_merges",
        "_open",
        "_row_texts",
        "_signalled",
        "_texts",
        "_unchecked",
        "_wake",
        "backlog",
        "columns",
        "lock",
        "urgent",
    )

    def __init__(
        self,
        document: Document,
        limits: SizeLimits,
        backlog: Backlog,
        lock: threading.RLock,
        *,
        merges: bool,
        wake: Callable[[], None],
    ) -> None:
        """Create an empty list.

        Args:
            document: The state after the events that are already in the log. Each change is applied to it.
            limits: The job's size limits.
            backlog: Counts the pending bytes.
            lock: The lock that the backlog uses, too.
            merges: Whether appends and rows extend the last event.
            wake: Function that schedules a commit. It is called once for each list of pending events, and again for the
                first urgent change.
        """
        self.lock = lock
        self.columns = document.columns
        self.backlog = backlog
        self.urgent: bool = False
        self._document = document
        self._limits = limits
        self._merges = merges
        self._wake: Callable[[], None] | None = wake
        """None after `close`."""
        self._signalled = False
        """Whether a commit of the pending events is already scheduled."""
        self._events: list[PendingEvent] = []
        self._open: PendingEvent | None = None
        """The last event, if appends and rows can extend it."""
        self._due: list[str] = []
        """Texts whose checks the open event must contain."""
        self._unchecked = nothing_unchecked()
        """Number of logged changes of each text since its last check, by path."""
        self._texts: dict[str, bytes] = {}
        """Texts to which `append_text` may append, with the beginning of the op as JSON."""
        self._row_texts: list[str] | None = None
        """Columns that are texts. None if they must be looked up again."""

    # ---- reading, from any thread ------------------------------------------------------------------------------

    @property
    def document(self) -> Document:
        """The job's state, including the changes that are not committed yet. The caller must hold the lock."""
        return self._document

    @property
    def state_bytes(self) -> int:
        """Upper bound of the size of a snapshot, in bytes."""
        return self._limits.state_bytes

    def value(self, pointer: str) -> JsonValue:
        """Return a copy of the value at a path, including the changes that are not committed yet.

        Raises:
            LookupError: The path does not exist.
        """
        with self.lock:
            return self._document.value(pointer)

    def is_text(self, pointer: str) -> bool:
        """Whether the value at a path is a string."""
        with self.lock:
            return is_text(self._document, pointer)

    def text_length(self, pointer: str) -> int:
        """Return the length of the text at a path, in code points.

        Raises:
            LookupError: The path does not exist, or its value is not a string.
        """
        with self.lock:
            return self._document.text_length(pointer)

    # ---- appends and rows, from any thread ---------------------------------------------------------------------

    def allow_appends(self, path: str) -> None:
        """Let `append_text` append to the text at a path."""
        self._texts[path] = b'["a",%b,"' % orjson.dumps(path)

    def forbid_appends(self, path: str) -> None:
        """Let `append_text` refuse the text at a path, because its item has ended or cannot be written. The caller must
        hold the lock.
        """
        self._texts.pop(path, None)

    def append_text(self, path: str, piece: str) -> bool:
        """Append a piece to a text, if it is certain that the piece fits.

        This method does in one call what `append` does in ten, because a token of a stream that is not merged takes this
        way alone (tests/unit/test_server_write_path.py counts the calls).

        Returns:
            False if the caller must use `append`, because appends to the text are not allowed, a limit is near, or the
            piece is not a string, is empty, or is not valid Unicode.
        """
        with self.lock:
            head = self._texts.get(path)
            if head is None or not piece or type(piece) is not str or self.backlog.size > MAX_PENDING_BYTES:
                return False
            event = self._open
            op = None if event is None else event.appends.get(path)
            limits = self._limits
            try:
                inner = orjson.dumps(piece)[1:-1]
                size = len(inner) + (0 if op is not None else len(head) + len(_TEXT_END) + 1)
                used, count = (0, 0) if event is None else (event.size, len(event.ops))
                if size > limits.room or used + size > limits.event_bytes or count >= limits.event_ops:
                    return False
                self._document.append(path, piece)
            except (TypeError, DiffError):
                return False
            if event is None:
                self._open = event = PendingEvent()
                self._events.append(event)
            if op is None:
                event.appends[path] = op = [head, _TEXT_END]
                event.ops.append(op)
            op.insert(-1, inner)
            event.size += size
            limits.room -= size
            self.backlog.size += size
            if path not in event.texts:
                event.texts.add(path)
                changes = self._unchecked.changes.get(path, CHECK_EVERY) + 1
                if changes < CHECK_EVERY:
                    self._unchecked.changes[path] = changes
                else:
                    self._due += note_growth(self._unchecked, (path,))
            if not self._merges:
                self._end_event()
            if not self._signalled and self._wake is not None:
                self._signalled = True
                self._wake()
            return True

    def append(self, additions: Sequence[tuple[str, str | list[Any]]]) -> None:
        """Append to the texts or arrays at several paths in one event.

        Args:
            additions: Pairs that consist of a path, and of the string or the elements to append at this path.

        Raises:
            DiffError: The value at a path is not a text (for a string) or an array (for elements).
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        self._write_appends([(path, x, to_json(x)[1:-1]) for path, x in additions if x])

    def append_encoded(self, additions: Sequence[tuple[str, str | Sequence[bytes]]]) -> None:
        """Append to the texts or arrays at several paths in one event, like `append`. Elements of arrays are JSON texts, as
        in `append_encoded_rows`.

        Raises:
            DiffError: The value at a path is not a text (for a string) or an array (for elements).
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        prepared: list[Addition] = []
        for path, x in additions:
            if type(x) is str and x:
                prepared.append((path, x, to_json(x)[1:-1]))
            elif x:
                inner = b",".join(x)  # type: ignore[arg-type]
                prepared.append((path, orjson.loads(b"[%b]" % inner), inner))
        self._write_appends(prepared)

    def row(self, members: Sequence[Any]) -> None:
        """Append a row: one string or element for each column of the job.

        Raises:
            DiffError: The number of members differs from the number of columns, or a member has the wrong type.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        with self.lock:
            self._check_not_ended()
            op = ["r", *members]
            self._row(op, to_json(op))
            self._signal()

    def append_encoded_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows whose elements are already JSON, which is written to the log as it is.

        Args:
            rows: For each row, a string for the first column, which is a text, and the JSON of one element for each other
                column, which is an array.

        Raises:
            DiffError: The number of members differs from the number of columns, or a column has the wrong type.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        with self.lock:
            self._check_not_ended()
            for row in rows:
                encoded = b'["r",%b]' % b",".join([to_json(row[0]), *row[1:]])
                self._row(orjson.loads(encoded), encoded)
            self._signal()

    def _write_appends(self, additions: list[Addition]) -> None:
        with self.lock:
            self._check_not_ended()
            if additions:
                self._append(additions)
                self._signal()

    def _append(self, additions: list[Addition]) -> None:
        heads = [b'["a",%b,%b' % (to_json(path), b'"' if type(x) is str else b"[") for path, x, _ in additions]
        size = sum([len(head) + len(inner) + 3 for head, (_, _, inner) in zip(heads, additions, strict=True)])
        if size > self._limits.event_bytes:
            for path, x, _ in additions:
                self._change_in_parts([["a", path, x]], None, reserved=False)
            return
        self._make_room(size, len(additions))
        self._apply([["a", path, x] for path, x, _ in additions], size)
        event = self._open_event()
        for head, (path, x, inner) in zip(heads, additions, strict=True):
            op = event.appends.get(path)
            if op is None:
                event.appends[path] = op = [head, inner, _TEXT_END if type(x) is str else _ARRAY_END]
                event.ops.append(op)
                event.size += len(head) + len(inner) + 3
            else:
                piece = inner if type(x) is str else b",%b" % inner
                op.insert(-1, piece)
                event.size += len(piece)
        self._note_growth(event, [path for path, x, _ in additions if type(x) is str])

    def _row(self, op: list[Any], encoded: bytes) -> None:
        size = len(encoded) + 1
        if size > self._limits.event_bytes and len(op) == len(self.columns) + 1:
            for path, x in zip(self.columns, op[1:], strict=True):
                addition = x if type(x) is str and is_text(self._document, path) else [x]
                if addition:
                    self._append([(path, addition, to_json(addition)[1:-1])])
            return
        self._make_room(size, 1)
        self._apply([op], size)
        event = self._open_event()
        event.ops.append([encoded])
        event.appends.clear()
        event.size += size
        if self._row_texts is None:
            self._row_texts = [path for path in self.columns if is_text(self._document, path)]
        self._note_growth(event, self._row_texts)

    def _make_room(self, size: int, ops: int) -> None:
        """End the open event if it cannot contain more ops of this size."""
        event, limits = self._open, self._limits
        if event is not None and (
            event.size + size > limits.event_bytes or len(event.ops) + ops > limits.event_ops
        ):
            self._end_event()

    def _open_event(self) -> PendingEvent:
        """Return the open event. If there is none, create one."""
        if self._open is None:
            self._open = PendingEvent()
            self._events.append(self._open)
        return self._open

    def _note_growth(self, event: PendingEvent, texts: Iterable[str]) -> None:
        grown = [path for path in texts if path not in event.texts]
        event.texts.update(grown)
        self._due += note_growth(self._unchecked, grown)

    def _end_event(self) -> None:
        """Let nothing extend the last event, and compute its checks."""
        if self._open is not None and self._due:
            self._open.checks, self._due = self._checks(self._due), []
        self._open = None

    # ---- other changes, from any thread --------------------------------------------------------------------------

    def change(
        self, ops: Sequence[Op], *, check_below: str | None = None, ends: bool = False, urgent: bool = True
    ) -> None:
        """Write a change to the log as a separate event.

        Args:
            ops: The ops of the diff.
            check_below: If this path is set, the event also contains the pending checks of all texts at or below the
                path.
            ends: Whether the change starts or ends an item. Such a change may use the reserved part of
                `max_state_bytes`. If it is too large for a diff, it is written as a snapshot.
            urgent: Whether to commit the change at once.

        Raises:
            DiffError: An op cannot be applied.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        with self.lock:
            self._check_not_ended()
            self._change(ops, check_below, reserved=ends, whole=ends)
            self._signal(urgent=urgent)

    def end_with_value(self, index: int, status: str, value: JsonValue, *, urgent: bool = True) -> None:
        """Write the final value and status of an item to the log as one event: a diff or, if it is too large for a diff, a
        snapshot.

        Args:
            index: Index of the item.
            status: The item's final status.
            value: The item's value.
            urgent: Whether to commit the change at once.

        Raises:
            DiffError: The value is not JSON.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        pointer = f"/items/{index}"
        with self.lock:
            self._check_not_ended()
            ops: list[Op] = [["s", f"{pointer}/value", value], ["s", f"{pointer}/status", status]]
            self._change(ops, None, reserved=False, whole=True)
            self._signal(urgent=urgent)

    def _change(self, ops: Sequence[Op], check_below: str | None, *, reserved: bool, whole: bool) -> None:
        self._end_event()
        encoded = to_json(ops)
        if len(encoded) <= self._limits.event_bytes and len(ops) <= self._limits.event_ops:
            self._write_diff(ops, encoded, check_below, reserved=reserved)
        elif whole:
            self._write_snapshot(ops, len(encoded), check_below, reserved=reserved)
        else:
            self._change_in_parts(ops, check_below, reserved=reserved)

    def _write_diff(
        self, ops: Sequence[Op], encoded: bytes, check_below: str | None, *, reserved: bool
    ) -> None:
        self._apply(list(ops), len(encoded), reserved=reserved)
        self._row_texts = None
        checks = self._checks(note_change(self._unchecked, ops, self._document))
        if check_below is not None:
            checks += self.pending_checks(check_below)
        self._events.append(PendingEvent([[encoded[1:-1]]], checks=checks))

    def _write_snapshot(
        self, ops: Sequence[Op], size: int, check_below: str | None, *, reserved: bool
    ) -> None:
        """Write a change as a snapshot of the state after it [TW-FRM-081]. A snapshot has no checks, so the event before it
        contains them.
        """
        if check_below is not None and (checks := self.pending_checks(check_below)):
            self._events.append(PendingEvent(checks=checks))
        self._apply(list(ops), size, reserved=reserved)
        self._row_texts = None
        note_change(self._unchecked, ops, self._document)
        fields = snapshot_fields(self._document.value(), self.columns, "compacted")
        self._events.append(PendingEvent(snapshot=fields))
        self.backlog.size += len(fields) - size

    def _change_in_parts(self, ops: Sequence[Op], check_below: str | None, *, reserved: bool) -> None:
        """Write a change as several diffs. The last one contains the checks."""
        self._end_event()
        limits = self._limits
        part: list[Op] = []
        size = 0
        for whole_op in ops:
            op, op_size = whole_op, len(to_json(whole_op)) + 1
            if part and (size + op_size > limits.event_bytes or len(part) == limits.event_ops):
                self._write_diff(part, to_json(part), None, reserved=reserved)
                part, size = [], 0
            if op_size > limits.event_bytes:
                *smaller_ops, op = split_in_document(whole_op, limits.event_bytes, self._document)
                for smaller in smaller_ops:
                    self._write_diff([smaller], to_json([smaller]), None, reserved=reserved)
                op_size = len(to_json(op)) + 1
            part.append(op)
            size += op_size
        self._write_diff(part, to_json(part), check_below, reserved=reserved)

    def _apply(self, diff: list[Any], size: int, *, reserved: bool = False) -> None:
        """Apply a diff to the document, or raise an error if the state would exceed its limit."""
        if self._limits.admits(size, reserved=reserved):
            self._document.apply(diff)
            self._limits.room -= size
        else:
            before = self._document.view()
            self._document.apply(diff)
            if not self._limits.measure(self._document, reserved=reserved):
                self._document = Document(before.value(), self.columns)
                raise StateTooLargeError(self._limits.max_state_bytes)
        self.backlog.size += size

    # ---- commits and the end ---------------------------------------------------------------------------------------

    def take(self, after: Cursor) -> Block | None:
        """Remove the pending events, and return them as a block that follows the event `after`. Return None if there are no
        events.
        """
        with self.lock:
            self._signalled = self.urgent = False
            if self._due:
                self._end_event()
            events, self._events, self._open = self._events, [], None
            if not events:
                return None
            view = self._document.view()
            self.backlog.size = 0
            if self.backlog.fell is not None:
                self.backlog.fell.notify_all()
        epoch, seq = after
        frames = []
        for event in events:
            seq += 1
            ops = event.ops
            joined = b",".join(map(b"".join, ops))
            if len(ops) == len(self.columns) == 1 and event.texts and self.columns[0] in event.appends:
                # A diff that is a string appends to the only column, which is a text.
                text = b'"%b"' % b"".join(ops[0][1:-1])
                data, joined = text, b'["r",%b]' % text
            else:
                data = b"[%b]" % joined
            if event.checks:
                data = b'{"ops":[%b],"check":%b}' % (joined, orjson.dumps(event.checks))
            fields = event.snapshot or b"data:%b" % data
            frames.append(b"id:%d-%d\n%b\n\n" % (epoch, seq, fields))
        return Block(frames, StateAt(Cursor(epoch, seq), self.columns, view))

    def pending_checks(self, below: str = "") -> list[JsonValue]:
        """Return the lengths and CRC-32s that are due for the texts at or below a path, and mark them as sent.

        The caller must hold the lock.
        """
        return self._checks(take_below(self._unchecked, below))

    def close(self) -> None:
        """Refuse later changes. The pending events can still be taken."""
        with self.lock:
            self._wake = None
            self._texts.clear()
            self.backlog.stop()

    def _checks(self, paths: Iterable[str]) -> list[JsonValue]:
        document = self._document
        return [[path, document.text_length(path), document.text_crc(path)] for path in paths]

    def _check_not_ended(self) -> None:
        if self._wake is None:
            raise StreamClosedError("this job has ended, so nothing more can be written to its stream")

    def _signal(self, *, urgent: bool = False) -> None:
        if not self._merges:
            self._end_event()
        if self._wake is not None and not (self._signalled and (self.urgent or not urgent)):
            self._signalled = True
            self.urgent = self.urgent or urgent
            self._wake()


def to_json(value: Any) -> bytes:
    """Encode a value as compact JSON.

    orjson would encode NaN as null. This does not matter here, because the document rejects NaN before the JSON is
    written.
    """
    try:
        return orjson.dumps(value)
    except TypeError as error:
        strict_json.check(value)
        raise DiffError(str(error)) from None
