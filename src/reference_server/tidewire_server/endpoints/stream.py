"""`Stream[T]`: the object through which an endpoint's function writes its value.

`Stream` wraps the item's `ItemWriter` and has only the methods that functions may call. The cost of a call does not
depend on the length of the value. Functions may call the methods on the event loop or in a worker thread. A call that
cannot be applied to the value raises a `ValueError` and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from tidewire_server.endpoints.item_writer import ItemWriter

T = TypeVar("T")


class Stream(Generic[T]):
    """Writer for the value of one item while its function runs. The type argument `T` is the type of the value.

    If a function has a parameter annotated with `Stream[T]`, the server passes a stream as this argument.
    """

    __slots__ = ("_writer",)

    def __init__(self, writer: ItemWriter) -> None:
        self._writer = writer

    @property
    def value(self) -> T:
        """A copy of the current value. Each access makes a new copy, which takes time proportional to its length."""
        value: T = self._writer.value
        return value

    def append(self, x: str | list[Any], *, at: str | None = None) -> None:
        """Append a string to a text, or elements to an array.

        Args:
            x: The string or the elements.
            at: JSON Pointer of the text or array within the value. The default is the endpoint's column if the endpoint
                has exactly one column, otherwise the value itself.

        Raises:
            ValueError: The value at this path is not a text (for a string) or an array (for elements).
            StreamClosedError: The item has ended.
        """
        writer = self._writer
        if at is not None or not writer.pending.append_text(writer.growing, x):  # type: ignore[arg-type]
            writer.append(x, at)

    def truncate(self, n_last: int, *, at: str | None = None) -> None:
        """Remove the last code points of a text, or the last elements of an array.

        Args:
            n_last: Number of code points or elements to remove.
            at: JSON Pointer within the value; default as in `append`.

        Raises:
            ValueError: The text or array is shorter than `n_last`, or the value at this path is neither a text nor an
                array, or the value is a text and the endpoint has the capability `{"rollback": False}`.
            StreamClosedError: The item has ended.
        """
        self._writer.truncate(n_last, at)

    def row(self, *members: Any) -> None:
        """Append one row: a string to each column that is a text, and one element to each column that is an array.

        Args:
            *members: One string or element for each column, in the order of the columns.

        Raises:
            ValueError: The number of arguments differs from the number of columns, or an argument has the wrong type.
            StreamClosedError: The item has ended.
        """
        self._writer.row(members)

    def set(self, pointer: str, value: Any) -> None:
        """Set one member or element of the value. The object or array that contains it must exist.

        Setting the index after the last element of an array appends to the array.

        Args:
            pointer: JSON Pointer within the value. An empty pointer replaces the whole value.
            value: JSON, or a value that pydantic can convert to JSON.

        Raises:
            ValueError: The containing object or array does not exist, or the value is not JSON, or the change would
                retract text and the endpoint has the capability `{"rollback": False}`.
            StreamClosedError: The item has ended.
        """
        self._writer.set(pointer, value)

    def stable(self, n_first: int | None = None, *, at: str | None = None) -> None:
        """Declare that the beginning of a text is stable, so that the function can no longer retract it.

        From the first call on, `iter_text` of the client yields only the stable prefix while the job runs. Without a
        call, it yields text as it arrives. Therefore call `stable(0)` before the first text, if text may be retracted.
        A stable prefix never becomes shorter: a call with a smaller number has no effect, and a `truncate`, a `set` or a
        yielded value that would change the prefix raises an error.

        Args:
            n_first: Length of the stable prefix in code points. The default is the current length of the text.
            at: JSON Pointer of the text within the value; default as in `append`.

        Raises:
            ValueError: The value at this path is not a text, or it has fewer than `n_first` code points.
            StreamClosedError: The item has ended.
        """
        self._writer.stable(n_first, at)

    def progress(
        self, current: float, total: float | None = None, *, unit: str | None = None, phase: str | None = None
    ) -> None:
        """Report the progress of the function. Readers get the latest report, and the server may drop earlier reports.

        Raises:
            ValueError: A number is not finite, an integer is outside ±2^53, or a string has more than 1000 characters.
            StreamClosedError: The item has ended.
        """
        self._writer.progress(current, total, unit=unit, phase=phase)

    def note(self, text: str, level: Literal["info", "warning", "error"] = "info") -> None:
        """Add a note to the job's state, where all readers of the job can see it.

        Raises:
            ValueError: The note is not a string, or the level is unknown.
            StreamClosedError: The item has ended.
        """
        self._writer.note(text, level)

    def usage(self, **numbers: float) -> None:
        """Report resource usage, such as `prompt_tokens=12`.

        A later call replaces the numbers that an earlier call reported under the same name. The usage of a job is the
        sum over its items.

        Raises:
            ValueError: A value is not a number, or is outside ±2^53.
            StreamClosedError: The item has ended.
        """
        self._writer.usage(numbers)

    @property
    def cancelled(self) -> bool:
        """Whether the item was cancelled. A function in a worker thread should check this property regularly, and
        return if it is True.
        """
        return self._writer.run.cancelled


def writer_of(stream: Stream[Any]) -> ItemWriter:
    """Return the `ItemWriter` of a stream. Endpoints that are part of the server need its internal methods."""
    return stream._writer
