"""Thread that owns the SQLite connection and runs all reads and writes for the event loop.

The thread runs all pending tasks in one transaction, so that many jobs share a commit. The event loop receives the
results only after the commit, so that no code acts on uncommitted data. A large task has its own transaction. At most one large
task runs between two transactions of the other tasks, so that these wait for at most one large value.
"""

import asyncio
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeVar

from tidewire_server.store.database.thread_tasks import Task, TaskQueue
from tidewire_server.store.failure_log import FailureLog
from tidewire_server.store.sqlite import sqlite_file
from tidewire_server.store.store_errors import StoreError

_log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_CHECK_SECONDS: Final = 0.5
"""Time between two checks whether the file or its lock file was removed or replaced."""


class WriterThread:
    """A SQLite file, together with the thread that reads and writes the file."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        """Prepare the thread. The method `open` starts the thread and opens the file.

        Args:
            path: Path of the file, which is created if it does not exist.
            fsync: Whether to sync every commit to the disk, so that the commit survives a power failure.
        """
        self.path = path.resolve()
        self.lost: StoreError | None = None
        """Error if the file or its lock file was removed or replaced while the file was open. Without the file, everything
        written since then will be lost. Without the lock file, a second server can use the file."""
        self.last_error: StoreError | None = None
        """Error of the last transaction, or None if it succeeded."""
        self.clean = True
        """Whether the previous server process closed the file cleanly."""
        self.secret = b""
        """Signing key stored in the file. See `Store.secret`."""
        self._failures = FailureLog(_log, "a transaction failed")
        self._tasks = TaskQueue()
        self._fsync = fsync
        self._close_as_clean = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._identity: list[tuple[int, int]] | None = None
        """Device and inode of the open file, and of its lock file."""
        self._checking = threading.Lock()

    def open(self, inspect: Work[T]) -> T:
        """Start the thread, open and migrate the file, and return the result of `inspect` on the new connection.

        Raises:
            StoreError: The file cannot be opened, or another server is using it.
        """
        opened: Future[T] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(inspect, opened), name="tidewire-log", daemon=True
        )
        self._thread.start()
        return opened.result()

    async def do(
        self,
        work: Work[T],
        then: Callable[[T], None] | None = None,
        failed: Callable[[], None] | None = None,
        *,
        large: bool = False,
    ) -> T:
        """Run `work` in the thread, inside a transaction, and return its result after the commit.

        Args:
            work: Function that reads and writes through the connection. If it raises an exception, it must do so before
                its first write, because other tasks share the transaction.
            then: Function that is called on the event loop with the result after the commit, even if the caller was
                cancelled. Use it to update data in memory that must match the file.
            failed: Function that is called on the event loop if the work or its commit has failed, even if the caller was
                cancelled.
            large: Whether `work` writes many bytes. It may then run after other work that was passed later.

        Raises:
            StoreError: The file cannot be read or written.
            HeadMovedError: The log's last event is not the event that `work` expected.
        """
        if self._closed:
            raise StoreError(f"log {self.path}: the file is closed")
        found: T = await self._tasks.add(Task(work, then, failed, large=large))
        return found

    async def close(self, *, clean: bool) -> None:
        """Finish pending work and close the file. If `clean` is true, record a clean shutdown."""
        self._close_as_clean, self._closed = clean, True
        self._tasks.pass_tasks()
        self._tasks.end()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    # ---- in the thread -----------------------------------------------------------------------------------------

    def _run(self, inspect: Work[T], opened: "Future[T]") -> None:
        try:
            sqlite_file.check_place(self.path)
            owner = sqlite_file.Owner(self.path)
            try:
                connection = sqlite_file.connect(self.path, fsync=self._fsync)
                self._identity = self._find_files()
                found = inspect(connection)
                self.clean, self.secret = sqlite_file.take_over(connection)
            except BaseException:
                owner.release()
                raise
        except sqlite3.Error as error:
            opened.set_exception(StoreError(sqlite_file.explain(self.path, error)))
            return
        except BaseException as error:  # noqa: BLE001 - `open` raises it
            opened.set_exception(error)
            return
        opened.set_result(found)
        ending, next_check = False, 0.0
        large: deque[Task] = deque()
        while not ending or large:
            if ending:
                tasks: list[Task] = []
            else:
                tasks, ending = self._tasks.next(0 if large else _CHECK_SECONDS)
            large += [task for task in tasks if task.large]
            small = [task for task in tasks if not task.large]
            for group in (small, [large.popleft()] if large else []):
                if group:
                    self._transact(connection, group)
                    self._tasks.deliver(group)
            if time.monotonic() >= next_check:
                self.check_file()
                next_check = time.monotonic() + _CHECK_SECONDS
        sqlite_file.close(connection, clean=self._close_as_clean)
        owner.release()

    def check_file(self) -> None:
        """Check whether the paths still lead to the open file and its lock file, and set `lost`. This method can be called in any
        thread.
        """
        with self._checking:
            if self._find_files() == self._identity:
                self.lost = None
            elif self.lost is None:
                self.lost = StoreError(
                    f"log {self.path}: the file or its lock file {sqlite_file.lock_file_of(self.path).name} was removed or replaced "
                    "while the server was running, so new jobs are refused; move it back, or restart the server, which loses "
                    "its jobs unless only the lock file is missing"
                )
                self.lost.logged = True
                _log.error("%s", self.lost)

    def refuse_if_lost(self) -> None:
        """Raise an error if the file or its lock file was removed or replaced.

        Raises:
            StoreError: The file or its lock file was removed or replaced.
        """
        if self.lost is not None:
            raise self.lost.with_traceback(None)

    def _find_files(self) -> list[tuple[int, int]] | None:
        try:
            found = [each.stat() for each in (self.path, sqlite_file.lock_file_of(self.path))]
        except OSError:
            return None
        return [(each.st_dev, each.st_ino) for each in found]

    def _transact(self, connection: sqlite3.Connection, tasks: list[Task]) -> None:
        try:
            before = connection.total_changes
            connection.execute("BEGIN IMMEDIATE")
            for task in tasks:
                try:
                    task.outcome = task.work(connection)
                except sqlite3.Error:
                    raise
                except StoreError as error:
                    task.fail(StoreError(f"log {self.path}: {error}"))
                except (ValueError, TypeError, LookupError) as error:
                    # The content of a row cannot be decoded.
                    task.fail(StoreError(sqlite_file.describe_damage(self.path, error)))
                except Exception as error:  # noqa: BLE001 - `do` raises it
                    task.fail(error)
            connection.execute("COMMIT")
            if connection.total_changes != before:
                self.last_error = None
        except sqlite3.Error as error:
            self._roll_back(connection)
            if len(tasks) > 1:
                # Retry each task separately, because some of them may succeed. On a full disk, for example, reads still
                # work.
                for task in tasks:
                    self._transact(connection, [task])
                return
            self.last_error = StoreError(sqlite_file.explain(self.path, error))
            # Log here, not once for each request: on a full disk, clients repeat their requests, and the log may be on the same
            # disk.
            self._failures.failed(self.last_error)
            self.last_error.logged = True
            tasks[0].fail(self.last_error)

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            try:
                connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                self.last_error = StoreError(sqlite_file.explain(self.path, error))
