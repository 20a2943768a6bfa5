"""What a function may ask of the call that it is in: `Context`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from tidewire_server.errors import StreamClosedError
from tidewire_server.log_writer.item_writer import ItemWriter


class Context:
    """The call that a function is in: whether anybody still waits for it, and a way to tell how far it is.

    A function gets one by having a parameter annotated `Context`. In a batched function it stands for the whole call,
    and `rows` for each input; progress and notes of the call go to every row.
    """

    def __init__(self, writer: ItemWriter | None = None, rows: Mapping[int, "Context"] | None = None) -> None:
        self._writer = writer
        self._rows = MappingProxyType({} if rows is None else rows)

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more: it was cancelled, or its time is over. Of a batched call:
        whether that holds for all its rows. A function in a worker thread ends by itself when it sees this.
        """
        if self._writer is not None:
            return self._writer.cancelled
        return all(row.cancelled for row in tuple(self._rows.values()))

    @property
    def rows(self) -> Mapping[int, "Context"]:
        """The context of each input by its row. Rows of padding have none. A plain call is its own row 0."""
        return self._rows if self._writer is None else MappingProxyType({0: self})

    def progress(
        self, current: float, total: float | None = None, *, unit: str | None = None, phase: str | None = None
    ) -> None:
        """Tell how far the function is; see `Stream.progress`.

        Raises:
            ValueError: See `Stream.progress`.
            StreamClosedError: The item has ended; not in a batched call, whose other rows go on.
        """
        self._tell(lambda writer: writer.progress(current, total, unit=unit, phase=phase))

    def note(self, text: str, level: Literal["info", "warning", "error"] = "info") -> None:
        """Leave a note for whoever reads the job; see `Stream.note`.

        Raises:
            ValueError: It is no text, or the level is another.
            StreamClosedError: The item has ended; not in a batched call.
        """
        self._tell(lambda writer: writer.note(text, level))

    def usage(self, **numbers: float) -> None:
        """Report what was used (`tokens=12`); see `Stream.usage`. A batched call reports by row.

        Raises:
            ValueError: Something is no number, or passes ±2^53; or this is a batched call as a whole.
            StreamClosedError: The item has ended; not in a batched call.
        """
        if self._writer is None:
            raise ValueError("a batched call reports usage by row: ctx.rows[row].usage(…)")
        self._tell(lambda writer: writer.usage(numbers))

    def _tell(self, tell: Callable[[ItemWriter], None]) -> None:
        if self._writer is None:
            for row in tuple(self._rows.values()):
                row._tell(tell)
        else:
            tell(self._writer)


class RowContext(Context):
    """One row of a batched call: what is told after its end is dropped, since its siblings go on."""

    def _tell(self, tell: Callable[[ItemWriter], None]) -> None:
        try:
            super()._tell(tell)
        except StreamClosedError:
            return
