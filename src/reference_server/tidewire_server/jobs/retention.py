"""What clears up after jobs: their ends are kept in the store, and what has had its time is let go when it is due."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import Final

from tidewire_server.store.interfaces import JobRecord, Jobs, StoreError

_LEAST: Final = 0.02
"""Seconds between two sweeps, at least."""

_AGAIN: Final = 5.0
"""Seconds until the next sweep where one could not be made."""

_log = logging.getLogger(__name__)


class JobCleanup:
    """One server's. Made and used on one event loop."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._needed = asyncio.Event()
        self._unsaved: deque[JobRecord] = deque()
        """Jobs that have ended and whose records do not say so yet."""
        self._task: asyncio.Task[None] | None = None

    @property
    def began(self) -> bool:
        """Whether it was begun."""
        return self._task is not None

    def begin(self) -> None:
        """Sweep from now on."""
        self._task = asyncio.get_running_loop().create_task(self._sweep())

    async def end(self) -> None:
        """Sweep no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def look(self) -> None:
        """Something may be due earlier than was known."""
        self._needed.set()

    async def ended(self, record: JobRecord) -> None:
        """Keep the end of a job; where that cannot be now, at a later sweep."""
        try:
            await self._jobs.save(record)
        except StoreError:  # the sweep tries again, and says so
            self._unsaved.append(record)
        self.look()

    async def _sweep(self) -> None:
        while True:
            self._needed.clear()
            now = time.time()
            try:
                while self._unsaved:
                    await self._jobs.save(self._unsaved[0])
                    self._unsaved.popleft()
                due = await self._jobs.expire(now)
            except StoreError as error:
                _log.error("ends of jobs cannot be kept, nor old ones let go: %s", error)
                due = now + _AGAIN
            # Whatever is asked for: thousands of jobs may end in a second, and each says so.
            await asyncio.sleep(_LEAST)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else due - time.time()):
                    await self._needed.wait()
