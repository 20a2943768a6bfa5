"""Calling one endpoint's function for one item, whatever kind of function it is.

  function                    | runs
  ----------------------------+----------------------------------------------------------------------
  async def                   | on the event loop; cancelled as a task
  async generator             | on the event loop; cancelled as a task, then closed
  def                         | in a worker thread; sees `stream.cancelled` if it asks
  generator                   | in a worker thread; closed between two values when it is cancelled

A thread cannot be stopped from outside, so a function that neither yields nor asks runs to its end. Its slot and its
thread stay taken until then: whoever limits a model to one call at a time gets one call at a time.
"""

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import aclosing, closing
from typing import Any, Final

from pydantic import BaseModel, JsonValue

from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.endpoints.yieldables import UNSET, Unset
from tidewire_server.errors import InvalidValueError, StateTooLargeError, StreamClosedError
from tidewire_server.log_writer.item_writer import ItemWriter
from tidewire_server.log_writer.log_writer import LogWriter

_TURN: Final = 0.005
"""Seconds after which a generator that never waits gives way to the rest of the event loop."""

_MAX_BACKLOG: Final = 1024 * 1024
"""Bytes of uncommitted changes above which a generator on the event loop waits for the log."""

_LARGE_TEXT: Final = 4096
"""Code points of a text above which it is held against its schema at the first value and at the last only."""


async def run(
    endpoint: Endpoint, value: BaseModel, writer: ItemWriter, journal: LogWriter
) -> JsonValue | Unset:
    """Call the function and bring what it gives into the item's value.

    Returns:
        The value where the endpoint does not stream, so that it is set together with the item's end; else `UNSET`.

    Raises:
        InvalidValueError: It gave what is no JSON or does not fit its schema.
        Exception: Whatever the function raised.
    """
    try:
        return await _run(endpoint, value, writer, journal)
    except (SystemExit, KeyboardInterrupt) as error:
        raise held_back(error) from error


async def _run(
    endpoint: Endpoint, value: BaseModel, writer: ItemWriter, journal: LogWriter
) -> JsonValue | Unset:
    arguments = endpoint.input.arguments(value, writer)
    if endpoint.is_async:
        returned = endpoint.function(**arguments)
        if inspect.isawaitable(returned):
            returned = await returned
        if endpoint.is_generator and isinstance(returned, AsyncIterator):
            returned = await _drain(returned, endpoint, writer, journal)
    else:
        returned = await in_thread(_call, endpoint, arguments, writer)
    if not endpoint.streams:
        _refuse_what_yields(returned)
        return as_value(returned, endpoint)
    if returned is _NOTHING:
        _check_unyielded(endpoint, writer)
        return UNSET
    if returned is not None:
        writer.replace(returned)
    endpoint.value.check(writer.value)
    return UNSET


_NOTHING: Final = object()
"""Stands for what a generator gave that yielded nothing."""


def _check_unyielded(endpoint: Endpoint, writer: ItemWriter) -> None:
    try:
        endpoint.value.check(writer.value)
    except InvalidValueError as error:
        raise InvalidValueError(f"it yielded nothing, and its value is as it was: {error}") from None


def _refuse_what_yields(returned: Any) -> None:
    """Say what to write where a function returned what is still to run."""
    hint = None
    if isinstance(returned, Generator):
        hint = "it returned a generator: annotate the function `-> Iterator[T]`, T being what is yielded"
    elif isinstance(returned, AsyncGenerator):
        hint = "it returned a generator: annotate the function `-> AsyncIterator[T]`, T being what is yielded"
    elif isinstance(returned, Coroutine):
        returned.close()
        hint = "it returned a coroutine: make the function `async def` and await it"
    if hint is not None:
        raise InvalidValueError(hint)


async def _drain(
    values: AsyncIterator[Any], endpoint: Endpoint, writer: ItemWriter, journal: LogWriter
) -> Any:
    """Take what is yielded; gives `_NOTHING` where that is nothing."""
    loop = asyncio.get_running_loop()
    turn_ends = loop.time() + _TURN
    first = True
    async with _closed_behind(values):
        async for value in values:
            take_whole(value, endpoint, writer, first=first)
            first = False
            if journal.backlog > _MAX_BACKLOG:
                await journal.commit()
            if loop.time() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = loop.time() + _TURN
    return _NOTHING if first else None


def _closed_behind(values: Any) -> Any:
    """Close what yielded afterwards, if it can be closed."""
    if hasattr(values, "aclose"):
        return aclosing(values)
    return closing(values) if isinstance(values, Generator) else contextlib.nullcontext()


def _call(endpoint: Endpoint, arguments: dict[str, Any], writer: ItemWriter) -> Any:
    called = endpoint.function(**arguments)
    if not endpoint.is_generator or not isinstance(called, Iterator):
        return called
    first = True
    with _closed_behind(called):
        try:
            for value in called:
                # Also where nobody waits any more: what changed in the object that was yielded before would else be
                # found in part.
                take_whole(value, endpoint, writer, first=first)
                first = False
                if writer.cancelled:
                    break
        except BaseException:
            keep_what_was_yielded(writer)
            raise
    return _NOTHING if first else None


def keep_what_was_yielded(writer: ItemWriter) -> None:
    """Bring in what was not looked at of the last value, for an item that ends without another (TW-JOB-057).

    Call where the function cannot change that value meanwhile: in its own thread, or on the event loop for one that
    runs there.
    """
    with contextlib.suppress(ValueError, StateTooLargeError, StreamClosedError):
        writer.catch_up()


def take_whole(value: Any, endpoint: Endpoint, writer: ItemWriter, *, first: bool) -> None:
    """Make a value that a generator yielded the item's.

    Raises:
        InvalidValueError: It is no JSON or does not fit the schema.
        StateTooLargeError: The state would pass its limit.
        StreamClosedError: The item has ended.
    """
    # What is large is judged at the first value and at the last; between them that would cost all of it each time.
    large = len(value) > _LARGE_TEXT if isinstance(value, str) else isinstance(value, list | dict | BaseModel)
    if first or not large:
        endpoint.value.check(endpoint.value.to_json(value))
    writer.replace(value)


def as_value(returned: Any, endpoint: Endpoint) -> JsonValue:
    """What a function returned for one item, as JSON that fits the schema.

    Raises:
        InvalidValueError: There is no such JSON.
    """
    try:
        found: JsonValue = endpoint.value.to_json(returned)
    except RecursionError:
        raise InvalidValueError("the value is nested in itself") from None
    endpoint.value.check(found)
    return found


def held_back(error: BaseException) -> RuntimeError:
    """What stands for `SystemExit` and its like, which would end the server, or something in it, on their way."""
    return RuntimeError(f"the function raised {type(error).__name__}")


_MEANT_FOR_COROUTINES: Final = (StopIteration, asyncio.CancelledError, GeneratorExit)
"""A future takes none of the first, would pass the second off as a cancel of its own, and with the third would close
whoever awaits it instead of raising there."""


def in_thread(function: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
    """Call a function in a thread of its own, which does not keep the process from ending.

    The thread has begun when this returns. A cancelled caller does not wait; the thread runs on. Whoever counts threads
    bounds them.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if outcome.cancelled():
            return
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)

    def body() -> None:
        result, error = None, None
        try:
            result = context.run(function, *args)
        except BaseException as raised:  # noqa: BLE001 - it travels to whoever awaits
            error = held_back(raised) if isinstance(raised, _MEANT_FOR_COROUTINES) else raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=body, name=getattr(function, "__name__", "worker"), daemon=True).start()
    return outcome
