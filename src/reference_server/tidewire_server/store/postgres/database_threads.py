"""Threads that run the tasks of the event loop in the database, and what they do during an outage of the database.

  thread        | runs                                                         | transactions       | `synchronous_commit`
  --------------+--------------------------------------------------------------+--------------------+---------------------
  appends       | appends to logs                                              | one for each group | on
  large_appends | appends of `LARGE_BYTES` or more, and their pieces           | one for each task  | on
  submits       | new jobs, claims, releases, cancellations, retention         | one for each group | on
  control       | takes, beats, polls, progress                                | one for each task  | off
  notifies      | `pg_notify` after commits                                    | one for each task  | off
  reads         | reads for clients                                            | one for each task  | off
  feed          | reads of the new events of jobs that other servers run       | one for each task  | off

A group contains the tasks that gathered while the thread ran the previous group. These connections belong to threads and not to
the event loop, because a function that blocks the loop would otherwise keep the locks of a transaction that is not sent completely.

An outage does not fail a task at once. The table shows what happens to a task:

  the task                                              | outcome
  ------------------------------------------------------+----------------------------------------------------------------
  waits, and the database returns within `WAIT_LIMIT`   | the thread connects again, and runs the task
  waits for longer                                      | `StoreError`
  runs, and the connection breaks                       | unknown, so the task is repeated, unless it must not be
  runs for `WAIT_LIMIT` without an answer               | the thread closes the connection; see the previous row

After a transaction without an answer, the time limit of the thread's next transaction doubles, so that a slow database can
finish a large transaction. A task can run twice, even after its transaction was committed, because the answer to a COMMIT may
be lost. No time-out ends a task while it runs. The caller would otherwise repeat it, and the result would then arrive twice.
"""

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import psycopg

from tidewire_server.store.database.thread_tasks import Task, TaskQueue
from tidewire_server.store.postgres.connections import Command, Connection, Database, Rows, run_commands
from tidewire_server.store.postgres.error_translation import is_conflict, is_disk_full, is_outage
from tidewire_server.store.store_errors import StoreError

_log = logging.getLogger(__name__)

WAIT_LIMIT: Final = 10.0
"""Maximum time in seconds that a task waits for the database during an outage."""

_MAX_PATIENCE: Final = 64.0
"""Maximum factor by which the time limit of a transaction exceeds `WAIT_LIMIT`, after transactions without an answer."""

_CHECKS: Final = 20.0
"""Number of times per `WAIT_LIMIT` that the event loop looks for tasks that have waited for too long."""

_FIRST_DELAY: Final = 0.1
_MAX_DELAY: Final = 1.0
"""Minimum and maximum time between two attempts to connect, in seconds. Each attempt doubles the time."""

_MAX_CONFLICTS: Final = 20
"""Number of times that a transaction is repeated after a conflict with another transaction."""

_FULL_LOG_SECONDS: Final = 60.0
"""Minimum time between two lines in the log about a full disk. Some writes may succeed in between, because they fit."""

FULL_SECONDS: Final = 5.0
"""Time in seconds for which the store counts as not writable after a write has found a full disk. In this time, small writes
such as the test write may succeed. A running job repeats its write each second.
"""


