"""Connections to the database, and the threads that use them.

  thread    | runs                                            | transactions          | `synchronous_commit`
  ----------+-------------------------------------------------+-----------------------+---------------------
  appends   | appends to logs                                 | one for each group    | on
  submits   | new jobs, claims, releases, retention           | one for each group    | on
  control   | takes, beats, polls                             | one for each task     | off
  notifier  | `pg_notify` after commits                       | one for each task     | off
  readers   | reads, in two threads                           | one for each task     | off
  listener  | `LISTEN`, see `notifications`                   | –                     | off

A group contains the tasks that gathered while the thread ran the previous group. It is sent from BEGIN to COMMIT without
waiting for a result (pipeline mode), so that a server that is stopped holds no locks, and a group costs one round trip.

An outage does not fail a task at once: the thread connects again and repeats the group, until the tasks have waited
`WAIT_LIMIT`. Every task can therefore run twice, also after its transaction was committed: the answer to a COMMIT may be
lost. No time-out cancels a statement while it commits, because an asynchronous cancellation of a COMMIT shows readers data
that a standby does not have yet: only waiting for locks and idle transactions have time-outs.
"""

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidewire_server.store.interfaces import HeadMovedError, StoreError
from tidewire_server.store.postgres.error_translation import describe, is_conflict, is_outage, translate
from tidewire_server.user_paths import without_password

_log = logging.getLogger(__name__)

T = TypeVar("T")
Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
Rows: TypeAlias = list[tuple[Any, ...]]

WAIT_LIMIT: Final = 10.0
"""Time for which a task waits for the database during an outage, in seconds."""

_FIRST_DELAY: Final = 0.1
_MAX_DELAY: Final = 1.0
"""Bounds of the time between two attempts to connect, in seconds. Each attempt doubles it."""

_MAX_TOGETHER: Final = 256
"""Number of tasks in one group above which no further tasks are added."""

_MAX_CONFLICTS: Final = 20
"""Number of times that a transaction is repeated after a conflict with another transaction."""

_DEFAULTS: Final[Mapping[str, str | int]] = {
    "application_name": "tidewire",
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "target_session_attrs": "read-write",
}
"""Parameters of a connection that the URL may override. The time-outs end dead links."""

_SESSION: Final = """
    SELECT set_config('search_path', 'tidewire', false), set_config('jit', 'off', false),
        set_config('lock_timeout', '10s', false), set_config('idle_in_transaction_session_timeout', '10s', false),
        set_config('statement_timeout', '0', false),
        set_config('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), false)
"""

_CONFIRM: Final = "UPDATE meta SET version = version WHERE current_setting('synchronous_standby_names') <> ''"
"""Wait until a synchronous standby has everything that the connection can read. After a crash restart of the primary, it may
show commits that no standby has.
"""


class Statement(NamedTuple):
    """SQL statement with named parameters."""

    sql: str
    parameters: Mapping[str, Any]


def is_storable(text: str) -> bool:
    """Return whether PostgreSQL can store a text. A client may send any id, so such an id is unknown, not an error."""
    return "\0" not in text and text.isprintable()


class Command(NamedTuple):
    """Statements of one task that are sent together.

    Attributes:
        statements: The statements.
        result: Function that returns the result of the task, from the rows of each statement. It runs after the commit.
        principals: Principals that the transaction locks before it runs any statement.
        order: Sort key. Groups of all servers run their tasks in this order, so that they do not deadlock.
        repeat: Whether to repeat the task after an outage.
    """

    statements: Sequence[Statement]
    result: Callable[[list[Rows]], Any] = lambda found: found[-1]
    principals: tuple[str, ...] = ()
    order: int = 0
    repeat: bool = True


class Task:
    """Work of a thread, with the future that receives its result."""

    __slots__ = ("deadline", "future", "loop", "outcome", "then", "work")

    def __init__(self, work: Any, then: Callable[[Any], None] | None) -> None:
        self.work = work
        self.then = then
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.outcome: Any = None
        self.deadline = time.monotonic() + WAIT_LIMIT

    def fail(self, error: Exception) -> None:
        """Set the outcome of the task to an error."""
        self.outcome = _TaskError(error)

    def run(self, work: Callable[[], Any]) -> None:
        """Set the outcome of the task to the result of a function, or to the error that it raises."""
        try:
            self.outcome = work()
        except psycopg.Error:
            raise
        except Exception as error:  # noqa: BLE001 - `do` raises it
            self.fail(error)


