"""`OwningLoop`, the event loop to which a client and its jobs belong, because they were first used on it.

Connections and locks work on one event loop only. The check in this module raises EventLoopError at once if they are
used on another event loop. Without the check, the result would be a deadlock or an obscure error inside a connection.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from anyio.lowlevel import current_token

from tidewire.errors import EventLoopError


class OwningLoop:
    """Stores the event loop on which `check` is first called, and refuses all other event loops."""

    def __init__(self) -> None:
        self._loop: Any = None
        self._process: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """Running asyncio tasks. The set keeps them alive, because an asyncio event loop has only weak references to
        its tasks."""

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the process with the event loop. If so, the two processes share their
        sockets.
        """
        return self._process not in {None, os.getpid()}

    def check(self) -> None:
        """Check that the running event loop is the owner. The first call makes the running event loop the owner.

        Raises:
            EventLoopError: Another event loop is the owner. That event loop may have ended already.
        """
        loop = _running_loop()
        if self._loop is None:
            self._loop, self._process = loop, os.getpid()
        elif self._loop is not loop:
            raise EventLoopError("the client belongs to another event loop, on which it was first used")

    def start_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Schedule a coroutine function on the event loop, if the event loop is still running. This method may be
        called on any thread.
        """
        if self._loop is None or self.forked:
            return
        # asyncio and trio raise a RuntimeError if the event loop has ended.
        with suppress(RuntimeError):
            if isinstance(self._loop, asyncio.AbstractEventLoop):
                self._loop.call_soon_threadsafe(self._start_on_asyncio, work)
            else:
                self._loop.run_sync_soon(_start_on_trio, work)

    def call_later(self, seconds: float, work: Callable[[], None]) -> Callable[[], object]:
        """Call a function later on the running event loop. Returns a function that cancels the call."""
        if isinstance(self._loop, asyncio.AbstractEventLoop):
            return self._loop.call_later(seconds, work).cancel
        trio = sys.modules["trio"]
        scope = trio.CancelScope()

        async def wait() -> None:
            with scope:
                await trio.sleep(seconds)
                work()

        trio.lowlevel.spawn_system_task(wait)
        cancel: Callable[[], object] = scope.cancel
        return cancel

    async def finish(self, seconds: float) -> None:
        """Wait for scheduled coroutines, because asyncio would cancel them when its event loop ends. On trio, this
        method has nothing to do, because trio itself waits for the coroutines.

        Args:
            seconds: Maximum time to wait.
        """
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def _start_on_asyncio(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._loop.create_task(_ignore_errors(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _start_on_trio(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    lowlevel = sys.modules["trio"].lowlevel
    try:
        lowlevel.spawn_system_task(_ignore_errors, work)
    except RuntimeError:
        # trio's run is ending, and trio will close all async generators. It would warn about a generator that is
        # collected earlier. Keep `work`, which may refer to such a generator, until the run has ended.
        lowlevel.RunVar("work that was not started").set(work)


async def _ignore_errors(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    # Suppress exceptions, because no caller waits for the coroutine. asyncio would only print an exception, and trio
    # would crash.
    with suppress(Exception):
        await work()


def _running_loop() -> object:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        token: Any = current_token()
        return getattr(token, "native_token", token)
