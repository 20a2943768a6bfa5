"""Writes job logs into a store as the server does, and records the expected contents."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.messages import Done, done_frame
from tidewire.protocol.sse import encode
from tidewire_server.job_log.snapshot_events import snapshot_frame
from tidewire_server.store.jobs_interface import NewJob
from tidewire_server.store.log_interface import Block, Log, StateAt
from tidewire_server.store.records import BatchSlot, JobRecord, Key, QueueEntry, QueueLimits, Retention
from tidewire_server.store.store_errors import StoreError
from tidewire_server.store.store_interface import Store

RETENTION = Retention(
    log_ttl=10,
    state_ttl=20,
    tombstone_ttl=30,
    idempotency_ttl=40,
    max_retained_jobs=3,
    max_retained_bytes=1_000_000,
    max_tombstones=2,
    max_log_bytes=8000,
)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NO_LIMITS = QueueLimits(math.inf, math.inf, math.inf)

ROOMY = replace(RETENTION, max_retained_jobs=1000, max_retained_bytes=10**9, max_tombstones=1000)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Writer:
    """Writes the log of one job, and records its expected contents."""

    def __init__(self, name: str = "a", principal: str = "ada", at: float = 1000.0) -> None:
        self.record = JobRecord(name, "e", principal, batch=False, created_at=at, traceparent=TRACEPARENT)
        self.document = Document({"status": "queued", "text": ""}, ["/text"])
        self.head = Cursor(1, 1)
        self.frames = [self._snapshot("start")]
        self.states = {1: self.document.value()}
        self.log: Any = None

    def _snapshot(self, reason: Any) -> bytes:
        return snapshot_frame(self.head, self.document.value(), self.document.columns, reason)

    async def add(
        self, store: Store, key: Key | None = None, submit: bytes = b"{}", **options: Any
    ) -> "Writer":
        """Submit the job, and become its writer, unless the store leaves new jobs without an owner and there are items. Then
        `take` makes this process the owner.
        """
        await self.submit(store, key, submit, **options)
        if self.log is None and not options.get("items"):
            await self.take_over(store)
        return self

    async def submit(
        self,
        store: Store,
        key: Key | None = None,
        submit: bytes = b"{}",
        *,
        items: int = 0,
        slots: Sequence[BatchSlot] | None = None,
        limits: QueueLimits = NO_LIMITS,
    ) -> None:
        """Submit the job. In a store of several processes, it then has no owner."""
        first = Block(list(self.frames), self.at())
        used = None if key is None else (key, b"h")
        new = NewJob(self.record, submit, first, used, self.entries(items), slots, limits)
        await store.jobs.add(new, self.own)

    async def take_over(self, store: Store) -> None:
        """Become the writer of the job in a store of several processes, where a new job has no owner."""
        assert await store.jobs.claim(self.record.id)
        reopened = await store.jobs.reopen(self.record.id)
        assert reopened is not None
        assert reopened.record == self.record
        self.log, self.record = reopened.log, reopened.record

    def own(self, log: Log) -> None:
        self.log = log

    def entries(self, items: int) -> list[QueueEntry]:
        record = self.record
        return [
            QueueEntry(record.endpoint, record.id, index, record.principal, record.created_at)
            for index in range(items)
        ]

    def at(self) -> StateAt:
        return StateAt(self.head, self.document.columns, self.document.mark())

    async def write(self, *texts: str) -> None:
        frames, before = [], self.head
        for text in texts:
            self.document.apply(text)
            self.head = Cursor(self.head.epoch, self.head.seq + 1)
            frames.append(encode(orjson.dumps(text).decode(), id=str(self.head)))
        await self.log.append(before, Block(frames, self.at()))
        self.frames += frames
        self.states[self.head.seq] = self.document.value()

    async def reopen(self, epoch: int) -> None:
        before, self.head = self.head, Cursor(epoch, self.head.seq + 1)
        self.document = Document({"status": "queued", "text": ""}, ["/text"])
        self.frames.append(self._snapshot("restart"))
        await self.log.append(before, Block([self.frames[-1]], self.at()))
        self.states[self.head.seq] = self.document.value()

    async def end(self, clock: Clock) -> None:
        done = Done.model_validate({"status": "succeeded", "digest": "0" * 16})
        at, before = self.at(), self.head
        self.head = Cursor(self.head.epoch, self.head.seq + 1)
        self.frames.append(done_frame(self.head, done))
        expires_at = clock.now + RETENTION.state_ttl
        ended = replace(self.record, status="succeeded", done=done, ended_at=clock.now, expires_at=expires_at)
        size = len(orjson.dumps(self.document.value()))
        block = Block([self.frames[-1]], at, ended=ended, state_bytes=size)
        await self.log.append(before, block)
        record = self.record
        record.status, record.done, record.ended_at = "succeeded", done, clock.now
        record.expires_at = expires_at


async def everything(log: Any, after: Cursor, step: int = 10**9) -> bytes:
    parts = b""
    while True:
        chunk = await log.read(after, step)
        assert chunk is not None
        if not chunk.frames:
            return parts
        parts, after = parts + chunk.frames, chunk.last
        assert chunk.ended == (log.extent().ended and after == log.extent().head)


async def until_ready(store: Any) -> None:
    """Wait until a store says that it can be used. A thread that has no task connects within a second."""
    while True:
        try:
            await store.check()
        except StoreError as error:
            assert error.logged  # noqa: PT017 - only errors that the store has logged are expected
            await asyncio.sleep(0.05)
        else:
            return
