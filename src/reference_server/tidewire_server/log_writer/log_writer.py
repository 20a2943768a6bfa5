"""The log writer of a job: accepts changes from any thread, and writes blocks of events to the job's log.

    function ──► append_text, append, row, change ──► open event ──► commit ──► Log ──► readers
                 (any thread, under `lock`)                          (event loop)

The server commits an event before it sends the event, because readers read only the log. The first append after a pause
is committed at once. Later appends are committed at most once in each `merge_window`, and so are the starts and the
results of items in a job with several items. Any other change is committed at once, together with all changes before it.

The writer has an *open event*, which collects appends or rows until they are committed as one event. This table shows
its states and the effect of each kind of change:

  state    | the event contains   | append                   | row                      | any other change
  ---------+----------------------+--------------------------+--------------------------+---------------------------
  NONE     | nothing              | begin APPENDS            | begin ROWS               | log as a separate event
  APPENDS  | pieces of texts,     | add; if it is full,      | close, begin ROWS        | close, then log as a
           | elements of arrays   | close and begin APPENDS  |                          | separate event
  ROWS     | rows                 | close, begin APPENDS     | add; if it is full,      | close, then log as a
           |                      |                          | close and begin ROWS     | separate event
  ENCODED  | rows whose elements  | close, begin APPENDS     | close, begin ROWS        | close, then log as a
           | are JSON texts       |                          |                          | separate event
  STARTED  | ops, already encoded | close, begin APPENDS     | close, begin ROWS        | log as a separate event, and
           |                      |                          |                          | apply the ops of both together

  A commit, reading the value, and the end of an item or of the job close the event. After a commit or a read, a new
  APPENDS event opens at once for the texts that grew, because the next append usually continues one of these texts. If
  `merge_window` is 0, appends are not merged. The state is then always NONE, and each append or row is a separate
  event.

  The start of an item leaves the state STARTED. Most short functions write only their result, and applying both changes
  together takes two thirds of the time.

  Encoded rows, which the text engine writes, are added to an ENCODED event. In any other state, the writer closes the
  open event and begins an ENCODED event.

When the writer closes an event, it applies the event's pieces of text and its rows to the document, encodes the event as
JSON, and adds the text checks that are due (see `text_check_schedule`). Elements of arrays were applied when they arrived.

The open event has a *budget*: the number of bytes, at most `MAX_BUDGET`, by which it can grow before a limit (event
size, state size) could be reached. Within the budget, the writer validates only the addition itself. An addition larger
than the budget of a new event is logged as a separate event, which is split if necessary. For such an event, the writer
enforces every limit exactly.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import compress
from typing import Any, Final

import orjson
from pydantic import JsonValue

from tidewire.protocol import messages
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.diff import DiffError, Op
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import digest
from tidewire.protocol.document.json_values import MAX_STATE_DEPTH, admit
from tidewire.protocol.document.json_values import is_text as is_unicode
from tidewire_server.errors import LogUnavailableError, StateTooLargeError, StreamClosedError
from tidewire_server.log_writer.append_retries import AppendRetries, append
from tidewire_server.log_writer.commit_schedule import GroupCommit
from tidewire_server.log_writer.event_encoding import append_op, shape, to_json
from tidewire_server.log_writer.op_splitting import MAX_ESCAPED_BYTES, split_in_document, split_text
from tidewire_server.log_writer.text_check_schedule import (
    is_array,
    is_text,
    note_change,
    note_growth,
    nothing_unchecked,
    take_below,
)
from tidewire_server.settings import Settings
from tidewire_server.store.interfaces import Block, HeadMovedError, Log, StateAt
from tidewire_server.store.records import JobRecord

_log = logging.getLogger(__name__)

_DIGEST_IN_THREAD: Final = 256 * 1024
"""Size of a state in bytes above which a worker thread computes the digest, because it would block the event loop for
too long.
"""

_new: Final = tuple.__new__

_MAX_PENDING_BYTES: Final = 4 * 1024 * 1024
"""Limit of a job's uncommitted changes, in bytes. Above the limit, a worker thread waits before it writes more. A function
on the event loop cannot wait, so its job fails if the store refuses writes."""

MAX_BUDGET: Final = 1024 * 1024
"""Maximum number of bytes by which an open event can grow. The setting `max_event_bytes` applies if it is smaller. Each
code point of a text counts as `MAX_ESCAPED_BYTES`. A smaller budget is slower: a token took 0.52 µs of CPU time end to
end with 64 KiB, and 0.48 µs with 1 MiB (bench/compare.py)."""

_MAX_JOINED_BYTES: Final = 64 * 1024
"""Maximum size of an event with several changes that have the option `joins`, in bytes. A client takes 20 µs of CPU time
less for each item of a batch whose end shares an event with others (bench/arrays.py)."""

_FRAMING: Final = 512
"""How many bytes of `max_event_bytes` are kept free for an event's list `check`, its field names and its line ends."""

