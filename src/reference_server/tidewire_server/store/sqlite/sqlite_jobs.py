"""Jobs, tombstones and idempotency keys in a SQLite file.

The records and log objects of unfinished jobs are kept in memory. The ids of ended jobs and of idempotency keys are also kept
in memory, in the order in which the store deletes them if it exceeds its limits. Everything else is read from the file on
demand. All readers of an ended job share one log object, which is freed when the last of these readers releases it.
"""

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import orjson

from tidewire.protocol.cursor import Cursor
from tidewire_server.store.database.cached_log import RECORD_COLUMNS, new_columns, record_of
from tidewire_server.store.database.state_checkpoints import CheckpointSchedule, StateCheckpoint
from tidewire_server.store.fair_eviction import EndedJobs, FairEviction
from tidewire_server.store.jobs_interface import Interrupted, NewJob
from tidewire_server.store.log_interface import Log, StateAt
from tidewire_server.store.memory.memory_queue import MemoryQueue
from tidewire_server.store.records import (
    Extent,
    JobRecord,
    Key,
    KeyUse,
    QueueEntry,
    Retention,
    Tombstone,
)
from tidewire_server.store.sqlite.event_log import (
    SqliteLog,
    delete_pieces,
    delete_unused_pieces,
    load_extent,
    load_schedule,
    save_kept_bytes,
    write_first,
)
from tidewire_server.store.sqlite.sqlite_file import release_free_pages
from tidewire_server.store.sqlite.writer_thread import WriterThread
from tidewire_server.store.store_errors import KeyUsedError, StoreError, TooManyJobsError

_MAX_EXPIRED_AT_ONCE: Final = 500
"""Maximum number of rows of each kind that one `expire` call deletes. Appends wait until the call has finished."""

_IN_JSON: Final = "(SELECT value FROM json_each(?))"

_RECORD: Final = ", ".join(RECORD_COLUMNS)


