"""Choose an engine's URL for each request: the usable URL with the fewest requests (`UrlPool`). After a failure, a URL gets no
requests until it has answered a `probe`, a request for the engine's description.

  event    | meaning                                                 | effect on the URL
  ---------+---------------------------------------------------------+---------------------------------------------------
  answered | it has answered a probe                                 | takes requests
  busy     | 429 or 503                                              | takes none for `Retry-After`
  failed   | refused, silent, another 5xx, a redirect, a lost answer | takes none until it has answered
  rejected | the key is wrong, or the model or kind is another one   | the same; new jobs get 503 if no URL is usable

A status of 500 may be caused by the request alone. If the last usable URL answers with 500, it is therefore probed at once, so
that the other requests need not wait. Errors that are certainly caused by the request do not affect the URL.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from tidewire_server.generation.engine_interface import EngineBusyError, EngineError

_log = logging.getLogger(__name__)

Event = Literal["busy", "failed", "rejected"]
Probe = Callable[[str], Awaitable[None]]

PAUSES: Final[dict[Event, float]] = {"busy": 1.0, "failed": 1.0, "rejected": 30.0}
"""Seconds until a URL is probed again. `Retry-After` takes precedence."""
MIN_PAUSE: Final = 0.1
MAX_PAUSE: Final = 30.0
"""Minimum and maximum number of seconds for which `Retry-After` is honored."""


class UrlError(EngineError):
    """The server at a URL did not process a request. `wait` is the time in `Retry-After`, in seconds. `began` is true if the
    engine may have processed a part of the request. `of_request` is true if the request itself may have caused the error.
    """

    def __init__(
        self,
        message: str,
        event: Event = "failed",
        *,
        wait: float | None = None,
        began: bool = False,
        of_request: bool = False,
    ) -> None:
        super().__init__(message)
        self.event, self.wait, self.began, self.of_request = event, wait, began, of_request


@dataclass(eq=False)
class UrlState:
    """State of one URL."""

    url: str
    usable: bool = False
    """Whether the URL has answered a probe, and was not `rejected` afterwards."""
    trouble: str = "has not answered yet"
    """Reason why the URL takes no requests. Empty if it takes requests."""
    until: float = 0.0
    """Time before which no request is sent."""
    running: int = 0
    """Number of requests that the URL processes."""

    def apply(self, error: UrlError, now: float) -> bool:
        """Update the state after an error, and return whether the log should warn the operator."""
        pause = PAUSES[error.event] if error.wait is None else min(MAX_PAUSE, max(MIN_PAUSE, error.wait))
        # Keep the longest wait, because the answer to another request may have asked for a longer one.
        self.until = max(self.until, now + pause)
        if error.event == "busy" and not self.trouble:
            return False
        before, self.trouble = self.trouble, str(error)
        self.usable &= error.event != "rejected"
        return self.trouble != before

    def calls(self, now: float, limit: int) -> int:
        """Return the maximum number of requests that may run at the URL now."""
        return self.running if self.trouble or self.until > now else limit


class UrlPool:
    """Chooses a URL for each request. Each URL processes up to `limit` requests at the same time. Create the pool and call its
    methods on the same event loop.

    `probe` sends a probe to a URL, and raises `UrlError` if the URL takes no requests. `limit_calls` is called when the number
    of requests that all URLs together can process changes.
    """

    def __init__(
        self, urls: Sequence[str], limit: int, probe: Probe, limit_calls: Callable[[int], None]
    ) -> None:
        self._states = [UrlState(url) for url in urls]
        self._limit, self._probe, self._limit_calls = limit, probe, limit_calls
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[UrlState, asyncio.Task[None]] = {}
        for each in self._states:
            self._start_watch(each)

    @property
    def unavailable(self) -> str | None:
        """Reason why no URL can be used yet, or None if a URL can be used. Clients see the reason, so it contains no URLs."""
        if any(each.usable for each in self._states):
            return None
        return "; ".join(f"engine {number} {each.trouble}" for number, each in enumerate(self._states, 1))

    @contextmanager
    def request(self) -> Iterator[str]:
        """Choose a URL for a request that runs in the `with` block. Raise an `EngineBusyError` if no URL is free. If the block
        raises a `UrlError`, the URL gets no requests for a while.
        """
        now = self._loop.time()
        free = [each for each in self._states if each.running < each.calls(now, self._limit)]
        if not free:
            raise EngineBusyError("no engine takes a request")
        chosen = min(free, key=lambda each: each.running)
        chosen.running += 1
        try:
            yield chosen.url
        except UrlError as error:
            self._leave_out(chosen, error)
            raise
        finally:
            chosen.running -= 1
            self._update()

    def _leave_out(self, url: UrlState, error: UrlError) -> None:
        if error.of_request and all(each.trouble for each in self._states if each is not url):
            error.wait = 0.0
        if url.apply(error, self._loop.time()):
            severity = logging.ERROR if error.event == "rejected" else logging.WARNING
            _log.log(severity, "upstream %s %s", url.url, error)
        self._start_watch(url)

    async def close(self) -> None:
        """End the tasks."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _update(self) -> None:
        now = self._loop.time()
        self._limit_calls(sum(each.calls(now, self._limit) for each in self._states))

    def _start_watch(self, url: UrlState) -> None:
        self._update()
        if url not in self._tasks or self._tasks[url].done():
            self._tasks[url] = self._loop.create_task(self._watch(url))

    async def _watch(self, url: UrlState) -> None:
        """Wait until a URL takes requests again. Probe it until it answers. If it is only busy, no probe is needed."""
        while url.trouble or url.until > self._loop.time():
            # Wait one more millisecond, because a timer of uvloop may fire early, and this loop would then spin.
            await asyncio.sleep(max(0.0, url.until - self._loop.time()) + 0.001)
            if not url.trouble:
                continue
            try:
                await self._probe(url.url)
            except UrlError as error:
                self._leave_out(url, error)
            except Exception:  # noqa: BLE001 - invalid data from an engine must not end this task
                _log.exception("upstream %s: the description of the engine cannot be read", url.url)
                self._leave_out(url, UrlError("sends a description that cannot be read"))
            else:
                url.usable, url.trouble = True, ""
                _log.info("upstream %s answers", url.url)
        self._update()
