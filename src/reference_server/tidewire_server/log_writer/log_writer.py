"""The log writer of a job: takes changes from any thread, and writes blocks of events to the log.

    function ──► append_text, append, row, change ──► open event ──► commit ──► Log ──► readers
                 (any thread, under `lock`)                          (event loop)

Events are committed before they are sent: readers read only the log. The first append after a pause is committed at
once, and later ones at most once in each `merge_window`. Any other change is committed at once, together with everything
before it.

The writer owns the *open event*, which collects appends or rows until they are committed as one event. Its states:

  state    | the event contains   | append                   | row                      | any other change
  ---------+----------------------+--------------------------+--------------------------+---------------------------
  NONE     | nothing              | begin APPENDS            | begin ROWS               | log as a separate event
  APPENDS  | pieces of texts,     | add; if it is full,      | close, begin ROWS        | close, then log as a
           | elements of arrays   | close and begin APPENDS  |                          | separate event
  ROWS     | rows                 | close, begin APPENDS     | add; if it is full,      | close, then log as a
           |                      |                          | close and begin ROWS     | separate event

  A commit, reading the value, and the end of an item or of the job close the event. After a commit or a read, a new
  APPENDS event opens at once for the texts that grew, since the next append most often continues one of them. Without
  merging (`merge_window` is 0) the state is always NONE, and each append or row is a separate event.

Closing an event applies its pieces and rows to the document (array elements are applied as they arrive), encodes the
event as JSON, and adds the checks that are due in it (see `text_check_schedule`).

The open event has a *budget*: the number of bytes, at most `MAX_BUDGET`, by which it can grow before any limit (event
size, state size) could be reached. Within the budget, an addition needs only the checks that concern the addition
itself. An addition larger than the budget of a new event is logged as a separate event, split if necessary, and there
every limit is enforced exactly.
"""

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Final

import orjson
from pydantic import JsonValue

from tidewire.protocol import messages
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.diff import Op
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import digest
from tidewire.protocol.document.json_values import MAX_STATE_DEPTH, admit_all
from tidewire.protocol.document.json_values import is_text as is_unicode
from tidewire.protocol.messages import Done, SnapshotReason
from tidewire.protocol.sse import encode
from tidewire_server.errors import StateTooLargeError, StreamClosedError
from tidewire_server.log_writer.commit_schedule import GroupCommit
from tidewire_server.log_writer.event_encoding import append_op, shape, to_json
from tidewire_server.log_writer.op_splitting import MAX_ESCAPED_BYTES, split_in_document, split_text
from tidewire_server.log_writer.text_check_schedule import (
    is_array,
    is_text,
    note_change,
    note_growth,
    take_below,
)
from tidewire_server.settings import Settings
from tidewire_server.store.interfaces import Block, HeadMovedError, Log, StateAt, StoreError

_log = logging.getLogger(__name__)

_DIGEST_IN_THREAD: Final = 256 * 1024
"""Bytes of state above which the digest is computed in a thread, so that it does not block the event loop."""

_EPOCH_STEPS: Final = 10_000

_RETRY: Final = 1.0
"""Seconds between two attempts to write to a log that fails."""

_new: Final = tuple.__new__

_MAX_PENDING_BYTES: Final = 4 * 1024 * 1024
"""Bytes of uncommitted changes above which a worker thread must wait before it writes more."""

MAX_BUDGET: Final = 1024 * 1024
"""Bytes by which an open event can grow; `max_event_bytes` if that is less. Each code point of a text counts as
`MAX_ESCAPED_BYTES`. A smaller budget costs speed: a token took 0.52 µs of CPU end to end with 64 KiB, and 0.48 µs with 1 MiB
(bench/compare.py)."""

_FRAMING: Final = 512
"""Bytes of an event that are reserved for its checks and its framing."""

_AROUND_OP: Final = 16
"""Bytes of an append op in addition to its path and its value."""

_AROUND_STATE: Final = 48
"""Bytes of a snapshot's data in addition to its state and its columns."""


class OpenEvent(Enum):
    """States of the open event; see the table at the top of this module."""

    NONE = "none"
    APPENDS = "appends"
    ROWS = "rows"


