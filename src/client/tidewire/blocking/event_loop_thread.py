"""`LoopThread`, the background thread that runs the blocking client's event loop.

A blocking call runs a coroutine on the thread and waits for its result. A blocking loop over a job uses `ReadAhead`,
whose task on the thread fetches updates in advance. An update counts as delivered when the caller has received it.
"""

import asyncio
import os
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

import anyio
import anyio.from_thread

from tidewire.blocking.read_ahead import ReadAhead
from tidewire.errors import ClientClosedError, EventLoopError, TidewireError
from tidewire.hooks import ClientThread
from tidewire.http.transport import UNCLOSED
from tidewire.jobs.update_iterator import UpdateIterator

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
        if self._state.is_current():
            advice = (
                "Pass the message to another thread, for example in a queue.Queue, and call the client there."
            )
            raise EventLoopError(
                "a method of a blocking client was called in one of the client's own callbacks", advice=advice
            )
        pending = _Call(work, args)
        try:
            self._state.start(pending)
            return pending.future.result()
        except ClientClosedError:
            raise
        except CancelledError:
            raise ClientClosedError("the client was closed during the call") from None
        except TidewireError as error:
            # Drop the frames of the background thread. They would hide the caller's own line in a traceback.
            raise error.with_traceback(None)  # noqa: B904 - the same exception
        except BaseException:
            with suppress(RuntimeError):
                self._state.cancel(pending)
            raise

    def pump(self, iterator: UpdateIterator[X]) -> Iterator[X]:
        """Iterate over a job's async iterator. A task on the thread reads the async iterator in advance."""
        ahead = ReadAhead(iterator)
        try:
            while (block := ahead.next(self._state.portal)) is not None:
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
            if not sys.is_finalizing() and ahead.leave():
                with suppress(RuntimeError):
                    self._state.portal().start_task_soon(ahead.stop)

    def finish(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run the cleanup of a generator that is being closed, and wait for it to finish.

        If the caller is the background thread itself, this method does not wait.

        Args:
            work: Coroutine function that does the cleanup. It must end in bounded time.
        """
        if sys.is_finalizing():
            return
        with suppress(RuntimeError):
            if self._state.is_current():
                self._state.portal().start_task_soon(work)
            else:
                self.call(work)


class _Call(Generic[X]):
    """A blocking call: a coroutine on the event loop, and the future for which the caller's thread waits.

    A KeyboardInterrupt on the caller's thread must be able to cancel the coroutine. The interrupt may arrive before the
    coroutine starts, while it runs, or after it has ended.
    """

    __slots__ = ("_args", "_cancelled", "_scope", "_work", "future")

    def __init__(self, work: Callable[..., Awaitable[X]], args: tuple[Any, ...]) -> None:
        self.future: Future[X] = Future()
        self._work = work
        self._args = args
        self._cancelled = False
        self._scope: anyio.CancelScope | None = None

    async def run(self) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                if not self._cancelled:
                    self.future.set_result(await self._work(*self._args))
                    return
        except asyncio.CancelledError:
            self.future.set_exception(CancelledError())
            raise
        except BaseException as error:  # noqa: BLE001 - raised on the caller's thread; here it would end the event loop
            self.future.set_exception(error)
        else:
            self.future.set_exception(CancelledError())

    def cancel(self) -> anyio.CancelScope | None:
        """Cancel the coroutine before it starts.

        Returns:
            None if the coroutine has not started. When it starts, it ends at once. If it has started, the scope, which the
            caller must cancel on the event loop.
        """
        self._cancelled = True
        return self._scope


class _State:
    """State of the thread. It is separate from `LoopThread`, so that the thread has no reference to the `LoopThread`.

    The finalizer of `LoopThread` ends the thread. A reference from the thread would keep both alive forever.
    """

    def __init__(self, at_close: Callable[[], Awaitable[None]]) -> None:
        self._at_close = at_close
        self._lock = threading.Lock()
        self._closed = False
        self._running: Future[_Running] | None = None
        self._thread: threading.Thread | None = None
        self._process: int | None = None

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
        return started and not self._closed and not self._forked

    def is_current(self) -> bool:
        """Whether the caller is running on the thread."""
        return threading.current_thread() is self._thread

    def portal(self) -> anyio.from_thread.BlockingPortal:
        """Return the portal of the thread, which is started if it is not running."""
        return self._run().portal

    def _run(self) -> "_Running":
        if self._forked:
            advice = (
                "Create a new client in each process, and continue jobs there with client.job(checkpoint=…)."
            )
            raise ClientClosedError("the client was used before the process forked", advice=advice)
        with self._lock:
            if self._closed:
                raise ClientClosedError("the client was closed")
            if self._running is None or self._running.cancelled():
                self._warn_in_event_loop()
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

    def _warn_in_event_loop(self) -> None:
        try:
            anyio.get_current_task()
        except RuntimeError:
            return
        warnings.warn(
            "a blocking tidewire.Client is used on a thread with a running event loop and blocks that loop; "
            "use tidewire.AsyncClient instead",
            stacklevel=6,
        )

    def start(self, call: _Call[Any]) -> None:
        """Start the coroutine of a call on the thread.

        Raises:
            ClientClosedError: The thread has ended.
        """
        calls = self._run().calls
        try:
            calls.start(call)
        except RuntimeError:
            if not self._closed:
                raise
            raise ClientClosedError("the client was closed during the call") from None

    def cancel(self, call: _Call[Any]) -> None:
        """Cancel a call and wait until its coroutine has ended. Until then it may still change the state of the job.

        Raises:
            RuntimeError: The event loop has ended.
        """
        self._run().calls.cancel(call)

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
            self._closed = True
            running = self._running
        if running is None or running.cancelled():
            return None
        started = running.result()
        # If the event loop has already ended, `call_soon_threadsafe` raises a RuntimeError.
        with suppress(RuntimeError):
            started.end()
        return started


class _Calls:
    """The calls on the event loop.

    They are plain tasks of asyncio. With a task group of anyio, a short job took a quarter more CPU time, and with anyio's
    portal another tenth (`bench/client.py`).
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: set[_Call[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = False

    def start(self, call: _Call[Any]) -> None:
        """Start a call in the context of the caller. This method may be called on any thread.

        Raises:
            RuntimeError: The event loop has ended.
        """
        # Add the call before the check. `end` sets the flag before it reads the set, so one of the two sees the other.
        self._calls.add(call)
        if self._ended:
            raise RuntimeError("the event loop has ended")
        self._loop.call_soon_threadsafe(self._begin, call)

    def _begin(self, call: _Call[Any]) -> None:
        # The context of the caller may name another library, if the caller is a task of trio.
        if "sniffio" in sys.modules:
            sys.modules["sniffio"].current_async_library_cvar.set("asyncio")
        task = self._loop.create_task(self._run(call))
        self._tasks.add(task)  # The event loop has only weak references to tasks.
        task.add_done_callback(self._tasks.discard)

    async def _run(self, call: _Call[Any]) -> None:
        try:
            await call.run()
        finally:
            self._calls.discard(call)

    def cancel(self, call: _Call[Any]) -> None:
        """Cancel a call, and wait up to `INTERRUPT_TIMEOUT` seconds until it has ended.

        Raises:
            RuntimeError: The event loop has ended.
        """
        if not call.future.done() and (scope := call.cancel()) is not None:
            self._loop.call_soon_threadsafe(scope.cancel)
            wait([call.future], INTERRUPT_TIMEOUT)

    async def cancel_all(self) -> None:
        """Cancel all calls and wait until they have ended."""
        for call in [*self._calls]:
            if (scope := call.cancel()) is not None:
                scope.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks])

    def end(self) -> None:
        """Fail the calls that were never started. The event loop must have ended."""
        self._ended = True
        for call in [*self._calls]:
            if not call.future.done():
                call.future.set_exception(CancelledError())


@dataclass(slots=True)
class _Running:
    """A thread that has started, with the objects that control it."""

    portal: anyio.from_thread.BlockingPortal
    calls: "_Calls"
    end: Callable[[], object]
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
        closing = asyncio.Event()
        end = partial(asyncio.get_running_loop().call_soon_threadsafe, closing.set)
        calls = _Calls()
        async with anyio.from_thread.BlockingPortal() as portal:
            running = _Running(portal, calls, end, alive)
            started.set_result(running)
            await closing.wait()
            try:
                await at_close()
            finally:
                await calls.cancel_all()
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
                    running.calls.end()
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)
