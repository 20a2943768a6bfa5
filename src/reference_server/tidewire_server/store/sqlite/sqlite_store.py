"""The store of one file."""

from pathlib import Path

from tidewire_server.store.interfaces import Durability, Jobs, Queue, Retention
from tidewire_server.store.memory_queue import MemoryQueue
from tidewire_server.store.sqlite import sqlite_file
from tidewire_server.store.sqlite.sqlite_jobs import Counts, SqliteJobs
from tidewire_server.store.sqlite.writer_thread import WriterThread


class SqliteStore:
    """A store in a file, for one server at a time.

    The queue is in memory: what waits is what the states of the jobs say, and after a restart it is filled from them.
    """

    durability: Durability = "host"

    def __init__(self, path: Path, retention: Retention, *, fsync: bool = False) -> None:
        """Open a file, or make it.

        Args:
            path: Where it is.
            retention: How long and how much it keeps.
            fsync: Have each commit written through to the disk. Without it a power cut may take the last commits,
                the end of the process may not.

        Raises:
            StoreError: It cannot be opened, or another server has it.
        """
        self._file = file = WriterThread(path, fsync=fsync)
        found = file.open(Counts)
        self.clean, self.secret = file.clean, file.secret
        self.may_have_lost = not (file.clean or fsync)
        self.jobs: Jobs = SqliteJobs(file, retention, found)
        self.queue: Queue = MemoryQueue()

    async def check(self) -> None:
        """Find out whether the file can be written; asks it only where it could not at last.

        Raises:
            StoreError: It cannot.
        """
        if self._file.trouble is not None:
            await self._file.do(sqlite_file.write_something)

    async def close(self, *, clean: bool = True) -> None:
        """Finish what waits, and let go of the file; noted, if `clean`, as all in order."""
        await self._file.close(clean=clean)
