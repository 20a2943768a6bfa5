"""The thread behind the blocking client: an event loop, started with the first call, and the ways across to it.

A call crosses once. A loop is brought in ahead by a task there, and handed over here: the place of a job moves when
its reader takes an update, not when the update arrives.
"""

import os
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

import anyio
import anyio.from_thread

from tidewire.errors import ClientClosedError
from tidewire.read_ahead import ReadAhead
from tidewire.reading import Reading

INTERRUPT_TIMEOUT: Final = 5.0
"""Seconds that an interrupted call may take to stop, closing its connection included."""

X = TypeVar("X")


class LoopThread:
    """An event loop in a thread, started with the first call, ended with `close` or the interpreter."""

    def __init__(self, at_close: Callable[[], Awaitable[None]], bury: Callable[[], Awaitable[None]]) -> None:
        self._state = _State(at_close)
        self._bury = bury
        self.close: Callable[[], object] = weakref.finalize(self, self._state.stop)

    def call(self, work: Callable[..., Awaitable[X]], *args: Any) -> X:
        """Run a coroutine function to its end and return what it returns."""
        crossing = _Crossing(work, args)
        try:
            return self._state.portal().start_task_soon(crossing.run).result()
        except CancelledError:
            raise ClientClosedError("this client was closed meanwhile") from None
        except BaseException:
            with suppress(RuntimeError):
                crossing.give_up(self._state.portal())
            raise

    def pump(self, reading: Reading[Any, X]) -> Iterator[X]:
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
            # Nothing may be waited for here: a generator is closed wherever its last reference goes.
            if ahead.leave():
                with suppress(RuntimeError):
                    self._state.portal().start_task_soon(ahead.stop)
                self.tidy_soon()

    def tidy_soon(self) -> None:
        """Let go of what a loop has left behind, without waiting for it."""
        with suppress(RuntimeError):
            self._state.portal().start_task_soon(self._bury)


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
        self._at_close = at_close
        self._lock = threading.Lock()
        self._closed = False
        self._portal: Future[anyio.from_thread.BlockingPortal] | None = None
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
            if self._closed:
                raise ClientClosedError("this client was closed")
            if self._portal is None or self._portal.cancelled():
                self._tell()
                self._process = os.getpid()
                portal: Future[anyio.from_thread.BlockingPortal] = Future()
                thread = threading.Thread(target=_serve, args=(portal,), name="tidewire-client", daemon=True)
                # An interrupt may hit the start: the thread may then live already, so it is known before.
                self._portal, self._thread = portal, thread
                try:
                    thread.start()
                except BaseException:
                    portal.cancel()
                    raise
            portal = self._portal
        return portal.result()

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

    def stop(self) -> None:
        if self._forked:
            return
        with self._lock:
            self._closed = True
            portal, thread = self._portal, self._thread
            self._portal = self._thread = None
        if portal is None or thread is None or portal.cancelled():
            return
        if threading.current_thread() is thread:
            # The garbage collector may run on the very thread that is to end.
            threading.Thread(target=self._end, args=(portal.result(), thread), daemon=True).start()
        else:
            self._end(portal.result(), thread)

    def _end(self, portal: anyio.from_thread.BlockingPortal, thread: threading.Thread) -> None:
        with suppress(RuntimeError):
            portal.call(self._at_close)
            portal.call(portal.stop, True)
        thread.join()


def _serve(started: "Future[anyio.from_thread.BlockingPortal]") -> None:
    """The thread's life. It is not anyio's own, which a copy of this process would wait for at its end."""

    async def live() -> None:
        async with anyio.from_thread.BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    if not started.set_running_or_notify_cancel():
        return
    try:
        anyio.run(live, backend="asyncio")
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)
