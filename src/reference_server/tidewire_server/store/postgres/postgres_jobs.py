"""Jobs, tombstones and idempotency keys in the database, and the ownership of jobs.

  job                  | `owner`       | `held` | its items
  ---------------------+---------------+--------+-----------------------------------------------------------
  waits                | NULL          | false  | any server may take them, and owns the job then
  runs                 | a server      | false  | only this server may take them
  adopted or claimed   | a server      | true   | no server may take them until the owner releases the job
  has ended            | NULL          | false  | –

A server with an expired lease owns its jobs until another server adopts or claims them. The records of the jobs that this
server writes are kept in memory. All users of a log share one log object, which is freed when the last of them releases it.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

import orjson

from tidewire_server.store.database.block_rows import rows_of
from tidewire_server.store.database.cached_log import RECORD_COLUMNS, new_columns, record_of
from tidewire_server.store.database.state_checkpoints import CheckpointSchedule
from tidewire_server.store.jobs_interface import Interrupted, NewJob
from tidewire_server.store.log_interface import Log
from tidewire_server.store.postgres.append_statements import arrays_of, encode_columns
from tidewire_server.store.postgres.connections import Command, Rows, is_storable
from tidewire_server.store.postgres.notifications import BEAT
from tidewire_server.store.postgres.postgres_log import (
    EXTENT_COLUMNS,
    EXTENT_TABLES,
    OpenLogs,
    PostgresLog,
    extent_of,
)
from tidewire_server.store.postgres.postgres_queue import PUT, PostgresQueue, encode_key, endless
from tidewire_server.store.postgres.retention import delete_jobs, expire, expired
from tidewire_server.store.postgres.server_rows import READ_NOW, ServerRow
from tidewire_server.store.records import (
    Extent,
    JobRecord,
    Key,
    KeyUse,
    QueueEntry,
    Tombstone,
)
from tidewire_server.store.store_errors import KeyUsedError, QueueFullError, StoreError, TooManyJobsError

_MAX_ADOPTED: Final = 100
"""Maximum number of jobs of each kind that one call of `adopt` claims."""

_LAST_SECONDS: Final = 3.0
"""Number of seconds for which a deleted job stays in the database after its end, so that each server delivers `done`."""

_RECORD: Final = ", ".join(f"j.{column}" for column in RECORD_COLUMNS)
_RECORD_LENGTH: Final = len(RECORD_COLUMNS)

_FIND_KEY: Final = """
    SELECT body, job FROM key WHERE principal = %(principal)s AND endpoint = %(endpoint)s AND text = %(key)s
"""

_ADD: Final = f"""
    WITH used AS MATERIALIZED (
        SELECT job, body FROM key WHERE principal = %(key_principal)s AND endpoint = %(key_endpoint)s AND text = %(key)s),
    found AS MATERIALIZED (
        SELECT (SELECT job FROM used) AS used, (SELECT body FROM used) AS body,
            (SELECT count(*) FROM (SELECT FROM job WHERE principal = %(principal)s AND ended_at IS NULL
                LIMIT %(max_jobs)s) w) AS jobs,
            (SELECT count(*) FROM (SELECT FROM ticket WHERE endpoint = %(endpoint)s LIMIT %(max_items)s) w) AS waiting,
            (SELECT count(*) FROM (SELECT FROM ticket WHERE endpoint = %(endpoint)s AND principal = %(principal)s
                LIMIT %(max_own)s) w) AS own,
            -- set: the answer to an earlier try of this statement was lost
            (SELECT number FROM job WHERE id = %(id)s) AS mine,
            greatest((SELECT max(turn) FROM ticket WHERE endpoint = %(endpoint)s AND principal = %(principal)s),
                (SELECT turn FROM endpoint WHERE name = %(endpoint)s), 0) AS turn),
    new AS (
        INSERT INTO job (id, principal, endpoint, batch, items, created_at, traceparent, attempt, status, usage, submit,
            deadline_at, grace, read_at, starts, columns, keys, costs)
        SELECT %(id)s, %(principal)s, %(endpoint)s, %(batch)s, %(n)s::int, %(created_at)s, %(traceparent)s, %(attempt)s, %(status)s,
            %(usage)s, %(submit)s, now() + make_interval(secs => %(deadline)s::float8),
            make_interval(secs => %(grace)s::float8), {READ_NOW}, %(starts)s::bigint[], %(columns)s,
            %(keys)s::text[], %(costs)s::float8[]
        FROM found WHERE mine IS NULL AND used IS NULL AND jobs < %(max_jobs)s
            AND waiting + %(n)s::int <= %(max_items)s AND own + %(n)s::int <= %(max_own)s
        RETURNING number),
    keyed AS (
        INSERT INTO key (principal, endpoint, text, body, job, until)
        SELECT %(key_principal)s, %(key_endpoint)s, %(key)s, %(digest)s, %(id)s, %(until)s FROM new WHERE %(digest)s::bytea IS NOT NULL),
    logged AS (
        INSERT INTO block (job, first, last, epoch, done, ends, frames)
        SELECT number, r.first, r.last, %(epoch)s::bigint, false, r.ends, r.frames
        FROM new, unnest(%(all_first)s::bigint[], %(all_last)s::bigint[], %(all_ends)s::bytea[], %(all_frames)s::bytea[])
            AS r (first, last, ends, frames)),
    stated AS (
        INSERT INTO state (job, seq, epoch, columns, state)
        SELECT number, %(seq)s::bigint, %(epoch)s::bigint, %(columns)s::bytea, %(state)s::bytea FROM new),
    queued AS (
        INSERT INTO ticket (endpoint, principal, turn, job, item, key, cost)
        SELECT %(endpoint)s, %(principal)s, found.turn + i.n, new.number, i.item, i.key, coalesce(i.cost, 0)
        FROM found, new,
            unnest(%(items)s::int[], %(keys)s::text[], %(costs)s::float8[]) WITH ORDINALITY AS i (item, key, cost, n))
    SELECT found.body, found.jobs, found.waiting, found.own, found.used, coalesce(found.mine, new.number) IS NOT NULL
    FROM found LEFT JOIN new ON true
