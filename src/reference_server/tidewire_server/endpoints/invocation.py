"""Call an endpoint's function for one item. The kind of function decides where it runs and how it is cancelled.

  kind of function            | where it runs, and how it is cancelled
  ----------------------------+----------------------------------------------------------------------
  async def                   | on the event loop; its task is cancelled
  async generator             | on the event loop; its task is cancelled, then the generator is closed
  def                         | in a worker thread; the function must check `stream.cancelled` or `ctx.cancelled`
  generator                   | in a worker thread; the generator is closed between two values

Python cannot stop a thread from outside, so a function that neither yields nor checks for cancellation runs to its end.
Until then, the function occupies a concurrency slot, so that the endpoint's concurrency limit is never exceeded.
"""

import asyncio
import contextlib
import contextvars
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import aclosing, closing
from functools import partial
from typing import Any, Final

from pydantic import BaseModel, JsonValue

from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.endpoints.function_threads import start_call
from tidewire_server.endpoints.item_writer import ItemWriter
from tidewire_server.endpoints.yieldables import UNSET, Append, Last, Unset
from tidewire_server.errors import InvalidValueError, ItemError, StateTooLargeError, StreamClosedError
from tidewire_server.job_log.log_writer import LogWriter

_TURN: Final = 0.005
"""Time in seconds for which the server reads values of an async generator before it lets other tasks of the event loop run.
Without this limit, an async generator that never awaits would block the event loop.
"""

_MAX_BACKLOG: Final = 1024 * 1024
"""Maximum size of a job's uncommitted changes, in bytes. Above this size, the server commits the changes before it reads the
next value of an async generator.
"""

_LARGE_TEXT: Final = 4096
"""Length of a long text, in code points. Of the long texts that a generator yields, only the first and last are validated."""

_FEW_PAIRS, _MANY_PAIRS = 2, 16
"""The server compares pairs of successive texts to detect a generator that yields pieces instead of whole texts. It decides
after `_MANY_PAIRS` pairs, or at the end of the generator if there were at least `_FEW_PAIRS`.
"""

_RARE: Final = 0.25
"""If at most this fraction of the pairs has a second text that begins with the first text, the server assumes that the
generator yields pieces.
"""

_log = logging.getLogger(__name__)


async def run(
    endpoint: Endpoint, value: BaseModel, writer: ItemWriter, journal: LogWriter
) -> JsonValue | Unset:
    """Call an endpoint's function for one item, and write its results to the item's value.

    Returns:
        `UNSET` if the value was already written while the function ran. Otherwise the item's value, which the caller must
        write when it ends the item.

    Raises:
        InvalidValueError: The function produced a value that is not JSON, or that does not match its schema.
        Exception: The function raised an exception.
    """
    try:
        arguments = endpoint.input.arguments(value, writer)
        if endpoint.is_async:
            returned = endpoint.function(**arguments)
            if inspect.isawaitable(returned):
                # Do not wrap this in another coroutine: each level costs 0.04 µs whenever the function awaits.
                returned = await returned
            if endpoint.is_generator and isinstance(returned, AsyncIterator):
                returned = await _drain(returned, endpoint, writer, journal)
        else:
            returned = await in_thread(_call, endpoint, arguments, writer)
        return _final_value(returned, endpoint, writer)
    except (SystemExit, KeyboardInterrupt) as error:
        raise exit_replacement(error) from error


def _final_value(returned: Any, endpoint: Endpoint, writer: ItemWriter) -> JsonValue | Unset:
    if not endpoint.streams:
        _refuse_unstarted(returned)
        return as_value(returned, endpoint)
    if returned is _NOTHING:
        try:
            endpoint.value.check(writer.value)
        except InvalidValueError as error:
            raise InvalidValueError(
                f"the function yielded nothing, and its initial value is invalid: {error}"
            ) from None
        return UNSET
    if returned is not None:
        writer.replace(returned)
    if endpoint.checks_value:
        endpoint.value.check(writer.value)
    return UNSET


_NOTHING: Final = object()
"""Sentinel result of a generator that yielded no value."""


def _refuse_unstarted(returned: Any) -> None:
    """Raise an error if a function returned a generator or a coroutine that has not run yet, instead of a value."""
    hint = None
    if isinstance(returned, Generator):
        hint = "the function returned a generator; annotate it `-> Iterator[T]`, where T is the type of the values"
    elif isinstance(returned, AsyncGenerator):
        hint = "the function returned an async generator; annotate it `-> AsyncIterator[T]`, where T is the type of the values"
    elif isinstance(returned, Coroutine):
        returned.close()
        hint = "the function returned a coroutine; declare the function `async def`, and await the coroutine in it"
    if hint is not None:
        raise InvalidValueError(hint)


