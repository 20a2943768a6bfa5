"""Thread pool that is shared fairly, so that one caller cannot occupy all threads (`CallerThreads`).

Tokenizing prompts and compiling JSON Schemas have separate pools, so that neither kind of work can occupy all threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from tidewire_server.generation.engine_interface import EngineFullError
from tidewire_server.principals import CALLER

T = TypeVar("T")
Call = tuple["Future[Any]", Callable[[], Any]]

SHARE: Final = 0.5
"""Maximum share of the threads that one caller uses at the same time. If there is only one thread, callers take turns."""

_CREATION: Final = threading.Lock()
"""Lock for `threading.stack_size`, which applies to every thread that the process creates."""


class CallerThreads:
    """Pool of daemon threads. Callers take turns, and the calls of one caller run in the order in which they arrived.

    Args:
        name: Name of the work, for the names of the threads and for error messages.
        threads: Maximum number of calls that run at the same time.
        max_waiting: Maximum number of calls of one caller that wait.
        stack_bytes: Size of the stack of a thread. 0 selects the platform's default.
    """

    def __init__(self, name: str, threads: int, max_waiting: int, stack_bytes: int = 0) -> None:
        self._name = name
        self._threads = threads
        self._most = max(1, int(threads * SHARE))
        self._max_waiting = max_waiting
        self._stack_bytes = stack_bytes
        self._lock = threading.Lock()
        # Waiting calls by caller. The caller whose last call started longest ago is the first.
        self._waiting: dict[str, deque[Call]] = {}
        self._running: Counter[str] = Counter()

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread, on behalf of the current caller (`CALLER`). If the task is cancelled before a thread
        is free, the function is not called.

        Raises:
            EngineFullError: Too many calls of this caller are waiting.
        """
        caller, future = CALLER.get(), Future[T]()
        with self._lock:
            waiting = self._waiting.setdefault(caller, deque())
            if len(waiting) >= self._max_waiting:
                raise EngineFullError(
                    f"{len(waiting)} requests of this caller wait for their {self._name}, which is the limit; retry later"
                )
            waiting.append((future, lambda: function(*arguments)))
            starts = self._running.total() < self._threads and self._running[caller] < self._most
            call = self._next() if starts else None
        if call is not None:
            self._start(call)
        return await asyncio.wrap_future(future)

    def _start(self, call: tuple[str, Call]) -> None:
        with _CREATION:
            default = threading.stack_size(self._stack_bytes)
            try:
                threading.Thread(target=self._work, args=(call,), name=self._name, daemon=True).start()
            finally:
                threading.stack_size(default)

    def _next(self) -> tuple[str, Call] | None:
        """Remove the next call from its queue, and count it as running. The caller must hold the lock."""
        for caller, calls in self._waiting.items():
            if self._running[caller] < self._most:
                call = calls.popleft()
                del self._waiting[caller]
                if calls:
                    self._waiting[caller] = calls
                self._running[caller] += 1
                return caller, call
        return None

    def _work(self, call: tuple[str, Call] | None) -> None:
        while call is not None:
            caller, (future, function) = call
            if future.set_running_or_notify_cancel():
                try:
                    result = function()
                except BaseException as error:  # noqa: BLE001 - the future raises it in the caller
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del future, function
            with self._lock:
                self._running[caller] -= 1
                self._running += Counter()  # removes callers without calls
                call = self._next()