class _TaskError:
    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Database:
    """Address of a database, and the settings of its sessions."""

    def __init__(self, url: str) -> None:
        """Parse a URL.

        Raises:
            StoreError: The URL is not valid.
        """
        self.place = without_password(url)
        """The URL without the password, for messages."""
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            # The reason that libpq gives may quote a part of the password.
            raise StoreError(
                f"log {self.place}: this URL is not valid; use postgresql://USER@HOST:PORT/DATABASE, with special "
                "characters percent-encoded"
            ) from None
        self._parameters: dict[str, Any] = {**_DEFAULTS, **given}
        self._password = given.get("password")

    def connect(self, *, durable: bool, prepared: bool = True) -> Connection:
        """Open a connection.

        Args:
            durable: Whether a commit waits until it is as durable as the database promises.
            prepared: Whether the schema exists.
        """
        connection: Connection = psycopg.connect(
            make_conninfo(**self._parameters), client_encoding="UTF8", autocommit=True, prepare_threshold=3
        )
        try:
            connection.execute(_SESSION)
            if prepared:
                connection.execute(_CONFIRM)
            if not durable:
                connection.execute("SET synchronous_commit = off")
        except BaseException:
            connection.close()
            raise
        return connection

    def translate(self, error: psycopg.Error) -> Exception:
        """Return the error to raise instead of an error of psycopg."""
        return translate(error, self.place, str(self._password) if self._password else None)

    def describe(self, error: psycopg.Error) -> str:
        """Return one line about an error of psycopg, without the password."""
        return describe(error, self.place, str(self._password) if self._password else None)


Run: TypeAlias = Callable[[Connection, list[Task]], None]
"""Function that runs tasks and sets their outcomes. If it raises an error of psycopg, it is called again, perhaps with fewer
tasks.
"""


def run_each(connection: Connection, tasks: list[Task]) -> None:
    """Run each task in its own transaction."""
    for task in tasks:
        if isinstance(task.work, Command):
            if len(task.work.statements) > 1:
                with connection.pipeline():
                    cursors = [_execute(connection, each) for each in task.work.statements]
            else:
                cursors = [_execute(connection, each) for each in task.work.statements]
            found = [_rows(cursor) for cursor in cursors]
            task.run(lambda found=found, task=task: task.work.result(found))  # type: ignore[misc]
        else:
            with connection.transaction():
                task.run(lambda task=task: task.work(connection))  # type: ignore[misc]


_LOCK_PRINCIPAL: Final = "SELECT pg_advisory_xact_lock(hashtextextended(%(principal)s, 1))"


def run_group(connection: Connection, tasks: list[Task]) -> None:
    """Run all tasks in one transaction, in the order of their sort keys. A task that is a function runs alone."""
    commands = [task for task in tasks if isinstance(task.work, Command) and task.outcome is None]
    commands.sort(key=lambda task: task.work.order)
    if commands:
        principals = sorted({principal for task in commands for principal in task.work.principals})
        locks = [Statement(_LOCK_PRINCIPAL, {"principal": principal}) for principal in principals]
        found = transact(connection, [locks, *(task.work.statements for task in commands)])[1:]
        for task, rows in zip(commands, found, strict=True):
            task.run(lambda task=task, rows=rows: task.work.result(rows))  # type: ignore[misc]
    run_each(
        connection, [task for task in tasks if not isinstance(task.work, Command) and task.outcome is None]
    )


def transact(connection: Connection, groups: Iterable[Sequence[Statement]]) -> list[list[Rows]]:
    """Run statements in one transaction, and return the rows of each statement after the commit.

    All statements are sent before the first result is read.
    """
    try:
        with connection.pipeline():
            connection.execute("BEGIN")
            cursors = [[_execute(connection, each) for each in group] for group in groups]
            connection.execute("COMMIT")
        return [[_rows(cursor) for cursor in each] for each in cursors]
    except BaseException:
        if not connection.closed and connection.info.transaction_status:
            connection.rollback()
        raise


def _execute(connection: Connection, statement: Statement) -> psycopg.Cursor[tuple[Any, ...]]:
    return connection.execute(statement.sql, statement.parameters, binary=True)


def _rows(cursor: psycopg.Cursor[tuple[Any, ...]]) -> Rows:
    return cursor.fetchall() if cursor.description is not None else []


