"""Store that keeps all data in one SQLite file."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from tidewire_server.store.database.write_probe import WriteProbe
from tidewire_server.store.jobs_interface import Jobs
from tidewire_server.store.memory.memory_queue import MemoryQueue
from tidewire_server.store.queue_interface import Queue
from tidewire_server.store.records import Retention
from tidewire_server.store.replicas_interface import Replicas
from tidewire_server.store.sqlite import sqlite_file
from tidewire_server.store.sqlite.sqlite_jobs import Counts, SqliteJobs
from tidewire_server.store.sqlite.writer_thread import WriterThread
from tidewire_server.store.store_interface import SWEEP_INTERVAL, Durability


class SqliteStore:
    """Store in a SQLite file, used by one server at a time.

    The queue is kept in memory. After a restart, the server refills the queue from the stored states of the unfinished
    jobs.
    """

    durability: Durability = "host"
    replicas: Replicas | None = None
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
        # Even with `fsync`: the file may be a restored backup, which lacks events that readers have received.
        self.may_have_lost = not file.clean
        queue = MemoryQueue()
        self.queue: Queue = queue
        self.jobs: Jobs = SqliteJobs(file, retention, found, queue)
        self._probe = WriteProbe(self._test_write, lambda: file.last_error is not None, clock)

    async def check(self) -> None:
        """Check that the file can be written. See `WriteProbe.check`.

        Raises:
            StoreError: The file cannot be written, the disk is full, or the file was removed or replaced.
        """
        self._file.refuse_if_lost()
        await self._probe.check()

    async def _test_write(self) -> None:
        await asyncio.to_thread(sqlite_file.check_space, self._file.path)
        await self._file.do(sqlite_file.test_write)

    async def close(self, *, clean: bool = True) -> None:
        """Finish pending work and close the file. If `clean` is true, record a clean shutdown."""
        await self._probe.close()
        await self._file.close(clean=clean)