_NONE, _APPENDS, _ROWS = OpenEvent.NONE, OpenEvent.APPENDS, OpenEvent.ROWS


def first_block(state: JsonValue, columns: Sequence[str]) -> tuple[Block, Document, int]:
    """Make the first block of a log: a snapshot with id 1-1.

    Returns:
        The block, the document to which the job's changes will be applied, and the size of the snapshot in bytes.

    Raises:
        DiffError: The state is not JSON that the protocol allows, or a column is not a JSON Pointer.
    """
    document = Document(state, columns)
    cursor = Cursor(1, 1)
    frame = snapshot_frame(cursor, state, columns, "start")
    return Block([frame], StateAt(cursor, document.columns, document.view())), document, len(frame)


def epoch_block(
    head: Cursor, state: JsonValue, columns: Sequence[str], reason: SnapshotReason
) -> tuple[Block, Document, int]:
    """Make the first block of a new epoch: a snapshot whose id follows `head` (TW-RES-033).

    Returns:
        See `first_block`.

    Raises:
        DiffError: The state is not JSON that the protocol allows, or a column is not a JSON Pointer.
    """
    document = Document(state, columns)
    # If the log of an earlier attempt was lost, readers may know its epoch, and would take the ids of this attempt for
    # ids of that one. A random increment makes it unlikely that both have the same epoch.
    cursor = Cursor(head.epoch + 1 + secrets.randbelow(_EPOCH_STEPS), head.seq + 1)
    frame = snapshot_frame(cursor, state, columns, reason)
    return Block([frame], StateAt(cursor, document.columns, document.view())), document, len(frame)


def snapshot_frame(cursor: Cursor, state: JsonValue, columns: Sequence[str], reason: SnapshotReason) -> bytes:
    """Encode a snapshot. The state must come from a document, which has validated it."""
    data = orjson.dumps({"state": state, "columns": list(columns), "reason": reason}).decode()
    return encode(data, id=str(cursor), event="snapshot")