class OutageLog:
    """Logs when a thread can no longer use the database, and when all threads can use it again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.out: dict[DatabaseThread, str] = {}
        """Threads that cannot use the database, and why. For example, only some threads fail if there are too few connections.
        """
        self._began: float | None = None
        self._ended = 0.0
        self._full_logged_at = float("-inf")
        self._full: tuple[float, StoreError] | None = None
        """Time and error of the last write that found a full disk."""

    def failed(self, thread: "DatabaseThread", text: str, since: float) -> None:
        """Record that a thread cannot use the database.

        Args:
            thread: The thread.
            text: The reason.
            since: Time at which the failed attempt began, by the monotonic clock. An attempt that began before the end of the
                last outage belongs to that outage.
        """
        with self._lock:
            self.out[thread] = text
            if self._began is None and since >= self._ended:
                self._began = time.monotonic()
                _log.error(
                    "%s; running functions continue, and what they write waits for the database; requests that need it get "
                    "503 after %g s",
                    text,
                    WAIT_LIMIT,
                )

    def succeeded(self, thread: "DatabaseThread") -> None:
        """Record that a thread can use the database."""
        with self._lock:
            self.out.pop(thread, None)
            if self._began is not None and not self.out:
                self._ended = time.monotonic()
                seconds = self._ended - self._began
                _log.warning("the database can be used again, %.1f s after the error was logged", seconds)
                self._began = None

    def full(self, error: StoreError) -> None:
        """Log that a disk is full."""
        with self._lock:
            error.logged, now = True, time.monotonic()
            self._full = now, error
            if now - self._full_logged_at >= _FULL_LOG_SECONDS:
                self._full_logged_at = now
                _log.error("%s", error)

    def check(self) -> None:
        """Check that all threads can use the database as far as is known, and that no write has found a full disk recently.

        Raises:
            StoreError: A thread cannot use the database, or a disk was full.
        """
        out, full = [*self.out.values()], self._full
        if out:
            raise _outage_error(out[0])
        if full is not None and time.monotonic() - full[0] < FULL_SECONDS:
            raise full[1].copy()


class DatabaseThread:
    """A thread with a connection, which runs the tasks of the event loop, and connects again when the connection is lost."""

    def __init__(
        self,
        database: Database,
        name: str,
        *,
        together: bool = False,
        durable: bool,
        outages: OutageLog | None = None,
    ) -> None:
        """Prepare the thread. The method `start` starts it.

        Args:
            database: The database.
            name: Name of the thread.
            together: Whether the tasks that wait run in one transaction.
            durable: Whether a commit waits until it is as durable as the database promises.
            outages: Log of the outages. All threads of a store share it.
        """
        self._database = database
        self._no_answer = f"log {database.place}: the database has not answered for {WAIT_LIMIT:g} s"
        self._together = together
        self._durable = durable
        self.outages = outages or OutageLog()
        self._tasks = TaskQueue()
        self._thread = threading.Thread(target=self._work, name=f"tidewire-{name}", daemon=True)
        self._closing = threading.Event()
        self._waiting: dict[Task, Task] = {}
        """Tasks that wait. `_claim` removes a task before the thread runs the task, or before the event loop fails it."""
        self._timer: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None
        self._socket: socket.socket | None = None
        """Duplicate of the connection's socket, with which the event loop can interrupt the connection. The file descriptor of
        the original may belong to another file by then.
        """
        self._stuck_at = float("inf")
        """Deadline of the transaction in progress. After this time, the event loop interrupts the connection."""
        self._patience = 1.0
        """Factor by which the time limit of a transaction exceeds `WAIT_LIMIT`."""
        self._interrupted = False
        """Whether the event loop has interrupted the connection."""
        self.last_error: StoreError | None = None
        """Error of the last transaction, or None if it succeeded."""

    # ---- on the event loop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the connection, and start the thread.

        Raises:
            psycopg.Error: The connection cannot be opened.
        """
        self._connected()
        self._thread.start()

    async def run(self, *sql: str, **parameters: Any) -> Rows:
        """Run statements, and return the rows of the last one. See `do`."""
        return (await self.do(Command(sql, parameters)))[-1]

    async def do(self, command: Command, then: Callable[[list[Rows]], None] | None = None) -> list[Rows]:
        """Run a command and return its result after the commit.

        Args:
            command: The command.
            then: Function that is called on the event loop with the result after the commit, even if the caller was
                cancelled. Use it to update data in memory that must match the database.

        Raises:
            StoreError: The database failed, or did not return within `WAIT_LIMIT`.
            HeadMovedError: A row belongs to a job that was deleted in the meantime.
        """
        if self._closing.is_set():
            raise StoreError(f"log {self._database.place}: the store is closed")
        task = Task(command, then)
        self._waiting[task] = task
        future = self._tasks.add(task)
        if self._timer is None:
            self._timer = task.loop.call_later(WAIT_LIMIT / _CHECKS, self._check_waits, task.loop)
        found: list[Rows] = await future
        return found

    def _check_waits(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fail the tasks that have waited for too long, and interrupt the transaction that gets no answer."""
        self._timer, now = None, time.monotonic()
        if now >= self._stuck_at:
            self._stuck_at, self._interrupted = float("inf"), True
            self._patience = min(2 * self._patience, _MAX_PATIENCE)
            self._interrupt()
        overdue = self._claim([task for task in [*self._waiting] if now - task.created >= WAIT_LIMIT])
        if overdue:
            last = self.last_error
            error = last if last is not None and last.outage else _outage_error(self._no_answer)
            self.outages.failed(self, str(error), now)
            for task in overdue:
                task.fail(error)
            self._tasks.settle(overdue)
        if self._tasks.unsettled:
            self._timer = loop.call_later(WAIT_LIMIT / _CHECKS, self._check_waits, loop)

    def _claim(self, tasks: list[Task]) -> list[Task]:
        """Return the tasks that still wait. From now on, only the caller may end them."""
        return [task for task in tasks if self._waiting.pop(task, None) is not None]

    def _interrupt(self) -> None:
        """Shut down the socket. The thread then finds the connection broken, and the outcome of a COMMIT unknown.

        The statement itself is not cancelled. An interrupted COMMIT that waits for a standby continues to wait.
        """
        own = self._socket
        if own is not None:
            with contextlib.suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Let the thread end after the tasks that wait now."""
        self._tasks.pass_tasks()
        self._closing.set()
        self._tasks.end()

    async def close(self) -> None:
        """Finish pending work and close the connection. If the database does not answer, give up after `WAIT_LIMIT`."""
        self.stop()
        await asyncio.to_thread(self._thread.join, WAIT_LIMIT)
        if self._thread.is_alive():
            self._interrupt()
            await asyncio.to_thread(self._thread.join, WAIT_LIMIT)
        if self._timer is not None:
            self._timer.cancel()

    # ---- in the thread ---------------------------------------------------------------------------------------------

    def _work(self) -> None:
        ending = False
        while not ending:
            tasks, ending = self._tasks.next(_MAX_DELAY if self in self.outages.out else None)
            if not (tasks or ending):
                self._reconnect()
            for group in [tasks] if self._together else [[task] for task in tasks]:
                self._finish(group)
        self._close()

    def _connected(self) -> Connection:
        """Return the open connection, or open one."""
        if self._connection is None or self._connection.closed:
            self._close()
            try:
                self._connection = self._database.connect(durable=self._durable, opened=self._keep_socket)
            except psycopg.Error:
                self._close()
                raise
        return self._connection

    def _reconnect(self) -> None:
        """Connect again while the thread has no task, so that an outage ends as soon as the database can be used."""
        with contextlib.suppress(psycopg.Error):
            self._connected()
            self.last_error = None
            self.outages.succeeded(self)

    def _keep_socket(self, connection: Connection) -> None:
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))

    def _close(self) -> None:
        """Close the connection. The outcome of a COMMIT that is in progress is then unknown."""
        for each in (self._connection, self._socket):
            if each is not None:
                each.close()
        self._connection = self._socket = None

    def _finish(self, tasks: list[Task]) -> None:
        """Run tasks until each of them has an outcome, and deliver the outcomes."""
        delay, conflicts = _FIRST_DELAY, 0
        while tasks := [task for task in tasks if not task.ended]:
            began, was_open = time.monotonic(), self._connection is not None
            error = self._try(tasks)
            if error is None:
                self.last_error, self._patience = None, 1.0
                self.outages.succeeded(self)
                return
            tasks = [task for task in tasks if not task.ended]
            if is_outage(error) or (is_conflict(error) and self._connection is None):
                self._close()
                # An idle connection may have been closed. That alone is not an outage.
                stale = was_open and not self._interrupted and delay == _FIRST_DELAY
                text = self._no_answer if self._interrupted else self._database.describe(error)
                self._interrupted = False
                if not stale:
                    self.outages.failed(self, text, began)
                tasks = self._drop(tasks, _outage_error(text), overdue=not stale)
                if tasks and not stale:
                    self._closing.wait(delay)
                delay = min(delay * 2, _MAX_DELAY)
            elif is_conflict(error) and conflicts < _MAX_CONFLICTS:
                conflicts += 1
                tasks = self._drop(tasks, StoreError(self._database.describe(error)))
            elif len(tasks) > 1:
                # Repeat each task alone, because some of them may succeed. On a full disk, for example, reads do.
                for task in tasks:
                    self._finish([task])
                return
            else:
                found = self._database.translate(error)
                if is_disk_full(error) and isinstance(found, StoreError):
                    self.outages.full(found)
                self._fail(tasks, found)
                return

    def _try(self, tasks: list[Task]) -> Exception | None:
        """Run the tasks that the event loop has not failed in the meantime, and deliver the outcomes. If some have no outcome,
        let them wait again, and return the error.
        """
        running: list[Task] = []
        try:
            connection = self._connected()
            running = self._claim(tasks)
            self._stuck_at = time.monotonic() + self._patience * WAIT_LIMIT
            if running:
                run_commands(connection, running)
        except Exception as error:  # noqa: BLE001 - for example, a parameter cannot be encoded
            return error
        else:
            return None
        finally:
            self._stuck_at = float("inf")
            self._waiting.update((task, task) for task in running if not task.ended)
            self._tasks.deliver([task for task in running if task.ended])

    def _drop(self, tasks: list[Task], error: StoreError, *, overdue: bool = True) -> list[Task]:
        """Fail the tasks that must not be repeated after an outage. If `overdue` is true, also fail tasks that have waited for
        too long. Return the other tasks.
        """
        self.last_error, now = error, time.monotonic()
        dropped = [
            task
            for task in tasks
            if (overdue and now - task.created >= WAIT_LIMIT)
            or self._closing.is_set()
            or (error.outage and not task.work.repeat)
        ]
        self._fail(dropped, error)
        return [task for task in tasks if task not in dropped]

    def _fail(self, tasks: list[Task], error: Exception) -> None:
        if tasks and isinstance(error, StoreError):
            self.last_error = error
        for task in (own := self._claim(tasks)):
            task.fail(error)
        self._tasks.deliver(own)


def _outage_error(text: str) -> StoreError:
    error = StoreError(text)
    error.logged = error.outage = True
    return error


class Threads(NamedTuple):
    """The threads of `PostgresStore`. The table in the docstring of the module shows what each of them runs."""

    appends: DatabaseThread
    large_appends: DatabaseThread
    submits: DatabaseThread
    control: DatabaseThread
    notifies: DatabaseThread
    reads: DatabaseThread
    feed: DatabaseThread

    @classmethod
    def start(cls, database: Database) -> "Threads":
        """Start all threads.

        Raises:
            psycopg.Error: A connection cannot be opened.
        """
        outages = OutageLog()
        together = ("appends", "submits")
        durable = ("large_appends", *together)
        threads = cls(
            *(
                DatabaseThread(
                    database, name, together=name in together, durable=name in durable, outages=outages
                )
                for name in cls._fields
            )
        )
        try:
            for thread in threads:
                thread.start()
        except psycopg.Error:
            for thread in threads:
                thread.stop()
            raise
        return threads
