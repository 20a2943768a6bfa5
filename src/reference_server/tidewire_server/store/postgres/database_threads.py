"""Threads that run the tasks of the event loop in the database, and what they do during an outage of the database.

  thread        | runs                                        | transactions          | `synchronous_commit`
  --------------+---------------------------------------------+-----------------------+---------------------
  appends       | appends to logs                             | one for each group    | on
  large appends | appends of `LARGE_BYTES` or more            | one for each group    | on
  submits       | new jobs, claims, releases, cancellations,  | one for each group    | on
                |   retention                                 |                       |
  control       | takes, beats, polls, progress               | one for each task     | off
  notifier      | `pg_notify` after commits                   | one for each task     | off
  readers       | reads, in two threads                       | one for each task     | off
  listener      | `LISTEN`, see `notifications`               | –                     | off

A group contains the tasks that gathered while the thread ran the previous group.

An outage does not fail a task at once. The table shows what happens to a task:

  the task                                              | outcome
  ------------------------------------------------------+----------------------------------------------------------------
  waits, and the database returns within `WAIT_LIMIT`   | the thread connects again, and runs the task
  waits for longer                                      | `StoreError`
  runs, and the connection breaks                       | unknown, so the task is repeated, unless it must not be
  runs for `WAIT_LIMIT` without an answer               | the thread closes the connection, and the same follows

Each time that a thread gets no answer, its next transaction may take twice as long, so that a slow database is not kept from
finishing a large one. A task can run twice, also after its transaction was committed, because the answer to a COMMIT may be
lost. No time-out ends a task while it runs. The caller would otherwise repeat it, and the result would then arrive twice.
"""

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import psycopg

from tidewire_server.store.interfaces import StoreError
from tidewire_server.store.postgres.connections import Command, Connection, Database, Run
from tidewire_server.store.postgres.error_translation import is_conflict, is_disk_full, is_outage
from tidewire_server.store.thread_tasks import MAX_TOGETHER, Task, TaskQueue

_log = logging.getLogger(__name__)

WAIT_LIMIT: Final = 10.0
"""Time for which a task waits for the database during an outage, in seconds."""

_FUNCTION_LIMIT: Final = 6.0
"""Time for which a task that is a function may run, such as one that deletes many jobs, as a multiple of `WAIT_LIMIT`."""

_MAX_PATIENCE: Final = 64.0
"""Limit of the factor by which a transaction may take longer than `WAIT_LIMIT` after transactions without an answer."""

_CHECKS: Final = 20.0
"""Number of times that `WAIT_LIMIT` is longer than the time between two checks for tasks that have waited for too long."""

_FIRST_DELAY: Final = 0.1
_MAX_DELAY: Final = 1.0
"""Bounds of the time between two attempts to connect, in seconds. Each attempt doubles it."""

_MAX_CONFLICTS: Final = 20
"""Number of times that a transaction is repeated after a conflict with another transaction."""

_FULL_LOG_SECONDS: Final = 60.0
"""Minimum time between two lines in the log about a full disk. Some writes may succeed in between, because they fit."""


