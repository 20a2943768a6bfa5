"""Events and progress of jobs that other servers run: one read for all readers of this server.

A notification of a commit, or a poll each second, starts one query for the new rows of all logs that have readers here. One
query runs at a time; further notifications wait for it and are then served together.

The latest progress of a running job is one row. It is lost with the process and with the database, so the table is unlogged and
its writes are not durable. A job that reports its progress a thousand times a second is written four times a second.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, Final

import orjson

from tidewire_server.store.block_rows import BlockRow
from tidewire_server.store.interfaces import StoreError
from tidewire_server.store.postgres.connections import Command, Statement
from tidewire_server.store.postgres.database_threads import DatabaseThread
from tidewire_server.store.postgres.notifications import PROGRESS, Notifier

if TYPE_CHECKING:
    from tidewire_server.store.postgres.postgres_log import PostgresLog

_log = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0
"""Time between two queries for all logs, which find events whose notification was lost."""

PROGRESS_INTERVAL: Final = 0.25
"""Minimum time between two writes of progress, in seconds."""

_MAX_ROWS: Final = 256

_NEW_ROWS: Final = """
    SELECT b.job, b.first, b.last, b.epoch, b.done, b.ends, b.frames
    FROM unnest(%(jobs)s::bigint[], %(heads)s::bigint[]) AS w (job, head) JOIN block b ON b.job = w.job AND b.last > w.head
    ORDER BY b.job, b.last LIMIT %(limit)s
"""
_PROGRESS: Final = """
    SELECT w.job, j.number IS NULL, p.events FROM unnest(%(jobs)s::bigint[]) AS w (job)
    LEFT JOIN job j ON j.number = w.job LEFT JOIN progress p ON p.job = w.job
"""
_SET_PROGRESS: Final = """
    INSERT INTO progress (job, events) SELECT * FROM unnest(%(jobs)s::bigint[], %(events)s::bytea[]) ORDER BY 1
    ON CONFLICT (job) DO UPDATE SET events = EXCLUDED.events
"""
_DELETE_PROGRESS: Final = "DELETE FROM progress WHERE job = ANY (%(jobs)s::bigint[])"


class LogFeed:
    """Delivers the events of jobs that other servers run. All methods must be called on one event loop."""

    def __init__(self, thread: DatabaseThread, listen: Callable[[], None]) -> None:
        """Create the feed.

        Args:
            thread: Thread that reads.
            listen: Function that is called before the feed watches a log, to receive notifications from then on.
        """
        self._thread = thread
        self._listen = listen
        self._logs: dict[int, PostgresLog] = {}
        self._due: set[int] = set()
        """Numbers of the jobs that may have new events or new progress."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def add(self, log: "PostgresLog") -> None:
        """Deliver the events of a log from now on, also those that were appended since the log was opened."""
        if log.number not in self._logs and not self._closed:
            self._logs[log.number] = log
            self._listen()
            self.hint([log.number])
            self._set_timer()

    def remove(self, log: "PostgresLog") -> None:
        """Stop delivering the events of a log."""
        if self._logs.get(log.number) is log:
            del self._logs[log.number]

    def hint(self, jobs: "list[int] | None" = None) -> None:
        """Look for new events and new progress of jobs soon, or of all jobs if `jobs` is None."""
        self._due |= self._logs.keys() if jobs is None else self._logs.keys() & set(jobs)
        if self._due and self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def refresh(self, log: "PostgresLog") -> None:
        """Read the new events of one log now, so that its extent is that of the database.

        Raises:
            StoreError: The database cannot be read.
        """
        await self._read({log.number: log})

    async def close(self) -> None:
        """Stop the queries."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _set_timer(self) -> None:
        if self._timer is None and self._logs and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(POLL_SECONDS, self._poll)

    def _poll(self) -> None:
        self._timer = None
        self.hint()
        self._set_timer()

    async def _run(self) -> None:
        try:
            while self._due:
                due, self._due = self._due, set()
                await self._read({number: self._logs[number] for number in due if number in self._logs})
        except StoreError as error:
            # The next poll tries again. The thread has logged the outage.
            _log.debug("cannot read the events of jobs that other servers run: %s", error)
        finally:
            self._task = None

    async def _read(self, logs: "dict[int, PostgresLog]") -> None:
        while logs:
            numbers = list(logs)
            heads = [logs[number].extent().head.seq for number in numbers]
            new = Statement(_NEW_ROWS, {"jobs": numbers, "heads": heads, "limit": _MAX_ROWS})
            progress = Statement(_PROGRESS, {"jobs": numbers})
            rows, others = await self._thread.do(Command([new, progress], result=tuple))
            for number, own in groupby(rows, key=lambda row: row[0]):
                log = logs[number]
                if not log.add_rows(BlockRow(*row[1:]) for row in own):
                    await log.reload()
            for number, is_deleted, events in others:
                if is_deleted:
                    logs[number].close()
                else:
                    found = {} if events is None else orjson.loads(events)
                    logs[number].replace_progress({key: frame.encode() for key, frame in found.items()})
            # The query has returned as many rows as it may, so those of the last job may be incomplete.
            logs = {} if len(rows) < _MAX_ROWS else {n: log for n, log in logs.items() if n >= rows[-1][0]}


class ProgressWriter:
    """Writes the progress of the jobs that this server runs. All methods must be called on one event loop."""

    def __init__(self, control: DatabaseThread, notifier: Notifier) -> None:
        self._control = control
        self._notifier = notifier
        self._changed: dict[int, PostgresLog] = {}
        """Logs whose progress differs from their rows."""
        self._stored: set[int] = set()
        """Jobs that have a row."""
        self._task: asyncio.Task[None] | None = None

    def changed(self, log: "PostgresLog") -> None:
        """Write the progress of a log soon, or delete its row if this server does not run the job any more."""
        if not log.has_writer and log.number not in self._stored:
            self._changed.pop(log.number, None)
            return
        self._changed[log.number] = log
        # Without another server, no one reads the rows. A server that starts later gets the progress that follows.
        if self._task is None and self._notifier.enabled:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def reopened(self, log: "PostgresLog") -> None:
        """Delete the progress that an earlier owner of the job may have left."""
        self._stored.add(log.number)
        self.changed(log)

    async def _run(self) -> None:
        try:
            while self._changed:
                await self._write()
                await asyncio.sleep(PROGRESS_INTERVAL)
        finally:
            self._task = None

    async def _write(self) -> None:
        changed, self._changed = self._changed, {}
        events = {number: log.progress() for number, log in changed.items()}
        written = {
            number: orjson.dumps({key: frame.decode() for key, frame in frames.items()})
            for number, frames in sorted(events.items())
            if frames
        }
        deleted = [number for number, frames in events.items() if not frames and number in self._stored]
        statements: list[Statement] = []
        if written:
            statements.append(Statement(_SET_PROGRESS, {"jobs": [*written], "events": [*written.values()]}))
        if deleted:
            statements.append(Statement(_DELETE_PROGRESS, {"jobs": deleted}))
        if not statements:
            return
        try:
            await self._control.do(Command(statements))
        except StoreError as error:
            _log.debug("cannot store the progress of jobs: %s", error)
            return
        self._stored |= written.keys()
        self._stored.difference_update(deleted)
        for number in (*written, *deleted):
            self._notifier.send(PROGRESS, number)
            if number in written and not changed[number].has_writer:
                # The job has ended, or has left this server, during the write.
                self._changed[number] = changed[number]

    async def close(self) -> None:
        """Write no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
