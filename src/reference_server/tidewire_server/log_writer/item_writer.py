"""The writer of one item: converts values to JSON, computes the diffs between yielded values, and rejects changes that
would retract text although the endpoint does not declare the capability `rollback`.

An endpoint's function uses a `Stream`, which wraps an `ItemWriter`. Jobs and batches use the `ItemWriter` directly. Its
methods may be called on the event loop and in worker threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tidewire.protocol import strict_json
from tidewire.protocol.diff import DiffError, Op
from tidewire.protocol.document.json_pointer import escape, parse
from tidewire.protocol.document.json_values import MAX_VALUE_DEPTH
from tidewire_server.errors import (
    InvalidValueError,
    LogUnavailableError,
    StateTooLargeError,
    StreamClosedError,
)
from tidewire_server.log_writer import progress_note_usage
from tidewire_server.log_writer.differ import NotPlainError, ShadowCopy
from tidewire_server.log_writer.user_values import PLAIN, plain
from tidewire_server.log_writer.value_errors import said_of_value

if TYPE_CHECKING:
    from pydantic import JsonValue

    from tidewire.protocol import messages
    from tidewire.protocol.document.view import View
    from tidewire_server.log_writer.log_writer import LogWriter

NO_ROLLBACK: Final = (
    "this endpoint declares that it never retracts text; to add to a text, yield Append(piece) or the whole text so far; "
    "to allow retractions, pass capabilities={'rollback': True} to @server.endpoint"
)


class ItemWriter:
    """Writes the value of one item while its function runs."""

    __slots__ = (
        "_cancelled",
        "_closed",
        "_column_is_text",
        "_columns",
        "_converts",
        "_growing",
        "_index",
        "_lock",
        "_place",
        "_previous",
        "_report",
        "_rollback",
        "_shadow",
        "_stable",
        "_to_json",
        "_usage",
        "_writes_rows",
        "_yielded",
        "attempt",
        "failure",
        "log_writer",
        "open_text",
        "principal",
    )

    def __init__(
        self,
        log_writer: LogWriter,
        index: int,
        *,
        columns: Sequence[str],
        rollback: bool,
        report: Callable[[int, messages.Progress], None],
        to_json: Callable[[Any], Any],
        attempt: int = 1,
        principal: str = "",
    ) -> None:
        self.log_writer = log_writer
        self._lock = log_writer.lock
        self._place = f"/items/{index}/value"
        self._index = index
        self.set_columns(columns)
        self._rollback = rollback
        self._column_is_text: tuple[bool, ...] | None = None
        self._report = report
        self._to_json = to_json
        self._shadow: ShadowCopy | None = None
        self._yielded: Any = None
        """The object that the function yielded last; `_shadow` is a copy of it."""
        self._converts = False
        """Whether a yielded value contained a type that must be converted to JSON. Later values are then converted too."""
        self._stable: dict[str, int] = {}
        self.attempt = attempt
        """Number of the job's current attempt."""
        self.principal = principal
        """Principal that submitted the job."""
        self._previous: View | None = None
        """State of the job when the server restarted. None in the first attempt."""
        self._closed = False
        self._cancelled = False
        self._usage: dict[str, int | float] = {}
        self.failure: StateTooLargeError | LogUnavailableError | None = None
        """Error of a write that was rejected because the job's state would exceed its limit, or because too many changes
        wait for the store. The job fails with it."""

    # ---- the value ---------------------------------------------------------------------------------------------

    @property
    def value(self) -> Any:
        """See `Stream.value`."""
        with suppress(StreamClosedError):
            self.catch_up()
        return self.log_writer.value(self._place)

    def is_null(self, at: str | None) -> bool:
        """Whether an append with the argument `at` concerns the item's value as a whole, and this value is null."""
        return self._path(at) == self._place and self.value is None

    def append(self, x: str | list[Any], at: str | None = None) -> None:
        """See `Stream.append`."""
        if type(x) is str:
            if self._shadow is not None:
                self._stop_comparing()
            path = self._growing if at is None else self._path(at)
            if not self.log_writer.append_text(path, x):
                self._write(self.log_writer.append, [(path, x)])
        else:
            path = self._path(at)
            # Use the annotated element type for elements that are appended to the value itself. Without it, types such as
            # `Binary` would be encoded incorrectly.
            addition = self._to_json(x) if type(x) is list and path == self._place else plain(x)
            # The log writer skips empty additions, and would skip 0, None and false as well.
            if not isinstance(addition, str | list) and not addition:
                raise ValueError(f"only a string or a list of elements can be appended, not {x!r}")
            self._stop_comparing()
            self._write(self.log_writer.append, [(path, addition)])

    def truncate(self, n_last: int, at: str | None = None) -> None:
        """See `Stream.truncate`."""
        self._stop_comparing()
        path = self._path(at)
        if n_last:
            self._check_rollback(path)
        self._write(self.log_writer.change, [["t", path, n_last]])

    def row(self, members: Sequence[Any]) -> None:
        """See `Stream.row`."""
        if self._shadow is not None:
            self._stop_comparing()
        if self._writes_rows:
            with self._lock:
                if self.log_writer.append_row(members):
                    return
        row = [member if type(member) in PLAIN else plain(member) for member in members]
        if self._writes_rows:
            self._write(self.log_writer.row, row)
        else:
            self._write(self.log_writer.append, self._as_appends(row))

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self._columns)

    def replace_end(
        self, truncated: Sequence[int], additions: Sequence[str | list[Any]], n_stable: int
    ) -> None:
        """Replace the end of the first columns in one event, and declare the beginning of the first one, a text, as
        stable.

        Args:
            truncated: Number of code points or elements to remove from each of these columns.
            additions: The string or the elements that each of these columns gets instead.
            n_stable: Length of the stable prefix after the change, in code points.

        Raises:
            ValueError: The change cannot be applied, or the endpoint has the capability `{"rollback": False}`.
            StreamClosedError: The item has ended.
        """
        text = self._columns[0]
        if truncated[0]:
            self._check_rollback(text)
        columns = [*zip(self._columns, truncated, additions, strict=False)]
        ops: list[Op] = [["t", path, n] for path, n, _ in columns if n]
        ops += [["a", path, plain(addition)] for path, _, addition in columns if addition]
        with self._lock:
            ops += self._stable_ops(pointer := text[len(self._place) :], n_stable)
            if ops:
                self._write(self.log_writer.change, ops)
                self._stable[pointer] = max(n_stable, self._stable.get(pointer, 0))

    def _stable_ops(self, pointer: str, n_first: int) -> list[Op]:
        """Return the op that declares a prefix as stable, or none if the prefix is not longer than the one before."""
        if n_first <= self._stable.get(pointer, -1):
            return []
        place = f"/items/{self._index}/stable"
        return [
            ["s", f"{place}/{escape(pointer)}", n_first] if self._stable else ["s", place, {pointer: n_first}]
        ]

    def encoded_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows whose elements are already JSON; see `LogWriter.append_encoded_rows`."""
        if self._shadow is not None:
            self._stop_comparing()
        if self._writes_rows:
            self._write(self.log_writer.append_encoded_rows, rows)
        else:
            for row in rows:
                self._write(self.log_writer.append_encoded, self._as_appends(row))

    def append_encoded(self, elements: Sequence[bytes], at: str) -> None:
        """Append elements that are already JSON to an array; see `LogWriter.append_encoded`."""
        self._stop_comparing()
        self._write(self.log_writer.append_encoded, [(self._path(at), elements)])

    def set(self, pointer: str, value: Any) -> None:
        """See `Stream.set`."""
        value = self._to_json(value) if pointer == "" else plain(value)
        self._stop_comparing()
        path = self._path(pointer)
        self._check_rollback(path, value)
        self._write(self.log_writer.change, [["s", path, value]])

    def stable(self, n_first: int | None = None, at: str | None = None) -> None:
        """See `Stream.stable`."""
        path = self._path(at)
        pointer = path[len(self._place) :]
        with self._lock:
            try:
                length = self.log_writer.text_length(path)
            except LookupError as error:
                raise ValueError(f"only a text can be stable: {error}") from None
            n = length if n_first is None else n_first
            if type(n) is not int or not 0 <= n <= length:
                raise ValueError(f"{n!r} code points of {length} cannot be stable")
            ops = self._stable_ops(pointer, n)
            if not ops:
                self._check_open()
                return
            self._write(self.log_writer.change, ops)
            self._stable[pointer] = n

    # ---- progress, notes and usage ------------------------------------------------------------------------------------

    def progress(
        self, current: float, total: float | None = None, *, unit: str | None = None, phase: str | None = None
    ) -> None:
        """See `Stream.progress`."""
        self._check_open()
        self._report(self._index, progress_note_usage.progress(current, total, unit, phase, self._index))

    def note(self, text: str, level: str = "info") -> None:
        """See `Stream.note`."""
        self._write(self.log_writer.change, [["a", "/notes", [progress_note_usage.note(text, level)]]])

    def note_once(self, text: str, level: str) -> None:
        """Add a note to the job's state, unless the job already has this note."""
        with self._lock:
            notes: Any = self.log_writer.value("/notes")
            if all(note["text"] != text for note in notes):
                self.note(text, level)

    def usage(self, numbers: dict[str, float]) -> None:
        """See `Stream.usage`."""
        self._check_open()
        self._usage |= progress_note_usage.usage(numbers)

    @property
    def cancelled(self) -> bool:
        """See `Stream.cancelled`."""
        return self._cancelled

    # ---- for the server ----------------------------------------------------------------------------------------

    @property
    def previous(self) -> Any:
        """See `Context.previous`."""
        return None if self._previous is None else self._previous.value(self._place)

    def restore(self, previous: View | None, stable: dict[str, int]) -> None:
        """Restore the writer after a restart of the server.

        Args:
            previous: State of the job when the server restarted, or None in the first attempt.
            stable: Member `stable` of the item's state, whose numbers must not decrease within an epoch.
        """
        self._previous, self._stable = previous, dict(stable)

    def set_columns(self, columns: Sequence[str]) -> None:
        """Set the JSON Pointers of the columns, relative to the value. They must not change while the function runs."""
        self._columns = tuple([self._place + column for column in columns])
        self._growing = self._columns[0] if len(self._columns) == 1 else self._place
        self.open_text: str | None = self._growing
        """The text that `Stream.append` may pass straight to `LogWriter.append_text`; None while yielded values are
        compared, since an append must first end the comparison."""
        self._writes_rows = self._columns == self.log_writer.columns
        """Whether the columns of this item are also the columns of the job. If several items have columns, the value is
        False, because a row would have to append to the columns of all items."""

    def begin_with(self, initial: JsonValue) -> None:
        """Replace the value of a restored item by its initial value, if the two differ.

        Raises:
            ValueError: The endpoint declares that it never retracts text, but the initial value lacks restored text.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The item has ended.
        """
        if self.log_writer.value(self._place) != initial:
            self._check_rollback(self._place, initial)
            self._write(self.log_writer.change, [["s", self._place, initial]])

    def cancel(self) -> None:
        """Set the flag `cancelled`. The function can read this flag through its stream."""
        self._cancelled = True

    def replace(self, value: Any) -> None:
        """Replace the item's value. Only the differences from the previous value are written to the log.

        Raises:
            InvalidValueError: The value is not JSON.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The item has ended.
        """
        # The comparison can take long. Do not hold the lock during this time, because the event loop needs the lock to
        # commit.
        self.open_text = None
        shadow, self._shadow = self._shadow or self._new_shadow(), None
        try:
            ops: list[Op] | None = None
            if not self._converts:
                try:
                    ops = shadow.step(value)
                except NotPlainError:
                    self._converts, shadow = True, self._new_shadow()
            if ops is None:
                ops = shadow.step(self._to_json(value))
            with self._lock:
                self._put(ops)
                self._shadow, self._yielded = shadow, value
        except ValueError as error:
            raise self._invalid(value, error) from None

    def catch_up(self) -> None:
        """Compare the elements of the last yielded value that `replace` did not compare, and write the changed
        elements.

        The elements are compared in their current state, which may differ from their state at the time of the yield.

        Raises:
            InvalidValueError: The value is not JSON.
            StateTooLargeError: The state would exceed its limit.
            StreamClosedError: The item has ended.
        """
        shadow = self._shadow
        if shadow is None or not shadow.behind:
            return
        self._shadow = None
        try:
            ops = shadow.catch_up()
            with self._lock:
                self._put(ops)
                self._shadow = shadow
        except NotPlainError:
            self._converts = True
            self.replace(self._yielded)
        except ValueError as error:
            raise self._invalid(self._yielded, error) from None

    def _invalid(self, value: Any, error: ValueError) -> InvalidValueError:
        """Make the error for a value that the document rejected. The paths in the error are relative to the value, not
        to the state.
        """
        if isinstance(error, InvalidValueError):
            return error
        # The error names the path of an op, and this path may not exist in the value. Check the value itself to find a
        # better path.
        try:
            strict_json.check(self._to_json(value), max_depth=MAX_VALUE_DEPTH)
        except ValueError as found:
            error = found
        return InvalidValueError(said_of_value(error, self._place))

    def _stop_comparing(self) -> None:
        """Drop the copy of the last yielded value, because the function now changes the value by other means.

        The next yielded value is compared with the document instead.
        """
        self.catch_up()
        self._shadow = self._yielded = None
        self.open_text = self._growing

    def _new_shadow(self) -> ShadowCopy:
        return ShadowCopy(self.log_writer.value(self._place), self._place)

    def close(self) -> dict[str, int | float]:
        """Reject later writes to this item, and return the usage that its function reported."""
        with self._lock:
            self._closed = True
            # Close the open event, so that the next append checks whether the item has ended. Appends to an open event
            # do not check this.
            self.log_writer.close_event()
        return self._usage

    def _put(self, ops: list[Op]) -> None:
        if not ops:
            return
        if len(ops) == 1 and ops[0][0] == "a" and type(text := ops[0][2]) is str:
            path = str(ops[0][1])
            if not self.log_writer.append_text(path, text):
                self._write(self.log_writer.append, [(path, text)])
        elif any(op[0] != "a" for op in ops):
            for op in ops:
                if op[0] == "t" or op[0] == "s":
                    self._check_rollback(str(op[1]), op[2] if op[0] == "s" else None)
            self._write(self.log_writer.change, ops)
        elif (row := self._as_row(ops)) is not None:
            self._write(self.log_writer.row, row)
        else:
            self._write(self.log_writer.append, [(op[1], op[2]) for op in ops])

    def _as_appends(self, row: Sequence[Any]) -> list[tuple[str, Any]]:
        """Convert a row to separate appends. This is needed if several items of the job have columns."""
        columns = self._columns
        if len(row) != len(columns):
            raise ValueError(f"a row of {len(row)} members for {len(columns)} columns")
        if self._column_is_text is None:
            self._column_is_text = tuple(map(self.log_writer.is_text, columns))
        kinds = self._column_is_text
        return [(path, x if text else [x]) for path, x, text in zip(columns, row, kinds, strict=True)]

    def _as_row(self, ops: list[Op]) -> list[Any] | None:
        """Combine several appends to one row, which has one string or element for each column of the job.

        Returns:
            None if the job has fewer than two columns, if the appends do not cover exactly the columns, or if one of
            them appends more than one element to an array.
        """
        columns = self.log_writer.columns
        grown: dict[Any, Any] = {op[1]: op[2] for op in ops}
        if len(columns) < 2 or len(grown) != len(columns) or grown.keys() != set(columns):
            return None
        if any(type(x) is list and len(x) != 1 for x in grown.values()):
            return None
        return [x if type(x := grown[column]) is str else x[0] for column in columns]

    def _write(self, write: Callable[[Any], None], change: Any) -> None:
        with self._lock:
            try:
                self.log_writer.wait_for_room()
                self._check_open()
                write(change)
            except (StateTooLargeError, LogUnavailableError) as error:
                self.failure = error
                raise
            except DiffError as error:
                raise ValueError(said_of_value(error, self._place)) from None

    def _check_open(self) -> None:
        if self._closed:
            raise StreamClosedError("this item has ended, so nothing more can be written to its stream")
        if self.failure is not None:
            raise self.failure

    def _check_rollback(self, path: str, value: Any = None) -> None:
        """Raise an error if a change would retract text of a column, although the endpoint does not declare `rollback`."""
        if self._rollback:
            return
        for column in self._columns:
            if (column == path or column.startswith(f"{path}/")) and self.log_writer.is_text(column):
                old, new = self.log_writer.value(column), _at(value, column[len(path) :])
                if old and not (isinstance(new, str) and new.startswith(str(old))):
                    raise ValueError(NO_ROLLBACK)

    def _path(self, pointer: str | None) -> str:
        if pointer is None:
            return self._growing
        if pointer:
            parse(pointer)
        return self._place + pointer


def _at(value: Any, pointer: str) -> Any:
    """Return the member of a value at a JSON Pointer, or None if there is no such member."""
    for token in parse(pointer):
        value = value.get(token) if isinstance(value, dict) else None
    return value
