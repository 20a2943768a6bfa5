"""`Stream[T]`: the object through which an endpoint's function writes its value.

A facade: it holds the item's `ItemWriter`, which the server uses as well, and shows only what functions may call.
Every call is O(1) in what was written before, and may come from the event loop or from a worker thread. A change that
does not fit the value raises a `ValueError` at the call, and changes nothing.
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
        """The current value, as a new copy at each call: reading costs time in proportion to its length."""
        value: T = self._writer.value
        return value

    def append(self, x: str | list[Any], *, at: str | None = None) -> None:
        """Append a string to a text, or elements to an array.

        Args:
            x: What comes after what is there.
            at: JSON Pointer within the value. Without it the endpoint's one column grows, else the value itself.

        Raises:
            ValueError: There is nothing there that grows by `x`.
            StreamClosedError: The item has ended.
        """
        writer = self._writer
        if at is not None or not writer.log_writer.append_text(writer.open_text, x):  # type: ignore[arg-type]
            writer.append(x, at)

    def truncate(self, n_last: int, *, at: str | None = None) -> None:
        """Take back the last code points of a text, or the last elements of an array.

        Args:
            n_last: How many.
            at: JSON Pointer within the value; without it as in `append`.

        Raises:
            ValueError: There are fewer, or no text and no array; or it is a text, and the endpoint has no rollback.
            StreamClosedError: The item has ended.
        """
        self._writer.truncate(n_last, at)

    def row(self, *members: Any) -> None:
        """Grow each of the endpoint's columns by one: a text by a string, an array by one element.

        Raises:
            ValueError: There are not as many members as columns, or one does not fit.
            StreamClosedError: The item has ended.
        """
        self._writer.row(members)

    def set(self, pointer: str, value: Any) -> None:
        """Set one place; its parent exists. An index equal to an array's length appends.

        Args:
            pointer: JSON Pointer within the value; empty sets the value as a whole.
            value: JSON, or what pydantic turns into JSON.

        Raises:
            ValueError: There is no such place, or the value is not JSON; or a text is there that this would take
                back, and the endpoint has no rollback.
            StreamClosedError: The item has ended.
        """
        self._writer.set(pointer, value)

    def stable(self, n_first: int | None = None, *, at: str | None = None) -> None:
        """Promise that the beginning of a text stays: whatever is written later, these code points are not taken back.

        Readers deliver them as final at once, where the endpoint may take text back. A promise never shrinks: a
        smaller number than before changes nothing, and `truncate`, `set` or a yielded value that would break one is
        refused.

        Args:
            n_first: How many; all that are there now, if None.
            at: JSON Pointer within the value; without it as in `append`.

        Raises:
            ValueError: There is no text, or it has fewer.
            StreamClosedError: The item has ended.
        """
        self._writer.stable(n_first, at)

    def progress(
        self, current: float, total: float | None = None, *, unit: str | None = None, phase: str | None = None
    ) -> None:
        """Report how far the function is. Readers see the latest report; earlier ones may be lost.

        Raises:
            ValueError: A number is not finite, or an integer passes ±2^53; or a text has more than 1000 characters.
            StreamClosedError: The item has ended.
        """
        self._writer.progress(current, total, unit=unit, phase=phase)

    def note(self, text: str, level: Literal["info", "warning", "error"] = "info") -> None:
        """Leave a note for all who read the job; it is part of the job's state.

        Raises:
            ValueError: It is not a text, or the level is another.
            StreamClosedError: The item has ended.
        """
        self._writer.note(text, level)

    def usage(self, **numbers: float) -> None:
        """Report what was used (`prompt_tokens=12`). A later call replaces numbers of the same name; the job's usage
        is the sum over its items.

        Raises:
            ValueError: Something is not a number, or passes ±2^53.
            StreamClosedError: The item has ended.
        """
        self._writer.usage(numbers)

    @property
    def cancelled(self) -> bool:
        """Whether the item was cancelled: a function in a worker thread ends by itself when it sees this."""
        return self._writer.cancelled


def writer_of(stream: Stream[Any]) -> ItemWriter:
    """The writer behind a stream, for endpoints that are part of the server."""
    return stream._writer
