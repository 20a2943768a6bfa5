"""Lease of this server, a row of the database that shows other servers whether this server is alive.

A server renews its lease each second. Each renewal is a *beat*. When the lease has expired, other servers adopt its jobs. After
an outage of the database, the leases of live servers have expired, too. A server therefore adopts jobs by these rules:

- Its own beats must have succeeded for a whole lease. By then, every live server has renewed its lease.
- A pause of half a lease between two beats counts as an outage. Otherwise the first server to beat after a short outage would
  adopt the jobs of a server whose beat is still in progress.
- Times are compared by the database's clock, because a busy event loop may receive the response to a beat late.
- The adopting statement itself compares the time of the last beat, because it may have waited for the end of an outage.
"""

import asyncio
import logging
import math
import socket
import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

import orjson

from tidewire_server.store.postgres.connections import Command, Rows
from tidewire_server.store.postgres.global_limits import CORRECT
from tidewire_server.store.postgres.notifications import BEAT
from tidewire_server.store.postgres.postgres_log import OpenLogs
from tidewire_server.store.postgres.postgres_queue import PostgresQueue
from tidewire_server.store.records import Beat, EndpointLoad, OwnedJob
from tidewire_server.store.store_errors import StoreError

_log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 5.0
"""Time after the last beat of a server after which other servers adopt its jobs."""

_MAX_PAUSE: Final = LEASE_SECONDS / 2
"""Time between two beats from which the leases of other servers may have expired during an outage."""

READ_NOW: Final = "now() + interval '2 seconds'"
"""Value of `job.read_at` for a job that has a reader now: the time until which the job counts as read. Servers record their
readers each second, so the last reader may leave a second after it was recorded.
"""

# The row may be missing: another server deletes it (`retention`) if this one was suspended for an hour.
_RENEW: Final = """
    INSERT INTO server (id, host, until, endpoints) OVERRIDING SYSTEM VALUE
    VALUES (%(me)s, %(host)s, now() + make_interval(secs => %(lease)s), %(endpoints)s::jsonb)
    ON CONFLICT (id) DO UPDATE SET until = EXCLUDED.until, endpoints = EXCLUDED.endpoints, clean = false RETURNING until
"""
_OWNED: Final = (
    "SELECT id, cancelled, purge FROM job WHERE owner = %(me)s AND ended_at IS NULL ORDER BY number"
)
_LOST: Final = """
    SELECT w.id, coalesce(j.ended_at IS NOT NULL, false) FROM unnest(%(written)s::text[]) AS w (id)
    LEFT JOIN job j ON j.id = w.id WHERE j.owner IS DISTINCT FROM %(me)s
"""
_OTHERS: Final = "SELECT endpoints FROM server WHERE until >= now() AND id <> %(me)s ORDER BY id"
# Do not wait for locks: beats wait for this statement, and another server may hold a lock during a large append.
_MARK_READ: Final = f"""
    UPDATE job SET read_at = {READ_NOW} WHERE number IN (
        SELECT number FROM job WHERE id = ANY (%(jobs)s::text[]) AND ended_at IS NULL ORDER BY number
        FOR NO KEY UPDATE SKIP LOCKED)
"""  # noqa: S608
# A server that is frozen while it sends a large transaction would keep its locks.
_END_SESSIONS: Final = """
    SELECT pg_terminate_backend(a.pid) FROM server s JOIN pg_stat_activity a ON a.application_name LIKE '%%#' || s.id
    WHERE s.until < now() AND NOT s.clean AND s.id <> %(me)s AND now() < %(trusted_until)s::timestamptz
        AND a.datname = current_database() AND a.usename = current_user
"""
_UNREAD: Final = "SELECT extract(epoch FROM clock_timestamp() - read_at)::float8 FROM job WHERE id = %(id)s"
_LEAVE: Final = "UPDATE server SET until = '-infinity', clean = true WHERE id = %(me)s"


def _loads(found: dict[str, Any]) -> dict[str, EndpointLoad]:
    """Return the endpoints in the row of a server. Ignore members that only newer servers report. Without `slots`, the number
    of slots is infinite, because JSON has no infinity.
    """
    loads = {}
    for name, report in found.items():
        known = {member: report[member] for member in EndpointLoad._fields if member in report}
        slots = known.get("slots")
        loads[name] = EndpointLoad(**known)._replace(slots=math.inf if slots is None else slots)
    return loads