_AROUND_OP: Final = 16
"""Upper bound of the size of an append op without its path and its value, in bytes."""

_AROUND_STATE: Final = 48
"""Upper bound of the size of a snapshot's data without its state and its columns, in bytes."""


class OpenEvent(Enum):
    """States of the event that collects changes before a commit. The table at the top of this module describes them."""

    NONE = "none"
    APPENDS = "appends"
    ROWS = "rows"
    ENCODED = "encoded"
    STARTED = "started"


_NONE, _APPENDS, _ROWS, _STARTED = OpenEvent.NONE, OpenEvent.APPENDS, OpenEvent.ROWS, OpenEvent.STARTED
_ENCODED = OpenEvent.ENCODED


def _parsed(elements: Iterable[bytes]) -> Any:
    return orjson.loads(b"[%b]" % b",".join(elements))


class LogWriter:
    """The only writer of a job's log. The docstring of this module describes how it works."""

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
        "_joinable",
        "_joined",
        "_joined_bytes",
        "_joined_ops",
        "_last_has_start",
        "_lock",
        "_log",
        "_loop",
        "_max_budget",
        "_max_event_bytes",
        "_max_event_ops",
        "_max_state_bytes",
        "_max_unreserved_bytes",
        "_merge",
        "_retries",
        "_row_members",
        "_row_ops",
        "_signalled",
        "_sole",
        "_state",
        "_state_bytes",
        "_task",
        "_text_columns",
        "_texts",
        "_thread",
        "_unapplied",
        "_unchecked",
        "_writes",
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
        """Create the writer of a log that already has its first block.

        Args:
            log: The log to write to.
            document: The state after the first block. The writer applies each change to it.
            settings: The server's settings, with the limits of events and states.
            state_bytes: Size of a snapshot of the state, in bytes.
            reserve: Number of bytes of `max_state_bytes` that are reserved for the changes that end an item.
            commits: Schedule of the commits of all jobs of this event loop.
        """
        self._lock = threading.RLock()
        self._thread = threading.get_ident()
        self._ended = False

        self._document = document
        """The job's state, except the texts and rows of the open event, which are applied when it is closed."""
        self._columns = document.columns
        self._sole = self._columns[0] if len(self._columns) == 1 else None
        """Path of the job's column if it has exactly one column, otherwise None. A diff that is only a string appends to
        this column."""
        self._column_depth = MAX_STATE_DEPTH - 1
        for path in self._columns:
            self._column_depth = min(self._column_depth, MAX_STATE_DEPTH - 1 - path.count("/"))
        self._column_is_text: tuple[bool, ...] | None = None
        """For each column, whether its value is a text. None if a column is neither a text nor an array, and from any
        change that is not a row until the next row."""
        self._text_columns: tuple[str, ...] = ()
        """Paths of the columns that are texts. Set together with `_column_is_text`."""
        self._envelope = len(to_json(self._columns)) + _AROUND_STATE

        self._merge = settings.merge_window > 0
        self._max_event_bytes = settings.max_event_bytes - _FRAMING
        self._max_event_ops = settings.max_event_ops
        self._max_state_bytes = settings.max_state_bytes
        self._max_unreserved_bytes = settings.max_state_bytes - reserve
        """Maximum size of the state after a change that does not end an item, in bytes."""
        self._max_budget = min(MAX_BUDGET, self._max_event_bytes)
        self._state_bytes = state_bytes
        """Upper bound of the size of `_document` as JSON, in bytes."""

        self._state = _NONE
        self._budget = 0
        self._texts: dict[str, list[str]] = {}
        """If the open event is an APPENDS event: the pieces appended to each text, by path."""
        self._arrays: dict[str, list[bytes]] = {}
        """If the open event is an APPENDS event: the JSON of the elements appended to each array, without the brackets of
        the array, by path."""
        self._row_members: list[Sequence[Any]] = []
        """If the open event is a ROWS or ENCODED event: its rows, each as a sequence with one value for each column."""
        self._row_ops: list[bytes] = []
        """If the open event is a ROWS or ENCODED event: its rows, each as JSON."""
        self._unapplied: list[Op] = []
        """If the state is STARTED: the ops that are not applied to the document yet."""
        self._closed: list[bytes] = []
        """Closed events that wait for a commit, each as the JSON of a diff."""
        self._joinable = 0
        """Number of closed events after the last change with the option `joins`, or 0. If it is still the number of closed
        events, the next such change joins the last event."""
        self._joined: list[bytes] = []
        """Ops that have joined the closed event with the number `_joinable`, as JSON without brackets. They are appended to
        the event at once, because appending them one by one would copy the event for each change."""
        self._joined_bytes = 0
        """Size of this event with the ops that have joined it, in bytes."""
        self._joined_ops = 0
        """Number of ops of this event with those that have joined it."""
        self._last_has_start = False
        """Whether the last closed event contains the start of an item. The result of an item does not join this event,
        because a reader would not see that the item was running [TW-OVR-018]."""
        self._unchecked = nothing_unchecked()
        """Number of logged changes of each text since its last check, by path; see `text_check_schedule`."""
        self.backlog = 0
        """Total size of the closed events that wait for a commit, in bytes."""

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
        """Whether a commit of the pending changes is already scheduled."""
        self._task: asyncio.Task[None] | None = None
        self._committing = asyncio.Lock()
        self._retries = AppendRetries()
        self._writes: set[asyncio.Future[None]] = set()
        """Tasks of `commit_shielded`."""
        self._backlog_fell: threading.Condition | None = None
        """Condition on which worker threads wait until the backlog shrinks. The first thread that waits creates it."""

    # ---- reading, from any thread ------------------------------------------------------------------------------

    @property
    def columns(self) -> tuple[str, ...]:
        """Paths of the columns, which are texts and arrays in the state.

        A diff can append to all columns with one row.
        """
        return self._columns

    @property
    def lock(self) -> threading.RLock:
        """The lock of this writer. Hold it to make several changes, or a read and a change, atomic."""
        return self._lock

    @property
    def document(self) -> Document:
        """The job's state, including the changes that are not committed yet. The caller must hold the lock."""
        texts = self._texts
        self._close()
        self._reopen(texts)
        return self._document

    def value(self, pointer: str) -> JsonValue:
        """Return a copy of the value at a path, including the changes that are not committed yet.

        Raises:
            LookupError: The path does not exist.
        """
        with self._lock:
            return self.document.value(pointer)

    def is_text(self, pointer: str) -> bool:
        """Whether the value at a path is a string."""
        with self._lock:
            if self._state is _STARTED:
                self._close()
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
        """Append a piece to a text, if the open event already contains an append to this text.

        This is the fast path of `append` for consecutive tokens. A call of `Stream.append` must take at most 0.5 µs of
        CPU time, including the time for merging. It takes 0.40 µs with this method. It would take 2.5 µs if each piece
        went through `append`, and 1.1 µs if this method applied each piece separately (bench/finding.py, Python 3.11,
        two cores under load).

        Returns:
            False if the caller must use `append`, because the open event does not contain the text, or because the
            piece exceeds the size budget, is not a string, is empty, or is not valid Unicode.
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
        """Append to the texts or arrays at several paths in one event.

        Args:
            additions: Pairs that consist of a path, and of the string or the elements to append at this path.

        Raises:
            DiffError: The value at a path is not a text (for a string) or an array (for elements).
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
        """Append a row to an open event that collects rows, if possible. The caller must hold the lock.

        This is the fast path of `row`. A call of `Stream.row` with three columns must take at most 1.6 µs of CPU time.
        The rows of an event are applied together, so that a call takes 1.3 µs. If each row were applied separately, it
        would take 3.8 µs (bench/finding.py, measured as in `append_text`).

        Args:
            members: One string or element for each column.

        Returns:
            False if the caller must use `row`, because no event that collects rows is open, or because the row exceeds
            the size budget, does not match the columns, or is not JSON.
        """
        kinds = self._column_is_text
        if self._state is not _ROWS or kinds is None or len(members) != len(kinds):
            return False
        if len(self._row_ops) >= self._max_event_ops:
            return False
        try:
            row = [admit(member, self._column_depth) for member in members]
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
        """Append a row: one string or element for each column of the job.

        Raises:
            DiffError: The number of members differs from the number of columns, or a member has the wrong type.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        with self._lock:
            self._check_not_ended()
            self._row(members)
            self._signal()

    def append_encoded_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows whose elements are already JSON. Neither the log nor the state parses or encodes them again.

        If an open event cannot take them, because a limit is near or appends are not merged, they are parsed and appended
        one by one with `row`.

        Args:
            rows: For each row, a string without lone surrogates for the first column, which is a text, and the JSON of one
                element for each other column, which is an array. An element is a scalar or an array of scalars, as orjson
                writes it.

        Raises:
            DiffError: The number of members differs from the number of columns, or a column has the wrong type.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        with self._lock:
            self._check_not_ended()
            ops = [b'["r",%b,%b]' % (orjson.dumps(row[0]), b",".join(row[1:])) for row in rows]
            size = sum(map(len, ops)) + len(ops)
            if not self._takes_encoded_rows(rows) or not self._open(_ENCODED, size, len(rows)):
                for row in rows:
                    self._row([row[0], *map(orjson.loads, row[1:])])
            else:
                self._budget -= size
                self._row_members += rows
                self._row_ops += ops
            self._signal()

    def append_encoded(self, additions: Sequence[tuple[str, str | Sequence[bytes]]]) -> None:
        """Append to the texts or arrays at several paths in one event, like `append`. Elements of arrays are JSON texts, as in
        `append_encoded_rows`.

        Raises:
            DiffError: The value at a path is not a text (for a string) or an array (for elements).
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        with self._lock:
            self._check_not_ended()
            additions = [(path, x) for path, x in additions if x]
            if additions:
                if not self._add_encoded(additions):
                    self._append([(path, x if type(x) is str else _parsed(x)) for path, x in additions])  # type: ignore[arg-type]
                self._signal()

    def change(
        self,
        ops: Sequence[Op],
        *,
        check_below: str | None = None,
        ends: bool = False,
        joins: bool = False,
    ) -> None:
        """Write a change to the log as a separate event.

        Args:
            ops: The ops of the diff.
            check_below: If this path is set, the event also contains the pending checks of all texts at or below the
                path.
            ends: Whether the change ends an item. Such a change may use the reserved part of `max_state_bytes`.
            joins: Whether the change may share an event with the change before it, if both have this option, neither
                has checks, and the event is not committed yet.

        Raises:
            DiffError: An op cannot be applied.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        with self._lock:
            self._check_not_ended()
            self._change(ops, check_below, ends=ends, joins=joins)
            self._signal(urgent=True)

    def end_with_value(self, index: int, status: str, value: JsonValue, *, joins: bool = False) -> None:
        """Write the final value and status of an item to the log as a separate event.

        Nothing may change the item afterwards.

        Args:
            index: Index of the item.
            status: The item's final status.
            value: The item's value.
            joins: See `change`.

        Raises:
            DiffError: The value is not JSON.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        pointer = f"/items/{index}"
        with self._lock:
            self._check_not_ended()
            ops: list[Op] = [["s", f"{pointer}/value", value], ["s", f"{pointer}/status", status]]
            if self._last_has_start:
                self._end_joining()
                self._last_has_start = False
            self._change(ops, None, ends=False, joins=joins)
            self._signal(urgent=not joins)

    def start(self, ops: list[Op], *, joins: bool = False) -> None:
        """Write the start of items to the log as a separate event, which may use the reserved part of `max_state_bytes`.

        Args:
            ops: Ops that set members of the state other than the columns. They must be valid, because they may be applied
                later.
            joins: See `change`.

        Raises:
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The job has ended.
        """
        with self._lock:
            self._check_not_ended()
            encoded = to_json(ops)
            if (
                self._state_bytes + len(encoded) > self._max_state_bytes
                or len(encoded) > self._max_event_bytes
                or len(ops) > self._max_event_ops
            ):
                self._change(ops, None, ends=True, joins=joins)
            else:
                self._close()
                self._state, self._unapplied = _STARTED, ops
                self._log_change(ops, encoded, None, joins=joins)
            self._last_has_start = True
            self._signal(urgent=not joins)

    def close_event(self) -> None:
        """Close the open event.

        The next change then opens a new event with `append` or `row`. The caller must hold the lock.
        """
        self._close()

    def wait_for_room(self) -> None:
        """Block the calling worker thread while too many bytes wait for a commit. The caller must hold the lock.

        The lock is released while the thread waits. Conditions can change during this time, so the caller must check
        them after this call.

        Raises:
            LogUnavailableError: Too many bytes wait because the store refuses writes, and the caller runs on the event
                loop.
        """
        if self.backlog <= _MAX_PENDING_BYTES:
            return
        # Never wait in the thread of the event loop, because only the event loop can commit the pending changes.
        if threading.get_ident() != self._thread:
            self._backlog_fell = self._backlog_fell or threading.Condition(self._lock)
            self._backlog_fell.wait_for(lambda: self._ended or self.backlog <= _MAX_PENDING_BYTES)
        elif self._retries.retrying:
            raise LogUnavailableError(self.backlog)

    def _wake_threads(self) -> None:
        if self._backlog_fell is not None:
            self._backlog_fell.notify_all()

    def _check_not_ended(self) -> None:
        if self._ended:
            raise StreamClosedError("this job has ended, so nothing more can be written to its stream")

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

    def _open(self, state: OpenEvent, size: int, ops: int) -> bool:
        """Make sure that an event of the given kind is open and can grow by `size` bytes and by a number of ops.

        Return False if this exceeds the limits of an event.
        """
        held = len(self._texts) + len(self._arrays) + len(self._row_ops)
        if self._state is not state or size > self._budget or held + ops > self._max_event_ops:
            self._close()
            budget = min(self._max_budget, self._max_unreserved_bytes - self._state_bytes)
            if not self._merge or size > budget or ops > self._max_event_ops:
                return False
            self._state, self._budget = state, budget
        return True

    def _append(self, additions: Sequence[tuple[str, str | list[Any]]]) -> None:
        encoded = [to_json(x) for _, x in additions]
        size = sum(map(len, encoded))
        if size > self._max_event_bytes // 2 or len(additions) > self._max_event_ops:
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
        """Add strings and elements to the open event.

        Returns:
            False if the additions exceed the size budget, or if one of them adds a string to a value that is not a
            text.
        """
        size += sum(MAX_ESCAPED_BYTES * len(path) + _AROUND_OP for path, _ in additions)
        if not self._open(_APPENDS, size, len(additions)):
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

    def _add_encoded(self, additions: Sequence[tuple[str, Any]]) -> bool:
        """Like `_add`. Return False if the additions exceed the size budget, or if a value has the wrong type."""
        size = 0
        for path, x in additions:
            size += MAX_ESCAPED_BYTES * len(path) + _AROUND_OP
            size += MAX_ESCAPED_BYTES * len(x) if type(x) is str else sum(map(len, x)) + len(x)
        if size > self._max_event_bytes // 2 or not self._open(_APPENDS, size, len(additions)):
            return False
        for path, x in additions:
            if not (self.is_text(path) if type(x) is str else is_array(self._document, path)):
                return False
        self._budget -= size
        for path, x in additions:
            if type(x) is str:
                self._texts.setdefault(path, []).append(x)
            else:
                self._document.append(path, _parsed(x))
                self._arrays.setdefault(path, []).extend(x)
                self._grew(sum(map(len, x)) + len(x))
        return True

    def _row(self, members: Sequence[Any]) -> None:
        op: list[Any] = ["r", *members]
        encoded = to_json(op)
        if len(encoded) > self._max_event_bytes and len(members) == len(self._columns):
            for path, x in zip(self._columns, members, strict=True):
                if type(x) is not str or x:
                    self._append([(path, x if type(x) is str and self.is_text(path) else [x])])
            return
        self._look_at_columns()
        if self._open(_ROWS, len(encoded) + 1, 1) and self.append_row(members):
            return
        self._close()
        self._apply([op], len(encoded))
        self._log_ops([encoded], filter(self.is_text, self._columns))
        self._grew(len(encoded))

    def _takes_encoded_rows(self, rows: Sequence[Sequence[Any]]) -> bool:
        """Whether the first column is the only text, and each row has one value for each column."""
        self._look_at_columns()
        columns = self._columns
        return (
            self._column_is_text is not None
            and self._text_columns == columns[:1]
            and all(len(row) == len(columns) for row in rows)
        )

    def _look_at_columns(self) -> None:
        if self._column_is_text is None and all(self._grows(path) for path in self._columns):
            self._column_is_text = tuple(map(self.is_text, self._columns))
            self._text_columns = tuple(compress(self._columns, self._column_is_text))

    def _grows(self, path: str) -> bool:
        return is_text(self._document, path) or is_array(self._document, path)

    def _close(self) -> None:
        """Apply the open event to the document, and encode it for the next commit. No event is open afterwards."""
        state, self._state, self._budget = self._state, _NONE, 0
        if state is _APPENDS:
            texts, self._texts = self._texts, {}
            if len(texts) == 1 and self._sole in texts and not self._arrays:
                if pieces := texts[self._sole]:
                    text = "".join(pieces)
                    encoded = orjson.dumps(text)
                    self._document.append(self._columns[0], text)
                    self._grew(len(encoded))
                    self._log_text(encoded, texts)
            else:
                self._close_appends(texts)
        elif state is _ROWS or state is _ENCODED:
            rows, self._row_members = self._row_members, []
            ops, self._row_ops = self._row_ops, []
            if rows:
                if state is _ENCODED:
                    rows = [[row[0], *map(orjson.loads, row[1:])] for row in rows]
                self._document.grow(rows)
                self._grew(sum(map(len, ops)))
                self._log_ops(ops, self._text_columns)
        elif state is _STARTED:
            unapplied, self._unapplied = self._unapplied, []
            self._document.apply(unapplied)  # type: ignore[arg-type]  # a list of ops is a diff

    def _close_appends(self, texts: dict[str, list[str]]) -> None:
        arrays, self._arrays = self._arrays, {}
        joined: list[Any] = [["a", path, "".join(pieces)] for path, pieces in texts.items() if pieces]
        if not arrays and not joined:
            return
        self._document.apply(joined)
        encoded = [append_op(path, orjson.dumps(text)) for _, path, text in joined]
        self._grew(sum(map(len, encoded)))
        # Put the array ops before the text ops, because a text may be inside an element that the same event appends.
        ops = [append_op(path, b"[%b]" % b",".join(parts)) for path, parts in arrays.items()]
        self._log_ops(ops + encoded, [path for _, path, _ in joined])

    def _reopen(self, texts: dict[str, list[str]]) -> None:
        """Open a new event of the kind APPENDS, prepared for the same texts as the last event."""
        open_texts: dict[str, list[str]] = {}
        for path, pieces in texts.items():
            if pieces:
                open_texts[path] = []
        if open_texts and not self._ended:
            self._state, self._texts = _APPENDS, open_texts
            self._budget = min(self._max_budget, self._max_unreserved_bytes - self._state_bytes)

    def _log_text(self, encoded: bytes, grown: Iterable[str]) -> None:
        """Queue an append for a job that has a single column, which is a text. If no text check is due, the diff
        consists only of the appended string.
        """
        due = note_growth(self._unchecked, grown)
        self._closed.append(shape(b'[["r",%b]]' % encoded, self._checks(due)) if due else encoded)

    def _log_ops(self, ops: Sequence[bytes], grown: Iterable[str]) -> None:
        due = note_growth(self._unchecked, grown)
        self._closed.append(shape(b"[%b]" % b",".join(ops), self._checks(due)))

    def take(self) -> list[bytes]:
        """Remove and return the diffs that wait for a commit. Each diff is encoded as JSON. The caller must hold the
        lock.
        """
        texts = self._texts
        self._close()
        self._end_joining()
        taken, self._closed, self.backlog = self._closed, [], 0
        self._reopen(texts)
        return taken

    # ---- changes as separate events ------------------------------------------------------------------------

    def _change(
        self, ops: Sequence[Op], check_below: str | None, *, ends: bool, joins: bool = False
    ) -> bytes | None:
        """Write a change, in several events if it is too large for one event. Return its JSON if there is one event."""
        if self._state is not _STARTED:
            self._close()
        encoded = to_json(ops)
        if len(ops) > self._max_event_ops:
            self._close()
            chunks = [ops[at : at + self._max_event_ops] for at in range(0, len(ops), self._max_event_ops)]
            for chunk in chunks[:-1]:
                self._change(chunk, None, ends=ends)
            return self._change(chunks[-1], check_below, ends=ends)
        if len(encoded) > self._max_event_bytes:
            self._close()
            *others, last = ops
            for op in others:
                for part in split_in_document(op, self._max_event_bytes, self._document):
                    self._change_one([part], to_json([part]), None, ends=ends)
            *parts, final = split_in_document(last, self._max_event_bytes, self._document)
            for part in parts:
                self._change_one([part], to_json([part]), None, ends=ends)
            self._change_one([final], to_json([final]), check_below, ends=ends, joins=joins)
            return None
        self._change_one(ops, encoded, check_below, ends=ends, joins=joins)
        return encoded

    def _change_one(
        self,
        ops: Sequence[Op],
        encoded: bytes,
        check_below: str | None,
        *,
        ends: bool,
        joins: bool = False,
    ) -> None:
        try:
            self._apply([*self._unapplied, *ops], len(encoded), ends=ends)
        except DiffError:
            if self._state is not _STARTED:
                raise
            self._close()
            self._apply(list(ops), len(encoded), ends=ends)  # the op index in the error counts only these ops
        self._state, self._unapplied = _NONE, []
        self._log_change(ops, encoded, check_below, joins=joins)

    def _log_change(self, ops: Sequence[Op], encoded: bytes, check_below: str | None, *, joins: bool) -> None:
        self._column_is_text = None
        due = note_change(self._unchecked, ops, self._document)
        checks = self._checks(due) if due else []
        if check_below is not None:
            checks += self.pending_checks(check_below)
        self._close_change(encoded, checks, len(ops), joins=joins and not checks)
        self._grew(len(encoded))

    def _close_change(self, encoded: bytes, checks: list[JsonValue], ops: int, *, joins: bool) -> None:
        closed = self._closed
        is_joinable = joins and 0 < self._joinable == len(closed)
        is_joinable = is_joinable and self._joined_ops + ops <= self._max_event_ops
        if is_joinable and self._joined_bytes + len(encoded) <= _MAX_JOINED_BYTES:
            self._joined.append(encoded[1:-1])
            self._joined_bytes += len(encoded)
            self._joined_ops += ops
        else:
            self._end_joining()
            closed.append(shape(encoded, checks))
            self._joinable, self._joined_bytes = (len(closed), len(encoded)) if joins else (0, 0)
            self._joined_ops = ops

    def _end_joining(self) -> None:
        if self._joined:
            at = self._joinable - 1
            self._closed[at] = b"[%b]" % b",".join([self._closed[at][1:-1], *self._joined])
            self._joined = []
        self._joinable = 0

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
        """Apply a diff to the document, or raise an error if the state would exceed its limit. No event may be open.

        The total size of all diffs is an upper bound for the growth of the state. The exact size of the state is
        measured only if this bound exceeds the limit.
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
        """Return the lengths and CRC-32s that are due for the texts at or below a path, and mark them as sent.

        The caller must hold the lock.
        """
        self._close()
        return self._checks(take_below(self._unchecked, below))

    def _checks(self, paths: Iterable[str]) -> list[JsonValue]:
        document = self._document
        return [[path, document.text_length(path), document.text_crc(path)] for path in paths]

    # ---- the event loop ----------------------------------------------------------------------------------------

    def commit_now(self, now: float) -> tuple[int, int]:
        """See `Writer.commit_now`. If the log is in memory, this method writes to the log directly, without starting a
        task.
        """
        self.waits_until = None
        if (
            not self._signalled
        ):  # `end` has already written the changes, as it does for a function that returns at once
            return 0, 0
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
        frames, state, *_ = block
        self._head = state.cursor
        return len(frames), len(frames[0]) if len(frames) == 1 else sum(map(len, frames))

    async def _commit_or_stop(self) -> None:
        try:
            await self.commit()
        except HeadMovedError as error:
            self._stop_writing(error)
            return
        if self._signalled:
            # Clear `_task`. As long as it is set to this running task, `commit_now` starts no new task, so the changes
            # that arrived during the write would never be committed.
            self._task = None
            self._commits.soon(self)

    def _stop_writing(self, error: HeadMovedError) -> None:
        """Stop writing because the log rejected a block: another process writes the log now, or the log was deleted."""
        with self._lock:
            self._ended = True
            self._close()
            self._wake_threads()
        _log.warning("the log of a job rejected its writer: %s", error)

    async def commit(self) -> None:
        """Write the pending changes to the log. When this method returns, the changes are as durable as this kind of
        log guarantees.

        Raises:
            HeadMovedError: The log was deleted, or another process writes it.
        """
        async with self._committing:
            block = self._block(self._loop.time())
            if block is not None:
                await append(self._log, self._head, block, self._retries)
                self._head = block.state.cursor
                self._commits.logged(len(block.frames), sum(map(len, block.frames)))

    async def commit_shielded(self) -> None:
        """Write the pending changes to the log like `commit`, from a task that runs user code and may be cancelled.

        Cancelling the caller does not interrupt the write. The log would otherwise contain events that this writer does
        not count, and it would reject all further events of the job, including its end.

        Raises:
            HeadMovedError: The log was deleted, or another process writes it.
        """
        write = asyncio.ensure_future(self.commit())
        self._writes.add(write)  # The event loop has only weak references to tasks.
        write.add_done_callback(self._forget_write)
        await asyncio.shield(write)

    def _forget_write(self, write: asyncio.Future[None]) -> None:
        self._writes.discard(write)
        if not write.cancelled():
            write.exception()  # A cancelled caller does not retrieve the exception.

    def _block(self, now: float) -> Block | None:
        """Make a block of events from the pending changes. Return None if there are no changes."""
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
        # `_new` is `tuple.__new__`. It is faster than the constructors of named tuples, because these are Python code.
        cursor = _new(Cursor, (epoch, seq + len(diffs)))
        return _new(Block, (frames, _new(StateAt, (cursor, self._columns, view)), False, None, 0))

    def stop(self) -> None:
        """Reject later writes and stop committing. This method is called if the server stops before the job has
        ended.
        """
        with self._lock:
            self._ended = True
            self._close()
            self._wake_threads()
        self._retries.stop()
        self.waits_until = None

    async def end(self, make_record: Callable[[str, list[JsonValue]], JobRecord]) -> JobRecord:
        """End the log. Reject later writes, then write the pending changes and the event `done`.

        Args:
            make_record: Function that makes the record of the ended job, which contains the data of the `done` event, from
                the digest of the items and the pending checks.

        Returns:
            The record that `make_record` returned.

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
            items = self._document.node("/items")
            found = await asyncio.to_thread(digest, items) if large else digest(items)
            record = make_record(found, self.pending_checks() if self._unchecked.changes else [])
            assert record.done is not None  # noqa: S101 - `make_record` sets it
            if last is None:
                frames, state = [], StateAt(self._head, self._columns, self._document.view())
            else:
                frames, state = list(last.frames), last.state
            epoch, seq = state.cursor
            cursor = _new(Cursor, (epoch, seq + 1))
            # Write `done` in the same block as the pending changes, so that the store needs only one write.
            frames.append(messages.done_frame(cursor, record.done))
            block = Block(frames, state, done=True, ended=record, state_bytes=self._state_bytes)
            await append(self._log, self._head, block, self._retries)
            self._head = cursor
        self._commits.logged(len(frames), sum(map(len, frames)))
        return record
