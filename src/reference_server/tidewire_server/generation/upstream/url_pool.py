"""URLs of an upstream (`UrlPool`): the choice of the URL for a request, and a task per URL that asks it again after a failure.

  state         | meaning                                                              | requests
  --------------+----------------------------------------------------------------------+------------------
  starting      | has not answered since the server started                            | wait in the queue
  ready         | has answered                                                         | are sent
  out           | refused a connection, failed, was silent or sent a redirect          | wait in the queue
  misconfigured | rejects the key, or serves another model or kind than the other URLs | wait in the queue

The table has no row for an error that the request itself has caused, because it says nothing about the URL.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tidewire_server.generation.engine_interface import EngineBusyError, EngineError

_log = logging.getLogger(__name__)

State = Literal["starting", "ready", "out", "misconfigured"]
Event = Literal["answered", "busy", "failed", "rejected"]

TRANSITIONS: Final[dict[Event, dict[State, State]]] = {
    "answered": {"starting": "ready", "ready": "ready", "out": "ready", "misconfigured": "ready"},
    "busy": {"starting": "starting", "ready": "ready", "out": "out", "misconfigured": "misconfigured"},
    "failed": {"starting": "starting", "ready": "out", "out": "out", "misconfigured": "starting"},
    "rejected": dict.fromkeys(("starting", "ready", "out", "misconfigured"), "misconfigured"),
}

PAUSES: Final[dict[Event, float]] = {"answered": 0.0, "busy": 1.0, "failed": 1.0, "rejected": 30.0}
"""Seconds until a URL is asked again. `Retry-After` takes precedence."""
MIN_PAUSE: Final = 0.1
MAX_PAUSE: Final = 30.0
"""Minimum and maximum number of seconds for which `Retry-After` is honored."""


class UrlError(EngineError):
    """A URL does not process a request.

    Attributes:
        event: Event of `TRANSITIONS`.
        wait: Number of seconds from `Retry-After`, or None.
        began: Whether the engine may have processed a part of the request.
    """

    def __init__(
        self, message: str, event: Event = "failed", *, wait: float | None = None, began: bool = False
    ) -> None:
        super().__init__(message)
        self.event: Event = event
        self.wait = wait
        self.began = began


@dataclass(eq=False)
class UrlState:
    """State of one URL."""

    url: str
    state: State = "starting"
    running: int = 0
    """Number of requests that the URL processes."""
    until: float = 0.0
    """Time before which no request is sent."""
    reason: str = "has not answered yet"
    """Why the URL takes no requests."""

    def apply(self, event: Event, now: float, *, reason: str = "", wait: float | None = None) -> bool:
        """Apply an event at a time, and return whether the state or the reason has changed."""
        before = self.state, self.reason
        self.state, self.reason = TRANSITIONS[event][self.state], reason
        pause = PAUSES[event] if wait is None else min(MAX_PAUSE, max(MIN_PAUSE, wait))
        # An answer does not end a pause that a failed request has begun in the meantime.
        self.until = max(self.until if event == "answered" else 0.0, now + pause)
        return (self.state, self.reason) != before

    def calls(self, now: float, limit: int) -> int:
        """Return how many requests may run at the URL."""
        return limit if self.state == "ready" and self.until <= now else self.running


def choose(states: Iterable[UrlState], now: float, limit: int) -> UrlState | None:
    """Return the URL with the fewest requests among those that take another one, or None."""
    free = [each for each in states if each.running < each.calls(now, limit)]
    return min(free, key=lambda each: each.running, default=None)


def unavailable_reason(states: Sequence[UrlState]) -> str | None:
    """Return why no URL has ever answered, or None if one has. Callers read it, so it does not contain the URLs."""
    if any(each.state in {"ready", "out"} for each in states):
        return None
    return "; ".join(f"engine {number} {each.reason}" for number, each in enumerate(states, 1) if each.reason)


class UrlPool:
    """Chooses URLs for requests. All methods must be called on the event loop that runs when the pool is created.

    Args:
        urls: The URLs.
        limit: Maximum number of requests that one URL processes at the same time.
        probe: Coroutine function that asks a URL, and raises `UrlError` if it takes no requests.
        limit_calls: Function that is called with the number of requests that may run at all URLs together.
    """

    def __init__(
        self,
        urls: Sequence[str],
        limit: int,
        probe: Callable[[str], Awaitable[None]],
        limit_calls: Callable[[int], None],
    ) -> None:
        self._states = [UrlState(url) for url in urls]
        self._limit, self._probe, self._limit_calls = limit, probe, limit_calls
        self._loop = asyncio.get_running_loop()
        self._troubled = {each.url: asyncio.Event() for each in self._states}
        self._tasks = [self._loop.create_task(self._watch(each)) for each in self._states]
        self._update()

    @property
    def unavailable(self) -> str | None:
        """Reason why no URL has ever answered, or None."""
        return unavailable_reason(self._states)

    @property
    def running(self) -> int:
        """Number of requests that run."""
        return sum(each.running for each in self._states)

    def take(self) -> UrlState:
        """Return a URL for a request. The caller must call `release` with it.

        Raises:
            EngineBusyError: No URL takes a request.
        """
        found = choose(self._states, self._loop.time(), self._limit)
        if found is None:
            raise EngineBusyError("no engine takes a request")
        found.running += 1
        return found

    def release(self, url: UrlState) -> None:
        """Return a URL after the request has ended."""
        url.running -= 1
        self._update()

    def report(self, url: UrlState, error: UrlError | None = None) -> None:
        """Change the state of a URL after an error, or after an answer without one."""
        event: Event = "answered" if error is None else error.event
        # A pause is not an error that the operator must know about, unless it delays the start.
        reason = "" if error is None or (event == "busy" and url.state == "ready") else str(error)
        if url.apply(event, self._loop.time(), reason=reason, wait=error and error.wait) and reason:
            level = logging.ERROR if event == "rejected" else logging.WARNING
            _log.log(level, "upstream %s %s", url.url, reason)
        if error is not None:
            self._troubled[url.url].set()
        self._update()

    async def close(self) -> None:
        """End the tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _update(self) -> None:
        now = self._loop.time()
        self._limit_calls(sum(each.calls(now, self._limit) for each in self._states))

    async def _watch(self, url: UrlState) -> None:
        """Ask a URL until it answers, and again after each failure."""
        troubled = self._troubled[url.url]
        while True:
            troubled.clear()
            # A timer may fire a moment early. The pause would then never end.
            await asyncio.sleep(max(0.0, url.until - self._loop.time()) + 0.001)
            if url.state == "ready":
                self._update()  # after a pause because of 429 or 503
                await troubled.wait()
                continue
            try:
                await self._probe(url.url)
            except UrlError as error:
                self.report(url, error)
            except Exception:  # noqa: BLE001 - what an engine sends must not end this task
                _log.exception("upstream %s: the description of the engine cannot be read", url.url)
                self.report(url, UrlError("sends a description that cannot be read"))
            else:
                self.report(url)
                _log.info("upstream %s answers", url.url)
