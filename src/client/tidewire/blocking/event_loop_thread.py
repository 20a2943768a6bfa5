"""The thread behind the blocking client: an event loop, started with the first call, and the ways across to it.

A call crosses once. A loop is brought in ahead by a task there, and handed over here: the place of a job moves when
its reader takes an update, not when the update arrives.
"""

import asyncio
import os
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

import anyio
import anyio.from_thread

from tidewire.blocking.read_ahead import ReadAhead
from tidewire.errors import ClientClosedError
from tidewire.http.transport import UNCLOSED
from tidewire.jobs.update_iterator import UpdateIterator

INTERRUPT_TIMEOUT: Final = 5.0
"""Seconds that an interrupted call may take to stop, closing its connection included."""

CLOSE_TIMEOUT: Final = 10.0
"""Seconds that `close` waits for the thread, which only a hook or an `auth` function that does not return can hold up."""

X = TypeVar("X")


class LoopThread:
    """An event loop in a daemon thread, started with the first call, ended with `close` or the last reference.

    The end of the interpreter stops it: nothing needs to be closed then.
    """

    def __init__(self, at_close: Callable[[], Awaitable[None]]) -> None:
        """Begin nothing yet.

        Args:
            at_close: Called on the thread before it ends. It is held by it, and so must not refer to this object.
        """
        self._state = _State(at_close)

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        unclosed = self._state.unclosed
        self._state.end()
        if unclosed:
            warnings.warn(UNCLOSED, ResourceWarning, stacklevel=2, source=self)

    def close(self) -> None:
        """End it, and wait up to `CLOSE_TIMEOUT` seconds for that. After an interrupt, it ends all the same."""
        self._state.stop()

    def call(self, work: Callable[..., Awaitable[X]], *args: Any) -> X:
        """Run a coroutine function to its end and return what it returns."""
        crossing = _Crossing(work, args)
        try:
            return self._state.start(self._state.portal(), crossing.run).result()
        except ClientClosedError:
            raise
        except CancelledError:
            raise ClientClosedError("this client was closed meanwhile") from None
        except BaseException:
            with suppress(RuntimeError):
                crossing.give_up(self._state.portal())
            raise

    def pump(self, reading: UpdateIterator[X]) -> Iterator[X]:
        """Loop over a reading, which is read ahead meanwhile."""
        ahead = ReadAhead(reading)
        try:
            while (block := ahead.next(self._state.portal)) is not None:
                items = block.items
                for at in range(len(items)):
                    item = items[at]
                    # Nothing that can be interrupted may stand between these two lines: a call, say, or a loop.
                    block.at = at + 1
                    yield item
        finally:
            # Do not wait here: a generator is closed in the thread that drops its last reference, such as the client's.
            # When the interpreter exits, that thread has been stopped, and may hold a lock.
            if not sys.is_finalizing() and ahead.leave():
                with suppress(RuntimeError):
                    self._state.portal().start_task_soon(ahead.stop)

    def finish(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine function for a generator that is closed, and wait for it if another thread can.

        Args:
            work: Ends in bounded time.
        """
        if sys.is_finalizing():
            return
        with suppress(RuntimeError):
            if self._state.is_current():
                self._state.portal().start_task_soon(work)
            else:
                self.call(work)


class _Crossing(Generic[X]):
    """One call's work on the other thread. An interrupt may hit the caller before it begins, within, or after it."""

    def __init__(self, work: Callable[..., Awaitable[X]], args: tuple[Any, ...]) -> None:
        self._work = work
        self._args = args
        self._unwanted = False
        self._scope: anyio.CancelScope | None = None
        self._over = threading.Event()

    async def run(self) -> X:
        with anyio.CancelScope() as self._scope:
            try:
                if not self._unwanted:
                    return await self._work(*self._args)
            finally:
                self._over.set()
        raise CancelledError

    def give_up(self, portal: anyio.from_thread.BlockingPortal) -> None:
        """Stop the work and wait until it is over: up to then it may still bring something in."""
        self._unwanted = True
        # Set after it was looked for: then the work has seen that it is unwanted.
        if self._scope is not None and not self._over.is_set():
            portal.start_task_soon(self._scope.cancel)
            self._over.wait(INTERRUPT_TIMEOUT)


class _State:
    """The thread, and what starts and ends it. The thread must not hold the `LoopThread`, whose finalizer ends it."""

    def __init__(self, at_close: Callable[[], Awaitable[None]]) -> None:
        self._at_close = at_close
        self._lock = threading.Lock()
        self._closed = False
        self._running: Future[_Running] | None = None
        self._thread: threading.Thread | None = None
        self._process: int | None = None

    @property
    def _forked(self) -> bool:
        """Whether the thread is in another process, of which this one is a copy: here nobody would answer."""
        return self._process not in {None, os.getpid()}

    @property
    def unclosed(self) -> bool:
        """Whether the thread was started in this process, and `close` was not called."""
        started = self._running is not None and not self._running.cancelled()
        return started and not self._closed and not self._forked

    def is_current(self) -> bool:
        """Whether the caller runs on the thread."""
        return threading.current_thread() is self._thread

    def portal(self) -> anyio.from_thread.BlockingPortal:
        if self._forked:
            advice = (
                "Make a client of its own in each process; a job goes on there with client.job(checkpoint=…)."
            )
            raise ClientClosedError("this client was used before the process forked", advice=advice)
        with self._lock:
            if self._closed:
                raise ClientClosedError("this client was closed")
            if self._running is None or self._running.cancelled():
                self._tell()
                self._process = os.getpid()
                running: Future[_Running] = Future()
                thread = threading.Thread(
                    target=_serve, args=(running, self._at_close), name="tidewire-client", daemon=True
                )
                # An interrupt may hit the start: the thread may then live already, so it is known before.
                self._running, self._thread = running, thread
                try:
                    thread.start()
                except BaseException:
                    running.cancel()
                    raise
            running = self._running
        return running.result().portal

    def _tell(self) -> None:
        try:
            anyio.get_current_task()
        except RuntimeError:
            return
        warnings.warn(
            "a blocking tidewire.Client is used on a thread whose event loop runs, and blocks it; "
            "there is tidewire.AsyncClient",
            stacklevel=5,
        )

    def start(
        self, portal: anyio.from_thread.BlockingPortal, work: Callable[[], Awaitable[X]]
    ) -> "Future[X]":
        """Begin something on the thread, which may end at any moment."""
        try:
            return portal.start_task_soon(work)
        except RuntimeError:
            if not self._closed:
                raise
        raise ClientClosedError("this client was closed meanwhile")

    def stop(self) -> None:
        """End the thread, and wait for that.

        It may be interrupted anywhere, and called again: what was begun continues by itself, the rest begins then.
        """
        running, thread = self.end(), self._thread
        if running is None or thread is None or self.is_current():
            return
        # Until the thread's last line: a `join` that was interrupted takes it for ended, and so does each after it.
        # An interrupt after `acquire` leaves the lock held; a further call then sees that the thread has ended.
        if not running.ended and running.alive.acquire(timeout=CLOSE_TIMEOUT):
            running.alive.release()
        if running.ended:
            thread.join()
            self._running = self._thread = None

    def end(self) -> "_Running | None":
        """Let the thread end, without waiting for it; callable in any thread, and in finalizers. None: there is none."""
        if self._forked:
            return None
        with self._lock:
            self._closed = True
            running = self._running
        if running is None or running.cancelled():
            return None
        started = running.result()
        # Its event loop may have ended already.
        with suppress(RuntimeError):
            started.end()
        return started


@dataclass(slots=True)
class _Running:
    """A thread that has started."""

    portal: anyio.from_thread.BlockingPortal
    end: Callable[[], object]
    alive: threading.Lock
    """Held by the thread as long as it lives."""
    ended: bool = False


def _serve(started: "Future[_Running]", at_close: Callable[[], Awaitable[None]]) -> None:
    """The thread's life. It is not anyio's own, which a copy of this process would wait for at its end."""
    alive = threading.Lock()
    running: _Running | None = None

    async def live() -> None:
        nonlocal running
        over = asyncio.Event()
        end = partial(asyncio.get_running_loop().call_soon_threadsafe, over.set)
        async with anyio.from_thread.BlockingPortal() as portal:
            running = _Running(portal, end, alive)
            started.set_result(running)
            await over.wait()
            try:
                await at_close()
            finally:
                await portal.stop(cancel_remaining=True)

    if not started.set_running_or_notify_cancel():
        return
    try:
        with alive:
            try:
                anyio.run(live, backend="asyncio")
            finally:
                if running is not None:
                    running.ended = True
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)
