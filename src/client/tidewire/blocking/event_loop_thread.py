"""The thread behind the blocking client: an event loop, started with the first call, and the ways across to it.

A call crosses once. A loop is brought in ahead by a task there, and handed over here: the place of a job moves when
its reader takes an update, not when the update arrives.
"""

import asyncio
import atexit
import os
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import anyio
import anyio.from_thread

from tidewire.blocking.read_ahead import ReadAhead
from tidewire.errors import ClientClosedError
from tidewire.jobs.update_iterator import UpdateIterator

INTERRUPT_TIMEOUT: Final = 5.0
"""Seconds that an interrupted call may take to stop, closing its connection included."""

X = TypeVar("X")


class LoopThread:
    """An event loop in a thread, started with the first call, ended with `close`, its last reference or the interpreter."""

    def __init__(self, at_close: Callable[[], Awaitable[None]], reap: Callable[[], Awaitable[None]]) -> None:
        """Begin nothing yet.

        Args:
            at_close: Called on the thread before it ends. It is held by it, and so must not refer to this object.
            reap: Lets go of what a loop has left behind.
        """
        self._state = _State(at_close)
        self._reap = reap
        # It stays when `close` is called: an interrupt may break that off anywhere.
        weakref.finalize(self, self._state.stop).atexit = False

    def close(self) -> None:
        """End it, and wait for that. Who interrupts it waits no longer: it ends all the same."""
        self._state.stop()

    def call(self, work: Callable[..., Awaitable[X]], *args: Any) -> X:
        """Run a coroutine function to its end and return what it returns."""
        crossing = _Crossing(work, args)
        try:
            return self._state.start(self._state.portal(), crossing.run).result()
        except (CancelledError, ClientClosedError) as error:
            self._state.halt_at_exit()
            if isinstance(error, ClientClosedError):
                raise
            raise ClientClosedError("this client was closed meanwhile") from None
        except BaseException:
            with suppress(RuntimeError):
                crossing.give_up(self._state.portal())
            raise

    def pump(self, reading: UpdateIterator[Any, X]) -> Iterator[X]:
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
        except ClientClosedError:
            self._state.halt_at_exit()
            raise
        finally:
            # Nothing may be waited for here: a generator is closed wherever its last reference goes.
            if ahead.leave():
                with suppress(RuntimeError):
                    self._state.portal().start_task_soon(ahead.stop)
                self.tidy_soon()

    def tidy_soon(self) -> None:
        """Let go of what a loop has left behind, without waiting for it."""
        with suppress(RuntimeError):
            self._state.portal().start_task_soon(self._reap)


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
    """What a finaliser needs to stop the thread; it must not hold the `LoopThread` itself."""

    def __init__(self, at_close: Callable[[], Awaitable[None]]) -> None:
        self._at_close: Callable[[], Awaitable[None]] | None = at_close
        self._lock = threading.Lock()
        self._closed = self._exiting = False
        self._running: Future[_Running] | None = None
        self._thread: threading.Thread | None = None
        self._process: int | None = None

    @property
    def _forked(self) -> bool:
        """Whether the thread is in another process, of which this one is a copy: here nobody would answer."""
        return self._process not in {None, os.getpid()}

    def portal(self) -> anyio.from_thread.BlockingPortal:
        if self._forked:
            advice = (
                "Make a client of its own in each process; a job goes on there with client.job(checkpoint=…)."
            )
            raise ClientClosedError("this client was used before the process forked", advice=advice)
        with self._lock:
            if self._closed or self._at_close is None:
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
                atexit.register(self._exit)
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

    def halt_at_exit(self) -> None:
        """Go no further on a daemon thread when the interpreter exits: Python stops it there, without a word."""
        if self._exiting and threading.current_thread().daemon:
            threading.Event().wait()

    def _exit(self) -> None:
        self._exiting = True
        self.stop()

    def stop(self) -> None:
        """End the thread, and wait for that.

        It may be interrupted anywhere, and called again: what was begun goes on by itself, what was not is begun then.
        """
        if self._forked:
            return
        with self._lock:
            self._closed = True
            # The finaliser, which stays, would hold the client by it: for ever where a hook refers to the client.
            self._at_close = None
            running, thread = self._running, self._thread
        if running is None or thread is None or running.cancelled():
            atexit.unregister(self._exit)
        elif threading.current_thread() is thread:
            # The garbage collector may run on the very thread that is to end.
            threading.Thread(target=self._end, args=(running.result(), thread), daemon=True).start()
        else:
            self._end(running.result(), thread)

    def _end(self, running: "_Running", thread: threading.Thread) -> None:
        # It may be over already. Nothing is waited for with a lock that an interrupt could leave held.
        with suppress(RuntimeError):
            running.end()
        # Until the thread's last line: a `join` that was interrupted takes it for ended, and so does each after it.
        with running.alive:
            pass
        thread.join()
        self._running = self._thread = None
        atexit.unregister(self._exit)


class _Running(NamedTuple):
    """What a thread that has started is spoken to by."""

    portal: anyio.from_thread.BlockingPortal
    end: Callable[[], object]
    alive: threading.Lock
    """Held by the thread as long as it lives."""


def _serve(started: "Future[_Running]", at_close: Callable[[], Awaitable[None]]) -> None:
    """The thread's life. It is not anyio's own, which a copy of this process would wait for at its end."""
    alive = threading.Lock()

    async def live() -> None:
        over = asyncio.Event()
        end = partial(asyncio.get_running_loop().call_soon_threadsafe, over.set)
        async with anyio.from_thread.BlockingPortal() as portal:
            started.set_result(_Running(portal, end, alive))
            await over.wait()
            try:
                await at_close()
            finally:
                await portal.stop(cancel_remaining=True)

    if not started.set_running_or_notify_cancel():
        return
    try:
        with alive:
            anyio.run(live, backend="asyncio")
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)
