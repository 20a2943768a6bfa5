"""What a client tells of its work, for measurements and traces: `Client(url, hooks=Hooks(on_request=…))`.

A hook is a function of one event, or a coroutine function. It is called where the thing happens and is waited for, so
it should be quick; in the blocking client that is a thread of its own. What a hook raises is logged as an error and
goes no further: an observer must not break a stream. The same is logged: see the names of the levels in `Hooks`.
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
    """An answer, read whole or open."""

    @property
    def status(self) -> int: ...

    async def aclose(self) -> None: ...


A = TypeVar("A", bound=HasStatus)
E = TypeVar("E")
Hook = Callable[[E], object | Awaitable[object]]


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """A request was answered, or was not.

    Attributes:
        method: GET, POST, …
        url: Where it went.
        status: HTTP status of the answer; None where none came.
        seconds: From the request to the end of its answer; of a stream, to the end of its headers.
        error: What went wrong with the network, in words; None where an answer came.
    """

    method: str
    url: str
    status: int | None
    seconds: float
    error: str | None


@dataclass(frozen=True, slots=True)
class ReconnectEvent:
    """A stream broke, or was closed by plan, and is opened again after a wait.

    Attributes:
        job_id: The job.
        cause: `cut`, `goaway` (a planned close), `busy` (the server asked to wait) or `resync`.
        why: What was seen, in words.
        wait: Seconds until the next attempt.
        last_event_id: Where the stream will go on; None: from a snapshot.
    """

    job_id: str | None
    cause: str
    why: str
    wait: float
    last_event_id: str | None


@dataclass(frozen=True, slots=True)
class ResyncEvent:
    """What came did not fit to what is held, which is dropped and asked for anew. A reconnect follows.

    Attributes:
        job_id: The job.
        why: What did not fit, in words.
    """

    job_id: str | None
    why: str


@dataclass(frozen=True, slots=True)
class EndEvent:
    """The end of a job was received.

    Attributes:
        job_id: The job.
        status: `succeeded`, `partially_failed`, `failed` or `cancelled`.
        last_event_id: The id of its end.
    """

    job_id: str | None
    status: str
    last_event_id: str | None


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions that are told what happens; see the top of this file.

    Attributes:
        on_request: After each request, repetitions among them. Logged at DEBUG.
        on_reconnect: Before the wait. Logged at INFO, a planned close at DEBUG.
        on_resync: Before the reconnect that follows. Logged at WARNING.
        on_end: When the end of a job was received. Logged at DEBUG.
    """

    on_request: Hook[RequestEvent] | None = None
    on_reconnect: Hook[ReconnectEvent] | None = None
    on_resync: Hook[ResyncEvent] | None = None
    on_end: Hook[EndEvent] | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                raise TypeError(f"{name} is a function of one event, not {hook!r}")


async def tell(hook: Hook[E] | None, event: E) -> None:
    """Call a hook, and log what it raises."""
    if hook is None:
        return
    try:
        given = hook(event)
        if inspect.isawaitable(given):
            await given
    except Exception:
        log.exception("a hook raised for %r; the work goes on", event)


async def watched(hook: Hook[RequestEvent] | None, method: str, url: str, work: Awaitable[A]) -> A:
    """Make a request and tell how it went."""
    begun = time.perf_counter()
    try:
        answer = await work
    except TidewireError as error:
        await _told(hook, RequestEvent(method, url, None, time.perf_counter() - begun, error.what))
        raise
    try:
        await _told(hook, RequestEvent(method, url, answer.status, time.perf_counter() - begun, None))
    except BaseException:
        # Cancelled while a hook was waited for: nobody else will close what was opened.
        await answer.aclose()
        raise
    return answer


async def _told(hook: Hook[RequestEvent] | None, event: RequestEvent) -> None:
    log.debug("%s %s: %s in %.3f s", event.method, event.url, event.status or event.error, event.seconds)
    await tell(hook, event)
