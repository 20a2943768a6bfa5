"""Write access to the value of one item (`ItemWriter`): converts values to JSON, and refuses changes that are not allowed.

An endpoint's function uses a `Stream`, which wraps an `ItemWriter`. Jobs and batches use the `ItemWriter` directly. Its
methods may be called on the event loop and in worker threads.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from tidewire.protocol.diff import DiffError, Op
from tidewire.protocol.document.json_pointer import parse
from tidewire_server.endpoints import check_progress_notes_and_usage
from tidewire_server.endpoints.text_retraction_guard import TextGuard
from tidewire_server.endpoints.user_values import plain
from tidewire_server.endpoints.value_errors import said_of_value
from tidewire_server.endpoints.yielded_value import YieldedValue
from tidewire_server.errors import LogUnavailableError, StateTooLargeError, StreamClosedError
from tidewire_server.job_log.open_event import Addition, EncodedRow, addition, encoded_row, to_json
from tidewire_server.job_log.value_differ import PLAIN

if TYPE_CHECKING:
    from pydantic import JsonValue

    from tidewire.protocol import messages
    from tidewire.protocol.document.view import View
    from tidewire_server.job_log.pending_events import PendingEvents


def value_path(index: int, column: str = "") -> str:
    """Return the path of an item's value, or of a column in this value. The strings are cached and shared by all jobs, so that
    they stay in the processor's cache.
    """
    return sys.intern(f"/items/{index}/value{column}")


class ItemRun:
    """One attempt to run the function of an item, with its cancellation flag and the state before the attempt.

    Attributes:
        attempt: Number of the job's current attempt.
        principal: Principal that submitted the job.
        begin: Callback for endpoints with `begins_itself`. They call it when the work on the item begins.
        on_cancel: Callback for functions that run outside of this process. It is called when the item is cancelled.
        previous_state: State of the job when the server restarted. None in the first attempt.
    """

    __slots__ = ("_cancelled", "_place", "attempt", "begin", "on_cancel", "previous_state", "principal")

    def __init__(self, place: str, attempt: int, principal: str) -> None:
        """Create the run of an item. `place` is the path of the item's value in the job's state."""
        self._place = place
        self._cancelled = False
        self.attempt = attempt
        self.principal = principal
        self.begin: Callable[[], None] = lambda: None
        self.on_cancel: Callable[[], None] | None = None
        self.previous_state: View | None = None

    @property
    def previous(self) -> Any:
        """See `Context.previous`."""
        return None if self.previous_state is None else self.previous_state.value(self._place)

    @property
    def cancelled(self) -> bool:
        """See `Stream.cancelled`."""
        return self._cancelled

    def cancel(self) -> None:
        """Set the flag `cancelled`. The function can read this flag through its stream."""
        self._cancelled = True
        if self.on_cancel is not None:
            self.on_cancel()


class ItemWriter:
    """Writes the value of one item while its function runs.

    Attributes:
        run: The run of the function.
    """

    __slots__ = (
        "_closed",
        "_columns",
        "_guard",
        "_index",
        "_place",
        "_report",
        "_to_json",
        "_usage",
        "_yielded",
        "failure",
        "first_event_at",
        "growing",
        "pending",
        "run",
    )

    def __init__(
        self,
        pending: PendingEvents,
        index: int,
        *,
        columns: Sequence[str],
        rollback: bool,
        report: Callable[[int, messages.Progress], None],
        to_json: Callable[[Any], Any],
        attempt: int = 1,
        principal: str = "",
    ) -> None:
        self.pending = pending
        self._index = index
        self._place = place = value_path(index)
        self._guard = TextGuard(pending.state, index, rollback=rollback)
        self._yielded = YieldedValue(place, lambda: pending.state.value(place), to_json)
        self.set_columns(columns)
        self._report = report
        self._to_json = to_json
        self.run = ItemRun(place, attempt, principal)
        self._closed = False
        self._usage: dict[str, int | float] = {}
        self.first_event_at: float | None = None
        """Time of the first change in this attempt, on the clock `time.monotonic`. The item's trace span contains it."""
        self.failure: StateTooLargeError | LogUnavailableError | None = None
        """Error of a write that was rejected because the job's state would exceed its limit, or because too many changes
        wait for the store. The job fails with it."""

    # ---- the value ---------------------------------------------------------------------------------------------

    @property
    def value(self) -> Any:
        """See `Stream.value`."""
        return self.pending.state.value(self._place)

    def is_null(self, at: str | None) -> bool:
        """Return whether `at` refers to the item's whole value, and this value is null."""
        return self._path(at) == self._place and self.value is None

    def append(self, x: str | list[Any], at: str | None = None) -> None:
        """See `Stream.append`."""
        path = self._path(at)
        if type(x) is str:
            self._yielded.forget()
            with self.pending.lock:
                self._write(self.pending.append, [addition(path, x)])
                if path == self.growing:
                    self.pending.allow_appends(path)
            return
        # Elements that are appended to the value itself have an annotated type. Encode them with it, because types such as
        # `Binary` would otherwise be encoded incorrectly.
        added = self._to_json(x) if type(x) is list and path == self._place else plain(x)
        # Refuse 0, None and false here, because `PendingEvents` would skip them like an empty string or list.
        if not isinstance(added, str | list) and not added:
            raise ValueError(f"only a string or a list of elements can be appended, not {x!r}")
        self._yielded.forget()
        self._write(self.pending.append, [addition(path, added)])

    def truncate(self, n_last: int, at: str | None = None) -> None:
        """See `Stream.truncate`."""
        self._yielded.forget()
        path = self._path(at)
        if n_last:
            self._guard.check(path)
        self._write(self.pending.change, [["t", path, n_last]])

    def row(self, members: Sequence[Any]) -> None:
        """See `Stream.row`. A row op appends to the columns of all items of the job. If several items have columns, this method
        therefore appends to each column of this item with a separate op.
        """
        self._yielded.forget()
        try:
            self._append_rows([encoded_row(members)])
        except ValueError:
            # Do not convert members that are plain already, because the conversion takes longer than writing the row.
            if PLAIN.issuperset(map(type, members)):
                raise
            self._append_rows([encoded_row([plain(member) for member in members])])

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self._columns)

    def replace_end(
        self, truncated: Sequence[int], additions: Sequence[str | list[Any]], n_stable: int
    ) -> None:
        """Replace the ends of columns, and declare a prefix of the first column as stable, in one event. The first column must
        be a text.

        Args:
            truncated: Number of code points or elements to remove from each column, beginning with the first column.
            additions: String or elements that are then appended to each of these columns.
            n_stable: Length of the stable prefix after the change, in code points.

        Raises:
            ValueError: The change cannot be applied, or the endpoint has the capability `{"rollback": False}`.
            StreamClosedError: The item has ended.
        """
        text = self._columns[0]
        if truncated[0]:
            self._guard.check(text)
        columns = [*zip(self._columns, truncated, additions, strict=False)]
        ops: list[Op] = [["t", path, n] for path, n, _ in columns if n]
        ops += [["a", path, plain(addition)] for path, _, addition in columns if addition]
        with self.pending.lock:
            ops += self._guard.stable_ops(pointer := text[len(self._place) :], n_stable)
            if ops:
                self._write(self.pending.change, ops)
                self._guard.stable[pointer] = max(n_stable, self._guard.stable.get(pointer, 0))

    def encoded_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows whose elements are already encoded as JSON. The log contains this JSON unchanged.

        Args:
            rows: Each row begins with a string for the first column, which is a text. The JSON of one element for each other
                column follows. These columns are arrays.

        Raises:
            ValueError: The number of members differs from the number of columns, or a column has the wrong type.
            StreamClosedError: The item has ended.
        """
        encoded = [b'["r",%b]' % b",".join([to_json(row[0]), *row[1:]]) for row in rows]
        self._yielded.forget()
        self._append_rows([(orjson.loads(op), op) for op in encoded])

    def append_encoded(self, elements: Sequence[bytes], at: str) -> None:
        """Append elements that are already encoded as JSON to an array. The log contains this JSON unchanged.

        Raises:
            ValueError: There is no array at this path.
            StreamClosedError: The item has ended.
        """
        inner = b",".join(elements)
        self._yielded.forget()
        self._write(self.pending.append, [Addition(self._path(at), orjson.loads(b"[%b]" % inner), inner)])

    def set(self, pointer: str, value: Any) -> None:
        """See `Stream.set`."""
        value = self._to_json(value) if pointer == "" else plain(value)
        self._yielded.forget()
        path = self._path(pointer)
        self._guard.check(path, value)
        self._write(self.pending.change, [["s", path, value]])

    def stable(self, n_first: int | None = None, at: str | None = None) -> None:
        """See `Stream.stable`."""
        path = self._path(at)
        pointer = path[len(self._place) :]
        with self.pending.lock:
            n = self._guard.stable_length(path, n_first)
            ops = self._guard.stable_ops(pointer, n)
            if not ops:
                self._check_open()
                return
            self._write(self.pending.change, ops)
            self._guard.stable[pointer] = n

    # ---- progress, notes and usage ------------------------------------------------------------------------------------

    def progress(
        self, current: float, total: float | None = None, *, unit: str | None = None, phase: str | None = None
    ) -> None:
        """See `Stream.progress`."""
        self._check_open()
        self._report(
            self._index, check_progress_notes_and_usage.progress(current, total, unit, phase, self._index)
        )

    def note(self, text: str, level: str = "info") -> None:
        """See `Stream.note`."""
        self._write(
            self.pending.change, [["a", "/notes", [check_progress_notes_and_usage.note(text, level)]]]
        )

    def note_once(self, text: str, level: str) -> None:
        """Add a note to the job's state, unless the job already has this note."""
        with self.pending.lock:
            notes: Any = self.pending.state.value("/notes")
            if all(note["text"] != text for note in notes):
                self.note(text, level)

    def usage(self, numbers: dict[str, float]) -> None:
        """See `Stream.usage`."""
        self._check_open()
        self._usage |= check_progress_notes_and_usage.usage(numbers)

    # ---- for the server ----------------------------------------------------------------------------------------

    def restore(self, previous: View | None, stable: dict[str, int]) -> None:
        """Restore the writer after a restart of the server.

        Args:
            previous: State of the job when the server restarted, or None in the first attempt.
            stable: The member `stable` of the item's state. Its numbers must not decrease within an epoch.
        """
        self.run.previous_state, self._guard.stable = previous, dict(stable)

    def set_columns(self, columns: Sequence[str]) -> None:
        """Set the JSON Pointers of the columns, relative to the value. They must not change while the function runs."""
        self._columns = self._guard.columns = tuple([value_path(self._index, column) for column in columns])
        self.growing = self._columns[0] if len(self._columns) == 1 else self._place
        """Path to which `Stream.append` appends by default. After the first append, `PendingEvents.append_text` accepts this
        path. While yielded values are compared, it refuses this path, because an append must first end the comparison."""

    def begin_with(self, initial: JsonValue) -> None:
        """Replace the value of a restored item by its initial value, if the two differ.

        Raises:
            ValueError: The initial value lacks some of the restored text, but the endpoint declares `{"rollback": False}`.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The item has ended.
        """
        if self.pending.state.value(self._place) != initial:
            self._guard.check(self._place, initial)
            self._write(self.pending.change, [["s", self._place, initial]])
            self.first_event_at = None  # the function has not run yet

    def replace(self, value: Any) -> None:
        """Replace the item's value. Only the differences from the previous value are written to the log.

        Raises:
            InvalidValueError: The value is not JSON.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The item has ended.
        """
        self.pending.forbid_appends(self.growing)
        # Do not hold the lock during the comparison, which can take long. The event loop needs the lock to commit.
        try:
            ops = self._yielded.ops(value)
            with self.pending.lock:
                self._put(ops)
        except ValueError as error:
            raise self._yielded.invalid(value, error) from None

    def close(self) -> dict[str, int | float]:
        """Reject later writes to this item, and return the usage that its function reported."""
        with self.pending.lock:
            self._closed = True
            self.pending.forbid_appends(self.growing)
        return self._usage

    def _put(self, ops: list[Op]) -> None:
        if not ops:
            return
        if self.first_event_at is None:
            self.first_event_at = time.monotonic()
        if len(ops) == 1 and ops[0][0] == "a" and not self._closed and self.failure is None:
            path: Any = ops[0][1]
            x: Any = ops[0][2]
            if self.pending.append_text(path, x, is_open=True):
                return
        if any(op[0] != "a" for op in ops):
            self._guard.check_ops(ops)
            self._write(self.pending.change, ops)
        elif (row := _as_row(ops, self.pending.columns)) is not None:
            self._write(self.pending.append_rows, [encoded_row(row)])
        else:
            additions: list[Any] = [addition(path, x) for _, path, x in ops]  # type: ignore[arg-type]
            self._write(self.pending.append, additions)

    def _append_rows(self, rows: Sequence[EncodedRow]) -> None:
        columns = self._columns
        if columns == self.pending.columns:
            self._write(self.pending.append_rows, rows)
            return
        # Several items of the job have columns, and a row op would append to all of them.
        for (_, *members), _ in rows:
            if len(members) != len(columns):
                raise ValueError(f"a row of {len(members)} members for {len(columns)} columns")
            kinds = map(self.pending.state.is_text, columns)
            appends = zip(columns, members, kinds, strict=True)
            self._write(
                self.pending.append, [addition(path, x if text else [x]) for path, x, text in appends]
            )

    def _write(self, write: Callable[[Any], None], change: Any) -> None:
        if self.first_event_at is None:
            self.first_event_at = time.monotonic()
        with self.pending.lock:
            try:
                self.pending.backlog.wait_for_room()
                self._check_open()
                write(change)
            except (StateTooLargeError, LogUnavailableError) as error:
                self.failure = error
                self.pending.forbid_appends(self.growing)
                raise
            except DiffError as error:
                raise ValueError(said_of_value(error, self._place)) from None

    def _check_open(self) -> None:
        if self._closed:
            raise StreamClosedError("this item has ended, so nothing more can be written to its stream")
        if self.failure is not None:
            raise self.failure

    def _path(self, pointer: str | None) -> str:
        if pointer is None:
            return self.growing
        if pointer:
            parse(pointer)
        return self._place + pointer


def _as_row(ops: Sequence[Op], columns: Sequence[str]) -> list[Any] | None:
    """Combine several appends into one row, which has one string or element for each column of the job.

    Returns:
        None if the job has fewer than two columns, if the appends do not cover exactly the columns, or if one of them
        appends more than one element to an array.
    """
    grown: dict[Any, Any] = {op[1]: op[2] for op in ops} if len(ops) == len(columns) > 1 else {}
    if not grown or grown.keys() != set(columns):
        return None
    if any(type(x) is list and len(x) != 1 for x in grown.values()):
        return None
    return [x if type(x := grown[column]) is str else x[0] for column in columns]
