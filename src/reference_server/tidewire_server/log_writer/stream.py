"""`Stream[T]`: the object through which an endpoint's function writes its value.

A facade over the item's `ItemWriter` that shows only the methods that functions may call. The cost of a call does not
depend on the length of the value. Calls may come from the event loop or from a worker thread. A change that does not fit
the value raises a `ValueError` and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from tidewire_server.log_writer.item_writer import ItemWriter

T = TypeVar("T")


class Stream(Generic[T]):
    """The value of one item while its function runs. `T` is the type of the value.

    A function gets one by having a parameter annotated `Stream[T]`.
    """

    __slots__ = ("_writer",)

    def __init__(self, writer: ItemWriter) -> None:
        self._writer = writer

    @property
    def value(self) -> T:
        """A copy of the current value, made at each access in time proportional to its length."""
        value: T = self._writer.value
        return value

    def append(self, x: str | list[Any], *, at: str | None = None) -> None:
        """Append a string to a text, or elements to an array.

        Args:
            x: The string or the elements.
            at: JSON Pointer of the text or array within the value. Default: the endpoint's column if it has exactly
                one, otherwise the value itself.

        Raises:
            ValueError: The value at this path is not a text (for a string) or an array (for elements).
            StreamClosedError: The item has ended.
        """
        writer = self._writer
        if at is not None or not writer.log_writer.append_text(writer.open_text, x):  # type: ignore[arg-type]
            writer.append(x, at)

    def truncate(self, n_last: int, *, at: str | None = None) -> None:
        """Remove the last code points of a text, or the last elements of an array.

        Args:
            n_last: Number of code points or elements to remove.
            at: JSON Pointer within the value; default as in `append`.

        Raises:
            ValueError: There are fewer; or the value at this path is neither text nor array; or it is a text and the
                endpoint does not declare the capability `rollback`.
            StreamClosedError: The item has ended.
        """
        self._writer.truncate(n_last, at)

    def row(self, *members: Any) -> None:
        """Append one member to each of the endpoint's columns: a string to a text, an element to an array.

        Raises:
            ValueError: The number of members is not the number of columns, or a member has the wrong type.
            StreamClosedError: The item has ended.
        """
        self._writer.row(members)

    def set(self, pointer: str, value: Any) -> None:
        """Set one member of the value. Its parent must exist. An index equal to an array's length appends.

        Args:
            pointer: JSON Pointer within the value; empty sets the value as a whole.
            value: JSON, or a value that pydantic can convert to JSON.

        Raises:
            ValueError: The parent does not exist, or the value is not JSON; or this would retract text and the
                endpoint does not declare the capability `rollback`.
            StreamClosedError: The item has ended.
        """
        self._writer.set(pointer, value)

    def stable(self, n_first: int | None = None, *, at: str | None = None) -> None:
        """Declare the beginning of a text as stable: it will not be retracted.

        Clients deliver a stable prefix as final at once, even if the endpoint declares the capability `rollback`. A
        stable prefix never becomes shorter: a smaller number has no effect, and a `truncate`, `set` or yielded value
        that would change the prefix raises.

        Args:
            n_first: Number of code points; default: the whole text as it is now.
            at: JSON Pointer of the text within the value; default as in `append`.

        Raises:
            ValueError: The value at this path is not a text, or has fewer code points.
            StreamClosedError: The item has ended.
        """
        self._writer.stable(n_first, at)

    def progress(
        self, current: float, total: float | None = None, *, unit: str | None = None, phase: str | None = None
    ) -> None:
        """Report the progress of the function. Readers see the latest report; earlier ones may be dropped.

        Raises:
            ValueError: A number is not finite, an integer is outside ±2^53, or a string has more than 1000 characters.
            StreamClosedError: The item has ended.
        """
        self._writer.progress(current, total, unit=unit, phase=phase)

    def note(self, text: str, level: Literal["info", "warning", "error"] = "info") -> None:
        """Add a note to the job's state, for all readers.

        Raises:
            ValueError: The note is not a string, or the level is unknown.
            StreamClosedError: The item has ended.
        """
        self._writer.note(text, level)

    def usage(self, **numbers: float) -> None:
        """Report resource usage, such as `prompt_tokens=12`.

        A later call replaces numbers of the same name. The usage of a job is the sum over its items.

        Raises:
            ValueError: A value is not a number, or is outside ±2^53.
            StreamClosedError: The item has ended.
        """
        self._writer.usage(numbers)

    @property
    def cancelled(self) -> bool:
        """Whether the item was cancelled. A function in a worker thread should check this and return."""
        return self._writer.cancelled


def writer_of(stream: Stream[Any]) -> ItemWriter:
    """Return the writer behind a stream, for endpoints that are part of the server."""
    return stream._writer
