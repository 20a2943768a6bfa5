"""Store that keeps all data in one SQLite file."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidewire_server.store.interfaces import SWEEP_INTERVAL, Durability, Jobs, Queue, StoreError
from tidewire_server.store.memory_queue import MemoryQueue
from tidewire_server.store.records import Retention
from tidewire_server.store.sqlite import sqlite_file
from tidewire_server.store.sqlite.sqlite_jobs import Counts, SqliteJobs
from tidewire_server.store.sqlite.writer_thread import WriterThread

PROBE_INTERVAL: Final = 0.5
"""Time in seconds for which `check` relies on a test write that succeeded, unless a transaction fails in the meantime. The
time limits the test writes, because anyone may request `/readyz`."""


class SqliteStore:
    """Store in a SQLite file, used by one server at a time.

    The queue is kept in memory. After a restart, the server refills the queue from the stored states of the unfinished
    jobs.
    """

    durability: Durability = "host"
    merge_window = 0.0
    sweep_interval = SWEEP_INTERVAL

    def __init__(
        self,
        path: Path,
        retention: Retention,
        *,
        fsync: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the file, and create it if it does not exist.

        Args:
            path: Path of the file.
            retention: Limits on how much the store keeps, and for how long.
            fsync: Whether to sync every commit to the disk. If false, the last commits may be lost in a power failure,
                but not if only the server process crashes.
            clock: Function that returns the time in seconds, for the interval of test writes.

        Raises:
            StoreError: The file cannot be opened, or another server is using it.
        """
        self._file = file = WriterThread(path, fsync=fsync)
        found = file.open(Counts)
        self.secret = file.secret
        self.may_have_lost = not (file.clean or fsync)
        queue = MemoryQueue()
        self.queue: Queue = queue
        self.jobs: Jobs = SqliteJobs(file, retention, found, queue)
        self._clock = clock
        self._probe: asyncio.Task[StoreError | None] | None = None
        """The test write that is in progress, or None."""
        self._failing = False
        """Whether the last test write failed."""
        self._writable_until = float("-inf")
        """Time until which the result of the last successful test write is used."""

    async def check(self) -> None:
        """Check that the file can be written, by a test write. Concurrent calls share one test write, and a successful one
        counts for `PROBE_INTERVAL`.

        Raises:
            StoreError: The file cannot be written, the disk is full, or the file was removed or replaced.
        """
        self._file.refuse_if_lost()
        if self._file.last_error is None and self._clock() < self._writable_until:
            return
        if self._probe is None:
            self._probe = asyncio.create_task(self._test_write())
        error = await asyncio.shield(self._probe)
        if error is not None:
            # Raise a new exception for each caller. The traceback of a shared exception would grow with each raise.
            own = StoreError(*error.args)
            own.logged, error.logged = error.logged, True
            raise own

    async def _test_write(self) -> StoreError | None:
        """Write to the disk and to the file, and return the error if that fails."""
        try:
            await asyncio.to_thread(sqlite_file.check_space, self._file.path)
            await self._file.do(sqlite_file.test_write)
        except StoreError as error:
            error.logged, self._failing = self._failing, True
            self._writable_until = float("-inf")
            return error
        else:
            self._failing, self._writable_until = False, self._clock() + PROBE_INTERVAL
            return None
        finally:
            self._probe = None

    async def close(self, *, clean: bool = True) -> None:
        """Finish pending work and close the file. If `clean` is true, record a clean shutdown."""
        if self._probe is not None:
            await asyncio.wait([self._probe])
        await self._file.close(clean=clean)
