"""Everything in this process's memory: fast, and gone with it.

A log is one buffer of encoded events (see `frame_buffer`). Past its bound the oldest events are trimmed, up to a mark: a
place whose state was kept as a view, which costs nothing while the state only grows.
"""

import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from tidewire.protocol.cursor import Cursor
from tidewire_server.store.frame_buffer import FrameBuffer
from tidewire_server.store.interfaces import (
    SECRET_BYTES,
    Block,
    Durability,
    Extent,
    HeadMovedError,
    Interrupted,
    JobRecord,
    Jobs,
    Key,
    KeyUse,
    LogChunk,
    LogReader,
    Queue,
    Retention,
    StateAt,
    Tombstone,
    next_starts,
)
from tidewire_server.store.memory_queue import MemoryQueue
from tidewire_server.store.subscribers import Subscribers

MARKS = 8
"""Places at which a full log can be cut."""


class MemoryLog(Subscribers):
    """One job's log. All calls are made on one event loop.

    It holds `max_bytes` of events at most, or its newest block where that alone is larger.
    """

    __slots__ = (
        "_base",
        "_closed",
        "_ended",
        "_frames",
        "_head",
        "_mark_at",
        "_mark_every",
        "_marks",
        "_max_bytes",
        "_oldest",
        "_starts",
        "_state",
    )

    def __init__(self, first: Block, max_bytes: int) -> None:
        super().__init__()
        self._frames = FrameBuffer(first.first.seq - 1)
        self._starts = next_starts((), first, first.first)
        self._base = Cursor(first.last.epoch, first.first.seq - 1)
        self._head: Cursor = self._base
        self._state = first.state
        self._ended = False
        self._oldest = first.state
        self._marks: deque[StateAt] = deque()
        self._mark_at = self._mark_every = max_bytes // MARKS
        self._max_bytes = max_bytes
        self._closed = False
        self._add(first)

    # ---- for readers -------------------------------------------------------------------------------------------

    def extent(self) -> Extent:
        return Extent(self._base, self._head, self._ended, self._starts, self._state.columns)

    async def read(self, after: Cursor, max_bytes: int) -> LogChunk | None:
        if after == self._head:
            return LogChunk(b"", after, ended=False)
        extent = self.extent()
        if not extent.holds_after(after):
            return None
        frames, seq = self._frames.read(after.seq, max_bytes)
        last = extent.id_at(seq)
        return LogChunk(frames, last, ended=self._ended and bool(frames) and last == self._head)

    async def state(self, *, oldest: bool = False) -> StateAt:
        return self._oldest if oldest else self._state

    # ---- for the writer ----------------------------------------------------------------------------------------

    async def append(self, after: Cursor, block: Block) -> None:
        self.append_at_once(after, block)

    def append_at_once(self, after: Cursor, block: Block) -> None:
        """The same, by a call that returns when it is done: nothing here waits."""
        if self._closed or after != self._head or self._ended:
            raise HeadMovedError(f"the head is {self._head}, not {after}")
        self._add(block)
        self.wake(block)

    # ---- for the store -----------------------------------------------------------------------------------------

    def forget_events(self) -> None:
        """Trim all events but `done`; the log has ended."""
        if len(self._frames) > 1:
            self._trim(self._state)
        self._marks.clear()
        self.forget_told()

    def close(self) -> None:
        """Refuse further appends. Readers that hold the log read on."""
        self._closed = True

    @property
    def size(self) -> int:
        """Bytes of events that are held."""
        return self._frames.size

    def _add(self, block: Block) -> None:
        frames, state, done = block
        written = self._frames.add(frames)
        if state.cursor.epoch != self._head.epoch or not self._starts:
            self._starts = next_starts(self._starts, block, self._base)
        self._head = block.last if done else state.cursor
        self._state, self._ended = state, done
        if not done and written >= self._mark_at:
            self._marks.append(state)
            self._mark_at = written + self._mark_every
        while self._marks and self._frames.size > self._max_bytes and self._marks[0].cursor < self._head:
            self._trim(self._marks.popleft())

    def _trim(self, state: StateAt) -> None:
        self._frames.cut(state.cursor.seq)
        self._base = state.cursor
        self._oldest = state


@dataclass(slots=True)
class _Kept:
    record: JobRecord
    log: MemoryLog
    key: Key | None = None
    """Its key, once that is kept for this job's sake alone."""


