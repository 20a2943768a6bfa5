"""Event loop of a server or worker process: signal handling, shutdown, and settings of the interpreter."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

from tidewire_server.http.lifespan import Lifespan
from tidewire_server.serving.daemon_threads import DaemonThreads
from tidewire_server.user_code import place_of

LAST_GRACE: Final = 2.0
"""Number of seconds to wait for open requests and cancelled tasks after the time for running jobs is over."""

_GC_THRESHOLDS: Final = (25_000, 2, 50)
"""Thresholds of the garbage collector. With these values, collecting the two youngest generations takes a few
milliseconds. With a smaller first value, the collector would visit the objects of running jobs often. For example, with
10,000, it took a tenth of the CPU time of a short job that waits for SQLite.
"""

_REACTION: Final = 1.0
"""Number of seconds after a signal. If the event loop has not reacted by then, it is considered blocked."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


def run_to_the_end(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine. Then cancel the remaining tasks and close the event loop.

    If a task ignores the cancellation, the process waits for it only for a limited time.
    """
    loop.set_default_executor(pool := DaemonThreads())
    asyncio.set_event_loop(loop)
    try:
        _run_despite_exits(loop, work)
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            _, stuck = _run_despite_exits(loop, asyncio.wait(tasks, timeout=LAST_GRACE))
            for task in stuck:
                _log.warning("task still running at exit: %r", task.get_name())
        _run_despite_exits(loop, loop.shutdown_asyncgens())
        loop.close()
        pool.drain(LAST_GRACE)


def _run_despite_exits(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> _T:
    """Run the event loop until a coroutine has ended, and return its result.

    If any other task raises SystemExit, the event loop raises it too. Without the loop below, a function whose own task calls
    `sys.exit` would end the server with all its jobs, and each server that runs the job again. When the server stops, such a
    task would keep other tasks from ending.
    """
    task = loop.create_task(work)
    while not task.done():
        try:
            loop.run_until_complete(task)
        except SystemExit as error:
            if not task.done():
                _log.error("a task of a function raised SystemExit; the server continues", exc_info=error)
    return task.result()


@contextlib.contextmanager
def stop_signals(end: Callable[[], None], patience: float) -> Iterator[None]:
    """Handle SIGINT and SIGTERM while the body of the `with` statement runs. A second signal ends the process immediately.

    Args:
        end: Function that is called on the running event loop at the first signal.
        patience: Number of seconds after which the process ends if the event loop is blocked, so that it does not call `end`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread can handle signals. In other threads, the caller ends the server.
        return
    loop = asyncio.get_running_loop()
    signaled = False
    reacts = threading.Event()

    def react() -> None:
        reacts.set()
        end()

    def handle(_signum: int, _frame: object) -> None:
        nonlocal signaled
        if signaled:
            os._exit(1)
        signaled = True
        loop.call_soon_threadsafe(react)
        threading.Thread(target=_end_blocked, args=(reacts, patience), daemon=True).start()

    def ignore(_signum: int, _frame: object) -> None:
        loop.call_soon_threadsafe(
            _log.warning, "SIGHUP ignored: this server reads its configuration only at startup"
        )

    # Do not use `loop.add_signal_handler`, because a second signal must end the process even if the event loop is
    # blocked.
    before = [(each, signal.signal(each, handle)) for each in _SIGNALS]
    # SIGHUP would end the process without `goaway`. If `nohup` has set SIG_IGN, keep that setting. Windows has no
    # SIGHUP.
    if (hangup := getattr(signal, "SIGHUP", None)) and signal.getsignal(hangup) is signal.SIG_DFL:
        before.append((hangup, signal.signal(hangup, ignore)))
    _replaced.extend(before)
    try:
        yield
    finally:
        _restore()


_replaced: Final[list[tuple[int, Any]]] = []
"""Signals that the server handles, each with the previous handler."""


def _restore() -> None:
    for each, handler in _replaced:
        signal.signal(each, handler)
    _replaced.clear()


def _restore_in_child() -> None:
    """Restore the signal handlers in a child that a function has forked. Otherwise SIGTERM would not end the child, and a pool
    of processes would wait for it.
    """
    if _replaced:
        signal.set_wakeup_fd(-1)  # The descriptor belongs to the event loop of the server.
        _restore()
    _unblock()


_forking = threading.local()


def _block() -> None:
    """Block the signals during a fork. If a signal reached the child before its handlers are restored, it would be lost."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_restore_in_child)


def _end_blocked(reacts: threading.Event, patience: float) -> None:
    """End the process if the event loop does not react to a signal."""
    if reacts.wait(_REACTION):
        return
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    place = "" if frame is None else f" at {place_of(frame)}"
    _announce(
        f"the event loop is blocked{place}; waiting up to {patience:g} s; press Ctrl-C again to end at once"
    )
    if not reacts.wait(patience):
        _announce("the event loop is still blocked, so the process ends now")
        os._exit(1)


def _announce(text: str) -> None:
    """Print a line about the end of the process. Ignore errors such as a full disk or a closed pipe, because an exception would
    skip the steps that end the process.
    """
    with contextlib.suppress(OSError):
        print(f"stopping: {text}", file=sys.stderr, flush=True)


def announce_drain(lifespan: Lifespan, seconds: float) -> None:
    """If the process waits before it ends, print the reason.

    Args:
        lifespan: Lifespan of the application.
        seconds: Maximum number of seconds that the process waits.
    """
    jobs, reason = lifespan.jobs_to_drain, None
    if jobs and seconds:
        reason = f"waiting up to {seconds:g} s for {jobs} {'job' if jobs == 1 else 'jobs'}"
    elif seconds and (left := lifespan.seconds_for_readers):
        reason = f"results stay available for up to {left:.1f} s, in case a connection broke"
    if reason is not None:
        _announce(f"{reason}; press Ctrl-C again to end at once")


@contextlib.contextmanager
def thread_switch_interval(seconds: float) -> Iterator[None]:
    """Set Python's thread switch interval.

    With a short interval, functions in other threads delay the event loop less.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def short_gc_pauses() -> Iterator[None]:
    """Exclude the objects that exist now from garbage collection, and collect new objects less often.

    A full collection would stop all streams while it examines the objects of a loaded model.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