async def _drain(
    values: AsyncIterator[Any], endpoint: Endpoint, writer: ItemWriter, journal: LogWriter
) -> Any:
    """Write all values that an async generator yields. Return `_NOTHING` if the generator yields no value, otherwise
    None.
    """
    loop = asyncio.get_running_loop()
    turn_ends = loop.time() + _TURN
    steps = YieldedSteps(endpoint, writer)
    async with _closing(values):
        async for value in values:
            steps.take(value)
            if journal.backlog > _MAX_BACKLOG:
                await journal.commit_shielded()
            if loop.time() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = loop.time() + _TURN
    return steps.end()


def _closing(values: Any) -> Any:
    """Return a context manager that closes an iterator or async iterator on exit, if it has a method to close it."""
    if hasattr(values, "aclose"):
        return aclosing(values)
    return closing(values) if isinstance(values, Generator) else contextlib.nullcontext()


def _call(endpoint: Endpoint, arguments: dict[str, Any], writer: ItemWriter) -> Any:
    called = endpoint.function(**arguments)
    if not endpoint.is_generator or not isinstance(called, Iterator):
        return called
    steps = YieldedSteps(endpoint, writer)
    with _closing(called):
        while True:
            try:
                value = next(called)
            except StopIteration as end:
                if end.value is not None:
                    _warn_about_return(endpoint, writer)
                break
            # Write the value even if the item was cancelled, because the function has yielded it.
            steps.take(value)
            if writer.run.cancelled:
                break
    return steps.end()


def _warn_about_return(endpoint: Endpoint, writer: ItemWriter) -> None:
    text = (
        f"endpoint {endpoint.name!r} is a generator and returned a value, which is not used: the result is the last yielded "
        "value. To make the returned value the result, yield it"
    )
    _log.warning("%s", text)
    with contextlib.suppress(StreamClosedError, StateTooLargeError):
        writer.note_once(text, "warning")


_ADD_ELEMENTS: Final = (
    ". Each `yield` replaces the whole array: to add an element, use `yield Append([element])`. If each element is a complete "
    "value, annotate the function `-> Iterator[T]`, where T is the type of the element"
)

_GROWING: Final = (list, dict, BaseModel)
"""Types of values that may be large."""


class YieldedSteps:
    """Applies the objects that a generator yields for one item, and detects a generator that yields pieces of a text
    instead of whole texts.
    """

    def __init__(self, endpoint: Endpoint, writer: ItemWriter) -> None:
        self._endpoint = endpoint
        self._writer = writer
        self._first = True
        self._watches = not endpoint.retracts_deliberately
        self._text: str | None = None
        """The text that was yielded last; None if the last yielded object was not a text."""
        self._pairs = self._extending = 0
        """Number of pairs of successive texts, and number of these pairs in which the second text begins with the first."""

    def take(self, value: Any) -> None:
        """Apply one yielded object. The content of an `Append` is appended; any other object becomes the item's value.

        Raises:
            InvalidValueError: The value is not JSON or does not match the schema. The first `Append` to null sets the value.
            StateTooLargeError: The job's state would exceed its limit.
            StreamClosedError: The item has ended.
            ValueError: An `Append` does not match the value at its path.
        """
        if type(value) is Append:
            if self._first and isinstance(value.x, str | list | tuple) and self._writer.is_null(value.at):
                self._endpoint.value.check(self._endpoint.value.to_json(value.x))
                self._writer.set("", value.x)
            else:
                self._writer.append(value.x, value.at)
                if value.at and not self._endpoint.warned_about_columns and isinstance(value.x, str):
                    _warn_about_columns(self._endpoint, value.at)
            self._text = None
        elif type(value) is Last:
            raise InvalidValueError(_ONLY_IN_BATCHES)
        else:
            # Validate large values only at the first and the last yield. Validating a growing value at each of n yields
            # would take time proportional to n².
            large = len(value) > _LARGE_TEXT if isinstance(value, str) else isinstance(value, _GROWING)
            if self._first or not large:
                try:
                    self._endpoint.value.check(self._endpoint.value.to_json(value))
                except InvalidValueError as error:
                    raise InvalidValueError(f"{error}{self._advice(value)}") from None
            self._writer.replace(value)
            if self._watches:
                self._watch(value)
        self._first = False

    def end(self) -> Any:
        """Warn if a short generator yielded pieces. Return `_NOTHING` if it yielded nothing, otherwise None."""
        if self._watches:
            self._decide(_FEW_PAIRS)
        return _NOTHING if self._first else None

    def _advice(self, value: Any) -> str:
        yields_elements = self._endpoint.value.schema.get("type") == "array" and not isinstance(
            value, list | tuple
        )
        return _ADD_ELEMENTS if yields_elements else ""

    def _watch(self, value: Any) -> None:
        before, self._text = self._text, value if isinstance(value, str) else None
        if before and self._text is not None and self._text != before:
            self._pairs += 1
            self._extending += self._text.startswith(before)
            self._decide(_MANY_PAIRS)

    def _decide(self, pairs: int) -> None:
        if self._pairs < pairs:
            return
        self._watches = False
        if self._extending <= _RARE * self._pairs:
            _warn_about_pieces(self._endpoint, self._writer)