class MemoryJobs:
    """Jobs by id, in the order in which they were made; what is due is found at the front of a queue per kind."""

    def __init__(self, retention: Retention, clock: Callable[[], float] = time.time) -> None:
        self._retention = retention
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._unfinished: dict[str, int] = {}
        self._ended: OrderedDict[str, _Kept] = OrderedDict()
        self._logs_due: OrderedDict[str, float] = OrderedDict()
        self._tombstones: OrderedDict[str, tuple[float, Tombstone]] = OrderedDict()
        self._keys: OrderedDict[Key, tuple[float, KeyUse]] = OrderedDict()
        self._old_keys: dict[Key, KeyUse] = {}
        """Keys whose time is over and whose jobs are kept: TW-JOB-027."""

    async def reserve(self, key: Key, body: bytes) -> KeyUse | None:
        known = self._keys.get(key)
        if known is not None:
            return known[1]
        if key in self._old_keys:
            return self._old_keys[key]
        if len(self._keys) >= self._retention.max_tombstones:
            self._keys.popitem(last=False)
        self._keys[key] = (self._clock() + self._retention.idempotency_ttl, KeyUse(body))
        return None

    async def release(self, key: Key) -> None:
        self._keys.pop(key, None)

    async def add(self, record: JobRecord, submit: bytes, first: Block, key: Key | None) -> MemoryLog:
        del submit  # what would run it again is gone with it
        log = MemoryLog(first, self._retention.max_log_bytes)
        self._kept[record.id] = _Kept(record, log)
        self._unfinished[record.principal] = self._unfinished.get(record.principal, 0) + 1
        if key is not None and key in self._keys:
            self._keys[key][1].job = record.id
        return log

    async def get(self, job: str) -> JobRecord | Tombstone | None:
        kept = self._kept.get(job)
        if kept is not None:
            return kept.record
        grave = self._tombstones.get(job)
        return None if grave is None else grave[1]

    async def log(self, job: str) -> LogReader | None:
        kept = self._kept.get(job)
        return None if kept is None else kept.log

    async def save(self, record: JobRecord) -> None:
        kept = self._kept.get(record.id)
        if kept is None or record.ended_at is None or record.id in self._ended:
            return
        self._finished(record.principal)
        self._ended[record.id] = kept
        self._logs_due[record.id] = record.ended_at + self._retention.log_ttl
        while len(self._ended) > self._retention.max_retained_jobs:
            await self.delete_job(next(iter(self._ended)))

    async def list(self, principal: str, *, before: str | None, limit: int) -> list[JobRecord]:
        found: list[JobRecord] = []
        # A page's place is the id of its last job; where that is gone meanwhile, the listing starts over.
        place = None if before is None else self._kept.get(before)
        passed = place is None or place.record.principal != principal
        for job, kept in reversed(self._kept.items()):
            if passed and kept.record.principal == principal:
                found.append(kept.record)
                if len(found) == limit:
                    break
            passed = passed or job == before
        return found

    async def unfinished(self, principal: str) -> int:
        return self._unfinished.get(principal, 0)

    async def interrupted(self) -> Sequence[str]:
        return ()

    async def reopen(self, job: str) -> Interrupted | None:
        raise LookupError(f"job {job} was not interrupted: nothing here outlives its server")

    async def delete_job(self, job: str) -> None:
        kept = self._kept.pop(job, None)
        if kept is None:
            return
        if self._ended.pop(job, None) is None:
            self._finished(kept.record.principal)
        self._logs_due.pop(job, None)
        if kept.key is not None:
            self._old_keys.pop(kept.key, None)
        kept.log.close()
        until = self._clock() + self._retention.tombstone_ttl
        self._tombstones[job] = (until, Tombstone(job, kept.record.principal))
        while len(self._tombstones) > self._retention.max_tombstones:
            self._tombstones.popitem(last=False)

    async def expire(self, now: float) -> float | None:
        while self._logs_due and next(iter(self._logs_due.values())) <= now:
            self._kept[self._logs_due.popitem(last=False)[0]].log.forget_events()
        while self._ended and _expiry(next(iter(self._ended.values()))) <= now:
            await self.delete_job(next(iter(self._ended)))
        while self._tombstones and next(iter(self._tombstones.values()))[0] <= now:
            self._tombstones.popitem(last=False)
        while self._keys and next(iter(self._keys.values()))[0] <= now:
            key, (_, use) = self._keys.popitem(last=False)
            kept = None if use.job is None else self._kept.get(use.job)
            if kept is not None:
                kept.key, self._old_keys[key] = key, use
        due = list(islice(self._logs_due.values(), 1))
        due += [_expiry(kept) for kept in islice(self._ended.values(), 1)]
        due += [until for until, _ in islice(self._tombstones.values(), 1)]
        due += [until for until, _ in islice(self._keys.values(), 1)]
        return min(due, default=None)

    def _finished(self, principal: str) -> None:
        left = self._unfinished.get(principal, 0) - 1
        if left > 0:
            self._unfinished[principal] = left
        else:
            self._unfinished.pop(principal, None)


def _expiry(kept: _Kept) -> float:
    return kept.record.expires_at or 0.0


class MemoryStore:
    """A store in this process's memory."""

    durability: Durability = "process"
    clean = True
    may_have_lost = False

    def __init__(self, retention: Retention) -> None:
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self.jobs: Jobs = MemoryJobs(retention)
        self.queue: Queue = MemoryQueue()

    async def check(self) -> None:
        """Memory can be written."""

    async def close(self, *, clean: bool = True) -> None:
        """Nothing is held that does not go by itself."""
