"""`LoopThread`, the background thread that runs the blocking client's event loop.

A blocking call runs a coroutine on the thread, and waits for its result. A blocking loop over a job starts one coroutine,
which fetches a block of updates whenever the loop asks for the next one. A separate call for each block would double the CPU
time of a stream whose events arrive one by one. An update counts as delivered when the caller has received it.

The caller's thread and the background thread share only objects whose locks are held by C code: a `SimpleQueue`, and a
`Lock` in a `with` block. A KeyboardInterrupt in the Python code of a Future, an Event or a Condition would leave its lock
acquired, and the background thread would wait for this lock forever.
"""

import asyncio
import os
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

import anyio

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

_CHECK_INTERVAL: Final = 1.0
"""Interval at which a waiting call checks that the thread has not ended, in seconds."""

X = TypeVar("X")


class LoopThread:
    """An event loop in a daemon thread. The first call starts the thread, and `close` or garbage collection ends it.

    At interpreter exit, Python stops daemon threads, so a program need not call `close` before it ends.
    """

    def __init__(self, at_close: Callable[[], Awaitable[None]]) -> None:
        """Prepare the thread. The first call starts it.

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

        def run() -> X:
            pending.start(running)
            found: X = pending.next(running).result()
            return found

        return self._wait(running, pending, run)

    def pump(self, iterator: UpdateIterator[X]) -> Iterator[X]:
        """Iterate over a job's async iterator. A task on the background thread fetches each block when the loop needs it."""
        # Check once per iterator and not for each block, because the check takes several microseconds.
        self._state.warn_in_event_loop(stacklevel=3)
        blocks = _Blocks(iterator)
        pending = blocks.pending
        try:
            while self._wait(running := self._state.running(), pending, partial(blocks.next, running)):
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
                blocks.stop()
                iterator.close_soon()

    def _wait(self, running: "_Running", pending: "_Interruptible", wait: Callable[[], X]) -> X:
        """Wait for a coroutine on the thread, and cancel it if a signal interrupts the wait."""
        try:
            return wait()
        except TidewireError as error:
            # Drop the frames of the background thread. They would hide the caller's own line in a traceback.
            raise error.with_traceback(None)  # noqa: B904 - the same exception
        except BaseException as error:
            if self._state.closed and isinstance(error, asyncio.CancelledError | RuntimeError):
                raise ClientClosedError("the client was closed during the call") from None
            if not pending.ended:
                # A signal, such as Ctrl-C, has interrupted the wait. Wait until the coroutine has ended, because until
                # then it may change the state of the job.
                with suppress(RuntimeError):
                    running.loop.call_soon_threadsafe(pending.cancel)
                    pending.wait_until_ended(INTERRUPT_TIMEOUT)
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
    """Fetches the blocks of an iterator with one coroutine on the background thread, for a loop on the caller's thread.

    The coroutine reads the updates of the next block before the caller asks for them. If events arrive one by one, the
    caller therefore need not wake the thread for each of them, which would take a fifth of the CPU time of a stream
    (bench/client.py).
    """

    def __init__(self, iterator: UpdateIterator[Any]) -> None:
        self._iterator = iterator
        self.pending = _Interruptible(self._fetch, ())
        self._running: _Running | None = None
        self._wanted = False
        """Whether the caller's thread waits for a block."""
        self._sleeps = False
        """Whether the coroutine waits until a block is wanted."""
        self._wake = asyncio.Event()

    async def _fetch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._iterator.fill()
            if self._iterator.finished:
                return
            self._wanted = False
            # Wake the caller's thread just before the event loop waits and releases the interpreter lock.
            loop.call_soon(self.pending.entries.put, None)
            await self._iterator.read_ahead()
            # Each thread sets its own flag before it reads the other's flag, so at least one thread sees a set flag.
            self._sleeps = True
            while not self._wanted:
                await self._wake.wait()
                self._wake.clear()
            self._sleeps = False

    def next(self, running: "_Running") -> bool:
        """Wait for the next block, on the caller's thread.

        Returns:
            False if there is no further block.
        """
        self._wanted = True
        if self._running is None:
            self._running = running
            self.pending.start(running)
        elif self._sleeps:
            running.loop.call_soon_threadsafe(self._wake.set)
        ended = self.pending.next(running)
        if ended is not None:
            ended.result()
        return ended is None

    def stop(self) -> None:
        """Cancel the coroutine, without waiting for its end."""
        if self._running is not None and not self.pending.ended:
            with suppress(RuntimeError):
                self._running.loop.call_soon_threadsafe(self.pending.cancel)