"""  # noqa: S608

# A deleted job may still be in the database for a moment. See `retention`.
_VISIBLE: Final = "NOT EXISTS (SELECT FROM tombstone WHERE id = j.id)"
_GET: Final = f"SELECT {_RECORD} FROM job j WHERE j.id = %(id)s AND {_VISIBLE}"  # noqa: S608
_GET_TOMBSTONE: Final = "SELECT id, principal FROM tombstone WHERE id = %(id)s"
_LIST: Final = f"""
    SELECT {_RECORD}, j.number, {EXTENT_COLUMNS} FROM {EXTENT_TABLES}
    WHERE j.principal = %(principal)s AND j.number < coalesce(
        (SELECT number FROM job WHERE id = %(before)s AND principal = %(principal)s), 9223372036854775807) AND {_VISIBLE}
    ORDER BY j.number DESC LIMIT %(limit)s
"""  # noqa: S608
_UNFINISHED: Final = "SELECT count(*) FROM job WHERE principal = %(principal)s AND ended_at IS NULL"
_OPEN: Final = (
    f"SELECT {_RECORD}, j.number, {EXTENT_COLUMNS} FROM {EXTENT_TABLES} WHERE j.id = %(id)s AND {_VISIBLE}"  # noqa: S608
)
# The crash of an earlier owner counts until the job has started again, even if the next owner fails to open the job.
_CRASHED: Final = "(j.crashed AND (j.held OR j.status = 'queued'))"
_REOPEN: Final = f"""
    SELECT {_RECORD}, j.number, {EXTENT_COLUMNS}, j.submit, j.cancelled, j.purge, {_CRASHED},
        extract(epoch FROM clock_timestamp() - j.read_at)::float8 FROM {EXTENT_TABLES}
    WHERE j.id = %(id)s AND j.owner = %(me)s AND j.ended_at IS NULL
"""  # noqa: S608
_ROW_SIZES: Final = """
    SELECT b.last, b.size FROM whole_block b JOIN job j ON j.number = b.job WHERE j.id = %(id)s ORDER BY b.last
"""
_STATE_SIZES: Final = """
    SELECT s.seq, s.epoch, s.size FROM whole_state s JOIN job j ON j.number = s.job WHERE j.id = %(id)s ORDER BY s.seq
"""
_SUBMIT_BODY: Final = "SELECT submit FROM job WHERE id = %(id)s AND ended_at IS NULL"

_SAVE_CANCELLED: Final = """
    UPDATE job SET purge = purge OR %(purge)s, cancelled = CASE WHEN %(purge)s THEN ARRAY(SELECT generate_series(0, items - 1))
        ELSE (SELECT array_agg(DISTINCT i ORDER BY i) FROM unnest(coalesce(cancelled, '{}') || %(items)s::int[]) AS i) END
    WHERE id = %(id)s AND ended_at IS NULL RETURNING number
