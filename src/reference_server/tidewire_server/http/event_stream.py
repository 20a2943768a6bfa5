"""One reader's connection: an event stream written with raw ASGI messages.

A connection holds an offset into the log, never a queue of copies. What it costs is bounded: the kernel's send buffer
and one chunk of at most `_CHUNK_BYTES` (or one event) that waits for room there. How a reader is served:

  it                                            | gets
  ----------------------------------------------+---------------------------------------------------------------------
  keeps up                                      | each block of events as it is logged, in one send, by whoever logs
                                                |   it: its own task sleeps
  asks for what it missed                       | the events as they were logged, in chunks
  is behind: the last chunk has not gone out    | once that has: what came meanwhile, several events as one (merging)
  is so far behind that this would be more than | a snapshot at the head
    the state, or than the log still holds      |
  takes no byte for `stall_timeout`             | its connection closed

A reader that takes bytes is never closed for being slow (TW-DIF-068): each send is made of what is there when there is
room for it, so that it costs the same at any speed. One that asked for `0-0` gets each event as it was logged
(TW-RES-017).
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from starlette.types import Receive, Scope, Send

from tidewire.protocol import messages
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.messages import Goaway, Hello, Ping, SnapshotReason, ephemeral_frame
from tidewire_server.http.event_merging import EventMerger
from tidewire_server.http.replay_plan import ReplayPlan, ReplayStart
from tidewire_server.http.uvicorn.slow_reader_sender import BackpressuredSender, GoneError, StalledError
from tidewire_server.http.uvicorn.uvicorn_internals import UvicornConnection
from tidewire_server.jobs.job_service import JobService
from tidewire_server.log_writer.log_writer import snapshot_frame
from tidewire_server.store.interfaces import Block, JobRecord, LogChunk, LogReader, StateAt, StoreError

_CHUNK_BYTES: Final = 32 * 1024
"""Events that are handed to the ASGI server at a time."""

_SLICE_BYTES: Final = 16 * 1024
"""Events that are merged before others on the event loop have a turn: some two milliseconds."""

_MERGED_BYTES: Final = 256 * 1024
"""Logged events that are looked at for one merged send."""

_SMALL_STATE_BYTES: Final = 64 * 1024
"""Backlog within which no snapshot is made to see whether it is less."""

HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]

STREAM: Final = "tidewire.stream"
"""Key of an ASGI scope: the stream that responds to the request, called with the `send` for its body."""


_log = logging.getLogger(__name__)


class EventStream:
    """An ASGI application that serves one stream once."""

    __slots__ = (
        "_as_logged",
        "_beat_timer",
        "_connection",
        "_delivery",
        "_events_url",
        "_give_back",
        "_greeting",
        "_headers",
        "_idle_at",
        "_interval",
        "_leaves",
        "_log",
        "_loop",
        "_metrics",
        "_opening",
        "_record",
        "_service",
        "_settings",
        "_silent",
        "_snapshot_bytes",
        "_told",
        "_wake",
    )

    def __init__(
        self,
        service: JobService,
        record: JobRecord,
        log: LogReader,
        opening: ReplayPlan,
        give_back: Callable[[], None],
        *,
        events_url: str,
        headers: Mapping[str, str] | None = None,
        snapshot_interval: float | None = None,
        as_logged: bool = False,
    ) -> None:
        """Prepare a stream.

        Args:
            service: Counts readers and says when to go away.
            record: The job.
            log: Its log.
            opening: What the stream begins with.
            give_back: Gives back the place that was taken for this stream; called once, when it ends.
            events_url: URI reference of the stream, for `hello`.
            headers: Further headers of the answer.
            snapshot_interval: Send snapshots only, this many seconds apart at least.
            as_logged: Send each event as it was logged, however slowly it is taken.
        """
        self._service = service
        self._metrics = service.metrics
        self._settings = service.settings
        self._record = record
        self._log = log
        self._opening = opening
        self._events_url = events_url
        self._give_back = give_back
        self._headers = HEADERS + [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self._interval = snapshot_interval
        self._as_logged = as_logged
        self._snapshot_bytes = _SMALL_STATE_BYTES
        self._wake = asyncio.Event()
        self._idle_at: Cursor | None = None
        """What was sent last, while there is nothing to do but to send what is logged next."""
        self._leaves = False
        self._greeting = b""
        """What comes before whatever is sent first."""
        self._told = 0
        self._loop = asyncio.get_running_loop()
        self._silent = False
        self._beat_timer: asyncio.TimerHandle
        self._delivery: BackpressuredSender
        self._connection: UvicornConnection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Leave the stream to `TidewireApp`, which runs it once the router and the middleware have returned.

        The head passes through the middleware, the body does not. Within them each wake-up of the stream's task would
        pass through all their coroutines, each send through all their wrappers, and they would be held by each reader.
        """
        scope[STREAM] = partial(self._run, scope, receive, send)

    async def _run(self, scope: Scope, receive: Receive, send_head: Send, send: Send) -> None:
        try:
            if scope["method"] == "HEAD":  # which reads nothing, and so attaches no reader
                await send_head({"type": "http.response.start", "status": 200, "headers": self._headers})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            detach = self._service.readers.attach(self._record.id)
            try:
                await self._respond(scope, receive, send_head, send)
            finally:
                detach()
        finally:
            self._give_back()

    async def _respond(self, scope: Scope, receive: Receive, send_head: Send, send: Send) -> None:
        stall_timeout = self._settings.stall_timeout
        self._connection = scope["tidewire.http.response"]
        self._delivery = delivery = BackpressuredSender(
            send_head, send, receive, self._connection, stall_timeout=stall_timeout, gone=self._wake.set
        )
        self._beat()
        unwatch = self._log.watch(self._woken)
        self._service.streams.add(self)
        try:
            delivery.begin(self._headers)
            await self._serve_or_send_away()
        except StalledError:
            self._metrics.stalled.inc()
            await delivery.abort()
        except GoneError:
            pass
        finally:
            unwatch()
            self._beat_timer.cancel()
            self._service.streams.discard(self)
            delivery.close()

    def go_away(self) -> None:
        """Ask the reader to come back later, because this server ends."""
        self._leaves = True
        self._wake.set()

    # ---- what is sent ------------------------------------------------------------------------------------------

    async def _serve_or_send_away(self) -> None:
        """Serve; where the log cannot be read, or anything else fails, let the reader come back (TW-DEP-005)."""
        try:
            await self._serve()
        except (GoneError, StalledError):
            raise
        except StoreError as error:
            _log.error("a stream of job %s is closed: %s", self._record.id, error)
        except Exception:  # noqa: BLE001 - logged, and the reader comes back
            # Here, and not above: an answer that has begun cannot become a problem any more.
            _log.exception("the stream of job %s failed", self._record.id)
        else:
            return
        await self._end(self._goaway())

    async def _serve(self) -> None:
        extent = self._log.extent()
        hello = Hello(
            protocol=messages.PROTOCOL,
            job=self._record.id,
            events=self._events_url,
            head=str(extent.head),
            heartbeat_ms=round(self._settings.heartbeat * 1000),
        )
        self._greeting = ephemeral_frame("hello", hello, retry_ms=self._jittered(self._settings.retry))
        if self._interval is not None:
            await self._follow_snapshots(self._interval)
            return
        cursor = self._opening.after
        if cursor is None:
            assert self._opening.snapshot is not None  # noqa: S101 - 204 was answered else
            place, reason = self._opening.snapshot
            at = await self._log.state(oldest=place is ReplayStart.OLDEST)
            self._greeting += self._snapshot(at, reason)
            cursor = at.cursor
        await self._follow(cursor)

    async def _follow(self, cursor: Cursor) -> None:
        self._wake.set()
        while True:
            # Whatever happens from here on sets it again: a stream that has all that there is looks once, not twice.
            if not self._wake.is_set():
                cursor = await self._idle(cursor)
            self._wake.clear()
            if self._leaves and (self._delivery.behind() or not self._log.extent().ended):
                await self._end(self._goaway())
                return
            if behind := self._delivery.behind():
                await self._delivery.make_room()
            told, self._told = self._log.told(self._told)
            if behind and not self._as_logged:
                chunk = await self._merged(cursor)
            else:
                chunk = await self._log.read(cursor, _CHUNK_BYTES)
            if chunk is None:  # trimmed while this reader was behind
                at = await self._log.state()
                chunk = LogChunk(self._snapshot(at, "compacted"), at.cursor, ended=False)
            if chunk.frames or told or self._greeting:
                cursor, ended = chunk.last, chunk.ended
                frames = b"".join((*told, chunk.frames))
                del chunk  # a reader that reads nothing would hold it, beside what waits to be sent
                if ended:
                    await self._end(frames)
                    return
                await self._write(frames)
                del frames
                if cursor != self._log.extent().head:
                    self._wake.set()

    async def _idle(self, cursor: Cursor) -> Cursor:
        """Wait for something that cannot be done at once; returns what was sent last meanwhile."""
        self._idle_at = cursor
        try:
            await self._wake.wait()
        finally:
            cursor, self._idle_at = self._idle_at, None
        await self._awake()
        return cursor

    def _woken(self, block: Block | None) -> None:
        """A block was logged, or something told: pass it on at once, or let the task see to it."""
        try:
            if block is not None and self._pass_on(block):
                return
        except Exception:  # noqa: BLE001 - whoever logs must not suffer for a reader; its task finds out
            _log.exception("a stream of job %s could not be written at once", self._record.id)
        self._wake.set()

    def _pass_on(self, block: Block) -> bool:
        """Send a block that was just logged, if its reader stands before it and has room for it."""
        frames, state, done = block
        epoch, seq = state[0]
        if self._idle_at != (epoch, seq - len(frames)):
            return False
        sent = frames[0] if len(frames) == 1 else b"".join(frames)
        if done or len(sent) > _CHUNK_BYTES or not self._connection.write_at_once(sent):
            return False
        self._idle_at = state[0]
        self._delivery.sent_at = self._loop.time()
        self._metrics.streamed += len(sent)
        return True

    async def _merged(self, cursor: Cursor) -> LogChunk | None:
        """What follows a cursor, several events as one, or as a snapshot where that is less; None where it was trimmed."""
        at = await self._log.state()
        if at.cursor.epoch != cursor.epoch:  # with what columns that epoch began is not known here
            return await self._log.read(cursor, _CHUNK_BYTES)
        merging = EventMerger(cursor, at.columns, self._settings.max_event_bytes)
        size, ended = 0, False
        while size < _MERGED_BYTES and not ended:
            chunk = await self._log.read(merging.last, _SLICE_BYTES)
            if chunk is None:
                return None
            if not chunk.frames:
                break
            merging.take_in(chunk.frames)
            size, ended = size + len(chunk.frames), chunk.ended
            await asyncio.sleep(0)
        frames, last = merging.frames(_CHUNK_BYTES)
        events = last.seq - cursor.seq
        left = self._log.extent().head.seq - last.seq
        all_of_it = len(frames) * (1 + left / events) if left and events else 0.0
        # A snapshot is made only where the last one would have been worth while: it costs what the state takes.
        if all_of_it > self._snapshot_bytes:
            at = await self._log.state()
            snapshot = snapshot_frame(at.cursor, at.view.value(), at.columns, "compacted")
            self._snapshot_bytes = len(snapshot)
            if len(snapshot) < all_of_it:
                self._metrics.snapshots.labels("compacted").inc()
                return LogChunk(snapshot, at.cursor, ended=False)
        self._metrics.merged.inc(events)
        return LogChunk(frames, last, ended and last == merging.last)

    async def _follow_snapshots(self, interval: float) -> None:
        sent: Cursor | None = None
        earliest = 0.0
        while True:
            self._wake.clear()
            if self._leaves:
                await self._end(self._goaway())
                return
            if self._delivery.behind():
                await self._delivery.make_room()
            told, self._told = self._log.told(self._told)
            ended = self._log.extent().ended
            at = await self._log.state()
            frames = b"".join(told)
            if sent is None or at.cursor != sent:
                opens = self._opening.snapshot if sent is None else None
                frames += self._snapshot(at, "compacted" if opens is None else opens[1])
                sent = at.cursor
                earliest = self._loop.time() + interval
            if ended:
                chunk = await self._log.read(at.cursor, _CHUNK_BYTES)
                await self._end(frames + (b"" if chunk is None else chunk.frames))
                return
            if frames:
                await self._write(frames)
            await self._wait()
            while self._loop.time() < earliest and not self._leaves and not self._log.extent().ended:
                self._wake.clear()
                timer = self._loop.call_at(earliest, self._wake.set)
                try:
                    await self._wait()
                finally:
                    timer.cancel()

    def _snapshot(self, at: StateAt, reason: SnapshotReason) -> bytes:
        self._metrics.snapshots.labels(reason).inc()
        return snapshot_frame(at.cursor, at.view.value(), at.columns, reason)

    def _goaway(self) -> bytes:
        wait = self._jittered(self._settings.retry)
        return ephemeral_frame("goaway", Goaway(reason="restart", retry_ms=wait), retry_ms=wait)

    @staticmethod
    def _jittered(seconds: float) -> int:
        """Milliseconds, drawn for each connection: browsers do not jitter by themselves."""
        return round(1000 * seconds * random.uniform(0.75, 1.5))

    # ---- moving bytes ------------------------------------------------------------------------------------------

    async def _write(self, frames: bytes) -> None:
        frames = self._greeted(frames)
        await self._delivery.write(frames)
        self._metrics.streamed += len(frames)

    async def _end(self, frames: bytes) -> None:
        frames = self._greeted(frames)
        await self._delivery.end(frames)
        self._metrics.streamed += len(frames)

    def _greeted(self, frames: bytes) -> bytes:
        greeting, self._greeting = self._greeting, b""
        return greeting + frames

    def _beat(self) -> None:
        """Wake the stream once it has been silent for a heartbeat. One timer, however many events are sent."""
        now, due = self._loop.time(), self._delivery.sent_at + self._settings.heartbeat
        if now >= due:
            self._silent, due = True, now + self._settings.heartbeat
            self._wake.set()
        self._beat_timer = self._loop.call_at(due, self._beat)

    async def _wait(self) -> None:
        """Wait for something to happen; after a heartbeat of silence send a ping."""
        await self._wake.wait()
        await self._awake()

    async def _awake(self) -> None:
        if self._delivery.gone:
            raise GoneError
        if self._silent:
            self._silent = False
            if self._loop.time() >= self._delivery.sent_at + self._settings.heartbeat:
                await self._write(ephemeral_frame("ping", Ping(head=str(self._log.extent().head))))