class ServerRow:
    """The lease of this server. All methods must be called on one event loop."""

    def __init__(
        self,
        logs: OpenLogs,
        queue: PostgresQueue,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the object for a row that exists.

        Args:
            logs: Logs that this server uses.
            queue: Queue. Each beat stores its numbers of running calls that have a limit over all servers.
            clock: Clock in seconds.
        """
        self.id = logs.notifier.server
        self._threads = logs.threads
        self._notifier = logs.notifier
        """Notifier, which is disabled while no other server is alive."""
        self._written = logs.written
        self._queue = queue
        self._clock = clock
        self._first_beat = math.inf
        """Time of the first beat after the last pause that counts as an outage."""
        self._renewed_at = clock()
        """Time at which the last successful beat began. The lease expires `LEASE_SECONDS` later at the earliest."""
        self._renewed = asyncio.Event()
        """Event that the next successful beat sets, and then replaces with a new event."""
        self._left = False
        self._until: datetime | None = None
        """End of the lease, by the database's clock."""
        self.has_others = False
        """Whether any other server was alive at the last beat."""
        self._ended: frozenset[str] = frozenset()
        """Jobs that had ended at the last beat, although this server wrote their logs: either another server has ended the job,
        or the response to this server's own append had not arrived yet.
        """
        self.hint: Callable[[], None] = lambda: None
        """Function that `on_request` has set."""

    @property
    def trusted_until(self) -> datetime | None:
        """Time, by the database's clock, until which each expired lease belongs to a dead server. None if the beats of this
        server have not succeeded for a whole lease.
        """
        if self._until is None or self._clock() - self._first_beat < LEASE_SECONDS:
            return None
        return self._until - timedelta(seconds=LEASE_SECONDS - _MAX_PAUSE)

    @property
    def alive_for(self) -> float:
        """Number of seconds for which all beats have been in time. A job cannot count as without readers for longer, because
        servers cannot record their readers during an outage of the database.
        """
        now = self._clock()
        return max(0.0, now - self._first_beat) if now - self._renewed_at < _MAX_PAUSE else 0.0

    async def beat(self, endpoints: Mapping[str, EndpointLoad] = MappingProxyType({})) -> Beat:
        parameters = {
            "me": self.id,
            "host": socket.gethostname(),
            "trusted_until": self.trusted_until,
            "lease": LEASE_SECONDS,
            "written": [*self._written],
            "endpoints": orjson.dumps({name: load._asdict() for name, load in endpoints.items()}).decode(),
            **self._queue.running_calls(),
        }

        began = self._clock()

        def then(found: list[Rows]) -> None:
            before, [[self._until]] = self._until, found[0]
            joins = before is None or self._until - before >= timedelta(seconds=_MAX_PAUSE)
            if joins:
                self._first_beat = self._clock()
            self.has_others = self._notifier.enabled = bool(found[2])
            if joins:  # A server that has been alone sends no hints until its next beat.
                self._notifier.send(BEAT)

        command = Command([_RENEW, _OWNED, _OTHERS, _LOST, CORRECT, _END_SESSIONS], parameters)
        _, owned, others, gone, *_ = await self._threads.control.do(command, then)
        jobs = [OwnedJob(job, frozenset(cancelled or ()), purge) for job, cancelled, purge in owned]
        # A job that has ended or was released since the beat began is not written any more.
        before, self._ended = self._ended, frozenset(job for job, has_ended in gone if has_ended)
        lost = sorted(
            job for job, has_ended in gone if job in self._written and (not has_ended or job in before)
        )
        for job in lost:
            self.stop_writing(job)
        self._renewed_at = began
        self._renewed.set()
        self._renewed = asyncio.Event()
        return Beat(jobs, lost, [_loads(found) for (found,) in others])

    def check(self) -> None:
        """Check that the lease is valid, or has expired less than `LEASE_SECONDS` ago.

        Raises:
            StoreError: Beats fail, although the database may accept other writes.
        """
        if self._clock() - self._renewed_at >= 2 * LEASE_SECONDS:
            error = StoreError("the lease of this server has expired, and is not renewed")
            error.logged = True
            raise error

    async def owns(self, job: str) -> bool:
        if self._clock() - self._renewed_at >= LEASE_SECONDS:
            try:
                async with asyncio.timeout(LEASE_SECONDS):
                    await self._renewed.wait()
            except TimeoutError:
                error = StoreError(f"the lease of this server could not be renewed for {LEASE_SECONDS:g} s")
                error.logged = error.outage = True
                raise error from None
        return job in self._written and job not in self._ended

    def stop_writing(self, job: str) -> None:
        if (log := self._written.get(job)) is not None:
            log.stop_writing()

    async def mark_read(self, jobs: Collection[str]) -> None:
        if jobs:
            await self._threads.control.run(_MARK_READ, jobs=sorted(jobs))

    async def unread_for(self, job: str) -> float:
        found = await self._threads.control.run(_UNREAD, id=job)
        return min(float(found[0][0]), self.alive_for) if found else 0.0

    async def leave(self) -> None:
        if self._left:
            return
        self._left = True
        try:
            await self._threads.control.run(_LEAVE, me=self.id)
        except StoreError as error:
            # Do not retry: while a statement waits for a database that is down, the lease expires anyway.
            _log.warning(
                "cannot give up the lease of this server, so its jobs wait until it expires: %s", error
            )
        else:
            self._notifier.send(BEAT)

    def on_request(self, wake: Callable[[], None]) -> None:
        self.hint = wake