"""

_DEAD: Final = "s.until < now() AND (s.clean OR now() < %(trusted_until)s::timestamptz)"
_KNOWN: Final = "j.endpoint = ANY (%(known)s::text[])"
# Any server can end these jobs, even if it does not know their endpoint.
_ENDS: Final = "(j.deadline_at <= now() OR j.purge OR cardinality(j.cancelled) = j.items)"
# This server becomes the owner of the jobs that a statement picks and locks.
_OWN: Final = f"""
    WITH picked AS MATERIALIZED ({{picked}})
    UPDATE job j SET owner = %(me)s, held = true, crashed = p.crashed OR {_CRASHED},
        read_at = CASE WHEN j.owner IS NULL THEN read_at ELSE {READ_NOW} END
    FROM picked p WHERE j.number = p.number RETURNING j.number
"""  # noqa: S608
_PICK_ONE: Final = f"""
    SELECT j.number, coalesce(s.id <> %(me)s AND NOT s.clean, false) AS crashed
    FROM job j LEFT JOIN server s ON s.id = j.owner
    WHERE j.id = %(id)s AND j.ended_at IS NULL
        AND (j.owner IS NULL OR (j.owner = %(me)s AND j.held) OR ({_DEAD})) FOR UPDATE OF j
"""  # noqa: S608
_PICK_LEFT: Final = f"""
    SELECT j.number, NOT s.clean AS crashed FROM job j JOIN server s ON s.id = j.owner
    WHERE j.owner = ANY (ARRAY(SELECT id FROM server s WHERE {_DEAD} AND id <> %(me)s)) AND j.ended_at IS NULL
        AND ({_KNOWN} OR {_ENDS})
    ORDER BY j.number LIMIT %(n)s FOR UPDATE OF j SKIP LOCKED
"""  # noqa: S608
_PICK_DUE: Final = f"""
    SELECT number, false AS crashed FROM job j WHERE owner IS NULL AND ended_at IS NULL
        AND ({_ENDS} OR (read_at + grace <= now() AND grace <= make_interval(secs => %(alive_for)s))
            OR (cancelled IS NOT NULL AND {_KNOWN}))
    ORDER BY number LIMIT %(n)s FOR UPDATE SKIP LOCKED
"""  # noqa: S608
_CLAIM, _ADOPT, _ADOPT_DUE = (_OWN.format(picked=each) for each in (_PICK_ONE, _PICK_LEFT, _PICK_DUE))
# This includes jobs that this server has adopted before, even if the response of the database was lost.
_ADOPTED: Final = "SELECT id FROM job WHERE owner = %(me)s AND held AND ended_at IS NULL ORDER BY number"

_KEEP_TICKETS: Final = """
    DELETE FROM ticket t USING job j
    WHERE t.job = j.number AND j.id = %(id)s AND j.owner = %(me)s AND t.item <> ALL (%(items)s::int[])
"""
# The time without readers begins again, because a server does not record its readers of the jobs that it runs.
_RELEASE: Final = f"""
    UPDATE job SET owner = NULL, held = false, read_at = {READ_NOW},
        cancelled = CASE WHEN cancelled IS DISTINCT FROM %(seen)s::int[] THEN cancelled END
    WHERE id = %(id)s AND owner = %(me)s RETURNING number
"""  # noqa: S608
_REFUSE: Final = """
    UPDATE job SET refused = array_append(array_remove(refused, %(me)s), %(me)s) WHERE id = %(id)s AND owner = %(me)s
