"""`LoopThread`, the background thread that runs the blocking client's event loop.

A blocking call runs a coroutine on the thread, through anyio's portal, and waits for its result. A blocking loop over a
job starts one coroutine, which fetches a block of updates whenever the loop asks for the next one. A separate call for each
block would double the CPU time of a stream whose events arrive one by one. An update counts as delivered when the caller has
received it.
"""

import asyncio
import os
import queue
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

from tidewire.errors import ClientClosedError, EventLoopError, TidewireError
from tidewire.hooks import ClientThread
from tidewire.http.transport import UNCLOSED
from tidewire.jobs.update_iterator import UpdateIterator
from tidewire.notebook.cell_output import kernel_shell

INTERRUPT_TIMEOUT: Final = 5.0
"""Time limit for an interrupted call to stop and to close its connection, in seconds."""

CLOSE_TIMEOUT: Final = 10.0
"""Maximum time that `close` waits for the thread to end, in seconds. The wait can take so long only if a hook or an
`auth` function does not return."""

X = TypeVar("X")


class LoopThread:
    """An event loop in a daemon thread. The first call starts the thread, and `close` or garbage collection ends it.

    At interpreter exit, Python stops daemon threads, so a program need not call `close` before it ends.
    """

    def __init__(self, at_close: Callable[[], Awaitable[None]]) -> None:
        """Create the object without starting the thread.

        Args:
            at_close: Coroutine function that the thread calls before it ends. The thread keeps a reference to this
                function, so the function must not refer to the `LoopThread`.
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
        """Stop the thread, and wait up to `CLOSE_TIMEOUT` seconds for it to end. The thread ends even if the wait is
        interrupted.
        """
        self._state.stop()

    def call(self, work: Callable[..., Awaitable[X]], *args: Any) -> X:
        """Run a coroutine function on the thread, wait for it to end and return its result.

        Raises:
            EventLoopError: The caller runs on the thread itself, which cannot wait for its own work.
        """
        self._state.warn_in_event_loop(stacklevel=4)
        running = self._state.running()
        pending = _Interruptible(work, args)
        return self._wait(running, pending, lambda: running.portal.start_task_soon(pending.run).result())

    def pump(self, iterator: UpdateIterator[X]) -> Iterator[X]:
        """Iterate over a job's async iterator. A task on the thread fetches each block when the loop asks for it."""
        # Check once per iterator and not for each block, because the check takes several microseconds.
        self._state.warn_in_event_loop(stacklevel=3)
        blocks = _Blocks(iterator)
        pending = _Interruptible(blocks.fetch, ())
        try:
            while self._wait(
                running := self._state.running(), pending, partial(blocks.next, running, pending)
            ):
                block = iterator.block
                items = block.items
                for at in range(len(items)):
                    item = items[at]
                    # The next two lines must not contain anything at which Python can raise a KeyboardInterrupt, such
                    # as a call or a loop. An interrupt between them would deliver the item twice.
                    block.at = at + 1
                    yield item
        finally:
            # Do not wait for the background thread here. Python closes a generator on the thread that drops the last
            # reference to the generator, and this may be the background thread itself. At interpreter exit, Python has
            # already stopped the background thread, perhaps while it held a lock.
            if not sys.is_finalizing():
                blocks.stop(pending)
                iterator.close_soon()

    def _wait(self, running: "_Running", pending: "_Interruptible[Any]", wait: Callable[[], X]) -> X:
        """Wait for a coroutine on the thread, and cancel it if a signal interrupts the wait."""
        try:
            return wait()
        except TidewireError as error:
            # Drop the frames of the background thread. They would hide the caller's own line in a traceback.
            raise error.with_traceback(None)  # noqa: B904 - the same exception
        except _EndingError as wrapped:
            raise wrapped.error from None
        except BaseException as error:
            if self._state.closed and isinstance(error, CancelledError | RuntimeError):
                raise ClientClosedError("the client was closed during the call") from None
            if not pending.ended.is_set():
                # A signal, such as Ctrl-C, has interrupted the wait. Wait until the coroutine has ended, because until
                # then it may change the state of the job.
                with suppress(RuntimeError):
                    running.loop.call_soon_threadsafe(pending.cancel)
                    pending.ended.wait(INTERRUPT_TIMEOUT)
            raise

    def finish(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run the cleanup of a generator that is being closed, and wait for it to finish.

        If the caller is the background thread itself, which cannot wait, closing the client does the cleanup.

        Args:
            work: Coroutine function that does the cleanup. It must end in bounded time.
        """
        if not sys.is_finalizing() and not self._state.is_current():
            with suppress(RuntimeError):
                self.call(work)


class _Blocks:
    """Blocks of an iterator, fetched by one coroutine on the thread, each when the caller's thread asks for it.

    The coroutine reads the updates of the next block before the caller asks for them. If events arrive one by one, the
    caller therefore need not wake the thread for each of them, which would take a fifth of the CPU time of a stream
    (bench/client.py).
    """

    def __init__(self, iterator: UpdateIterator[Any]) -> None:
        self._iterator = iterator
        self._running: _Running | None = None
        self._wanted = False
        """Whether the caller's thread waits for a block."""
        self._sleeps = False
        """Whether the coroutine waits until a block is wanted."""
        self._wake = asyncio.Event()
        self._fetched: queue.SimpleQueue[Future[None] | None] = queue.SimpleQueue()
        """None for each block that was fetched, then the future of the coroutine, when it has ended."""

    async def fetch(self) -> None:
        while True:
            await self._iterator.fill()
            if self._iterator.finished:
                return
            self._wanted = False
            self._fetched.put(None)
            await self._iterator.read_ahead()
            # Both threads first set their own flag and then read the other one. Thus one of them sees the other's flag.
            self._sleeps = True
            while not self._wanted:
                await self._wake.wait()
                self._wake.clear()
            self._sleeps = False

    def next(self, running: "_Running", pending: "_Interruptible[None]") -> bool:
        """Wait for the next block, on the caller's thread.

        Returns:
            False if there is no further block.
        """
        self._wanted = True
        if self._running is None:
            self._running = running
            running.portal.start_task_soon(pending.run).add_done_callback(self._fetched.put)
        elif self._sleeps:
            running.loop.call_soon_threadsafe(self._wake.set)
        ended = self._fetched.get()
        if ended is not None:
            ended.result()
        return ended is None

    def stop(self, pending: "_Interruptible[None]") -> None:
        """Cancel the coroutine, without waiting for its end."""
        if self._running is not None and not pending.ended.is_set():
            with suppress(RuntimeError):
                self._running.loop.call_soon_threadsafe(pending.cancel)


class _Interruptible(Generic[X]):
    """A coroutine function that can be cancelled at any time: before it starts, while it runs, or after it has ended.

    Attributes:
        ended: Set when the coroutine function has ended or will not run.
    """

    def __init__(self, work: Callable[..., Awaitable[X]], args: tuple[Any, ...]) -> None:
        self.ended = threading.Event()
        self._work = work
        self._args = args
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False

    async def run(self) -> X:
        try:
            with anyio.CancelScope() as self._scope:
                if not self._cancelled:
                    return await self._work(*self._args)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 - it would end the event loop
            raise _EndingError(error) from None
        finally:
            self.ended.set()
        raise asyncio.CancelledError

    def cancel(self) -> None:
        """Cancel the coroutine. This method runs on the event loop."""
        self._cancelled = True
        if self._scope is None:
            self.ended.set()
        else:
            self._scope.cancel()


class _EndingError(Exception):
    """Wraps an exception such as SystemExit, which would end the event loop, for the caller's thread."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class _State:
    """State of the thread. It is separate from `LoopThread`, so that the thread has no reference to the `LoopThread`.

    The finalizer of `LoopThread` ends the thread. A reference from the thread would keep both alive forever.
    """

    def __init__(self, at_close: Callable[[], Awaitable[None]]) -> None:
        self._at_close = at_close
        self._lock = threading.Lock()
        self.closed = False
        self._running: Future[_Running] | None = None
        self._thread: threading.Thread | None = None
        self._process: int | None = None
        self._warned = False

    @property
    def _forked(self) -> bool:
        """Whether this process is a fork of the process that started the thread. If so, the thread does not exist in
        this process.
        """
        return self._process not in {None, os.getpid()}

    @property
    def unclosed(self) -> bool:
        """Whether this process has started the thread and has not called `close`."""
        started = self._running is not None and not self._running.cancelled()
        return started and not self.closed and not self._forked

    def is_current(self) -> bool:
        """Whether the caller is running on the thread."""
        return threading.current_thread() is self._thread

    def running(self) -> "_Running":
        """Return the thread, which is started if it is not running.

        Raises:
            EventLoopError: The caller runs on the thread itself, which cannot wait for its own work.
        """
        if self.is_current():
            advice = (
                "Pass the message to another thread, for example in a queue.Queue, and call the client there."
            )
            raise EventLoopError(
                "a method of a blocking client was called in one of the client's own callbacks", advice=advice
            )
        if self._forked:
            advice = (
                "Create a new client in each process, and continue jobs there with client.job(checkpoint=…)."
            )
            raise ClientClosedError("the client was used before the process forked", advice=advice)
        with self._lock:
            if self.closed:
                raise ClientClosedError("the client was closed")
            if self._running is None or self._running.cancelled():
                self._process = os.getpid()
                running: Future[_Running] = Future()
                thread = ClientThread(
                    target=_serve, args=(running, self._at_close), name="tidewire-client", daemon=True
                )
                # Store the thread before starting it, because a KeyboardInterrupt may interrupt `start` when the thread
                # is already running.
                self._running, self._thread = running, thread
                try:
                    thread.start()
                except BaseException:
                    running.cancel()
                    raise
            running = self._running
        return running.result()

    def warn_in_event_loop(self, *, stacklevel: int) -> None:
        """Emit a warning if the caller's thread has a running event loop, at most once per client."""
        if self._warned or self.is_current():
            return
        try:
            anyio.get_current_task()
        except RuntimeError:
            return
        if kernel_shell() is not None:
            return  # a cell of a notebook always runs within an event loop
        warnings.warn(
            "a blocking tidewire.Client is used on a thread with a running event loop and blocks that loop; "
            "use tidewire.AsyncClient instead",
            stacklevel=stacklevel,
        )
        self._warned = True

    def stop(self) -> None:
        """Stop the thread and wait for it to end.

        A KeyboardInterrupt may interrupt this method at any point. The thread still ends, and another call of this
        method waits for it again.
        """
        running, thread = self.end(), self._thread
        if running is None or thread is None or self.is_current():
            return
        # Wait with a lock and not with `join`, because Python treats the thread as ended after an interrupted `join`.
        # An interrupt after `acquire` can leave the lock held. Another call then does not need the lock, because
        # `running.ended` is set.
        if not running.ended and running.alive.acquire(timeout=CLOSE_TIMEOUT):
            running.alive.release()
        if running.ended:
            thread.join()
            self._running = self._thread = None

    def end(self) -> "_Running | None":
        """Make the thread end, without waiting for its end. This method may be called on any thread and in finalizers.

        Returns:
            The running thread, or None if there is none in this process.
        """
        if self._forked:
            return None
        with self._lock:
            self.closed = True
            running = self._running
        if running is None or running.cancelled():
            return None
        started = running.result()
        # If the event loop has already ended, `call_soon_threadsafe` raises a RuntimeError.
        with suppress(RuntimeError):
            started.loop.call_soon_threadsafe(started.closing.set)
        return started


@dataclass(slots=True)
class _Running:
    """A thread that has started, with the objects that control it."""

    portal: anyio.from_thread.BlockingPortal
    loop: asyncio.AbstractEventLoop
    closing: asyncio.Event
    alive: threading.Lock
    """Lock that the thread holds until the event loop has ended."""
    ended: bool = False


def _serve(started: "Future[_Running]", at_close: Callable[[], Awaitable[None]]) -> None:
    """Run the event loop until the client is closed. The thread runs this function.

    `anyio.from_thread.start_blocking_portal` is not used. With it, a forked process would wait at exit for a thread
    that does not exist in the forked process.
    """
    alive = threading.Lock()
    running: _Running | None = None

    async def run_loop() -> None:
        nonlocal running
        async with anyio.from_thread.BlockingPortal() as portal:
            running = _Running(portal, asyncio.get_running_loop(), asyncio.Event(), alive)
            started.set_result(running)
            await running.closing.wait()
            try:
                await at_close()
            finally:
                await portal.stop(cancel_remaining=True)

    if not started.set_running_or_notify_cancel():
        return
    try:
        with alive:
            try:
                anyio.run(run_loop, backend="asyncio")
            finally:
                if running is not None:
                    running.ended = True
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)
