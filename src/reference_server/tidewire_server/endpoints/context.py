"""The context of a call (`Context`), through which an endpoint's function reports progress, notes and usage."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from tidewire_server.endpoints.item_writer import ItemWriter
from tidewire_server.errors import StreamClosedError


class Context:
    """Context of the current call of an endpoint function. The function uses it to report progress, notes and usage,
    and to check for cancellation.

    If a function has a parameter annotated with `Context`, the server passes a context as this argument. In a batched
    function, the context belongs to the whole call, and `rows` contains one context for each input. Progress and notes
    that the function reports through the context of the call apply to every row.
    """

    def __init__(self, writer: ItemWriter | None = None, rows: Mapping[int, "Context"] | None = None) -> None:
        self._writer = writer
        self._rows = MappingProxyType({} if rows is None else rows)

    @property
    def cancelled(self) -> bool:
        """Whether the result of the call is no longer needed, because the item was cancelled or its deadline has passed.

        For a batched call, this is True only if all rows were cancelled. For a context that a test creates, as in
        `function(…, Context())`, it is False. The server cannot stop a function in a worker thread, so such a function should
        check this property regularly and return early.
        """
        if self._writer is not None:
            return self._writer.run.cancelled
        rows = tuple(self._rows.values())
        return bool(rows) and all(row.cancelled for row in rows)

    @property
    def attempt(self) -> int:
        """Number of the job's current attempt. The first attempt is 1, and each run after a restart of the server adds 1.

        A batched function must read this number for each row, as in `ctx.rows[row].attempt`.

        Raises:
            ValueError: This is the context of a whole batched call.
        """
        writer = _own_writer(self, "attempt")
        return 1 if writer is None else writer.run.attempt

    @property
    def previous(self) -> Any:
        """Copy of the item's last logged value before this attempt, as JSON. None in the first attempt.

        If the earlier attempts logged no value, this is the initial value. With `on_restart="rerun"`, each attempt
        begins again with the initial value, so this property contains only progress of the most recent attempt. With
        `on_restart="continue"`, it contains the progress of all earlier attempts. A batched function must read this
        property for each row, as in `ctx.rows[row].previous`.

        Raises:
            ValueError: This is the context of a whole batched call.
        """
        writer = _own_writer(self, "previous")
        return None if writer is None else writer.run.previous

    @property
    def rows(self) -> Mapping[int, "Context"]:
        """Contexts of the inputs of a batched call by row number, without padding rows. If the call is not batched, the
        mapping contains only this context, as row 0.
        """
        return self._rows if self._writer is None else MappingProxyType({0: self})

    def progress(
        self, current: float, total: float | None = None, *, unit: str | None = None, phase: str | None = None
    ) -> None:
        """Report progress to the readers of the job. See `Stream.progress`.

        Raises:
            ValueError: An argument is invalid. See `Stream.progress`.
            StreamClosedError: The item has ended. This error is never raised in a batched call.
        """
        _write(self, lambda writer: writer.progress(current, total, unit=unit, phase=phase))

    def note(self, text: str, level: Literal["info", "warning", "error"] = "info") -> None:
        """Add a note for the readers of the job. See `Stream.note`.

        Raises:
            ValueError: The text is not a valid string, or the level is unknown.
            StreamClosedError: The item has ended. This error is never raised in a batched call.
        """
        _write(self, lambda writer: writer.note(text, level))

    def usage(self, **numbers: float) -> None:
        """Report resource usage, such as `tokens=12`. See `Stream.usage`. A batched function must report usage for each
        row, as in `ctx.rows[row].usage(tokens=12)`.

        Raises:
            ValueError: An argument is not a number within ±2^53, or this is the context of a whole batched call.
            StreamClosedError: The item has ended. This error is never raised in a batched call.
        """
        if self._writer is None:
            raise ValueError("a batched function must report usage for each row, with ctx.rows[row].usage(…)")
        _write(self, lambda writer: writer.usage(numbers))


class RowContext(Context):
    """Context of one row of a batched call. After the row has ended, the call can continue, and reports for this row are
    ignored.
    """


def _own_writer(context: Context, member: str) -> ItemWriter | None:
    """Return the `ItemWriter` of a context, or None if the context was created without a server."""
    if context._writer is None and context._rows:
        raise ValueError(f"each row of a batched call has its own {member}: read ctx.rows[row].{member}")
    return context._writer


def _write(context: Context, action: Callable[[ItemWriter], None]) -> None:
    """Call `action` with the `ItemWriter` of a context's item. In a batched call, do this for every row."""
    if context._writer is None:
        for row in tuple(context._rows.values()):
            _write(row, action)
        return
    try:
        action(context._writer)
    except StreamClosedError:
        if not isinstance(context, RowContext):
            raise