class OutageLog:
    """Writes one line to the server's log when the database cannot be used, and one when it can be used again, for all threads of
    a store.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began: float | None = None
        self._ended = 0.0
        self._full_at = float("-inf")

    def failed(self, text: str, since: float) -> None:
        """Record that the database cannot be used.

        Args:
            text: The reason.
            since: Time at which the failed attempt began, by the monotonic clock. An attempt that began before the end of the
                last outage belongs to that outage.
        """
        with self._lock:
            if self._began is None and since >= self._ended:
                self._began = time.monotonic()
                _log.error(
                    "%s; running functions continue, and what they write waits for the database; requests that need it get "
                    "503 after %g s",
                    text,
                    WAIT_LIMIT,
                )

    def succeeded(self, began: float) -> None:
        """Record that a transaction has succeeded that began at the time `began`."""
        if self._began is None:
            return
        with self._lock:
            if self._began is not None and began >= self._began:
                self._ended = time.monotonic()
                _log.warning(
                    "the database can be used again, after an outage of %.1f s", self._ended - self._began
                )
                self._began = None

    def full(self, error: StoreError) -> None:
        """Log that a disk is full."""
        with self._lock:
            error.logged, now = True, time.monotonic()
            if now - self._full_at >= _FULL_LOG_SECONDS:
                self._full_at = now
                _log.error("%s", error)


def no_answer(database: Database) -> str:
    """Return the message about a database that accepts requests, and does not answer them."""
    return f"log {database.place}: the database has not answered for {WAIT_LIMIT:g} s"


class DatabaseThread:
    """One thread, or several, each with a connection, that run the tasks of the event loop."""

    def __init__(
        self,
        database: Database,
        name: str,
        run: Run,
        *,
        durable: bool,
        threads: int = 1,
        outages: OutageLog | None = None,
    ) -> None:
        """Prepare the threads. The method `start` starts them.

        Args:
            database: The database.
            name: Name of the threads.
            run: Function that runs tasks, such as `run_group`.
            durable: See `Database.prepare`.
            threads: Number of threads. With several threads, each task may run in any of them.
            outages: Log of the outages. All threads of a store share it.
        """
        self._database = database
        self._tasks = TaskQueue(together=1 if threads > 1 else MAX_TOGETHER)
        self._closing = threading.Event()
        self._outages = outages or OutageLog()
        self._workers = [
            _ConnectionThread(database, name, run, self._tasks, self._closing, self._outages, durable=durable)
            for _ in range(threads)
        ]
        self._timer: asyncio.TimerHandle | None = None

    @property
    def last_error(self) -> StoreError | None:
        """Error of the last transaction, or None if it succeeded."""
        return next((each.last_error for each in self._workers if each.last_error is not None), None)

    def start(self) -> None:
        """Start the threads, and wait until each has a connection.

        Raises:
            psycopg.Error: A connection cannot be opened.
        """
        opened = [worker.start() for worker in self._workers]
        for each in opened:
            each.result()

    async def do(self, work: Any, then: Callable[[Any], None] | None = None) -> Any:
        """Run a task and return its result after the commit.

        Args:
            work: A `Command`, a function of a connection, or whatever the thread's `run` accepts.
            then: Function that is called on the event loop with the result after the commit, even if the caller was
                cancelled. Use it to update data in memory that must match the database.

        Raises:
            StoreError: The database failed, or did not return within `WAIT_LIMIT`.
            HeadMovedError: The task is an append after another event than the last one.
        """
        if self._closing.is_set():
            raise StoreError(f"log {self._database.place}: the store is closed")
        task = Task(work, then)
        future = self._tasks.add(task)
        if self._timer is None:
            self._timer = task.loop.call_later(WAIT_LIMIT / _CHECKS, self._check_waits, task.loop)
        return await future

    def _check_waits(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fail the tasks that have waited for too long, and interrupt the transactions that get no answer."""
        self._timer = None
        now = time.monotonic()
        for worker in self._workers:
            worker.interrupt_if_stuck(now)
        overdue = [
            task
            for task in self._tasks.unsettled
            if now - task.created >= WAIT_LIMIT and _fail_unless_running(task, self._overdue_error)
        ]
        if overdue:
            self._outages.failed(str(self._overdue_error()), now)
        self._tasks.settle(overdue)
        if self._tasks.unsettled:
            self._timer = loop.call_later(WAIT_LIMIT / _CHECKS, self._check_waits, loop)

    def _overdue_error(self) -> StoreError:
        last = self.last_error
        if last is not None and last.outage:
            return last
        return _outage_error(no_answer(self._database))

    async def close(self) -> None:
        """Finish pending work and close the connections. If the database does not answer, give up after `WAIT_LIMIT`."""
        self._tasks.pass_tasks()
        self._closing.set()
        for _ in self._workers:
            self._tasks.end()
        for worker in self._workers:
            await asyncio.to_thread(worker.join)
        if self._timer is not None:
            self._timer.cancel()

    def stop(self) -> None:
        """Close the connections without an event loop, for a store that could not be opened."""
        self._closing.set()
        for _ in self._workers:
            self._tasks.end()


