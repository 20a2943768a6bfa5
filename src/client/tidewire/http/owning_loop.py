"""The event loop that a client and its jobs belong to: the one on which they were first used.

Connections and locks work on one event loop only. Use on another one, of the same library or not, raises an error
at once, where it would otherwise hang or fail deep inside of a connection.
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
    """The event loop of the first `check`."""

    def __init__(self) -> None:
        self._loop: Any = None
        self._process: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """Of an asyncio loop, which itself holds its tasks only weakly."""

    @property
    def forked(self) -> bool:
        """Whether this process is a copy of the one in which the event loop runs: sockets are shared with it."""
        return self._process not in {None, os.getpid()}

    def check(self) -> None:
        """Take the running event loop as the owner, or compare it with the owner.

        Raises:
            EventLoopError: It is another one, also if the owner has ended.
        """
        loop = _running_loop()
        if self._loop is None:
            self._loop, self._process = loop, os.getpid()
        elif self._loop is not loop:
            raise EventLoopError("this client was first used on another event loop, and belongs to that one")

    def start_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine function on the event loop, if that still runs. Callable in any thread, and in finalizers."""
        if self._loop is None or self.forked:
            return
        # Both raise a RuntimeError once their loop has ended.
        with suppress(RuntimeError):
            if isinstance(self._loop, asyncio.AbstractEventLoop):
                self._loop.call_soon_threadsafe(self._start_on_asyncio, work)
            else:
                self._loop.run_sync_soon(_start_on_trio, work)

    async def finish(self, seconds: float) -> None:
        """Wait for what was started. An asyncio loop that ends would break it off; trio does not.

        Args:
            seconds: At most.
        """
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def _start_on_asyncio(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._loop.create_task(_quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _start_on_trio(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    # At the end of its run, trio starts no more tasks.
    with suppress(RuntimeError):
        sys.modules["trio"].lowlevel.spawn_system_task(_quietly, work)


async def _quietly(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    # Nobody waits for it: an error would only be printed, and trio ends with it.
    with suppress(Exception):
        await work()


def _running_loop() -> object:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        token: Any = current_token()
        return getattr(token, "native_token", token)