class SqliteJobs:
    """Jobs stored in one SQLite file. All methods must be called on one event loop."""

    def __init__(
        self,
        file: WriterThread,
        retention: Retention,
        opened: "Counts",
        queue: MemoryQueue,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = file
        self._retention = retention
        self._queue = queue
        self._clock = clock
        self._interrupted = dict(opened.interrupted)
        self._unfinished = opened.unfinished
        self._ended = EndedJobs(retention.max_retained_jobs, retention.max_retained_bytes)
        for ended in opened.ended:
            self._ended.add(*ended)
        self._keys = opened.keys
        self._live: dict[str, SqliteLog] = {}
        self._shared_logs: WeakValueDictionary[str, SqliteLog] = WeakValueDictionary()

    # ---- keys --------------------------------------------------------------------------------------------------

    async def find_key(self, key: Key) -> KeyUse | None:
        return await self._file.do(lambda db: _find_key(db, key))

    # ---- jobs --------------------------------------------------------------------------------------------------

    async def add(self, new: NewJob, own: Callable[[Log], None]) -> None:
        record, first = new.record, new.first
        until = self._clock() + self._retention.idempotency_ttl

        def work(db: sqlite3.Connection) -> tuple[int, int, int | None]:
            if new.key is not None and (use := _find_key(db, new.key[0])) is not None:
                raise KeyUsedError(use)
            number, key_number = _insert_job(db, record), None
            db.execute("INSERT INTO submit (job, body) VALUES (?, ?)", (number, new.submit))
            state_bytes = write_first(db, number, first)
            if new.key is not None:
                row = (*new.key[0], new.key[1], record.id, until)
                key_number = db.execute(_INSERT_KEY, row).lastrowid
            return number, state_bytes, key_number

        def then(found: tuple[int, int, int | None]) -> None:
            number, state_bytes, key_number = found
            if key_number is not None:
                self._keys.add(record.principal, key_number)
            written = sum(map(len, first.frames))
            checkpoints = (StateCheckpoint(first.state.cursor, written),)
            schedule = CheckpointSchedule(
                self._retention.max_log_bytes,
                written=written,
                checkpoints=checkpoints,
                state_bytes=state_bytes,
            )
            base = Cursor(first.first.epoch, first.first.seq - 1)
            extent = Extent(base, first.last, first.ended is not None, (first.first,), first.state.columns)
            log = self._open_log(number, record, extent, schedule, first.state)
            self._live[record.id] = log
            own(log)
            self._queue.cancel_reservation(new)
            self._queue.put_at_once(new.entries, new.slots)

        def failed() -> None:
            self._queue.cancel_reservation(new)
            self._finished(record.principal)

        self._file.refuse_if_lost()
        # Count the job and its items before the commit. Otherwise two concurrent jobs could exceed a limit together.
        if self._unfinished[record.principal] >= new.limits.jobs_of_principal:
            raise TooManyJobsError
        self._queue.reserve(new)
        self._unfinished[record.principal] += 1
        await self._file.do(work, then, failed)

    async def get(self, job: str) -> JobRecord | Tombstone | None:
        live = self._live.get(job)
        if live is not None:
            return live.record

        def work(db: sqlite3.Connection) -> JobRecord | Tombstone | None:
            row = db.execute(f"SELECT {_RECORD} FROM job WHERE id = ?", (job,)).fetchone()  # noqa: S608
            if row is not None:
                return record_of(row)
            tombstone = db.execute("SELECT id, principal FROM tombstone WHERE id = ?", (job,)).fetchone()
            return None if tombstone is None else Tombstone(*tombstone)

        return await self._file.do(work)

    def log_in_use(self, job: str) -> SqliteLog | None:
        return self._live.get(job) or self._shared_logs.get(job)

    async def log(self, job: str) -> SqliteLog | None:
        if (used := self.log_in_use(job)) is not None:
            return used

        def work(db: sqlite3.Connection) -> tuple[int, JobRecord, Extent] | None:
            row = db.execute(f"SELECT {_RECORD}, number FROM job WHERE id = ?", (job,)).fetchone()  # noqa: S608
            return None if row is None else (row[-1], record_of(row[:-1]), load_extent(db, row[-1]))

        log: SqliteLog | None = None

        def then(found: tuple[int, JobRecord, Extent] | None) -> None:
            # Register the log in this callback, right after the commit. Otherwise the job could be deleted before its
            # log is registered.
            nonlocal log
            log = self.log_in_use(job)
            if log is None and found is not None:
                log = self._open_log(*found)
                self._shared_logs[job] = log

        await self._file.do(work, then)
        return log

    async def save_cancelled(self, job: str, items: Collection[int], *, purge: bool = False) -> bool:
        live = self._live.get(job)
        if live is None:
            return False
        number = live.number

        def work(db: sqlite3.Connection) -> bool:
            # The row was deleted if the job has ended in the meantime.
            row = db.execute("SELECT cancelled FROM submit WHERE job = ?", (number,)).fetchone()
            if row is not None:
                cancelled = orjson.dumps(sorted(_cancelled(row[0]).union(items)))
                db.execute("UPDATE submit SET cancelled = ? WHERE job = ?", (cancelled, number))
            return row is not None

        return await self._file.do(work)

    def _open_log(
        self,
        number: int,
        record: JobRecord,
        extent: Extent,
        schedule: CheckpointSchedule | None = None,
        state: StateAt | None = None,
    ) -> SqliteLog:
        return SqliteLog(
            self._file, number, record, extent, schedule, state, self._retention, self._job_ended
        )

    def _job_ended(self, log: SqliteLog, kept_bytes: int) -> None:
        """Update the data in memory after the end of a job was committed."""
        record = log.record
        if self._live.pop(record.id, None) is not None:
            self._shared_logs[record.id] = log
            self._finished(record.principal)
            self._ended.add(record.principal, record.id, kept_bytes)

    async def list(self, principal: str, *, before: str | None, limit: int) -> list[tuple[JobRecord, Extent]]:
        def work(db: sqlite3.Connection) -> list[tuple[JobRecord, Extent]]:
            place = db.execute(
                "SELECT number FROM job WHERE id = ? AND principal = ?", (before, principal)
            ).fetchone()
            query = (
                f"SELECT {_RECORD}, number FROM job WHERE principal = ? AND number < ? "  # noqa: S608
                "ORDER BY number DESC LIMIT ?"
            )
            rows = db.execute(query, (principal, 2**62 if place is None else place[0], limit)).fetchall()
            return [(record_of(row[:-1]), load_extent(db, row[-1])) for row in rows]

        found = await self._file.do(work)
        live = [self._live.get(record.id) for record, _ in found]
        return [
            stored if log is None else (log.record, log.extent())
            for stored, log in zip(found, live, strict=True)
        ]

    async def unfinished(self, principal: str) -> int:
        return self._unfinished[principal]

    # ---- after a restart ---------------------------------------------------------------------------------------

    async def adopt(self, known: Collection[str]) -> Sequence[str]:
        return tuple(self._interrupted)

    async def claim(self, job: str) -> bool:
        del job
        return False

    async def reopen(self, job: str) -> Interrupted | None:
        number = self._interrupted.get(job)
        if number is None:
            return None

        def work(db: sqlite3.Connection) -> Any:
            row = db.execute(f"SELECT {_RECORD} FROM job WHERE number = ?", (number,)).fetchone()  # noqa: S608
            if row is None:
                raise StoreError(f"rows of job {job} are missing, so the file is damaged")
            submitted = db.execute("SELECT cancelled FROM submit WHERE job = ?", (number,)).fetchone()
            cancelled = _cancelled(None if submitted is None else submitted[0])
            schedule = load_schedule(db, number, self._retention.max_log_bytes)
            extent = load_extent(db, number)
            delete_unused_pieces(db, number, extent.head.seq)
            return record_of(row), _submit_body(db, number), cancelled, extent, schedule

        record, submit, cancelled, extent, schedule = await self._file.do(work)
        log = self._open_log(number, record, extent, schedule)
        await log.state()
        del self._interrupted[job]
        self._live[job] = log
        return Interrupted(record, submit, log, cancelled, crashed=not self._file.clean)

    async def refuse(self, job: str) -> None:
        """Do nothing, because no other process could run the job."""

    async def release(self, job: str, entries: Sequence[QueueEntry]) -> bool:
        del job, entries
        return False

    async def submit_body(self, job: str) -> bytes:
        live = self._live.get(job)
        return b"" if live is None else await self._file.do(lambda db: _submit_body(db, live.number))

    # ---- retention ---------------------------------------------------------------------------------------------

    async def delete_job(self, job: str) -> None:
        await self._delete_jobs([job])

    async def _delete_jobs(self, jobs: Sequence[str]) -> bool:
        """Delete jobs, and return whether the file then has free pages to release."""
        for job in jobs:
            if (log := self.log_in_use(job)) is not None:
                # Load the final state and `done` before their rows are deleted, because open readers still need both.
                await log.detach()
        retention, now = self._retention, self._clock()

        def work(db: sqlite3.Connection) -> tuple[list[tuple[str, str, bool]], bool]:
            deleted = _delete(db, jobs, now + retention.tombstone_ttl, retention.max_tombstones)
            return deleted, release_free_pages(db)

        def then(found: tuple[list[tuple[str, str, bool]], bool]) -> None:
            for job in jobs:
                self._live.pop(job, None)
                self._shared_logs.pop(job, None)
                self._interrupted.pop(job, None)
            for job, principal, ended in found[0]:
                if ended:
                    self._ended.discard(principal, job)
                else:
                    self._finished(principal)

        return (await self._file.do(work, then))[1]

    async def expire(self, now: float) -> float | None:
        def then(found: _Expired) -> None:
            for principal, job, kept_bytes in found.logs:
                self._ended.resize(principal, job, kept_bytes)
                shared = self._shared_logs.get(job)
                if shared is not None:
                    shared.forget_events()
            for principal, number in found.keys:
                self._keys.discard(principal, number)

        # If the file cannot be written, the evicted jobs and keys stay in the file until their retention time is over.
        excess_keys = [
            self._keys.evict()[1:] for _ in range(len(self._keys) - self._retention.max_tombstones)
        ]
        found = await self._file.do(lambda db: _expire(db, now, excess_keys), then)
        evicted = self._ended.evict_excess(_MAX_EXPIRED_AT_ONCE)
        jobs = dict.fromkeys([*found.jobs, *evicted])
        if jobs and (await self._delete_jobs([*jobs]) or len(evicted) == _MAX_EXPIRED_AT_ONCE):
            return now
        return found.due

    def _finished(self, principal: str) -> None:
        self._unfinished[principal] -= 1
        if not self._unfinished[principal]:
            del self._unfinished[principal]


# ---- in the writer thread ----------------------------------------------------------------------------------------


class Counts:
    """Interrupted jobs, and the numbers of ended and unfinished jobs. They are read once, when the file is opened."""

    def __init__(self, db: sqlite3.Connection) -> None:
        rows = db.execute(
            "SELECT id, number, principal FROM job WHERE ended_at IS NULL ORDER BY number"
        ).fetchall()
        self.interrupted = {job: number for job, number, _ in rows}
        query = (
            "SELECT principal, id, kept_bytes FROM job WHERE ended_at IS NOT NULL ORDER BY ended_at, number"
        )
        self.ended = db.execute(query).fetchall()
        self.keys = FairEviction[int]()
        for row in db.execute("SELECT principal, number FROM key WHERE until IS NOT NULL ORDER BY number"):
            self.keys.add(*row)
        self.unfinished = Counter(principal for _, _, principal in rows)


def _find_key(db: sqlite3.Connection, key: Key) -> KeyUse | None:
    query = "SELECT body, job FROM key WHERE principal = ? AND endpoint = ? AND text = ?"
    found = db.execute(query, key).fetchone()
    return None if found is None else KeyUse(*found)


def _cancelled(column: bytes | None) -> frozenset[int]:
    return frozenset(() if column is None else orjson.loads(column))


def _submit_body(db: sqlite3.Connection, number: int) -> bytes:
    found = db.execute("SELECT body FROM submit WHERE job = ?", (number,)).fetchone()
    return found[0] if found is not None and isinstance(found[0], bytes) else b""


def _insert_job(db: sqlite3.Connection, record: JobRecord) -> int:
    columns = new_columns(record)
    insert = f"INSERT INTO job ({', '.join(columns)}) VALUES ({', '.join(f':{name}' for name in columns)})"  # noqa: S608
    number = db.execute(insert, columns).lastrowid
    assert number is not None  # noqa: S101 - a row was inserted
    return number


_INSERT_KEY: Final = "INSERT INTO key (principal, endpoint, text, body, job, until) VALUES (?, ?, ?, ?, ?, ?)"


def _delete(
    db: sqlite3.Connection, jobs: Sequence[str], until: float, max_tombstones: int
) -> list[tuple[str, str, bool]]:
    """Delete jobs, and insert a tombstone for each of them.

    Returns:
        Id and principal of each deleted job, and whether the job had ended.
    """
    query = f"SELECT number, id, principal, ended_at IS NOT NULL FROM job WHERE id IN {_IN_JSON}"  # noqa: S608
    rows = db.execute(query, (orjson.dumps(jobs).decode(),)).fetchall()
    # One statement for all jobs takes a third of the time of one statement for each job.
    numbers = (orjson.dumps([number for number, *_ in rows]).decode(),)
    for table in ("block", "state", "piece", "epoch", "submit"):
        db.execute(f"DELETE FROM {table} WHERE job IN {_IN_JSON}", numbers)  # noqa: S608
    db.execute(f"DELETE FROM job WHERE number IN {_IN_JSON}", numbers)  # noqa: S608
    names = (orjson.dumps([job for _, job, _, _ in rows]).decode(),)
    db.execute(f"DELETE FROM key WHERE job IN {_IN_JSON} AND until IS NULL", names)  # noqa: S608
    insert = "INSERT INTO tombstone (id, principal, until) VALUES (?, ?, ?)"
    db.executemany(insert, [(job, principal, until) for _, job, principal, _ in rows])
    # Keep the newest rows, which have the highest numbers.
    db.execute(
        "DELETE FROM tombstone WHERE number <= (SELECT max(number) FROM tombstone) - ?", (max_tombstones,)
    )
    return [(job, principal, bool(ended)) for _, job, principal, ended in rows]


class _Expired(NamedTuple):
    """Result of `_expire`."""

    logs: list[tuple[str, str, int]]
    """Principals and ids of the jobs whose events were deleted, with the size of their remaining data in bytes."""
    jobs: list[str]
    """Expired jobs that the caller must delete."""
    keys: list[tuple[str, int]]
    """Principals and numbers of the keys whose own retention time is over."""
    due: float | None
    """Time at which the caller should call the function again."""


def _expire(db: sqlite3.Connection, now: float, excess_keys: list[tuple[int]]) -> _Expired:
    """Delete events, tombstones and idempotency keys whose retention time is over, and the keys in `excess_keys`."""
    logs = []
    for principal, job, number in db.execute(
        "SELECT principal, id, number FROM job WHERE log_until <= ? ORDER BY log_until LIMIT ?",
        (now, _MAX_EXPIRED_AT_ONCE),
    ).fetchall():
        done = db.execute("SELECT epoch, seq FROM block WHERE job = ? AND done = 1", (number,)).fetchone()
        if done is None:  # The file is damaged. Do not stop here, because then no other job would expire.
            db.execute("UPDATE job SET log_until = NULL WHERE number = ?", (number,))
            continue
        epoch, seq = done
        db.execute("DELETE FROM block WHERE job = ? AND done = 0", (number,))
        db.execute("DELETE FROM state WHERE job = ? AND seq < ?", (number, seq - 1))
        delete_pieces(db, number, seq - 1)
        base = "UPDATE job SET base_epoch = ?, base_seq = ?, log_until = NULL WHERE number = ?"
        db.execute(base, (epoch, seq - 1, number))
        logs.append((principal, job, save_kept_bytes(db, number)))
    expired = db.execute(
        "SELECT id FROM job WHERE expires_at <= ? ORDER BY expires_at, number LIMIT ?",
        (now, _MAX_EXPIRED_AT_ONCE),
    ).fetchall()
    db.execute("DELETE FROM tombstone WHERE until <= ?", (now,))
    db.executemany("DELETE FROM key WHERE number = ? AND until IS NOT NULL", excess_keys)
    # An idempotency key is kept at least as long as its job [TW-JOB-027].
    select_keys = "SELECT principal, number FROM key WHERE until <= ? ORDER BY until LIMIT ?"
    keys = db.execute(select_keys, (now, _MAX_EXPIRED_AT_ONCE)).fetchall()
    for _, number in keys:
        kept = "UPDATE key SET until = NULL WHERE number = ? AND job IN (SELECT id FROM job)"
        if not db.execute(kept, (number,)).rowcount:
            db.execute("DELETE FROM key WHERE number = ?", (number,))
    times = [
        db.execute("SELECT min(log_until) FROM job WHERE log_until IS NOT NULL").fetchone()[0],
        db.execute("SELECT min(expires_at) FROM job WHERE expires_at > ?", (now,)).fetchone()[0],
        db.execute("SELECT min(until) FROM tombstone").fetchone()[0],
        db.execute("SELECT min(until) FROM key WHERE until IS NOT NULL").fetchone()[0],
    ]
    if release_free_pages(db) or len(expired) >= _MAX_EXPIRED_AT_ONCE:
        times.append(now)
    due_at = min((t for t in times if t is not None), default=None)
    return _Expired(logs, [job for (job,) in expired], keys, due_at)