def _warn_about_pieces(endpoint: Endpoint, writer: ItemWriter) -> None:
    """Warn once in the log for each endpoint, and once in the notes of each job."""
    text = (
        f"endpoint {endpoint.name!r} yields texts that do not begin with the text before: each yielded text replaces the "
        "whole text, so the result is only the last one. To add a piece, use `yield Append(piece)`, or yield the whole "
        "text so far. If replacing is intended, pass capabilities={'rollback': True} to @server.endpoint"
    )
    if not endpoint.warned_about_pieces:
        endpoint.warned_about_pieces = True
        _log.warning("%s", text)
    with contextlib.suppress(StreamClosedError, StateTooLargeError):
        writer.note_once(text, "warning")


def _warn_about_columns(endpoint: Endpoint, at: str) -> None:
    """Log once for each endpoint that it appends text outside of its columns. Clients read text only from columns."""
    if not endpoint.guesses_columns:
        return
    endpoint.warned_about_columns = True
    kind = "AsyncIterator" if endpoint.is_async else "Iterator"
    _log.warning(
        "endpoint %r appends text at %r, which is not a column, so `update.text` and `iter_text()` of the client do not "
        "contain this text: pass columns=[%r] to @server.endpoint. If the text is the whole value, annotate the function "
        "`-> %s[Append[str]]`, and yield no other value",
        *(endpoint.name, at, at, kind),
    )


def as_value(returned: Any, endpoint: Endpoint) -> JsonValue:
    """Convert the value that a function returned for one item to JSON, and validate it against the endpoint's schema.

    Raises:
        InvalidValueError: The value cannot be converted to JSON, or does not match the schema.
    """
    if type(returned) is Append:
        raise InvalidValueError("the function returned an `Append`; only a generator can yield it")
    if isinstance(returned, ItemError):
        raise InvalidValueError("the function returned an `ItemError`; raise it instead")
    if type(returned) is Last:
        raise InvalidValueError(_ONLY_IN_BATCHES)
    try:
        found: JsonValue = endpoint.value.to_json(returned)
        endpoint.value.check(found)
    except RecursionError:
        raise InvalidValueError("the value contains itself, or is nested too deep") from None
    return found


_ONLY_IN_BATCHES: Final = (
    "`Last` ends one row of a batched generator; in any other function, yield or return the value itself"
)


def exit_replacement(error: BaseException) -> RuntimeError:
    """Create an ordinary error that replaces an exception such as `SystemExit`, which would otherwise end the server."""
    replacement = RuntimeError(f"the function raised {type(error).__name__}")
    replacement.__cause__ = error  # the traceback then shows the line that raised the exception
    return replacement


def in_thread(function: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
    """Call a function in a daemon thread, which does not block the exit of the process.

    The call does not wait for another call to end. If the task that awaits the result is cancelled, the call continues.
    The caller must limit the number of calls.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(end: Callable[[], None]) -> None:
        if not outcome.cancelled():
            end()

    def body() -> Callable[[], None]:
        try:
            return partial(outcome.set_result, context.run(function, *args))
        except BaseException as raised:  # noqa: BLE001 - raised again where the future is awaited
            # A future does not accept StopIteration, and treats CancelledError as its own cancellation. GeneratorExit would
            # close the coroutine that awaits the future, and SystemExit would end the server.
            is_error = isinstance(raised, Exception) and not isinstance(raised, StopIteration)
            return partial(outcome.set_exception, raised if is_error else exit_replacement(raised))

    def report(end: Callable[[], None]) -> None:
        # `call_soon_threadsafe` raises RuntimeError if the event loop is closed. No task awaits the future in this case.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, end)

    start_call(body, report, getattr(function, "__name__", "worker"))
    return outcome
