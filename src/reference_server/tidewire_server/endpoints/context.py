"""Per-call context for endpoint functions (`Context`): cancellation, progress, notes and usage."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from tidewire_server.errors import StreamClosedError
from tidewire_server.log_writer.item_writer import ItemWriter


class Context:
    """The current call of an endpoint function: its cancellation, progress, notes and usage.

    A function receives a context by declaring a parameter with the annotation `Context`. In a batched function the context
    belongs to the whole call, and `rows` holds one context per input. Progress and notes of the call apply to every row.
    """

    def __init__(self, writer: ItemWriter | None = None, rows: Mapping[int, "Context"] | None = None) -> None:
        self._writer = writer
        self._rows = MappingProxyType({} if rows is None else rows)

    @property
    def cancelled(self) -> bool:
        """Whether the result is no longer needed, because the item was cancelled or its deadline has passed.

        For a batched call, True only if this applies to all rows. The server cannot stop a function in a worker thread, so
        such a function should check this regularly and return.
        """
        if self._writer is not None:
            return self._writer.cancelled
        return all(row.cancelled for row in tuple(self._rows.values()))

    @property
    def rows(self) -> Mapping[int, "Context"]:
        """Contexts of the inputs by row number, without padding. A call that is not batched is its own row 0."""
        return self._rows if self._writer is None else MappingProxyType({0: self})

    def progress(
        self, current: float, total: float | None = None, *, unit: str | None = None, phase: str | None = None
    ) -> None:
        """Report progress to the readers of the job. See `Stream.progress`.

        Raises:
            ValueError: An argument is invalid. See `Stream.progress`.
            StreamClosedError: The item has ended. Never raised in a batched call.
        """
        self._write(lambda writer: writer.progress(current, total, unit=unit, phase=phase))

    def note(self, text: str, level: Literal["info", "warning", "error"] = "info") -> None:
        """Add a note for the readers of the job. See `Stream.note`.

        Raises:
            ValueError: The text is not a valid string, or the level is unknown.
            StreamClosedError: The item has ended. Never raised in a batched call.
        """
        self._write(lambda writer: writer.note(text, level))

    def usage(self, **numbers: float) -> None:
        """Report usage, such as `tokens=12`. See `Stream.usage`. In a batched call, report usage per row.

        Raises:
            ValueError: An argument is not a number within ±2^53, or this is the context of a whole batched call.
            StreamClosedError: The item has ended. Never raised in a batched call.
        """
        if self._writer is None:
            raise ValueError("a batched call must report usage per row: ctx.rows[row].usage(…)")
        self._write(lambda writer: writer.usage(numbers))

    def _write(self, action: Callable[[ItemWriter], None]) -> None:
        if self._writer is None:
            for row in tuple(self._rows.values()):
                row._write(action)
        else:
            action(self._writer)


class RowContext(Context):
    """Context of one row of a batched call. Writes after the row's end are ignored, because the call continues."""

    def _write(self, action: Callable[[ItemWriter], None]) -> None:
        try:
            super()._write(action)
        except StreamClosedError:
            return
