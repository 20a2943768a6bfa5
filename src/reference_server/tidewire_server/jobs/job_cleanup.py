"""Background task that deletes expired jobs, events and idempotency keys."""

import asyncio
import contextlib
import logging
import time
from typing import Final

from tidewire_server.store.failure_log import FailureLog
from tidewire_server.store.jobs_interface import Jobs
from tidewire_server.store.store_errors import StoreError

_RETRY_SECONDS: Final = 5.0
"""Number of seconds to wait after a failed sweep. A sweep deletes all entries that have expired."""

_log = logging.getLogger(__name__)


class JobCleanup:
    """Cleanup task of one server. It must be created and used on one event loop."""

    def __init__(self, jobs: Jobs, interval: float) -> None:
        """Create the task, which does not run before `start`.

        Args:
            jobs: Jobs of the store.
            interval: Minimum number of seconds between two sweeps.
        """
        self._jobs = jobs
        self._interval = interval
        self._needed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failures = FailureLog(_log, "cannot delete expired entries")

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._task is not None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._sweep())

    @property
    def is_cancelled(self) -> bool:
        """Whether the task was cancelled. If `stop` was not called, the event loop is ending and has cancelled all tasks."""
        return self._task is not None and self._task.cancelling() > 0

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def wake(self) -> None:
        """Make the task look for expired entries soon, because an entry may expire before the next planned time."""
        self._needed.set()

    async def _sweep(self) -> None:
        while True:
            self._needed.clear()
            now = time.time()
            try:
                due = await self._jobs.expire(now)
            except StoreError as error:
                self._failures.failed(error)
                due = now + _RETRY_SECONDS
            # Always wait between sweeps, because each job that ends wakes this task, and thousands of jobs may end per
            # second.
            await asyncio.sleep(self._interval)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else due - time.time()):
                    await self._needed.wait()
