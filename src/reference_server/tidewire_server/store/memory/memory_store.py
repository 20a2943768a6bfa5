"""In-memory implementation of the store. It is fast, but all jobs are lost when the process ends.

Each log is one buffer of encoded events (see `frame_buffer`). When a log exceeds its size limit, its oldest events are
trimmed up to a checkpoint. A checkpoint is an event after which the state was saved. The state is saved as a view, so
that a state that only grows need not be copied.
"""

import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice

from tidewire.protocol.cursor import Cursor
from tidewire_server.store.fair_eviction import EndedJobs, FairEviction
from tidewire_server.store.frame_buffer import FrameBuffer
from tidewire_server.store.jobs_interface import Interrupted, Jobs, NewJob
from tidewire_server.store.log_interface import Block, Log, LogChunk, LogReader, StateAt, extent_after
from tidewire_server.store.memory.memory_queue import MemoryQueue
from tidewire_server.store.queue_interface import Queue
from tidewire_server.store.records import (
    Extent,
    JobRecord,
    Key,
    KeyUse,
    QueueEntry,
    Retention,
    Tombstone,
)
from tidewire_server.store.replicas_interface import Replicas
from tidewire_server.store.store_errors import HeadMovedError, KeyUsedError, TooManyJobsError
from tidewire_server.store.store_interface import SECRET_BYTES, SWEEP_INTERVAL, Durability
from tidewire_server.store.subscribers import Subscribers

CHECKPOINTS = 8
"""Number of checkpoints in a log that has reached its size limit. Logs can be trimmed only at checkpoints."""


class MemoryLog(Subscribers):
    """Event log of one job in memory. All methods must be called on one event loop.

    The log stores at most `max_bytes` of events. It keeps its newest block even if that block alone is larger.
    """

    __slots__ = (
        "_checkpoint_every",
        "_checkpoints",
        "_closed",
        "_extent",
        "_frames",
        "_max_bytes",
        "_next_checkpoint_at",
        "_oldest",
        "_on_end",
        "_state",
        "_state_bytes",
    )

    def __init__(
        self, first: Block, max_bytes: int, on_end: Callable[[JobRecord], None] = lambda _: None
    ) -> None:
        """Create the log with its first block. The function `on_end` is called with the record of the ended job, before the
        readers are woken.
        """
        super().__init__()
        start = first.first
        self._frames = FrameBuffer(start.seq - 1)
        self._frames.add(first.frames)
        base = Cursor(start.epoch, start.seq - 1)
        self._extent = Extent(base, first.last, first.ended is not None, (start,), first.state.columns)
        """Range of the events. Its head may be outdated, because only readers need it. The method `extent` updates the head."""
        self._state = first.state
        self._state_bytes = first.state_bytes
        self._oldest = first.state
        self._checkpoints: list[StateAt] = []
        self._next_checkpoint_at = self._checkpoint_every = max_bytes // CHECKPOINTS
        self._max_bytes = max_bytes
        self._on_end = on_end
        self._closed = first.ended is not None
        """Whether the log accepts no more blocks, because it has ended or was deleted."""

    # ---- for readers -------------------------------------------------------------------------------------------

    def extent(self) -> Extent:
        if self._extent.head < self._state.cursor:
            self._extent = self._extent._replace(head=self._state.cursor)
        return self._extent

    async def read(self, after: Cursor, max_bytes: int) -> LogChunk | None:
        extent = self.extent()
        if not extent.holds_after(after):
            return None
        frames, seq = self._frames.read(after.seq, max_bytes)
        last = extent.id_at(seq)
        return LogChunk(frames, last, extent.ended and bool(frames) and last == extent.head)

    async def state(self, *, oldest: bool = False) -> StateAt:
        return self._oldest if oldest else self._state

    # ---- for the writer ----------------------------------------------------------------------------------------

    async def append(self, after: Cursor, block: Block) -> None:
        self.append_at_once(after, block)

    def append_at_once(self, after: Cursor, block: Block) -> None:
        """Append a block synchronously. This is possible because writing to memory never waits."""
        if self._closed or after != self._state.cursor:
            raise HeadMovedError(
                f"the append expected {after} to be the log's last event, but the last event is {self.extent().head}"
            )
        written = self._frames.add(block.frames)
        if block.ended or block.state.cursor.epoch != after.epoch:
            self._extent = extent_after(self.extent(), block)
            self._closed = block.ended is not None
        self._state, self._state_bytes = block.state, block.state_bytes
        if written >= self._next_checkpoint_at or self._checkpoints:
            self._limit_size(written)
        if block.ended is not None:
            self._on_end(block.ended)
        for wake in tuple(self._watchers.values()):
            wake(block)

    # ---- for the store -----------------------------------------------------------------------------------------

    def forget_events(self) -> None:
        """Trim all events except `done`. This method must be called only for a log that has ended."""
        if len(self._frames) > 1:
            self._trim(self._state)
        self._checkpoints.clear()
        self.clear_ephemeral_events()

    def close(self) -> None:
        """Reject further appends. Readers that already use the log can still read from it."""
        self._closed = True

    @property
    def size(self) -> int:
        """Total size in bytes of the stored events and of the final state, after the log has ended."""
        return self._frames.size + self._state_bytes

    def _limit_size(self, written: int) -> None:
        """Save a checkpoint if one is due, and trim the log to its size limit.

        Args:
            written: Number of bytes that were appended to the log so far.
        """
        if written >= self._next_checkpoint_at and not self._extent.ended:
            self._checkpoints.append(self._state)
            self._next_checkpoint_at = written + self._checkpoint_every
        while (
            self._checkpoints
            and self._frames.size > self._max_bytes
            and self._checkpoints[0].cursor < self.extent().head
        ):
            self._trim(self._checkpoints.pop(0))

    def _trim(self, state: StateAt) -> None:
        self._frames.cut(state.cursor.seq)
        self._extent = self._extent._replace(base=state.cursor)
        self._oldest = state


