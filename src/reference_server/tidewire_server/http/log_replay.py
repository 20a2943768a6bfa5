"""Choose the content of one event stream: the logged events after the reader's cursor (`LogReplay.events`), or only
snapshots (`LogReplay.snapshots`).

The events depend on the speed of the reader:

  the reader                                    | `events` yields
  ----------------------------------------------+---------------------------------------------------------------------
  resumes after a cursor                        | the missed events as they were logged, in chunks
  has not received the last chunk when more is  | the next events, with consecutive appends and rows merged, until it
    logged                                      |   has caught up
  has missed so many events that a snapshot is  | a snapshot of the current state
    smaller, or that some were trimmed          |

A reader that has sent the cursor `0-0` gets every event as it was logged [TW-RES-017].
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.messages import SnapshotReason
from tidewire_server.http.event_merging import EventMerger
from tidewire_server.http.replay_plan import ReplayPlan, ReplayStart
from tidewire_server.job_log.snapshot_events import snapshot_parts
from tidewire_server.jobs.job_service import JobService
from tidewire_server.jobs.shared_texts import SharedText
from tidewire_server.store.log_interface import LogChunk, LogReader
from tidewire_server.store.records import JobRecord

CHUNK_BYTES: Final = 32 * 1024
"""Maximum size of the events that are read from the log at a time. A single event may be larger."""

_SMALL_STATE_BYTES: Final = 64 * 1024
"""Size in bytes up to which missed events are never replaced by a snapshot."""

Part = tuple[SharedText, ...]
"""Texts that form complete events when they are joined. No other event may be sent between them."""

NOTHING_TO_SEND: Final[Part] = ()


class LogReplay:
    """The content of one stream. Each of its generators yields `NOTHING_TO_SEND` when the reader has caught up, and continues
    when the log has changed. It ends after `done`.
    """

    __slots__ = (
        *("_as_logged", "_ended", "_job", "_log", "_plan", "_principal", "_service", "_snapshot_bytes"),
        *("behind", "cursor"),
    )

    def __init__(
        self, service: JobService, record: JobRecord, log: LogReader, plan: ReplayPlan, *, as_logged: bool
    ) -> None:
        """Prepare a replay.

        Args:
            service: Job service, which provides the settings, the metrics and the shared texts.
            record: Record of the job.
            log: Log of the job.
            plan: Start of the stream: its first event, and the position after which the stream continues.
            as_logged: Whether to yield every event as it was logged, without merging events for a slow reader.
        """
        self._service = service
        self._job, self._principal = record.id, record.principal
        self._log = log
        self._plan = plan
        self._as_logged = as_logged
        self._snapshot_bytes = _SMALL_STATE_BYTES
        """Size of the last snapshot. Encoding a large state is slow, so it is done only if more bytes of events were missed."""
        self._ended = False
        """Whether `done` was yielded."""
        self.cursor: Cursor | None = None
        """Id of the last event that was yielded. A caller that sends later events itself must update it."""
        self.behind = False
        """Whether the reader has not received all yielded events yet. The caller sets this attribute."""

    async def events(self) -> AsyncGenerator[Part, None]:
        """Yield the events of the log, from the start of the plan on."""
        # Do not keep events in local variables, because a stalled reader would keep them in memory.
        self.cursor = self._plan.after
        if self._plan.snapshot is not None:
            position, reason = self._plan.snapshot
            yield await self._snapshot(reason, oldest=position is ReplayStart.OLDEST)
        merges = False
        while True:
            merges = not self._as_logged and (self.behind or (merges and not self._caught_up()))
            yield await self._next_events(merges=merges)
            if self._ended:
                return
            if self._caught_up():
                yield NOTHING_TO_SEND

    async def snapshots(self, interval: float, wake: Callable[[], None]) -> AsyncGenerator[Part, None]:
        """Yield a snapshot whenever the state has changed, and `done`.

        Args:
            interval: Minimum number of seconds between two snapshots.
            wake: Function that is called when a snapshot may be due, so that the caller continues the generator.
        """
        loop = asyncio.get_running_loop()
        reason: SnapshotReason = "compacted" if self._plan.snapshot is None else self._plan.snapshot[1]
        earliest = 0.0
        while not self._ended:
            ended = self._log.extent().ended
            if (await self._log.state()).cursor != self.cursor:
                earliest = loop.time() + interval
                yield await self._snapshot(reason)
                reason = "compacted"
            if ended:
                yield await self._next_events(merges=False)
                continue
            yield NOTHING_TO_SEND
            while (left := earliest - loop.time()) > 0 and not self._log.extent().ended:
                timer = loop.call_later(left, wake)
                try:
                    yield NOTHING_TO_SEND
                finally:
                    timer.cancel()

    def _caught_up(self) -> bool:
        return self.cursor == self._log.extent().head

    async def _next_events(self, *, merges: bool) -> Part:
        """Return the events after the cursor. If some of them were trimmed, or a snapshot is smaller, return a snapshot."""
        cursor = self.cursor
        assert cursor is not None  # noqa: S101 - the route answers an empty plan with 204
        chunk = await (self._read_merged(cursor) if merges else self._log.read(cursor, CHUNK_BYTES))
        if chunk is None:
            return await self._snapshot("compacted")
        self.cursor, self._ended = chunk.last, chunk.ended
        return (self._service.texts.events(self._principal, self._job, cursor, chunk.last, chunk.frames),)

    async def _read_merged(self, cursor: Cursor) -> LogChunk | None:
        """Read the events after a cursor and merge them. Return None if events were trimmed, or if a snapshot of the state
        is smaller than all missed events.
        """
        extent, chunk = self._log.extent(), await self._log.read(cursor, CHUNK_BYTES)
        # Merging needs the columns of the cursor's epoch, which are unknown if the log has a later epoch.
        if chunk is None or not chunk.frames or extent.head.epoch != cursor.epoch:
            return chunk
        settings, events = self._service.settings, chunk.last.seq - cursor.seq
        merger = EventMerger(
            cursor, extent.columns, max_bytes=settings.max_event_bytes, max_ops=settings.max_event_ops
        )
        for event in chunk.frames.split(b"\n\n")[:-1]:
            merger.add(event)
        frames = merger.frames()
        remaining = self._log.extent().head.seq - chunk.last.seq
        backlog = len(frames) * (events + remaining) / events if remaining else 0
        if backlog > self._snapshot_bytes:
            self._snapshot_bytes = len(
                await self._service.texts.state(self._principal, self._job, await self._log.state())
            )
            if self._snapshot_bytes < backlog:
                return None
        self._service.metrics.merged.inc(merger.merged)
        return LogChunk(frames, chunk.last, chunk.ended)

    async def _snapshot(self, reason: SnapshotReason, *, oldest: bool = False) -> Part:
        """Return a snapshot of the current state, or of the oldest state that the log stores."""
        at = await self._log.state(oldest=oldest)
        head, tail = snapshot_parts(at.cursor, at.columns, reason)
        state = await self._service.texts.state(self._principal, self._job, at)
        self._service.metrics.snapshots.labels(reason).inc()
        self.cursor = at.cursor
        return SharedText(head), state, self._service.texts.body(self._principal, tail)
