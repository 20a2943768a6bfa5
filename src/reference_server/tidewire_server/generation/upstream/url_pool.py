"""The URLs of an upstream (`UrlPool`): each request gets one, and a task per URL asks it again after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from tidewire_server.generation.engine_interface import EngineUnavailableError
from tidewire_server.generation.upstream.engine_requests import BusyError, DownError, KeyRejectedError
from tidewire_server.generation.upstream.url_states import (
    Event,
    UrlState,
    choose,
    reasons_of,
    unavailable_reason,
)

_log = logging.getLogger(__name__)


class MisconfiguredError(Exception):
    """A URL answers, but requests cannot be sent to it. The message is the reason."""


class UrlPool:
    """Chooses URLs for requests. All methods must be called on the event loop that runs when the pool is created.

    Args:
        urls: The URLs.
        limit: Maximum number of requests that one URL processes at the same time.
        probe: Coroutine function that asks a URL, and raises one of the errors of `EngineRequests.describe` or a
            `MisconfiguredError` if it takes no requests.
    """

    def __init__(self, urls: Sequence[str], limit: int, probe: Callable[[str], Awaitable[None]]) -> None:
        self._states = [UrlState(url) for url in urls]
        self._limit = limit
        self._probe = probe
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[UrlState]] = deque()
        self._troubled = {each.url: asyncio.Event() for each in self._states}
        self._tasks = [self._loop.create_task(self._watch(each)) for each in self._states]
        self.answered = asyncio.Event()
        """Set when the first URL has answered."""

    @property
    def unavailable(self) -> str | None:
        """Reason why no URL has ever answered, or None."""
        return unavailable_reason(self._states)

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of requests that run and that wait."""
        return sum(each.running for each in self._states), len(self._waiting)

    async def acquire(self, timeout: float) -> UrlState:
        """Wait for a URL that takes a request. The caller must call `release` with it.

        Raises:
            EngineUnavailableError: No URL took the request within the number of seconds.
        """
        if not self._waiting and (found := choose(self._states, self._loop.time(), self._limit)) is not None:
            found.running += 1
            return found
        turn: asyncio.Future[UrlState] = self._loop.create_future()
        self._waiting.append(turn)
        taken = False
        try:
            async with asyncio.timeout(timeout):
                await turn
            taken = True
        except TimeoutError:
            reasons = reasons_of(self._states) or "all of them are busy"
            raise EngineUnavailableError(
                f"no engine took the request within {timeout:g} s: {reasons}"
            ) from None
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(turn)
            if not taken and turn.done() and not turn.cancelled():
                self.release(turn.result())
        return turn.result()

    def release(self, url: UrlState) -> None:
        """Return a URL after the request has ended."""
        url.running -= 1
        self._serve_waiting()

    def report(self, url: UrlState, event: Event, reason: str = "", wait: float | None = None) -> None:
        """Change the state of a URL after an answer."""
        if url.apply(event, self._loop.time(), reason=reason, wait=wait) and reason:
            level = logging.ERROR if event == "rejected" else logging.WARNING
            _log.log(level, "upstream %s %s", url.url, reason)
        if event == "answered":
            self.answered.set()
        else:
            self._troubled[url.url].set()
        self._serve_waiting()

    async def close(self) -> None:
        """End the tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _serve_waiting(self) -> None:
        while self._waiting:
            found = choose(self._states, self._loop.time(), self._limit)
            if found is None:
                return
            turn = self._waiting.popleft()
            if not turn.done():
                found.running += 1
                turn.set_result(found)

    async def _watch(self, url: UrlState) -> None:
        """Ask a URL until it answers, and again after each failure."""
        troubled = self._troubled[url.url]
        while True:
            troubled.clear()
            if (pause := url.until - self._loop.time()) > 0:
                await asyncio.sleep(pause)
                # Compare the time again, because a timer of uvloop may fire half a millisecond early. Waiting requests
                # would then not be served, and nothing would wake this task.
                continue
            if url.state == "ready":
                self._serve_waiting()  # after a pause because of 429 or 503
                await troubled.wait()
                continue
            try:
                await self._probe(url.url)
            except (KeyRejectedError, MisconfiguredError) as error:
                self.report(url, "rejected", str(error))
            except BusyError as error:
                self.report(url, "busy", "is loading its model", error.wait)
            except DownError as error:
                self.report(url, "failed", str(error))
            except Exception:  # noqa: BLE001 - what an engine sends must not end this task
                _log.exception("upstream %s: the description of the engine cannot be read", url.url)
                self.report(url, "failed", "sends a description that cannot be read")
            else:
                self.report(url, "answered")
                _log.info("upstream %s answers", url.url)