@dataclass(slots=True)
class _StoredJob:
    record: JobRecord
    log: MemoryLog
    key: Key | None = None
    """Idempotency key of the job if the key's own retention time is over. Otherwise None."""


class MemoryJobs:
    """Job records in memory. Each kind of entry is stored in an ordered dict whose first entry expires next."""

    def __init__(
        self, retention: Retention, queue: MemoryQueue, clock: Callable[[], float] = time.time
    ) -> None:
        self._retention = retention
        self._queue = queue
        self._clock = clock
        self._stored: OrderedDict[str, _StoredJob] = OrderedDict()
        self._unfinished: Counter[str] = Counter()
        self._ended: OrderedDict[str, _StoredJob] = OrderedDict()
        self._evictable = EndedJobs(retention.max_retained_jobs, retention.max_retained_bytes)
        self._logs_due: OrderedDict[str, float] = OrderedDict()
        self._tombstones: OrderedDict[str, tuple[float, Tombstone]] = OrderedDict()
        self._keys: OrderedDict[Key, tuple[float, KeyUse]] = OrderedDict()
        self._keys_by_principal = FairEviction[Key]()
        self._old_keys: dict[Key, KeyUse] = {}
        """Idempotency keys whose own retention time is over, but whose jobs are still stored [TW-JOB-027]."""

    async def find_key(self, key: Key) -> KeyUse | None:
        known = self._keys.get(key)
        return self._old_keys.get(key) if known is None else known[1]

    async def add(self, new: NewJob, own: Callable[[Log], None]) -> None:
        # The body is stored only to run the job again after a restart, and a restart empties this store.
        record = new.record
        if new.key is not None and (use := await self.find_key(new.key[0])) is not None:
            raise KeyUsedError(use)
        if self._unfinished[record.principal] >= new.limits.jobs_of_principal:
            raise TooManyJobsError
        self._queue.check_limits(new)
        log = MemoryLog(new.first, self._retention.max_log_bytes, self._job_ended)
        self._stored[record.id] = _StoredJob(record, log)
        self._unfinished[record.principal] += 1
        if new.key is not None:
            key, digest = new.key
            self._keys_by_principal.add(key.principal, key)
            self._keys[key] = (self._clock() + self._retention.idempotency_ttl, KeyUse(digest, record.id))
            if len(self._keys) > self._retention.max_tombstones:
                del self._keys[self._keys_by_principal.evict()[1]]
        own(log)
        self._queue.put_at_once(new.entries, new.slots)

    async def get(self, job: str) -> JobRecord | Tombstone | None:
        stored = self._stored.get(job)
        if stored is not None:
            return stored.record
        tombstone = self._tombstones.get(job)
        return None if tombstone is None else tombstone[1]

    async def log(self, job: str) -> LogReader | None:
        return self.log_in_use(job)

    def log_in_use(self, job: str) -> MemoryLog | None:
        stored = self._stored.get(job)
        return None if stored is None else stored.log

    def _job_ended(self, record: JobRecord) -> None:
        stored = self._stored[record.id]
        stored.record = record
        self._finished(record.principal)
        self._ended[record.id] = stored
        self._logs_due[record.id] = (record.ended_at or 0.0) + self._retention.log_ttl
        self._evictable.add(record.principal, record.id, stored.log.size)
        for job in self._evictable.evict_excess():
            self._delete(job)

    async def save_cancelled(self, job: str, items: Collection[int], *, purge: bool = False) -> bool:
        del items  # A restart empties this store.
        return job in self._stored and job not in self._ended

    async def list(self, principal: str, *, before: str | None, limit: int) -> list[tuple[JobRecord, Extent]]:
        found: list[tuple[JobRecord, Extent]] = []
        # `before` is the id of the last job on the previous page. If that job was deleted, return the first page.
        cursor = None if before is None else self._stored.get(before)
        passed = cursor is None or cursor.record.principal != principal
        for job, stored in reversed(self._stored.items()):
            if passed and stored.record.principal == principal:
                found.append((stored.record, stored.log.extent()))
                if len(found) == limit:
                    break
            passed = passed or job == before
        return found

    async def unfinished(self, principal: str) -> int:
        return self._unfinished[principal]

    async def adopt(self, known: Collection[str]) -> Sequence[str]:
        return ()

    async def claim(self, job: str) -> bool:
        del job
        return False

    async def reopen(self, job: str) -> Interrupted | None:
        del job
        return None

    async def refuse(self, job: str) -> None:
        """Do nothing, because no other process could run the job."""

    async def release(self, job: str, entries: Sequence[QueueEntry]) -> bool:
        del job, entries
        return False

    async def submit_body(self, job: str) -> bytes:
        raise LookupError(
            f"the request of job {job} is not stored: it is needed only after a restart of the server"
        )

    async def delete_job(self, job: str) -> None:
        self._delete(job)

    def _delete(self, job: str) -> None:
        stored = self._stored.pop(job, None)
        if stored is None:
            return
        if self._ended.pop(job, None) is None:
            self._finished(stored.record.principal)
        self._evictable.discard(stored.record.principal, job)
        self._logs_due.pop(job, None)
        if stored.key is not None:
            self._old_keys.pop(stored.key, None)
        stored.log.close()
        until = self._clock() + self._retention.tombstone_ttl
        self._tombstones[job] = (until, Tombstone(job, stored.record.principal))
        while len(self._tombstones) > self._retention.max_tombstones:
            self._tombstones.popitem(last=False)

    async def expire(self, now: float) -> float | None:
        while self._logs_due and next(iter(self._logs_due.values())) <= now:
            job = self._logs_due.popitem(last=False)[0]
            stored_job = self._stored[job]
            stored_job.log.forget_events()
            self._evictable.resize(stored_job.record.principal, job, stored_job.log.size)
        while self._ended and _expiry(next(iter(self._ended.values()))) <= now:
            self._delete(next(iter(self._ended)))
        while self._tombstones and next(iter(self._tombstones.values()))[0] <= now:
            self._tombstones.popitem(last=False)
        while self._keys and next(iter(self._keys.values()))[0] <= now:
            key, (_, use) = self._keys.popitem(last=False)
            self._keys_by_principal.discard(key.principal, key)
            if (stored := self._stored.get(use.job)) is not None:
                stored.key, self._old_keys[key] = key, use
        due = list(islice(self._logs_due.values(), 1))
        due += [_expiry(stored) for stored in islice(self._ended.values(), 1)]
        due += [until for until, _ in islice(self._tombstones.values(), 1)]
        due += [until for until, _ in islice(self._keys.values(), 1)]
        return min(due, default=None)

    def _finished(self, principal: str) -> None:
        self._unfinished[principal] -= 1
        if not self._unfinished[principal]:
            del self._unfinished[principal]


def _expiry(stored: _StoredJob) -> float:
    return stored.record.expires_at or 0.0


class MemoryStore:
    """Store that keeps everything in the memory of the server process."""

    durability: Durability = "process"
    replicas: Replicas | None = None
    may_have_lost = False
    merge_window = 0.0
    sweep_interval = SWEEP_INTERVAL

    def __init__(self, retention: Retention) -> None:
        self.secret = secrets.token_bytes(SECRET_BYTES)
        queue = MemoryQueue()
        self.queue: Queue = queue
        self.jobs: Jobs = MemoryJobs(retention, queue)

    async def check(self) -> None:
        """Do nothing, because writing to memory cannot fail."""

    async def close(self, *, clean: bool = True) -> None:
        """Do nothing, because the garbage collector frees the memory."""
