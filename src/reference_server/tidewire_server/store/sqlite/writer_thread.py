"""The thread that has the file: work comes in from the event loop, and goes out committed.

All that waits is done in one transaction, so that many jobs share a commit. What a piece of work gives is handed over
only once that is through: nobody sees what is not committed.
"""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

from tidewire_server.store.interfaces import HeadMovedError, StoreError
from tidewire_server.store.sqlite import sqlite_file

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_MAX_TOGETHER: Final = 256
"""Pieces of work in one transaction."""


class _Task:
    """One piece of work, and where its outcome goes."""

    __slots__ = ("future", "loop", "outcome", "then", "work")

    def __init__(self, work: Work[Any], then: Callable[[Any], None] | None) -> None:
        self.work = work
        self.then = then
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.outcome: Any = None


class WriterThread:
    """One file, for one server."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        """Name it; `open` opens it.

        Args:
            path: Where it is; made where it is not there.
            fsync: Have each commit written through to the disk, so that it survives a power cut.
        """
        self.path = path
        self.trouble: StoreError | None = None
        """Why the last transaction failed; None where it did not."""
        self.clean = True
        """Whether the server before this one let go of it in order."""
        self.secret = b""
        """What its servers sign with."""
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._fsync = fsync
        self._hand_back_clean = False
        self._thread: threading.Thread | None = None

    def open(self, look: Work[T]) -> T:
        """Open it, made and up to date, and give what a look at it gives.

        Raises:
            StoreError: It cannot be opened, or another server has it.
        """
        opened: Future[T] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(look, opened), name="tidewire-log", daemon=True
        )
        self._thread.start()
        return opened.result()

    async def do(self, work: Work[T], then: Callable[[T], None] | None = None) -> T:
        """Do some work in the thread, in a transaction.

        Args:
            work: Reads and writes. It fails, if it does, before its first write.
            then: Called with what it gave once that is committed, on the event loop, also where the caller has given
                up: what is committed has happened.

        Raises:
            StoreError: The file cannot be read or written.
            HeadMovedError: The work says so.
        """
        task = _Task(work, then)
        self._tasks.put(task)
        found: T = await task.future
        return found

    async def close(self, *, clean: bool) -> None:
        """Finish what waits, and let go of the file; noted, if `clean`, as all in order."""
        self._hand_back_clean = clean
        self._tasks.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    # ---- in the thread -----------------------------------------------------------------------------------------

    def _run(self, look: Work[T], opened: "Future[T]") -> None:
        try:
            sqlite_file.check_place(self.path)
            owner = sqlite_file.Owner(self.path)
            try:
                connection = sqlite_file.connect(self.path, fsync=self._fsync)
                found = look(connection)
                self.clean, self.secret = sqlite_file.take_over(connection)
            except BaseException:
                owner.release()
                raise
        except sqlite3.Error as error:
            opened.set_exception(StoreError(sqlite_file.explain(self.path, error)))
            return
        except BaseException as error:  # noqa: BLE001 - it travels to whoever opens
            opened.set_exception(error)
            return
        opened.set_result(found)
        ending = False
        while not ending:
            tasks, ending = self._next()
            if tasks:
                self._transact(connection, tasks)
                _hand_over(tasks)
        sqlite_file.hand_back(connection, clean=self._hand_back_clean)
        owner.release()

    def _next(self) -> tuple[list[_Task], bool]:
        first = self._tasks.get()
        if first is None:
            return [], True
        tasks = [first]
        try:
            while len(tasks) < _MAX_TOGETHER:
                task = self._tasks.get_nowait()
                if task is None:
                    return tasks, True
                tasks.append(task)
        except queue.Empty:
            pass
        return tasks, False

    def _transact(self, connection: sqlite3.Connection, tasks: list[_Task]) -> None:
        try:
            before = connection.total_changes
            connection.execute("BEGIN IMMEDIATE")
            for task in tasks:
                try:
                    task.outcome = task.work(connection)
                except sqlite3.Error:
                    raise
                except StoreError as error:
                    task.outcome = _Failed(StoreError(f"log {self.path}: {error}"))
                except Exception as error:  # noqa: BLE001 - it travels to whoever awaits
                    task.outcome = _Failed(error)
            connection.execute("COMMIT")
            if connection.total_changes != before:
                self.trouble = None
        except sqlite3.Error as error:
            self.trouble = StoreError(sqlite_file.explain(self.path, error))
            for task in tasks:
                task.outcome = _Failed(self.trouble)
            if connection.in_transaction:
                try:
                    connection.execute("ROLLBACK")
                except sqlite3.Error as worse:
                    self.trouble = StoreError(sqlite_file.explain(self.path, worse))


class _Failed:
    """An outcome that is raised."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def _hand_over(tasks: list[_Task]) -> None:
    loop = tasks[0].loop
    try:
        loop.call_soon_threadsafe(_settle, tasks)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return


def _settle(tasks: list[_Task]) -> None:
    for task in tasks:
        outcome, future = task.outcome, task.future
        if isinstance(outcome, _Failed):
            if not future.done():
                # Each waiter gets an error of its own: a traceback grows on it.
                error = outcome.error
                own = type(error)(*error.args) if isinstance(error, StoreError | HeadMovedError) else error
                future.set_exception(own)
            continue
        if task.then is not None:
            task.then(outcome)
        if not future.done():
            future.set_result(outcome)