class DatabaseThread:
    """One thread, or several, each with a connection, that run the tasks of the event loop."""

    def __init__(self, database: Database, name: str, run: Run, *, durable: bool, threads: int = 1) -> None:
        """Prepare the threads. The method `start` starts them.

        Args:
            database: The database.
            name: Name of the threads.
            run: Function that runs tasks, such as `run_group`.
            durable: See `Database.connect`.
            threads: Number of threads. With several threads, each task may run in any of them.
        """
        self._database = database
        self._name = name
        self._run_tasks = run
        self._durable = durable
        self._number = threads
        self._pending: list[Task] = []
        """Tasks that the event loop passes to the threads at the end of its current iteration."""
        self._tasks: queue.SimpleQueue[list[Task] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self.last_error: StoreError | None = None
        """Error of the last transaction, or None if it succeeded."""

    def start(self) -> None:
        """Start the threads, and wait until each has a connection.

        Raises:
            psycopg.Error: A connection cannot be opened.
        """
        opened: list[Future[None]] = [Future() for _ in range(self._number)]
        for each in opened:
            thread = threading.Thread(target=self._work, args=(each,), name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()
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
        # Pass all tasks of one event loop iteration together. If a thread woke up for each task, it would compete with the
        # event loop for the interpreter, and each transaction would be small.
        if not self._pending or self._pending[-1].loop is not task.loop:
            task.loop.call_soon(self._pass_tasks)
        self._pending.append(task)
        return await task.future

    def _pass_tasks(self) -> None:
        tasks, self._pending = self._pending, []
        if self._number > 1:
            for task in tasks:
                self._tasks.put([task])
        elif tasks:
            self._tasks.put(tasks)

    async def close(self) -> None:
        """Finish pending work and close the connections."""
        self._pass_tasks()
        self._closing.set()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def stop(self) -> None:
        """Close the connections without an event loop, for a store that could not be opened."""
        self._closing.set()
        for _ in self._threads:
            self._tasks.put(None)

    # ---- in the threads ------------------------------------------------------------------------------------------

    def _work(self, opened: "Future[None]") -> None:
        own = _ThreadConnection(self._database, durable=self._durable)
        try:
            own.connected()
        except BaseException as error:  # noqa: BLE001 - `start` raises it
            opened.set_exception(error)
            return
        opened.set_result(None)
        ending = False
        while not ending:
            tasks, ending = self._next()
            self._finish(own, tasks)
        own.close()

    def _next(self) -> tuple[list[Task], bool]:
        tasks = self._tasks.get()
        if tasks is None:
            return [], True
        if self._number > 1:
            return tasks, False
        return self._gather(tasks)

    def _gather(self, tasks: list[Task]) -> tuple[list[Task], bool]:
        """Add the tasks that wait already. Return all tasks, and whether the thread is to end."""
        try:
            while len(tasks) < _MAX_TOGETHER:
                more = self._tasks.get_nowait()
                if more is None:
                    return tasks, True
                tasks += more
        except queue.Empty:
            pass
        return tasks, False

    def _finish(self, own: "_ThreadConnection", tasks: list[Task]) -> None:
        """Run tasks until each of them has an outcome, and deliver the outcomes."""
        delay, conflicts = _FIRST_DELAY, 0
        while tasks:
            try:
                self._run_tasks(own.connected(), tasks)
            except psycopg.Error as error:
                if is_conflict(error) and conflicts < _MAX_CONFLICTS:
                    conflicts += 1
                    tasks = self._drop_overdue(tasks, error)
                elif is_outage(error):
                    own.close()
                    if delay == _FIRST_DELAY:
                        _log.warning("%s; %s connects again", self._database.describe(error), self._name)
                    tasks = self._drop_overdue(tasks, error, outage=True)
                    if tasks and self._closing.wait(delay):
                        time.sleep(delay)
                    delay = min(delay * 2, _MAX_DELAY)
                elif len(tasks) > 1:
                    # Repeat each task alone, because some of them may succeed. On a full disk, for example, reads do.
                    for task in tasks:
                        self._finish(own, [task])
                    return
                else:
                    self._fail(tasks, self._database.translate(error))
                    return
            except Exception as error:  # noqa: BLE001 - for example, a parameter cannot be encoded
                if len(tasks) > 1:
                    for task in tasks:
                        self._finish(own, [task])
                    return
                self._fail(tasks, error)
                return
            else:
                self.last_error = None
                _deliver(tasks)
                return

    def _drop_overdue(self, tasks: list[Task], error: psycopg.Error, *, outage: bool = False) -> list[Task]:
        """Fail the tasks that have waited long enough, or must not be repeated after an outage. Return the others."""
        now = time.monotonic()
        late = now if not self._closing.is_set() else math.inf
        overdue = [
            task
            for task in tasks
            if task.outcome is None and (task.deadline <= late or (outage and not _repeats(task)))
        ]
        self.last_error = StoreError(self._database.describe(error))
        if overdue:
            self._fail(overdue, self.last_error)
        return [task for task in tasks if task not in overdue]

    def _fail(self, tasks: list[Task], error: Exception) -> None:
        if isinstance(error, StoreError):
            self.last_error = error
        for task in tasks:
            task.fail(error)
        _deliver(tasks)


class _ThreadConnection:
    """Connection of one thread, which is opened again when it is lost."""

    def __init__(self, database: Database, *, durable: bool) -> None:
        self._database = database
        self._durable = durable
        self._connection: Connection | None = None

    def connected(self) -> Connection:
        """Return the open connection, or open one."""
        if self._connection is None or self._connection.closed:
            self._connection = self._database.connect(durable=self._durable)
        return self._connection

    def close(self) -> None:
        """Close the connection. The outcome of a COMMIT that is in progress is then unknown."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _repeats(task: Task) -> bool:
    return task.work.repeat if isinstance(task.work, Command) else True


def _deliver(tasks: list[Task]) -> None:
    try:
        tasks[0].loop.call_soon_threadsafe(_settle, tasks)
    except RuntimeError:  # The event loop is closed, so nothing waits for the results.
        return


def _settle(tasks: list[Task]) -> None:
    for task in tasks:
        outcome, future = task.outcome, task.future
        if isinstance(outcome, _TaskError):
            if not future.done():
                # Create a new exception for each caller. The traceback of a shared exception would grow with each raise.
                error = outcome.error
                own = type(error)(*error.args) if isinstance(error, StoreError | HeadMovedError) else error
                future.set_exception(own)
            continue
        if task.then is not None:
            task.then(outcome)
        if not future.done():
            future.set_result(outcome)
