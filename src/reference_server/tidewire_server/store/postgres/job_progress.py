"""Progress of running jobs for the readers of other servers: one row for each job, which the latest progress replaces.

Progress is lost with the process and with the database, so the table is unlogged and its writes are not durable. A job that
reports its progress a thousand times a second is written four times a second. `LogFeed` reads the rows.
"""

from typing import Final

import orjson

from tidewire_server.store.postgres.coalesced_work import CoalescedWork
from tidewire_server.store.postgres.database_threads import DatabaseThread
from tidewire_server.store.postgres.notifications import PROGRESS, Notifier
from tidewire_server.store.postgres.postgres_log import PostgresLog

INTERVAL: Final = 0.25
"""Minimum time between two writes, in seconds."""

_SET: Final = """
    INSERT INTO progress (job, events) SELECT * FROM unnest(%(jobs)s::bigint[], %(events)s::bytea[]) ORDER BY 1
    ON CONFLICT (job) DO UPDATE SET events = EXCLUDED.events
"""
_DELETE: Final = "DELETE FROM progress WHERE job = ANY (%(deleted)s::bigint[])"


class ProgressWriter:
    """Writes the progress of the jobs that this server runs. All methods must be called on one event loop."""

    def __init__(self, control: DatabaseThread, notifier: Notifier) -> None:
        self._control = control
        self._notifier = notifier
        self._changed: dict[int, PostgresLog] = {}
        """Logs whose progress differs from their rows."""
        self._stored: set[int] = set()
        """Jobs that have a row."""
        self._work = CoalescedWork(self._write, "store the progress of jobs", pause=INTERVAL)

    def changed(self, log: PostgresLog) -> None:
        """Write the progress of a log soon, or delete its row if this server does not run the job any more."""
        if not log.has_writer and log.number not in self._stored:
            self._changed.pop(log.number, None)
            return
        self._changed[log.number] = log
        # Without another server, no one reads the rows. A server that starts later gets the progress that follows.
        if self._notifier.enabled:
            self._work.request()

    def reopened(self, log: PostgresLog) -> None:
        """Delete the progress that an earlier owner of the job may have left."""
        self._stored.add(log.number)
        self.changed(log)

    async def _write(self) -> None:
        changed, self._changed = self._changed, {}
        events = {number: log.progress() for number, log in sorted(changed.items())}
        written = {
            number: orjson.dumps({key: frame.decode() for key, frame in frames.items()})
            for number, frames in events.items()
            if frames
        }
        deleted = [number for number, frames in events.items() if not frames and number in self._stored]
        if not (written or deleted):
            return
        await self._control.run(
            *([_SET] if written else []),
            *([_DELETE] if deleted else []),
            jobs=[*written],
            events=[*written.values()],
            deleted=deleted,
        )
        self._stored |= written.keys()
        self._stored.difference_update(deleted)
        for number in (*written, *deleted):
            self._notifier.send(PROGRESS, number)
            if number in written and not changed[number].has_writer:
                # The job has ended, or has left this server, during the write.
                self.changed(changed[number])

    async def close(self) -> None:
        """Write no more."""
        await self._work.close()
