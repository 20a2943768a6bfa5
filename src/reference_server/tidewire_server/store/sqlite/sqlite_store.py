"""Store that keeps all data in one SQLite file."""

from pathlib import Path

from tidewire_server.store.interfaces import Durability, Jobs, Queue, Retention
from tidewire_server.store.memory_queue import MemoryQueue
from tidewire_server.store.sqlite import sqlite_file
from tidewire_server.store.sqlite.sqlite_jobs import Counts, SqliteJobs
from tidewire_server.store.sqlite.writer_thread import WriterThread


class SqliteStore:
    """Store in a SQLite file, used by one server at a time.

    The queue is kept in memory. After a restart, the server refills the queue from the stored states of the unfinished
    jobs.
    """

    durability: Durability = "host"

    def __init__(self, path: Path, retention: Retention, *, fsync: bool = False) -> None:
        """Open the file, and create it if it does not exist.

        Args:
            path: Path of the file.
            retention: Limits on how much the store keeps, and for how long.
            fsync: Whether to sync every commit to the disk. If false, the last commits may be lost in a power failure,
                but not if only the server process crashes.

        Raises:
            StoreError: The file cannot be opened, or another server is using it.
        """
        self._file = file = WriterThread(path, fsync=fsync)
        found = file.open(Counts)
        self.clean, self.secret = file.clean, file.secret
        self.may_have_lost = not (file.clean or fsync)
        self.jobs: Jobs = SqliteJobs(file, retention, found)
        self.queue: Queue = MemoryQueue()

    async def check(self) -> None:
        """Check that the file can be written. A test write is needed only if the last transaction failed.

        Raises:
            StoreError: The file cannot be written, or was removed or replaced.
        """
        self._file.refuse_if_lost()
        if self._file.last_error is not None:
            await self._file.do(sqlite_file.test_write)

    async def close(self, *, clean: bool = True) -> None:
        """Finish pending work and close the file. If `clean` is true, record a clean shutdown."""
        await self._file.close(clean=clean)
