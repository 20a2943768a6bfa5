"""Connections to the database, and the transactions that the threads of `database_threads` run.

In pipeline mode, a group of tasks is sent from BEGIN to COMMIT without waiting for a result. A group therefore costs one round
trip, and a server that is stopped holds no locks. A server that is frozen while it sends a group larger than the buffers of the
socket keeps its locks until its lease has expired. The other servers then end its sessions.

Time-outs apply only to waiting for locks and to idle transactions. No time-out cancels a statement during its commit: after the
cancellation of a COMMIT, readers see data that a standby does not have yet.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidewire_server.store.database.thread_tasks import Task
from tidewire_server.store.postgres.error_translation import is_missing_job, reason_and_advice
from tidewire_server.store.store_errors import HeadMovedError, StoreError
from tidewire_server.user_paths import without_password

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]
Rows: TypeAlias = list[tuple[Any, ...]]

# psycopg logs a warning for each connection that breaks. The server logs one line for the whole outage.
logging.getLogger("psycopg").addFilter(
    lambda record: not str(record.msg).startswith("error ignored terminating")
)

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
        set_config('lock_timeout', '5s', false), set_config('idle_in_transaction_session_timeout', '10s', false),
        set_config('statement_timeout', '0', false), set_config('standard_conforming_strings', 'on', false),
        set_config('default_transaction_isolation', 'read committed', false),
        set_config('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), false)
"""

# The default, pglz, takes several times as long to compress a large state, while the appends of other jobs wait for the processor.
_COMPRESS: Final = """
    SELECT set_config('default_toast_compression', 'lz4', false) FROM pg_settings
    WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)
"""

_NAME: Final = "SELECT set_config('application_name', left(current_setting('application_name'), 40) || ' #' || %s, false)"
"""Statement that names a session after its server, so that others can end the sessions of a frozen server (`server_rows`)."""

_CONFIRM: Final = "UPDATE meta SET version = version WHERE current_setting('synchronous_standby_names') <> ''"
"""Statement that waits until a synchronous standby has everything that the connection can read. After a crash, a restarted
primary may show commits that no standby has.
"""


def is_storable(text: str) -> bool:
    """Return whether PostgreSQL can store a text. A requested id that cannot be stored is treated as unknown."""
    return "\0" not in text and text.isprintable()


class Command(NamedTuple):
    """Statements of one task, which run in one transaction. The result of the task is a list of the rows of each statement.

    Attributes:
        sql: The statements.
        parameters: Named parameters of all statements.
        otherwise: Statement that runs after the commit if the others have returned no rows. Its rows are then added to the result.
        locks: Names of locks over all servers, which the transaction takes before it runs any statement.
        order: Sort key. Groups of all servers run their tasks in this order, so that they do not deadlock.
        merges: Whether the only statement can run once for several tasks with different sort keys, with arrays of their
            parameters. Each row of its result then begins with the sort key of its task.
        repeat: Whether to repeat the task after an outage.
    """

    sql: Sequence[str]
    parameters: Mapping[str, Any]
    otherwise: str | None = None
    locks: tuple[str, ...] = ()
    order: int = 0
    merges: bool = False
    repeat: bool = True


