"""Background work on the event loop. All requests that arrive during one run share the next run."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidewire_server.store.failure_log import FailureLog
from tidewire_server.store.store_errors import StoreError

_log = logging.getLogger(__name__)


class CoalescedWork:
    """Work that runs after each request. All methods must be called on one event loop."""

    def __init__(
        self, work: Callable[[], Awaitable[None]], purpose: str, *, pause: float | None = None
    ) -> None:
        """Create the object.

        Args:
            work: The work. If it raises a `StoreError`, the next request repeats it.
            purpose: Verb phrase that describes the work in the server's log.
            pause: Minimum number of seconds between the end of one run and the start of the next.
        """
        self._work = work
        self._failures = FailureLog(_log, f"cannot {purpose}")
        self._pause = pause
        self._due = False
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def request(self) -> None:
        """Run the work soon. If it runs already, it runs again afterwards."""
        self._due = True
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._due:
                self._due = False
                try:
                    await self._work()
                except StoreError as error:
                    self._failures.failed(error)
                if self._pause is not None:
                    await asyncio.sleep(self._pause)
        finally:
            self._task = None

    async def close(self, *, finish: bool = False) -> None:
        """Stop running the work. If `finish` is true, wait for the work that was requested. Otherwise cancel it."""
        self._closed = True
        if self._task is not None:
            if not finish:
                self._task.cancel()
            await asyncio.wait([self._task])
