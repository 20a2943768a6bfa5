"""Store in a PostgreSQL database, which any number of servers share."""

import socket
import time
from collections.abc import Callable
from typing import Any, Final

import psycopg

from tidewire_server.store.database.write_probe import WriteProbe
from tidewire_server.store.jobs_interface import Jobs
from tidewire_server.store.postgres.connections import Database
from tidewire_server.store.postgres.database_threads import Threads
from tidewire_server.store.postgres.notifications import BEAT, EVENTS, TICKETS, Notifier
from tidewire_server.store.postgres.postgres_jobs import PostgresJobs
from tidewire_server.store.postgres.postgres_log import OpenLogs
from tidewire_server.store.postgres.postgres_queue import PostgresQueue
from tidewire_server.store.postgres.schema import open_schema
from tidewire_server.store.postgres.server_rows import LEASE_SECONDS, ServerRow
from tidewire_server.store.queue_interface import Queue
from tidewire_server.store.records import Retention
from tidewire_server.store.replicas_interface import Replicas
from tidewire_server.store.store_errors import StoreError
from tidewire_server.store.store_interface import Durability

# Unlike a beat, this write waits for a synchronous standby, as new jobs and appends do.
_TEST_WRITE: Final = "UPDATE server SET host = host WHERE id = %(me)s"


class PostgresStore:
    """Store in a PostgreSQL database.

    It uses eight connections. `database_threads` describes the threads that own them.
    """

    may_have_lost = False
    merge_window = 0.05
    sweep_interval = 1.0

    def __init__(
        self, url: str, retention: Retention, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Open the database, and create or migrate the schema.

        Args:
            url: URL of the database. libpq reads parameters that are not in the URL from the variables `PG*` and from
                `~/.pgpass`.
            retention: Limits on how much the store keeps, and for how long.
            clock: Function that returns the time in seconds, for the interval of test writes.

        Raises:
            StoreError: The database cannot be used.
        """
        self._database = database = Database(url)
        try:
            with database.connect(durable=True, schema_exists=False) as connection:
                opened = open_schema(connection, database.place, socket.gethostname(), LEASE_SECONDS)
            database.server = opened.server
            self._threads = threads = Threads.start(database)
        except psycopg.Error as error:
            raise StoreError(database.describe(error)) from None
        self.secret = opened.secret
        self.durability: Durability = "replicated" if opened.replicated else "host"
        self._notifier = notifier = Notifier(
            database, threads.notifies, opened.server, self._receive, self._poll
        )
        self._logs = logs = OpenLogs(threads, notifier, database.place, retention)
        self._queue = PostgresQueue(threads, notifier)
        self._server = ServerRow(logs, self._queue)
        self.jobs: Jobs = PostgresJobs(logs, self._queue, self._server)
        self.queue: Queue = self._queue
        self.replicas: Replicas | None = self._server
        self._probe = WriteProbe(self._test_write, lambda: threads.appends.last_error is not None, clock)

    def _receive(self, hints: dict[str, list[Any]] | None) -> None:
        """Act on the hints of another server. If `hints` is None, hints may have been lost, so look for all changes."""
        if hints is None:
            self._logs.hint()
            self._queue.hint(None)
            self._server.hint()
            return
        self._logs.hint(hints.get(EVENTS, ()))
        self._queue.hint(hints.get(TICKETS, ()))
        if BEAT in hints:
            self._server.hint()

    def _poll(self) -> None:
        self._logs.hint()
        self._queue.poll()

    async def check(self) -> None:
        """Check that the database can be written, and that the lease of this server is valid. See `WriteProbe.check`."""
        self._threads.appends.outages.check()
        await self._probe.check()
        self._server.check()

    async def _test_write(self) -> None:
        await self._threads.submits.run(_TEST_WRITE, me=self._server.id)

    async def close(self, *, clean: bool = True) -> None:
        """Finish pending work and close the connections. If `clean` is true, let other servers adopt the unfinished jobs of
        this server at once.
        """
        await self._probe.close()
        await self._queue.close()
        await self._logs.close()
        if clean:
            await self._server.leave()
        await self._notifier.close()
        for thread in self._threads:
            await thread.close()