_CLAIMS: Final = threading.Lock()
"""Lock that is held while a thread begins to run tasks, or while the event loop fails tasks that no thread runs."""


def _fail_unless_running(task: Task, make_error: Callable[[], StoreError]) -> bool:
    """Fail a task, unless a thread runs it, or has run it. Return whether the task was failed here."""
    with _CLAIMS:
        if task.running or task.ended:
            return False
        task.fail(make_error())
        return True


def _outage_error(text: str) -> StoreError:
    error = StoreError(text)
    error.logged = error.outage = True
    return error


class _ConnectionThread:
    """One thread with its connection, which is opened again when it is lost."""

    def __init__(
        self,
        database: Database,
        name: str,
        run: Run,
        tasks: TaskQueue,
        closing: threading.Event,
        outages: OutageLog,
        *,
        durable: bool,
    ) -> None:
        self._database = database
        self._run = run
        self._tasks = tasks
        self._closing = closing
        self._outages = outages
        self._durable = durable
        self._name = name
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._socket: socket.socket | None = None
        """Duplicate of the connection's socket, with which another thread can interrupt the connection. The number of the
        original may belong to another file by then.
        """
        self._stuck_at = float("inf")
        """Time at which the transaction in progress has taken too long."""
        self._patience = 1.0
        """Factor of the time that a transaction may take."""
        self._interrupted = False
        """Whether `interrupt_if_stuck` has interrupted the connection."""
        self.last_error: StoreError | None = None

    # ---- in other threads ----------------------------------------------------------------------------------------

    def start(self) -> "Future[None]":
        """Start the thread. The future is done when it has a connection."""
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._work, args=(opened,), name=self._name, daemon=True)
        self._thread.start()
        return opened

    def join(self) -> None:
        """Wait until the thread has ended. If the database does not answer, interrupt the connection after `WAIT_LIMIT`."""
        if self._thread is not None:
            self._thread.join(WAIT_LIMIT)
            if self._thread.is_alive():
                self._interrupt()
                self._thread.join(WAIT_LIMIT)

    def interrupt_if_stuck(self, now: float) -> None:
        """Interrupt the transaction in progress if it has taken too long."""
        if now >= self._stuck_at:
            self._stuck_at, self._interrupted = float("inf"), True
            self._patience = min(2 * self._patience, _MAX_PATIENCE)
            self._interrupt()

    def _interrupt(self) -> None:
        """Shut down the socket. The thread then finds the connection broken, and the outcome of a COMMIT unknown.

        The statement itself is not cancelled. An interrupted COMMIT that waits for a standby continues to wait.
        """
        own = self._socket
        if own is not None:
            with contextlib.suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)

    # ---- in the thread -------------------------------------------------------------------------------------------

    def _work(self, opened: "Future[None]") -> None:
        try:
            self._connected()
        except BaseException as error:  # noqa: BLE001 - `start` raises it
            opened.set_exception(error)
            return
        opened.set_result(None)
        ending = False
        while not ending:
            tasks, ending = self._tasks.next()
            functions = [task for task in tasks if callable(task.work)]
            self._finish([task for task in tasks if not callable(task.work)])
            for task in functions:
                self._finish([task])
        self._close()

    def _connected(self) -> Connection:
        """Return the open connection, or open one."""
        if self._connection is None or self._connection.closed:
            self._close()
            connection = self._database.open()
            try:
                self._socket = socket.socket(fileno=os.dup(connection.fileno()))
                self._database.prepare(connection, durable=self._durable)
            except BaseException:
                connection.close()
                self._close()
                raise
            self._connection = connection
        return self._connection

    def _close(self) -> None:
        """Close the connection. The outcome of a COMMIT that is in progress is then unknown."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _begin(self, tasks: list[Task]) -> list[Task]:
        """Return those tasks that the event loop has not failed meanwhile. From now on, only this thread may end them."""
        with _CLAIMS:
            tasks = [task for task in tasks if not task.ended]
            for task in tasks:
                task.running = True
        limit = _FUNCTION_LIMIT if any(callable(task.work) for task in tasks) else 1.0
        self._stuck_at = time.monotonic() + self._patience * limit * WAIT_LIMIT
        return tasks

    def _end(self, tasks: list[Task]) -> list[Task]:
        """Deliver the outcomes of the tasks that have one, and return the others, which do not run any more."""
        self._stuck_at = float("inf")
        ended = [task for task in tasks if task.ended and task.running]
        with _CLAIMS:
            for task in tasks:
                task.running = False
        self._tasks.deliver(ended)
        return [task for task in tasks if not task.ended]

    def _finish(self, tasks: list[Task]) -> None:
        """Run tasks until each of them has an outcome, and deliver the outcomes."""
        delay, conflicts = _FIRST_DELAY, 0
        while tasks:
            began, was_open = time.monotonic(), self._connection is not None
            try:
                connection = self._connected()
                tasks = self._begin(tasks)
                if tasks:
                    self._run(connection, tasks)
            except psycopg.Error as error:
                tasks = self._end(tasks)
                connecting = self._connection is None
                if is_conflict(error) and not connecting and conflicts < _MAX_CONFLICTS:
                    conflicts += 1
                    tasks = self._drop(tasks, self._database.describe(error), outage=False)
                elif is_outage(error) or (connecting and is_conflict(error)):
                    self._close()
                    # An idle connection may have been closed. That alone is not an outage.
                    stale = was_open and not self._interrupted and delay == _FIRST_DELAY
                    text = no_answer(self._database) if self._interrupted else self._database.describe(error)
                    self._interrupted = False
                    if not stale:
                        self._outages.failed(text, began)
                    tasks = self._drop(tasks, text, outage=True, overdue=not stale)
                    if tasks and not stale:
                        self._closing.wait(delay)
                    delay = min(delay * 2, _MAX_DELAY)
                elif len(tasks) > 1:
                    # Repeat each task alone, because some of them may succeed. On a full disk, for example, reads do.
                    for task in tasks:
                        self._finish([task])
                    return
                else:
                    self._fail(tasks, self._translate(error))
                    return
            except Exception as error:  # noqa: BLE001 - for example, a parameter cannot be encoded
                tasks = self._end(tasks)
                if len(tasks) > 1:
                    for task in tasks:
                        self._finish([task])
                    return
                self._fail(tasks, error)
                return
            else:
                self._end(tasks)
                self.last_error, self._patience = None, 1.0
                self._outages.succeeded(began)
                return

    def _translate(self, error: psycopg.Error) -> Exception:
        found = self._database.translate(error)
        if is_disk_full(error) and isinstance(found, StoreError):
            self._outages.full(found)
        return found

    def _drop(self, tasks: list[Task], text: str, *, outage: bool, overdue: bool = True) -> list[Task]:
        """Fail the tasks that have waited for too long, if `overdue` is true, and those that must not be repeated after an
        outage. Return the others.
        """
        self.last_error = _outage_error(text) if outage else StoreError(text)
        now = time.monotonic()
        dropped = [
            task
            for task in tasks
            if (overdue and now - task.created >= WAIT_LIMIT)
            or self._closing.is_set()
            or (outage and isinstance(task.work, Command) and not task.work.repeat)
        ]
        if dropped:
            self._fail(dropped, self.last_error)
        return [task for task in tasks if task not in dropped]

    def _fail(self, tasks: list[Task], error: Exception) -> None:
        if isinstance(error, StoreError):
            self.last_error = error
        own = []
        for task in tasks:
            with _CLAIMS:
                if not task.ended:
                    task.fail(error)
                    own.append(task)
        self._tasks.deliver(own)
