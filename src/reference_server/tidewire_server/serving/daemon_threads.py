"""The event loop's pool for `asyncio.to_thread`, whose threads do not keep a process from ending.

The standard pool is waited for at exit, also where a function of an endpoint sits in it for an hour.
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
"""As many as the standard pool has."""

_NUMBERS: Final = itertools.count(1)

_log = logging.getLogger(__name__)


class DaemonThreads(ThreadPoolExecutor):
    """At most `MAX_THREADS` daemon threads. A subclass because asyncio takes no other kind of pool."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._guard = threading.Lock()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads_now: set[threading.Thread] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a function called by the next thread that is free."""
        future: Future[Any] = Future()
        with self._guard:
            self._calls.append((future, lambda: fn(*args, **kwargs)))
            if len(self._threads_now) < MAX_THREADS:
                thread = threading.Thread(target=self._work, name=f"to_thread-{next(_NUMBERS)}", daemon=True)
                self._threads_now.add(thread)
                thread.start()
        return future

    def leave(self, within: float) -> None:
        """Wait for what still runs, for so many seconds; then say what is left behind."""
        until = time.monotonic() + within
        with self._guard:
            self._calls.clear()
            running = tuple(self._threads_now)
        for thread in running:
            thread.join(max(0.0, until - time.monotonic()))
        left = ", ".join(thread.name for thread in running if thread.is_alive())
        if left:
            _log.warning("left behind at exit, still running: %s", left)

    def _work(self) -> None:
        while True:
            with self._guard:
                if not self._calls:
                    self._threads_now.discard(threading.current_thread())
                    return
                future, call = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - it travels to whoever awaits
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, call