class Database:
    """Address of a database, and the settings of its sessions."""

    def __init__(self, url: str) -> None:
        """Parse a URL.

        Raises:
            StoreError: The URL is not valid.
        """
        self.place = without_password(url)
        """The URL without the password, for messages."""
        invalid = StoreError(
            f"log {self.place}: this URL is not valid; use postgresql://USER@HOST:PORT/DATABASE, with special characters "
            "percent-encoded"
        )
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            # Other reasons of libpq may quote a part of the password.
            unknown = str(error).strip()
            is_safe = unknown.startswith("invalid URI query parameter: ")
            raise (StoreError(f"log {self.place}: {unknown}") if is_safe else invalid) from None
        # This text may be the end of a password, or a whole password in a URL without a host.
        if "@" in str(given.get("host", "")) or not re.fullmatch("[0-9,]*", str(given.get("port", ""))):
            raise invalid
        self.server: int | None = None
        """Number of this server in the table `server`, when it is known."""
        parameters: dict[str, Any] = {**_DEFAULTS, **given, "client_encoding": "UTF8"}
        self._conninfo = make_conninfo(**parameters)
        self._password = given.get("password")

    def connect(
        self,
        *,
        durable: bool,
        schema_exists: bool = True,
        opened: Callable[[Connection], None] = lambda _: None,
    ) -> Connection:
        """Open a connection, and wait until a synchronous standby has what the connection can read.

        Args:
            durable: Whether a commit waits until it is as durable as the database promises.
            schema_exists: Whether the schema exists.
            opened: Function that is called with the connection before the wait.
        """
        connection: Connection = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=3)
        try:
            opened(connection)
            connection.execute(_SESSION)
            connection.execute(_COMPRESS)
            if self.server is not None:
                connection.execute(_NAME, (str(self.server),))
            if schema_exists:
                connection.execute(_CONFIRM)
            if not durable:
                connection.execute("SET synchronous_commit = off")
        except BaseException:
            connection.close()
            raise
        return connection

    async def connect_async(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        """Open a connection for the event loop, only for notifications."""
        connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        try:
            # The database would end the session between two notifications.
            await connection.execute("SET idle_session_timeout = 0")
            if self.server is not None:
                await connection.execute(_NAME, (str(self.server),))
        except BaseException:
            await connection.close()
            raise
        return connection

    def translate(self, error: Exception) -> Exception:
        """Translate an error of psycopg to the error to raise. Return any other error unchanged."""
        if not isinstance(error, psycopg.Error):
            return error
        return (
            HeadMovedError("the job was deleted")
            if is_missing_job(error)
            else StoreError(self.describe(error))
        )

    def describe(self, error: psycopg.Error) -> str:
        """Describe an error in one line: the URL, the reason and advice, without the password."""
        text = reason_and_advice(error)
        return f"log {self.place}: {text.replace(str(self._password), '***') if self._password else text}"


_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended(%(name)s, 1))"


def run_commands(connection: Connection, tasks: list[Task]) -> None:
    """Run the commands of all tasks in one transaction, in the order of their sort keys, and set the outcomes of the tasks.

    All statements are sent before the first result is read. The rollback after an error also empties psycopg's cache of prepared
    statements, which contains statements that PostgreSQL has skipped after the error.

    Raises:
        psycopg.Error: The database failed, so the tasks without an outcome may be repeated.
    """
    tasks = sorted(tasks, key=lambda task: task.work.order)
    # Of several appends to one job, only the first can be merged: the others must follow it.
    merged = {task.work.order: task for task in reversed(tasks) if task.work.merges}
    groups = [[*merged.values()]] if merged else []
    groups += [[task] for task in tasks if merged.get(task.work.order) is not task]
    locks = sorted({name for task in tasks for name in task.work.locks})
    commands = [[task.work for task in group] for group in groups]
    try:
        if not locks and len(commands) == len(commands[0][0].sql) == 1:
            # Without BEGIN, the database commits the statement itself. A thread that waits for the interpreter lock before it
            # sends COMMIT would keep the locks of the statement.
            cursors = [_send(connection, commands[0])]
        else:
            with connection.pipeline():
                connection.execute("BEGIN")
                for name in locks:
                    connection.execute(_LOCK, {"name": name})
                cursors = [_send(connection, each) for each in commands]
                connection.execute("COMMIT")
    except BaseException:
        if not connection.closed and connection.info.transaction_status:
            connection.rollback()
        raise
    for group, own in zip(groups, cursors, strict=True):
        found = [_rows(cursor) for cursor in own]
        by_order = {row[0]: [row] for row in found[0]} if group[0].work.merges else {}
        for task in group:
            rows = [by_order.get(task.work.order, [])] if task.work.merges else found
            if task.work.otherwise is not None and not any(rows):
                again = connection.execute(task.work.otherwise, task.work.parameters, binary=True)
                rows.append(_rows(again))
            task.outcome = rows


def _send(connection: Connection, commands: list[Command]) -> list[Cursor]:
    """Send the statements of a command, or of several commands that are merged."""
    first, parameters = commands[0], commands[0].parameters
    if first.merges:
        parameters = {name: [each.parameters[name] for each in commands] for name in parameters}
    return [connection.execute(sql, parameters, binary=True) for sql in first.sql]


def _rows(cursor: Cursor) -> Rows:
    return cursor.fetchall() if cursor.description is not None else []
