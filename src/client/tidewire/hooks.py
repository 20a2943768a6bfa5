"""Hooks and logging for metrics and traces: `Client(url, hooks=Hooks(on_request=…))`.

A hook is a function or coroutine function with one event as its argument. The client waits for the hook to return, so
hooks should be fast. The blocking client calls hooks on its background thread. Exceptions in a hook are logged and
otherwise ignored, so that a faulty hook does not break a stream. Each event is also logged, at the level that `Hooks` lists.
"""

import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from tidewire.errors import TidewireError

log: Final = logging.getLogger("tidewire")
log.addHandler(logging.NullHandler())


class HasStatus(Protocol):
    """Response with an HTTP status, either read completely or still open as a stream."""

    @property
    def status(self) -> int: ...

    async def aclose(self) -> None: ...


A = TypeVar("A", bound=HasStatus)
E = TypeVar("E")
Hook = Callable[[E], object | Awaitable[object]]


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """A request was completed or failed.

    Attributes:
        method: HTTP method, such as GET or POST.
        url: URL of the request.
        status: HTTP status of the response, or None if there was no response.
        seconds: Duration of the request until the end of the response, or for a stream until the end of its headers.
        error: Description of the network error, or None if there was a response.
    """

    method: str
    url: str
    status: int | None
    seconds: float
    error: str | None


@dataclass(frozen=True, slots=True)
class ReconnectEvent:
    """A stream ended before its job did. The client will reconnect after a wait.

    Attributes:
        job_id: Id of the job.
        cause: `cut` (lost connection), `goaway` (planned close), `busy` (the server asked to wait) or `resync`.
        why: Human-readable reason.
        wait: Seconds until the client reconnects.
        last_event_id: Cursor from which the stream resumes, or None if it restarts from a snapshot.
    """

    job_id: str | None
    cause: str
    why: str
    wait: float
    last_event_id: str | None


@dataclass(frozen=True, slots=True)
class ResyncEvent:
    """An event did not match the client's state. The client drops its cursor and will reconnect for a new snapshot.

    Attributes:
        job_id: Id of the job.
        why: Human-readable reason.
    """

    job_id: str | None
    why: str


@dataclass(frozen=True, slots=True)
class EndEvent:
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
    """Functions that the client calls when an event occurs. All are optional.

    Attributes:
        on_request: Called after each request, including retries. Logged at DEBUG.
        on_reconnect: Called before the wait that precedes a reconnect. Logged at INFO, or at DEBUG for a planned close.
        on_resync: Called before the reconnect that requests a new snapshot. Logged at WARNING.
        on_end: Called when the end of a job was received. Logged at DEBUG.
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
    """Call a hook and log its exceptions."""
    if hook is None:
        return
    try:
        result = hook(event)
        if inspect.isawaitable(result):
            await result
    except Exception:
        log.exception("ignored an exception in a hook for %r", event)


async def watched(hook: Hook[RequestEvent] | None, method: str, url: str, work: Awaitable[A]) -> A:
    """Await a request, then log it and call the `on_request` hook."""
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
        # Cancelled while waiting for the hook. The caller never receives the response, so close it here.
        await answer.aclose()
        raise
    return answer


async def _report_request(hook: Hook[RequestEvent] | None, event: RequestEvent) -> None:
    log.debug("%s %s: %s in %.3f s", event.method, event.url, event.status or event.error, event.seconds)
    await tell(hook, event)