"""


class PostgresJobs:
    """Jobs stored in a database. All methods must be called on one event loop."""

    def __init__(
        self, logs: OpenLogs, queue: PostgresQueue, server: ServerRow, clock: Callable[[], float] = time.time
    ) -> None:
        self._logs = logs
        self._written = logs.written
        self._submits = logs.threads.submits
        self._reads = logs.threads.reads
        self._queue = queue
        self._server = server
        self._notifier = logs.notifier
        self._retention = logs.retention
        self._clock = clock

    async def find_key(self, key: Key) -> KeyUse | None:
        found = await self._reads.run(_FIND_KEY, principal=key.principal, endpoint=key.endpoint, key=key.text)
        return KeyUse(*found[0]) if found else None

    # ---- jobs --------------------------------------------------------------------------------------------------

    async def add(self, new: NewJob, own: Callable[[Log], None]) -> None:
        record, first, limits = new.record, new.first, new.limits
        key, digest = new.key or (None, None)
        at = first.state
        parameters: dict[str, Any] = {
            **new_columns(record),
            "n": len(new.entries),
            "submit": new.submit,
            "deadline": new.deadline,
            "grace": new.grace,
            "starts": list(first.first),
            "columns": encode_columns(at.columns),
            **dict(zip(("key_principal", "key_endpoint", "key"), key or (None, None, None), strict=True)),
            "digest": digest,
            "until": self._clock() + self._retention.idempotency_ttl,
            "epoch": first.first.epoch,
            **arrays_of(rows_of(first)),
            "seq": at.cursor.seq,
            "state": orjson.dumps(at.view.value()),
            "items": [entry.index for entry in new.entries],
            "keys": None if new.slots is None else [encode_key(slot.key) for slot in new.slots],
            "costs": None if new.slots is None else [slot.cost for slot in new.slots],
            "max_items": endless(limits.items),
            "max_own": endless(limits.items_of_principal),
            "max_jobs": endless(limits.jobs_of_principal),
        }

        def then(found: list[Rows]) -> None:
            *_, is_added = found[0][0]
            if is_added:
                self._queue.added(record.endpoint, len(new.entries))

        principals = (record.principal,) if key is None else (record.principal, key.principal)
        found = await self._submits.do(Command([_ADD], parameters, locks=principals), then)
        body, jobs, waiting, own_items, used, is_added = found[0][0]
        if is_added:
            return
        if used is not None:
            raise KeyUsedError(KeyUse(body, used))
        if jobs >= limits.jobs_of_principal:
            raise TooManyJobsError
        of_principal = waiting + len(new.entries) <= limits.items
        raise QueueFullError(own_items if of_principal else waiting, of_principal=of_principal)

    async def get(self, job: str) -> JobRecord | Tombstone | None:
        written = self._written.get(job)
        if written is not None:
            return written.record
        if not is_storable(job):
            return None
        records, tombstones = await self._reads.do(Command([_GET, _GET_TOMBSTONE], {"id": job}))
        if records:
            return record_of(records[0])
        return Tombstone(*tombstones[0]) if tombstones else None

    async def log(self, job: str) -> PostgresLog | None:
        log = self.log_in_use(job)
        if log is not None:
            if not (log.deleted or log.has_writer or log.extent().ended):
                # A client that resumes must find all events that it has received from another server.
                await self._logs.refresh(log)
                return None if log.is_closed else log
            return None if log.deleted else log

        def then(found: list[Rows]) -> None:
            # Register the log in this callback. Otherwise the job could be deleted before its log is registered.
            nonlocal log
            log = self.log_in_use(job)
            if log is None and found[0]:
                log = self._open_log(found[0][0])

        await self._reads.do(Command([_OPEN], {"id": job}), then)
        return log

    def log_in_use(self, job: str) -> PostgresLog | None:
        return self._logs.in_use.get(job)

    def _open_log(self, row: tuple[Any, ...]) -> PostgresLog:
        """Register and return the log for a row of `_OPEN`."""
        record, number, extent = self._parse(row)
        log = self._logs.in_use[record.id] = PostgresLog(self._logs, number, record, extent)
        return log

    def _parse(self, row: tuple[Any, ...]) -> tuple[JobRecord, int, Extent]:
        columns = row[_RECORD_LENGTH:]
        return record_of(row[:_RECORD_LENGTH]), columns[0], extent_of(columns[1:], self._logs.place)

    async def save_cancelled(self, job: str, items: Collection[int], *, purge: bool = False) -> bool:
        found = await self._submits.run(_SAVE_CANCELLED, id=job, items=sorted(items), purge=purge)
        if found and job not in self._written:
            self._notifier.send(BEAT)
        if found and purge:
            self._server.hint()
        return bool(found)

    async def list(self, principal: str, *, before: str | None, limit: int) -> list[tuple[JobRecord, Extent]]:
        before = before if before is None or is_storable(before) else None
        rows = await self._reads.run(_LIST, principal=principal, before=before, limit=limit)
        found = [(record, extent) for record, _, extent in map(self._parse, rows)]
        written = [self._written.get(record.id) for record, _ in found]
        return [
            stored if log is None else (log.record, log.extent())
            for stored, log in zip(found, written, strict=True)
        ]

    async def unfinished(self, principal: str) -> int:
        return int((await self._reads.run(_UNFINISHED, principal=principal))[0][0])

    # ---- ownership ---------------------------------------------------------------------------------------------

    async def adopt(self, known: Collection[str]) -> Sequence[str]:
        found = await self._submits.run(
            *(_ADOPT, _ADOPT_DUE, _ADOPTED),
            me=self._server.id,
            trusted_until=self._server.trusted_until,
            alive_for=self._server.alive_for,
            known=[*known],
            n=_MAX_ADOPTED,
        )
        return [job for (job,) in found if job not in self._written]

    async def claim(self, job: str) -> bool:
        if job in self._written:
            return False
        parameters = {"id": job, "me": self._server.id, "trusted_until": self._server.trusted_until}
        return bool(await self._submits.run(_CLAIM, **parameters))

    async def reopen(self, job: str) -> Interrupted | None:
        # If the caller has failed to open or to release the job before, this server may still be the writer of the log.
        self._server.stop_writing(job)
        parameters = {"id": job, "me": self._server.id}
        # Use the thread of claims and releases. Its transactions read one consistent state of the database.
        found, rows, states = await self._submits.do(Command([_REOPEN, _ROW_SIZES, _STATE_SIZES], parameters))
        if not found:
            return None
        *opened, submit, cancelled, purge, crashed, unread = found[0]
        log = self.log_in_use(job) or self._open_log(tuple(opened))
        record, _, extent = self._parse(tuple(opened))
        schedule = CheckpointSchedule.of_rows(self._retention.max_log_bytes, rows, states)
        log.start_writing(record, extent, schedule)
        log.cancelled = cancelled
        try:
            await log.state()
        except BaseException:
            log.stop_writing()
            raise
        if record.status != "queued":
            self._logs.progress_changed(log)  # May be left from an earlier ownership.
        unread = min(unread, self._server.alive_for)
        return Interrupted(record, submit or b"", log, frozenset(cancelled or ()), purge, crashed, unread)

    async def refuse(self, job: str) -> None:
        await self._submits.run(_REFUSE, id=job, me=self._server.id)

    async def release(self, job: str, entries: Sequence[QueueEntry]) -> bool:
        log = self._written.get(job)
        if log is None:
            return True
        parameters = {
            "id": job,
            "me": self._server.id,
            "seen": log.cancelled,
            "items": [entry.index for entry in entries],
        }

        def then(_: list[Rows]) -> None:
            log.stop_writing()
            self._queue.added(log.record.endpoint, len(entries))

        statements = [_KEEP_TICKETS, PUT, _RELEASE]
        try:
            await self._submits.do(Command(statements, parameters, order=log.number), then)
        except StoreError:
            # It is unknown whether the job was released. Stop writing its log, so that this server or another one can open the
            # job.
            log.stop_writing()
            raise
        return True

    async def submit_body(self, job: str) -> bytes:
        found = await self._reads.run(_SUBMIT_BODY, id=job)
        return (found[0][0] or b"") if found else b""

    # ---- retention ---------------------------------------------------------------------------------------------

    async def delete_job(self, job: str) -> None:
        # If there are no other servers, all readers are at this server, and `detach` keeps `done` for them.
        await self._delete_jobs([job], last=_LAST_SECONDS if self._server.has_others else 0.0)

    async def _delete_jobs(self, jobs: Sequence[str], last: float = 0.0) -> None:
        for log in filter(None, map(self.log_in_use, jobs)):
            await log.detach()
        command = delete_jobs(jobs, self._retention, now=self._clock(), last=last)
        await self._submits.do(command, lambda _: self._deleted(jobs))

    def _deleted(self, jobs: Iterable[str]) -> None:
        for log in filter(None, map(self.log_in_use, jobs)):
            written_here = log.has_writer
            log.stop_writing()
            log.deleted = True
            # Otherwise keep the log open, because its readers wait for `done`. The owner of the job, or a later owner, logs it.
            if written_here or log.extent().ended:
                log.close(written_here=written_here)
                del self._logs.in_use[log.record.id]

    async def expire(self, now: float) -> float | None:
        logs, jobs, due = expired(await self._submits.do(expire(self._retention, now)), now)
        for log in filter(None, map(self.log_in_use, logs)):
            log.forget_events()
        if jobs:
            await self._delete_jobs(jobs)
        return due
