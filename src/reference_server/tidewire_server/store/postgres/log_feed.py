"""Deliver the events and the progress of jobs that other servers run: one read for all readers of this server.

A notification of a commit, or a poll each second, starts one query for the new rows of all logs that have readers here. One
query runs at a time; further notifications wait for it and are then served together.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import groupby
from typing import Final

from tidewire_server.store.block_rows import BlockRow
from tidewire_server.store.interfaces import StoreError
from tidewire_server.store.postgres.connections import Command, Rows, Statement
from tidewire_server.store.postgres.database_threads import DatabaseThread
from tidewire_server.store.postgres.job_progress import READ_PROGRESS, progress_of
from tidewire_server.store.postgres.postgres_log import PostgresLog

_log = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0
"""Time between two queries for all logs, which find events whose notification was lost."""

_MAX_ROWS: Final = 256

_NEW_ROWS: Final = """
    SELECT b.job, b.first, b.last, b.epoch, b.done, b.ends, b.frames
    FROM unnest(%(jobs)s::bigint[], %(heads)s::bigint[]) AS w (job, head) JOIN block b ON b.job = w.job AND b.last > w.head
    ORDER BY b.job, b.last LIMIT %(limit)s
"""
_DELETED: Final = """
    SELECT w.job FROM unnest(%(jobs)s::bigint[]) AS w (job) WHERE NOT EXISTS (SELECT FROM job WHERE number = w.job)
"""


class LogFeed:
    """Delivers the events of jobs that other servers run. All methods must be called on one event loop."""

    def __init__(self, readers: DatabaseThread) -> None:
        self._readers = readers
        self._logs: dict[int, PostgresLog] = {}
        self._due: set[int] = set()
        """Numbers of the jobs that may have new events."""
        self._progress_due: set[int] = set()
        """Numbers of the jobs that may have new progress."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.on_watch: Callable[[], None] = lambda: None
        """Function that is called before the feed watches a log, to receive notifications from then on."""

    def add(self, log: PostgresLog) -> None:
        """Deliver the events of a log from now on, also those that were appended since the log was opened."""
        if log.number not in self._logs and not self._closed:
            self._logs[log.number] = log
            self.on_watch()
            self.hint([log.number], progress=True)
            self._set_timer()

    def remove(self, log: PostgresLog) -> None:
        """Stop delivering the events of a log."""
        if self._logs.get(log.number) is log:
            del self._logs[log.number]

    def hint(self, jobs: "list[int] | None" = None, *, progress: bool = False) -> None:
        """Look for new events of jobs soon, and for new progress if `progress` is true. If `jobs` is None, look for both of all
        jobs.
        """
        due = self._logs.keys() if jobs is None else self._logs.keys() & set(jobs)
        self._due |= due
        if progress or jobs is None:
            self._progress_due |= due
        if self._due and self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def refresh(self, log: PostgresLog) -> None:
        """Read the new events of one log now, so that its extent is that of the database.

        Raises:
            StoreError: The database failed.
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
                progress, self._progress_due = self._progress_due, set()
                await self._read({number: self._logs[number] for number in due if number in self._logs})
                if progress:
                    await self._read_progress([number for number in progress if number in self._logs])
        except StoreError as error:
            # The next poll tries again. The thread has logged the outage.
            _log.debug("cannot read the events of jobs that other servers run: %s", error)
        finally:
            self._task = None

    async def _read_progress(self, numbers: list[int]) -> None:
        rows = await self._readers.do(Command([Statement(READ_PROGRESS, {"jobs": numbers})]))
        for number, events in progress_of(rows).items():
            if number in self._logs:
                self._logs[number].replace_progress(events)

    async def _read(self, logs: dict[int, PostgresLog]) -> None:
        while logs:
            numbers = list(logs)
            heads = [logs[number].extent().head.seq for number in numbers]
            new = Statement(_NEW_ROWS, {"jobs": numbers, "heads": heads, "limit": _MAX_ROWS})
            deleted = Statement(_DELETED, {"jobs": numbers})
            rows, gone = await self._readers.do(Command([new, deleted], result=tuple))
            for number, own in groupby(rows, key=lambda row: row[0]):
                log = logs[number]
                if not log.add_rows(BlockRow(*row[1:]) for row in own):
                    await log.reload()
            for (number,) in gone:
                logs[number].close()
            logs = {} if len(rows) < _MAX_ROWS else _after(logs, rows)


def _after(logs: dict[int, PostgresLog], rows: Rows) -> dict[int, PostgresLog]:
    """Return the logs whose rows may be incomplete, because the query returned as many rows as it may."""
    last_job = rows[-1][0]
    return {number: log for number, log in logs.items() if number >= last_job}
