"""Hooks for metrics and traces, as in `Client(url, hooks=Hooks(on_request=…))`.

A hook is a function or coroutine function that the client calls with one event as the argument. The client waits for the
hook to return, so a hook should be fast. The blocking client calls hooks in its background thread. The client logs the
exceptions of a hook and otherwise ignores them, so that a faulty hook does not break a stream. The client also logs
each event, even if there is no hook for it.
"""

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from tidewire.errors import TidewireError

log: Final = logging.getLogger("tidewire")
"""Logger of the client. It has no handler, so Python prints its warnings to standard error by default."""


class HasStatus(Protocol):
    """A response with an HTTP status. The body may have been read completely, or may be a stream that is still open."""

    @property
    def status(self) -> int: ...

    async def aclose(self) -> None: ...


A = TypeVar("A", bound=HasStatus)
E = TypeVar("E")
Hook = Callable[[E], object | Awaitable[object]]


class ClientThread(threading.Thread):
    """The background thread of a blocking client.

    If a callback raises SystemExit or KeyboardInterrupt on this thread, the exception is only logged. It would
    otherwise end the thread's event loop, which the client needs. On other threads, it ends the program as usual.
    """


class RequestEvent(NamedTuple):
    """The client has received the response to a request, or the request has failed.

    Attributes:
        method: HTTP method, such as GET or POST.
        url: URL of the request.
        status: HTTP status of the response, or None if there was no response.
        seconds: Time from the start of the request to the end of the response. For a stream, only the time until the client
            has received the headers.
        error: Description of the network error, or None if there was a response.
    """

    method: str
    url: str
    status: int | None
    seconds: float
    error: str | None


class ReconnectEvent(NamedTuple):
    """An event stream ended before the job ended. The client will reconnect after a wait.

    Attributes:
        job_id: Id of the job.
        cause: `cut` if the connection was lost, `goaway` if the server announced the end of the connection, `busy` if the
            server asked the client to wait, or `resync` if an event did not match the client's state.
        why: Human-readable reason.
        wait: Number of seconds until the client reconnects.
        last_event_id: Id of the event after which the stream will resume, or None if the client will request a snapshot.
        failures: Number of failures in a row without progress. `RetryPolicy.attempts` limits this number.
        remaining: Number of seconds, counted from the end of the wait, after which the client gives up if there is no
            progress.
    """

    job_id: str | None
    cause: str
    why: str
    wait: float
    last_event_id: str | None
    failures: int
    remaining: float


class ResyncEvent(NamedTuple):
    """An event did not match the client's state. The client will reconnect and request a snapshot of the job's state.

    Attributes:
        job_id: Id of the job.
        why: Human-readable reason.
    """

    job_id: str | None
    why: str


class EndEvent(NamedTuple):
    """The client received the end of a job.

    Attributes:
        job_id: Id of the job.
        status: Final status: `succeeded`, `partially_failed`, `failed` or `cancelled`.
        last_event_id: Id of the job's `done` event.
    """

    job_id: str | None
    status: str
    last_event_id: str | None


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions that the client calls when an event occurs. Each function is optional.

    Attributes:
        on_request: Called after each request, including retries. The event is logged at the level DEBUG.
        on_reconnect: Called when a stream was lost, before the wait for the next attempt. The event is logged at the level
            INFO, or at the level DEBUG if the server announced the end of the connection (`goaway`). The second failure
            in a row is also logged at the level WARNING, once for all streams of a client.
        on_resync: Called before the client reconnects to request a snapshot. The event is logged at the level WARNING.
        on_end: Called when the client has received the end of a job. The event is logged at the level DEBUG.
    """

    on_request: Hook[RequestEvent] | None = None
    on_reconnect: Hook[ReconnectEvent] | None = None
    on_resync: Hook[ResyncEvent] | None = None
    on_end: Hook[EndEvent] | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                raise TypeError(f"{name} must be a function with one argument, not {hook!r}")


async def tell(hook: Hook[E] | None, event: E) -> None:
    """Call a hook or a listener, await its result if it is awaitable, and log an exception that it raises."""
    if hook is not None and (waiting := call_hook(hook, event)) is not None:
        await finish_hook(waiting, event)


def call_hook(hook: Hook[E], event: E) -> Awaitable[object] | None:
    """Call a hook or a listener, and log an exception that it raises.

    Returns:
        The result of the hook if it is awaitable. The caller must pass it to `finish_hook`.
    """
    try:
        result = hook(event)
    except BaseException as error:  # noqa: BLE001 - `_log_or_raise` raises what must not be ignored
        _log_or_raise(error, event)
        return None
    return result if inspect.isawaitable(result) else None


async def finish_hook(waiting: Awaitable[object], event: object) -> None:
    """Await the result of a hook, and log an exception that it raises."""
    try:
        await waiting
    except BaseException as error:  # noqa: BLE001 - `_log_or_raise` raises what must not be ignored
        _log_or_raise(error, event)


def _log_or_raise(error: BaseException, event: object) -> None:
    if not isinstance(error, Exception):
        on_own_thread = isinstance(threading.current_thread(), ClientThread)
        if isinstance(error, asyncio.CancelledError | GeneratorExit) or not on_own_thread:
            raise error
    log.error("ignored an exception in the callback for %r", event, exc_info=error)


async def watched(hook: Hook[RequestEvent] | None, method: str, url: str, work: Awaitable[A]) -> A:
    """Await a request, then log the request and call the hook `on_request`."""
    begun = time.perf_counter()
    try:
        answer = await work
    except TidewireError as error:
        await _report_request(hook, RequestEvent(method, url, None, time.perf_counter() - begun, error.what))
        raise
    try:
        await _report_request(
            hook, RequestEvent(method, url, answer.status, time.perf_counter() - begun, None)
        )
    except BaseException:
        # The task was cancelled while it waited for the hook. Close the response here, because the caller will never
        # receive it.
        await answer.aclose()
        raise
    return answer


async def _report_request(hook: Hook[RequestEvent] | None, event: RequestEvent) -> None:
    log.debug("%s %s: %s in %.3f s", event.method, event.url, event.status or event.error, event.seconds)
    await tell(hook, event)
