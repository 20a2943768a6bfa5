"""Thread pool for `asyncio.to_thread`. Its threads do not keep the process from exiting.

With asyncio's default pool, Python would wait at exit for all threads, even if a user function needs another hour.
"""

import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

MAX_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
"""Maximum number of threads, the same as in the default pool."""

_NUMBERS: Final = itertools.count(1)

_log = logging.getLogger(__name__)


class DaemonThreads(ThreadPoolExecutor):
    """Pool of up to `MAX_THREADS` daemon threads.

    The class extends `ThreadPoolExecutor`, because asyncio accepts only subclasses of `ThreadPoolExecutor` as its
    default executor.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._lock = threading.Lock()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running_threads: set[threading.Thread] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedule a function call, which runs in the next free thread.

        Raises:
            RuntimeError: The system allows no more threads, and no thread of the pool is running.
        """
        future: Future[Any] = Future()
        with self._lock:
            self._calls.append((future, lambda: fn(*args, **kwargs)))
            if len(self._running_threads) < MAX_THREADS:
                thread = threading.Thread(target=self._work, name=f"to_thread-{next(_NUMBERS)}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # The system allows no more threads now.
                    if not self._running_threads:
                        self._calls.pop()
                        raise
                else:
                    self._running_threads.add(thread)
        return future

    def drain(self, within: float) -> None:
        """Discard pending calls, and wait up to `within` seconds for running calls.

        If any thread is still running after this time, log a warning.
        """
        deadline = time.monotonic() + within
        with self._lock:
            self._calls.clear()
            running = tuple(self._running_threads)
        for thread in running:
            thread.join(max(0.0, deadline - time.monotonic()))
        unfinished = ", ".join(thread.name for thread in running if thread.is_alive())
        if unfinished:
            _log.warning("threads still running at exit: %s", unfinished)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._running_threads.discard(threading.current_thread())
                    return
                future, call = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - the future raises it in the caller
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, call