class LogWriter:
    """The only writer of a job's log; see the table at the top of this module."""

    __slots__ = (
        "_append_at_once",
        "_arrays",
        "_backlog_fell",
        "_budget",
        "_closed",
        "_column_depth",
        "_column_is_text",
        "_columns",
        "_commits",
        "_committing",
        "_document",
        "_ended",
        "_envelope",
        "_head",
        "_lock",
        "_log",
        "_loop",
        "_max_budget",
        "_max_event_bytes",
        "_max_state_bytes",
        "_max_unreserved_bytes",
        "_merge",
        "_row_members",
        "_row_ops",
        "_signalled",
        "_sole",
        "_state",
        "_state_bytes",
        "_stopping",
        "_task",
        "_texts",
        "_thread",
        "_unchecked",
        "backlog",
        "committed_at",
        "urgent",
        "waits_until",
    )

    def __init__(
        self,
        log: Log,
        document: Document,
        settings: Settings,
        *,
        state_bytes: int,
        reserve: int,
        commits: GroupCommit,
    ) -> None:
        """Continue a log after its first block.

        Args:
            log: The log to write to.
            document: The state after the first block. The writer applies each change to it.
            settings: The limits.
            state_bytes: Size of a snapshot of the state.
            reserve: Bytes of `max_state_bytes` that only changes which end an item may use.
            commits: Decides when each job of this event loop commits.
        """
        self._lock = threading.RLock()
        self._thread = threading.get_ident()
        self._ended = False

        self._document = document
        """The state, without the texts and rows of the open event."""
        self._columns = document.columns
        self._sole = self._columns[0] if len(self._columns) == 1 else None
        """The column that a diff which is only a string grows; None if there is not exactly one column."""
        self._column_depth = MAX_STATE_DEPTH - 1 - max((path.count("/") for path in self._columns), default=0)
        self._column_is_text: tuple[bool, ...] | None = None
        """For each column, whether it is a text. None until the first row after any other change, and if a column cannot
        grow."""
        self._envelope = len(to_json(self._columns)) + _AROUND_STATE

        self._merge = settings.merge_window > 0
        self._max_event_bytes = settings.max_event_bytes - _FRAMING
        self._max_state_bytes = settings.max_state_bytes
        self._max_unreserved_bytes = settings.max_state_bytes - reserve
        """Limit of the state for all changes except those that end an item."""
        self._max_budget = min(MAX_BUDGET, self._max_event_bytes)
        self._state_bytes = state_bytes
        """Upper bound of the size of `_document` as JSON."""

        self._state = _NONE
        self._budget = 0
        self._texts: dict[str, list[str]] = {}
        """Of an APPENDS event: the pieces of each text."""
        self._arrays: dict[str, list[bytes]] = {}
        """Of an APPENDS event: the elements of each array, encoded without the brackets around them."""
        self._row_members: list[list[Any]] = []
        """Of a ROWS event: the members of each row."""
        self._row_ops: list[bytes] = []
        """Of a ROWS event: each row as the JSON of its op."""
        self._closed: list[bytes] = []
        """Closed events that wait for a commit, each as the JSON of its diff."""
        self._unchecked: dict[str, int] = {}
        """Logged changes of each text since its last check; see `text_check_schedule`."""
        self.backlog = 0
        """Bytes of closed events that wait for a commit."""

        self._log = log
        self._head = log.extent().head
        self._append_at_once = getattr(log, "append_at_once", None)
        self._loop = asyncio.get_running_loop()
        self._commits = commits
        self.urgent = False
        self.committed_at = float("-inf")
        self.waits_until: float | None = None
        """`Writer` documents `urgent`, `committed_at` and `waits_until`."""
        self._signalled = False
        """Whether a commit is scheduled that will include all pending changes."""
        self._task: asyncio.Task[None] | None = None
        self._committing = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._backlog_fell: threading.Condition | None = None
        """Notified when the backlog shrinks. Created when the first thread has to wait."""

    # ---- reading, from any thread ------------------------------------------------------------------------------

    @property
    def columns(self) -> tuple[str, ...]:
        """Paths of the columns, which rows and diffs that are only a string grow."""
        return self._columns

    @property
    def lock(self) -> threading.RLock:
        """Hold it to make several changes, or a read and a change, atomic."""
        return self._lock

    @property
    def document(self) -> Document:
        """The state with all changes. Call with the lock held."""
        texts = self._texts
        self._close()
        self._reopen(texts)
        return self._document

    def value(self, pointer: str) -> JsonValue:
        """Return a copy of the value at a path, with all changes.

        Raises:
            LookupError: The path does not exist.
        """
        with self._lock:
            return self.document.value(pointer)

    def is_text(self, pointer: str) -> bool:
        """Whether the value at a path is a string."""
        with self._lock:
            return is_text(self._document, pointer)

    def text_length(self, pointer: str) -> int:
        """Return the length of the text at a path, in code points.

        Raises:
            LookupError: The path does not exist, or its value is not a string.
        """
        with self._lock:
            return self.document.text_length(pointer)

    # ---- writing, from any thread ------------------------------------------------------------------------------

    def append_text(self, path: str | None, piece: str) -> bool:
        """Add a piece to a text of the open event.

        The fast path of `append`, for consecutive tokens. The bar is 0.5 µs for `Stream.append`, merging included:
        0.40 µs with this method, 2.5 µs if each piece takes `append`, 1.1 µs with this method if each piece is
        applied by itself (bench/finding.py: CPU time, Python 3.11, two cores under load).

        Returns:
            False if the piece must take `append`: its text is not in the open event, it exceeds the budget, or it is
            not a string, empty, or not valid Unicode.
        """
        with self._lock:
            try:
                pieces = self._texts[path]  # type: ignore[index]
            except KeyError:
                return False
            if type(piece) is not str:
                return False
            budget = self._budget - MAX_ESCAPED_BYTES * len(piece)
            if budget < 0 or not piece or not (piece.isascii() or is_unicode(piece)):
                return False
            self._budget = budget
            pieces.append(piece)
            if not self._signalled:
                self._signal()
            return True

    def append(self, additions: Sequence[tuple[str, str | list[Any]]]) -> None:
        """Append to several paths in one event.

        Raises:
            DiffError: The value at a path cannot grow by its addition.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        with self._lock:
            self._check_not_ended()
            additions = [(path, x) for path, x in additions if x]
            if additions:
                self._append(additions)
                self._signal()

    def append_row(self, members: Sequence[Any]) -> bool:
        """Add a row to an open event of rows. Call with the lock held.

        The bar is 1.6 µs for `Stream.row` with three columns: 1.3 µs with the rows of an event applied together,
        3.8 µs if each row is applied by itself (bench/finding.py, as in `append_text`).

        Returns:
            False if the row must take `row`: no event of rows is open, it exceeds the budget, it does not fit the
            columns, or it is not JSON.
        """
        kinds = self._column_is_text
        if self._state is not _ROWS or kinds is None or len(members) != len(kinds):
            return False
        try:
            row = admit_all(members, self._column_depth)
        except ValueError:
            return False
        for member, text in zip(row, kinds, strict=True):
            if text and type(member) is not str:
                return False
        op = orjson.dumps(["r", *row])
        if len(op) >= self._budget:
            return False
        self._budget -= len(op) + 1
        self._row_members.append(row)
        self._row_ops.append(op)
        if not self._signalled:
            self._signal()
        return True

    def row(self, members: Sequence[Any]) -> None:
        """Append one member to each column.

        Raises:
            DiffError: The row does not match the columns.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        with self._lock:
            self._check_not_ended()
            self._row(members)
            self._signal()

    def change(self, ops: Sequence[Op], *, check_below: str | None = None, ends: bool = False) -> None:
        """Log any change as a separate event.

        Args:
            ops: The diff.
            check_below: Add the checks that are not sent yet for texts at or below this path.
            ends: Whether the change ends an item, and may therefore use the reserve.

        Raises:
            DiffError: An op cannot be applied.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        with self._lock:
            self._check_not_ended()
            self._change(ops, check_below, ends=ends)
            self._signal(urgent=True)

    def close_event(self) -> None:
        """Close the open event, so that the next addition takes `append` or `row`. Call with the lock held."""
        self._close()

    def wait_for_room(self) -> None:
        """Block a worker thread while too many bytes are pending. Call with the lock held.

        The lock is released while the thread waits, so check conditions after this call, not before.
        """
        # Do not wait on the event loop: only the event loop can commit the pending changes.
        if self.backlog > _MAX_PENDING_BYTES and threading.get_ident() != self._thread:
            self._backlog_fell = self._backlog_fell or threading.Condition(self._lock)
            self._backlog_fell.wait_for(lambda: self._ended or self.backlog <= _MAX_PENDING_BYTES)

    def _wake_threads(self) -> None:
        if self._backlog_fell is not None:
            self._backlog_fell.notify_all()

    def _check_not_ended(self) -> None:
        if self._ended:
            raise StreamClosedError("this job has ended: nothing more can be written to its stream")

    def _signal(self, *, urgent: bool = False) -> None:
        if self._signalled and (self.urgent or not urgent):
            return
        self._signalled = True
        self.urgent = self.urgent or urgent
        if threading.get_ident() == self._thread:
            self._commits.soon(self)
        else:
            self._loop.call_soon_threadsafe(self._commits.soon, self)

    # ---- the open event ----------------------------------------------------------------------------------------

    def _open(self, state: OpenEvent, size: int) -> bool:
        """Make sure that the open event is in this state and can grow by `size` bytes; False if not even a new one can."""
        if self._state is not state or size > self._budget:
            self._close()
            budget = min(self._max_budget, self._max_unreserved_bytes - self._state_bytes)
            if not self._merge or size > budget:
                return False
            self._state, self._budget = state, budget
        return True

    def _append(self, additions: Sequence[tuple[str, str | list[Any]]]) -> None:
        encoded = [to_json(x) for _, x in additions]
        size = sum(map(len, encoded))
        if size > self._max_event_bytes // 2:
            self._append_in_parts(additions)
        elif not self._add(additions, encoded, size):
            self._close()
            texts = [path for path, x in additions if type(x) is str]
            if len(texts) == len(additions) == 1 and texts[0] == self._sole:
                self._apply(additions[0][1], size)
                self._log_text(encoded[0], texts)
            else:
                self._apply([["a", path, x] for path, x in additions], size)
                ops = [append_op(path, x) for (path, _), x in zip(additions, encoded, strict=True)]
                self._log_ops(ops, texts)
            self._grew(size)

    def _add(
        self, additions: Sequence[tuple[str, str | list[Any]]], encoded: Sequence[bytes], size: int
    ) -> bool:
        """Add to the open event; False if it cannot grow by that much, or a string is added to a value that is not a text."""
        size += sum(MAX_ESCAPED_BYTES * len(path) + _AROUND_OP for path, _ in additions)
        if not self._open(_APPENDS, size):
            return False
        for path, x in additions:
            if type(x) is str and path not in self._texts and not self.is_text(path):
                return False
        arrays: list[Any] = [["a", path, x] for path, x in additions if type(x) is not str]
        if arrays:
            self._document.apply(arrays)
        self._budget -= size
        for (path, x), part in zip(additions, encoded, strict=True):
            if type(x) is str:
                self._texts.setdefault(path, []).append(x)
            else:
                self._arrays.setdefault(path, []).append(part[1:-1])
                self._grew(len(part))
        return True

    def _row(self, members: Sequence[Any]) -> None:
        op: list[Any] = ["r", *members]
        encoded = to_json(op)
        if len(encoded) > self._max_event_bytes and len(members) == len(self._columns):
            for path, x in zip(self._columns, members, strict=True):
                if type(x) is not str or x:
                    self._append([(path, x if type(x) is str and self.is_text(path) else [x])])
            return
        if self._column_is_text is None and all(self._grows(path) for path in self._columns):
            self._column_is_text = tuple(map(self.is_text, self._columns))
        if self._open(_ROWS, len(encoded) + 1) and self.append_row(members):
            return
        self._close()
        self._apply([op], len(encoded))
        self._log_ops([encoded], filter(self.is_text, self._columns))
        self._grew(len(encoded))

    def _grows(self, path: str) -> bool:
        return is_text(self._document, path) or is_array(self._document, path)

    def _close(self) -> None:
        """Apply the open event to the document and encode it for the next commit. No event is open afterwards."""
        state, self._state, self._budget = self._state, _NONE, 0
        if state is _APPENDS:
            texts, self._texts = self._texts, {}
            if len(texts) == 1 and self._sole in texts and not self._arrays:
                if pieces := texts[self._sole]:
                    text = "".join(pieces)
                    encoded = orjson.dumps(text)
                    self._document.apply(text)
                    self._grew(len(encoded))
                    self._log_text(encoded, texts)
            else:
                self._close_appends(texts)
        elif state is _ROWS:
            rows, self._row_members = self._row_members, []
            ops, self._row_ops = self._row_ops, []
            if rows:
                self._document.grow(rows)
                self._grew(sum(map(len, ops)))
                self._log_ops(ops, filter(self.is_text, self._columns))

    def _close_appends(self, texts: dict[str, list[str]]) -> None:
        arrays, self._arrays = self._arrays, {}
        joined: list[Any] = [["a", path, "".join(pieces)] for path, pieces in texts.items() if pieces]
        if not arrays and not joined:
            return
        self._document.apply(joined)
        encoded = [append_op(path, orjson.dumps(text)) for _, path, text in joined]
        self._grew(sum(map(len, encoded)))
        # Arrays first: one of the texts may be inside an element that the same event adds.
        ops = [append_op(path, b"[%b]" % b",".join(parts)) for path, parts in arrays.items()]
        self._log_ops(ops + encoded, [path for _, path, _ in joined])

    def _reopen(self, texts: dict[str, list[str]]) -> None:
        """Open an APPENDS event for those texts of the last event that grew in it."""
        open_texts: dict[str, list[str]] = {}
        for path, pieces in texts.items():
            if pieces:
                open_texts[path] = []
        if open_texts and not self._ended:
            self._state, self._texts = _APPENDS, open_texts
            self._budget = min(self._max_budget, self._max_unreserved_bytes - self._state_bytes)

    def _log_text(self, encoded: bytes, grown: Iterable[str]) -> None:
        """Log the growth of the only column, which is a text. Without a check, the diff is only a string."""
        due = note_growth(self._unchecked, grown)
        self._closed.append(shape(b'[["r",%b]]' % encoded, self._checks(due)) if due else encoded)

    def _log_ops(self, ops: Sequence[bytes], grown: Iterable[str]) -> None:
        due = note_growth(self._unchecked, grown)
        self._closed.append(shape(b"[%b]" % b",".join(ops), self._checks(due)))

    def take(self) -> list[bytes]:
        """Remove and return the pending diffs, each as JSON. Call with the lock held."""
        texts = self._texts
        self._close()
        taken, self._closed, self.backlog = self._closed, [], 0
        self._reopen(texts)
        return taken

    # ---- changes as separate events ------------------------------------------------------------------------

    def _change(self, ops: Sequence[Op], check_below: str | None, *, ends: bool) -> None:
        self._close()
        encoded = to_json(ops)
        if len(encoded) > self._max_event_bytes:
            *others, last = ops
            for op in others:
                for part in split_in_document(op, self._max_event_bytes, self._document):
                    self._change_one([part], to_json([part]), None, ends=ends)
            *parts, final = split_in_document(last, self._max_event_bytes, self._document)
            for part in parts:
                self._change_one([part], to_json([part]), None, ends=ends)
            ops, encoded = [final], to_json([final])
        self._change_one(ops, encoded, check_below, ends=ends)

    def _change_one(self, ops: Sequence[Op], encoded: bytes, check_below: str | None, *, ends: bool) -> None:
        self._apply(list(ops), len(encoded), ends=ends)
        self._column_is_text = None
        checks = self._checks(note_change(self._unchecked, ops, self._document))
        if check_below is not None:
            checks += self.pending_checks(check_below)
        self._closed.append(shape(encoded, checks))
        self._grew(len(encoded))

    def _append_in_parts(self, additions: Iterable[tuple[str, str | list[Any]]]) -> None:
        for path, x in additions:
            if type(x) is str:
                for text in split_text(x, self._max_event_bytes // 2):
                    self._append([(path, text)])
            else:
                self._close()
                for op in split_in_document(["a", path, x], self._max_event_bytes, self._document):
                    self._change([op], None, ends=False)

    def _apply(self, diff: Any, size: int, *, ends: bool = False) -> None:
        """Apply a diff to the document, unless the state would exceed its limit. Call with no event open.

        The bytes of all diffs are an upper bound of the growth of the state. The state is measured only when this bound
        exceeds the limit.
        """
        limit = self._max_state_bytes if ends else self._max_unreserved_bytes
        if self._state_bytes + size <= limit:
            self._document.apply(diff)
            return
        before = self._document.view()
        self._document.apply(diff)
        measured = len(to_json(self._document.value())) + self._envelope
        if measured > limit:
            self._document = Document(before.value(), self._columns)
            raise StateTooLargeError(self._max_state_bytes)
        self._state_bytes = measured - size

    def _grew(self, size: int) -> None:
        self._state_bytes += size
        self.backlog += size

    def pending_checks(self, below: str = "") -> list[JsonValue]:
        """Return the checks not sent yet for texts at or below a path, and mark them as sent. Call with the lock held."""
        self._close()
        return self._checks(take_below(self._unchecked, below))

    def _checks(self, paths: Iterable[str]) -> list[JsonValue]:
        document = self._document
        return [[path, document.text_length(path), document.text_crc(path)] for path in paths]

    # ---- the event loop ----------------------------------------------------------------------------------------

    def commit_now(self, now: float) -> tuple[int, int]:
        """See `Writer.commit_now`. A log in memory is written at once, without a task."""
        self.waits_until = None
        if self._append_at_once is None or self._ended:
            if self._task is None or self._task.done():
                self._task = self._loop.create_task(self._commit_or_stop())
            return 0, 0
        block = self._block(now)
        if block is None:
            return 0, 0
        try:
            self._append_at_once(self._head, block)
        except HeadMovedError as error:
            self._stop_writing(error)
            return 0, 0
        frames, state, _ = block
        self._head = state.cursor
        return len(frames), len(frames[0]) if len(frames) == 1 else sum(map(len, frames))

    async def _commit_or_stop(self) -> None:
        try:
            await self.commit()
        except HeadMovedError as error:
            self._stop_writing(error)
            return
        if self._signalled:
            # Forget this task: while `_task` is set and running, `commit_now` starts no other, and the changes that
            # arrived during the write would never be committed.
            self._task = None
            self._commits.soon(self)

    def _stop_writing(self, error: HeadMovedError) -> None:
        """Stop after the log rejected a block: another process writes the log now, or the log was deleted."""
        with self._lock:
            self._ended = True
            self._close()
            self._wake_threads()
        _log.warning("the log of a job rejected its writer: %s", error)

    async def commit(self) -> None:
        """Write the pending changes to the log. When it returns they are as durable as the log makes them.

        Raises:
            HeadMovedError: The log was deleted, or another process writes it.
        """
        async with self._committing:
            block = self._block(self._loop.time())
            if block is not None:
                await self._append_block(block)
                self._head = block.state.cursor
                self._commits.logged(len(block.frames), sum(map(len, block.frames)))

    def _block(self, now: float) -> Block | None:
        """Make a block of events from the pending changes; None if there are none."""
        with self._lock:
            self._signalled = self.urgent = False
            diffs = self.take()
            if not diffs:
                return None
            view = self._document.view()
            if self._backlog_fell is not None:
                self._wake_threads()
        self.committed_at = now
        epoch, seq = self._head
        if len(diffs) == 1:
            frames = [b"id:%d-%d\ndata:%b\n\n" % (epoch, seq + 1, diffs[0])]
        else:
            frames = [b"id:%d-%d\ndata:%b\n\n" % (epoch, seq + n, diff) for n, diff in enumerate(diffs, 1)]
        # `tuple.__new__` skips the Python-level constructor of the named tuples.
        cursor = _new(Cursor, (epoch, seq + len(diffs)))
        return _new(Block, (frames, _new(StateAt, (cursor, self._columns, view)), False))

    async def _append_block(self, block: Block) -> None:
        """Write a block to the log; if the log fails, retry until it works or the server stops.

        Until then no reader sees the block, and threads that write to this job wait.

        Raises:
            HeadMovedError: The log was deleted, or another process writes it, or the server stops first.
        """
        reported = False
        while True:
            try:
                return await self._log.append(self._head, block)
            except StoreError as error:
                if not reported:
                    _log.error("%s; a job waits for the log, and retries every %g s", error, _RETRY)
                reported = True
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY):
                        await self._stopping.wait()
                if self._stopping.is_set():
                    raise HeadMovedError(f"the server is stopping, and {error}") from None

    def stop(self) -> None:
        """Reject later writes and commit nothing more, because the server stops before the job has ended."""
        with self._lock:
            self._ended = True
            self._close()
            self._wake_threads()
        self._stopping.set()
        self.waits_until = None

    async def end(self, make_done: Callable[[str, list[JsonValue]], Done]) -> tuple[Cursor, Done]:
        """Write the pending changes and `done` to the log, and reject later writes.

        Args:
            make_done: Called with the digest of the items and the remaining checks; returns the data of `done`.

        Raises:
            HeadMovedError: The log was deleted, or another process writes it.
        """
        with self._lock:
            self._ended = True
            self._close()
            self._wake_threads()
        large = self._state_bytes > _DIGEST_IN_THREAD
        if large:
            await self.commit()
        async with self._committing:
            self.waits_until = None
            last = self._block(self._loop.time())
            document = self.document
            items = document.value("/items")
            found = await asyncio.to_thread(digest, items) if large else digest(items)
            done = make_done(found, self.pending_checks())
            frames, head = ([], self._head) if last is None else (last.frames, last.state.cursor)
            cursor = Cursor(head.epoch, head.seq + 1)
            # One block with the pending changes: readers get both at once, and a store writes once.
            block = Block(
                [*frames, messages.done_frame(cursor, done)],
                StateAt(head, self._columns, document.view()),
                done=True,
            )
            await self._append_block(block)
            self._head = cursor
        self._commits.logged(len(block.frames), sum(map(len, block.frames)))
        return cursor, done