@dataclass(slots=True)
class _Outcome:
    """Result or error of a coroutine function."""

    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class _Interruptible:
    """A coroutine function that can be cancelled at any time: before it starts, while it runs, or after it has ended.

    Attributes:
        entries: Queue that the caller's thread reads. Its last entry is the outcome of the coroutine function. Earlier
            entries are None, and only wake the caller's thread.
        ended: Whether the coroutine function has ended or will not run.
    """

    def __init__(self, work: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        self.entries: SimpleQueue[_Outcome | None] = SimpleQueue()
        self.ended: bool = False
        self._work = work
        self._args = args
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False

    # ---- on the caller's thread ----------------------------------------------------------------------------------

    def start(self, running: "_Running") -> None:
        """Start the coroutine function, with a copy of the caller's context."""
        running.loop.call_soon_threadsafe(self._start, running, context=copy_context())

    def next(self, running: "_Running") -> Any:
        """Wait for the next entry."""
        while True:
            has_ended = running.ended
            try:
                return self.entries.get(timeout=0 if has_ended else _CHECK_INTERVAL)
            except Empty:
                if has_ended:  # and it never called `_start`
                    raise asyncio.CancelledError from None

    def wait_until_ended(self, timeout: float) -> None:
        """Wait until the coroutine function has ended, and drop its entries."""
        until = time.monotonic() + timeout
        while not self.ended and (left := until - time.monotonic()) > 0:
            with suppress(Empty):
                self.entries.get(timeout=left)

    # ---- on the event loop ---------------------------------------------------------------------------------------

    def _start(self, running: "_Running") -> None:
        if running.stopped:
            self._end(_Outcome(error=asyncio.CancelledError()))
            return
        task = running.loop.create_task(self._run())
        running.tasks.add(task)  # The event loop has only weak references to tasks.
        task.add_done_callback(running.tasks.discard)

    async def _run(self) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                if not self._cancelled:
                    self._end(_Outcome(await self._work(*self._args)))
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it, even SystemExit
            self._end(_Outcome(error=error))
        self._end(_Outcome(error=asyncio.CancelledError()))

    def cancel(self) -> None:
        """Cancel the coroutine function."""
        self._cancelled = True
        if self._scope is None:
            self._end(_Outcome(error=asyncio.CancelledError()))
        else:
            self._scope.cancel()

    def _end(self, outcome: _Outcome) -> None:
        """Set the outcome, unless it is already set."""
        if not self.ended:
            self.ended = True
            self.entries.put(outcome)


class _State:
    """State of the thread. It is separate from `LoopThread`, so that the thread has no reference to the `LoopThread`.

    The finalizer of `LoopThread` ends the thread. A reference from the thread would keep both alive forever.
    """

    def __init__(self, at_close: Callable[[], Awaitable[None]]) -> None:
        self._at_close = at_close
        self._lock = threading.Lock()
        self.closed = False
        self._start: _Start | None = None
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
        started = self._start is not None and not self._start.cancelled
        return started and not self.closed and not self._forked

    def is_current(self) -> bool:
        """Whether the caller is running on the thread."""
        return threading.current_thread() is self._thread

    def running(self) -> "_Running":
        """Return the running thread. If it is not running, start it first.

        Raises:
            EventLoopError: The caller runs on the thread itself, which cannot wait for its own work.
            ClientClosedError: The client was closed, the process was forked, or the interpreter is exiting.
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
        if sys.is_finalizing():
            # Python has stopped the thread, so waiting for it would never end.
            advice = "Use the client before the program ends, or in a function registered with atexit."
            raise ClientClosedError("the interpreter is exiting", advice=advice)
        with self._lock:
            if self.closed:
                raise ClientClosedError("the client was closed")
            if self._start is None or self._start.cancelled:
                self._process = os.getpid()
                start = _Start()
                thread = ClientThread(
                    target=_serve, args=(start, self._at_close), name="tidewire-client", daemon=True
                )
                # Store the thread before starting it, because a KeyboardInterrupt may interrupt `start` when the thread
                # is already running.
                self._start, self._thread = start, thread
                try:
                    thread.start()
                except BaseException:
                    start.cancel()
                    raise
            start = self._start
        return start.result()

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
        if sys.is_finalizing():  # Python has stopped the thread
            return
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
            self._start = self._thread = None

    def end(self) -> "_Running | None":
        """Make the thread end, without waiting for its end. This method may be called on any thread and in finalizers.

        Returns:
            The running thread, or None if there is none in this process.
        """
        if self._forked:
            return None
        with self._lock:
            self.closed = True
            start = self._start
        if start is None or start.cancelled:
            return None
        started = start.result()
        # If the event loop has already ended, `call_soon_threadsafe` raises a RuntimeError.
        with suppress(RuntimeError):
            started.loop.call_soon_threadsafe(started.closing.set)
        return started


@dataclass(slots=True)
class _Running:
    """A thread that has started, with the objects that control it."""

    loop: asyncio.AbstractEventLoop
    closing: asyncio.Event
    alive: threading.Lock
    """Lock that the thread holds until the event loop has ended."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    stopped: bool = False
    """Whether the event loop starts no more tasks."""
    ended: bool = False


class _Start:
    """Result of starting the thread. Any number of threads can wait for it.

    Attributes:
        cancelled: Whether the thread did not start, and will not.
    """

    def __init__(self) -> None:
        self.cancelled = False
        self._claimed = threading.Lock()
        """Lock that either the thread or `cancel` acquires."""
        self._unset = threading.Lock()
        """Lock that is held until the result is set."""
        self._unset.acquire()
        self._running: _Running | None = None
        self._error: BaseException | None = None

    def claim(self) -> bool:
        """Return whether the thread may run. Afterwards, `cancel` has no effect."""
        return self._claimed.acquire(blocking=False)

    def cancel(self) -> None:
        """Prevent the thread from running, unless it runs already."""
        self.cancelled = self._claimed.acquire(blocking=False)

    def set(self, running: _Running | None, error: BaseException | None = None) -> None:
        """Set the result. Must be called only once."""
        self._running, self._error = running, error
        self._unset.release()

    @property
    def is_set(self) -> bool:
        return self._running is not None

    def result(self) -> _Running:
        """Wait for the thread to start."""
        if self._running is None:
            with self._unset:
                pass
        if self._running is None:
            assert self._error is not None  # noqa: S101 - see `set`
            raise self._error
        return self._running


def _serve(start: _Start, at_close: Callable[[], Awaitable[None]]) -> None:
    """Run the event loop until the client is closed. The thread runs this function."""
    alive = threading.Lock()
    running: _Running | None = None

    async def run_loop() -> None:
        nonlocal running
        running = _Running(asyncio.get_running_loop(), asyncio.Event(), alive)
        start.set(running)
        await running.closing.wait()
        try:
            await at_close()
        finally:
            running.stopped = True
            if running.tasks:
                for task in running.tasks:
                    task.cancel()
                await asyncio.wait(running.tasks)

    if not start.claim():
        return
    try:
        with alive:
            try:
                anyio.run(run_loop, backend="asyncio")
            finally:
                if running is not None:
                    running.ended = True
    except BaseException as error:
        if start.is_set:
            raise
        start.set(None, error)
