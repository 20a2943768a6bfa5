"""Event stream of one reader, written with raw ASGI messages.

A stream stores an offset into the log, never a queue of copied events. Its memory is therefore bounded: the kernel's
send buffer, plus one chunk of at most `_CHUNK_BYTES` (or one event) that waits for space in that buffer.

  the reader                                    | the server sends
  ----------------------------------------------+---------------------------------------------------------------------
  keeps up                                      | each block of events as soon as it is logged, directly from the
                                                |   append, without waking the stream's own task
  resumes after a cursor                        | the missed events as they were logged, in chunks
  is slow: the last chunk is not sent yet       | after that chunk, the events logged meanwhile, merged
  is slower: the merged events would be larger  | a snapshot at the head
    than the state, or are trimmed              |
  accepts no byte for `stall_timeout`           | nothing: it closes the connection

The server never closes a stream only because its reader is slow [TW-DIF-068]. It composes each chunk when there is
space to send it, so a slow reader costs no more than a fast one. A reader that asked for cursor `0-0` gets every event
as it was logged [TW-RES-017].
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
"""Maximum size of the events passed to the ASGI server in one send."""

_SLICE_BYTES: Final = 16 * 1024
"""Size of the events merged before yielding to the event loop. Merging them takes about two milliseconds."""

_MERGED_BYTES: Final = 256 * 1024
"""Maximum size of the logged events merged into one send."""

_SMALL_STATE_BYTES: Final = 64 * 1024
"""Backlog up to which merged events are sent without comparing their size with that of a snapshot."""

HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]

STREAM: Final = "tidewire.stream"
"""Key in the ASGI scope for the coroutine function that sends the stream. Its argument is the `send` for the body."""


_log = logging.getLogger(__name__)


class EventStream:
    """ASGI application that sends one event stream. Used for a single request."""

    __slots__ = (
        "_as_logged",
        "_connection",
        "_ephemeral_version",
        "_events_url",
        "_going_away",
        "_greeting",
        "_headers",
        "_heartbeat_timer",
        "_idle_at",
        "_interval",
        "_log",
        "_loop",
        "_metrics",
        "_ping_due",
        "_plan",
        "_record",
        "_release_slot",
        "_sender",
        "_service",
        "_settings",
        "_snapshot_bytes",
        "_wake",
    )

    def __init__(
        self,
        service: JobService,
        record: JobRecord,
        log: LogReader,
        plan: ReplayPlan,
        release_slot: Callable[[], None],
        *,
        events_url: str,
        headers: Mapping[str, str] | None = None,
        snapshot_interval: float | None = None,
        as_logged: bool = False,
    ) -> None:
        """Prepare a stream.

        Args:
            service: Counts the readers of jobs, and closes streams at shutdown.
            record: Record of the job.
            log: Log of the job.
            plan: First event of the stream.
            release_slot: Releases the stream slot of the principal. Called once, when the stream ends.
            events_url: URI reference of the stream, sent in `hello`.
            headers: Additional response headers.
            snapshot_interval: If set, send only snapshots, at least this many seconds apart.
            as_logged: Send every event as it was logged, without merging, even to a slow reader.
        """
        self._service = service
        self._metrics = service.metrics
        self._settings = service.settings
        self._record = record
        self._log = log
        self._plan = plan
        self._events_url = events_url
        self._release_slot = release_slot
        self._headers = HEADERS + [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self._interval = snapshot_interval
        self._as_logged = as_logged
        self._snapshot_bytes = _SMALL_STATE_BYTES
        self._wake = asyncio.Event()
        self._idle_at: Cursor | None = None
        """Cursor of the last event sent, while the stream's task waits for the next block. None while the task runs."""
        self._going_away = False
        self._greeting = b""
        """Encoded `hello` and opening snapshot, to be sent together with the first events."""
        self._ephemeral_version = 0
        self._loop = asyncio.get_running_loop()
        self._ping_due = False
        self._heartbeat_timer: asyncio.TimerHandle
        self._sender: BackpressuredSender
        self._connection: UvicornConnection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Register the stream in the scope. `TidewireApp` runs it after the router and the middleware have returned.

        The response head passes through the middleware, but the body does not. If the stream ran inside the middleware,
        every wake-up would pass through all its coroutines and every send through all its wrappers, and each open
        stream would keep them in memory.
        """
        scope[STREAM] = partial(self._run, scope, receive, send)

    async def _run(self, scope: Scope, receive: Receive, send_head: Send, send: Send) -> None:
        try:
            if scope["method"] == "HEAD":  # no body, so the request does not count as a reader
                await send_head({"type": "http.response.start", "status": 200, "headers": self._headers})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            detach = self._service.readers.attach(self._record.id)
            try:
                await self._respond(scope, receive, send_head, send)
            finally:
                detach()
        finally:
            self._release_slot()

    async def _respond(self, scope: Scope, receive: Receive, send_head: Send, send: Send) -> None:
        stall_timeout = self._settings.stall_timeout
        self._connection = scope["tidewire.http.response"]
        self._sender = sender = BackpressuredSender(
            send_head, send, receive, self._connection, stall_timeout=stall_timeout, gone=self._wake.set
        )
        self._check_heartbeat()
        unwatch = self._log.watch(self._on_log_change)
        self._service.streams.add(self)
        try:
            sender.begin(self._headers)
            await self._serve_or_goaway()
        except StalledError:
            self._metrics.stalled.inc()
            await sender.abort()
        except GoneError:
            pass
        finally:
            unwatch()
            self._heartbeat_timer.cancel()
            self._service.streams.discard(self)
            sender.close()

    def go_away(self) -> None:
        """Send `goaway` to the reader, because the server is shutting down. The reader reconnects later."""
        self._going_away = True
        self._wake.set()

    # ---- events ----------------------------------------------------------------------------------------------

    async def _serve_or_goaway(self) -> None:
        """Send the stream. On any failure, end with `goaway`, so that the reader reconnects [TW-DEP-005]."""
        try:
            await self._serve()
        except (GoneError, StalledError):
            raise
        except StoreError as error:
            _log.error("closed a stream of job %s: %s", self._record.id, error)
        except Exception:  # noqa: BLE001 - logged, and the reader reconnects
            # Handle it here: the response has started, so the application cannot send a problem response any more.
            _log.exception("a stream of job %s failed", self._record.id)
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
        cursor = self._plan.after
        if cursor is None:
            assert self._plan.snapshot is not None  # noqa: S101 - the route answers an empty plan with 204
            position, reason = self._plan.snapshot
            at = await self._log.state(oldest=position is ReplayStart.OLDEST)
            self._greeting += self._snapshot(at, reason)
            cursor = at.cursor
        await self._follow(cursor)

    async def _follow(self, cursor: Cursor) -> None:
        self._wake.set()
        while True:
            # Clear the event before reading: an append after this line sets it again, so no append is missed.
            if not self._wake.is_set():
                cursor = await self._idle(cursor)
            self._wake.clear()
            if self._going_away and (self._sender.behind() or not self._log.extent().ended):
                await self._end(self._goaway())
                return
            if behind := self._sender.behind():
                await self._sender.wait_until_sent()
            ephemeral, self._ephemeral_version = self._log.ephemeral_events(self._ephemeral_version)
            if behind and not self._as_logged:
                chunk = await self._read_merged(cursor)
            else:
                chunk = await self._log.read(cursor, _CHUNK_BYTES)
            if chunk is None:  # events were trimmed before this slow reader got them
                at = await self._log.state()
                chunk = LogChunk(self._snapshot(at, "compacted"), at.cursor, ended=False)
            if chunk.frames or ephemeral or self._greeting:
                cursor, ended = chunk.last, chunk.ended
                frames = b"".join((*ephemeral, chunk.frames))
                # Free the chunk before the send waits: a stalled reader would keep both copies in memory.
                del chunk
                if ended:
                    await self._end(frames)
                    return
                await self._write(frames)
                del frames
                if cursor != self._log.extent().head:
                    self._wake.set()

    async def _idle(self, cursor: Cursor) -> Cursor:
        """Wait until the task has work. Returns the new cursor, because `_on_log_change` may send blocks meanwhile."""
        self._idle_at = cursor
        try:
            await self._wake.wait()
        finally:
            cursor, self._idle_at = self._idle_at, None
        await self._after_wake()
        return cursor

    def _on_log_change(self, block: Block | None) -> None:
        """Handle a new block or ephemeral event: send the block directly if possible, else wake the stream's task."""
        try:
            if block is not None and self._send_directly(block):
                return
        except Exception:  # noqa: BLE001 - the append must not fail because of a reader, whose task will see the error
            _log.exception("a direct write to a stream of job %s failed", self._record.id)
        self._wake.set()

    def _send_directly(self, block: Block) -> bool:
        """Send a new block directly, if the reader has all earlier events and its send buffer is empty."""
        frames, state, done = block
        epoch, seq = state[0]
        if self._idle_at != (epoch, seq - len(frames)):
            return False
        sent = frames[0] if len(frames) == 1 else b"".join(frames)
        if done or len(sent) > _CHUNK_BYTES or not self._connection.write_at_once(sent):
            return False
        self._idle_at = state[0]
        self._sender.sent_at = self._loop.time()
        self._metrics.streamed += len(sent)
        return True

    async def _read_merged(self, cursor: Cursor) -> LogChunk | None:
        """Read the events after a cursor, merged or as a snapshot if that is smaller. None if they were trimmed."""
        at = await self._log.state()
        # Merging needs the columns of the cursor's epoch, which are unknown if the head is in a later epoch.
        if at.cursor.epoch != cursor.epoch:
            return await self._log.read(cursor, _CHUNK_BYTES)
        merger = EventMerger(cursor, at.columns, self._settings.max_event_bytes)
        size, ended = 0, False
        while size < _MERGED_BYTES and not ended:
            chunk = await self._log.read(merger.last, _SLICE_BYTES)
            if chunk is None:
                return None
            if not chunk.frames:
                break
            merger.add(chunk.frames)
            size, ended = size + len(chunk.frames), chunk.ended
            await asyncio.sleep(0)
        frames, last = merger.frames(_CHUNK_BYTES)
        events = last.seq - cursor.seq
        remaining = self._log.extent().head.seq - last.seq
        whole_backlog = len(frames) * (1 + remaining / events) if remaining and events else 0.0
        # Encode a snapshot only if the backlog is larger than the last one: encoding takes time proportional to the state.
        if whole_backlog > self._snapshot_bytes:
            at = await self._log.state()
            snapshot = snapshot_frame(at.cursor, at.view.value(), at.columns, "compacted")
            self._snapshot_bytes = len(snapshot)
            if len(snapshot) < whole_backlog:
                self._metrics.snapshots.labels("compacted").inc()
                return LogChunk(snapshot, at.cursor, ended=False)
        self._metrics.merged.inc(events)
        return LogChunk(frames, last, ended and last == merger.last)

    async def _follow_snapshots(self, interval: float) -> None:
        sent: Cursor | None = None
        earliest = 0.0
        while True:
            self._wake.clear()
            if self._going_away:
                await self._end(self._goaway())
                return
            if self._sender.behind():
                await self._sender.wait_until_sent()
            ephemeral, self._ephemeral_version = self._log.ephemeral_events(self._ephemeral_version)
            ended = self._log.extent().ended
            at = await self._log.state()
            frames = b"".join(ephemeral)
            if sent is None or at.cursor != sent:
                opening = self._plan.snapshot if sent is None else None
                frames += self._snapshot(at, "compacted" if opening is None else opening[1])
                sent = at.cursor
                earliest = self._loop.time() + interval
            if ended:
                chunk = await self._log.read(at.cursor, _CHUNK_BYTES)
                await self._end(frames + (b"" if chunk is None else chunk.frames))
                return
            if frames:
                await self._write(frames)
            await self._wait()
            while self._loop.time() < earliest and not self._going_away and not self._log.extent().ended:
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
        """Return a random delay in milliseconds around `seconds`, since browsers reconnect without jitter."""
        return round(1000 * seconds * random.uniform(0.75, 1.5))

    # ---- sending ----------------------------------------------------------------------------------------------

    async def _write(self, frames: bytes) -> None:
        frames = self._with_greeting(frames)
        await self._sender.write(frames)
        self._metrics.streamed += len(frames)

    async def _end(self, frames: bytes) -> None:
        frames = self._with_greeting(frames)
        await self._sender.end(frames)
        self._metrics.streamed += len(frames)

    def _with_greeting(self, frames: bytes) -> bytes:
        greeting, self._greeting = self._greeting, b""
        return greeting + frames

    def _check_heartbeat(self) -> None:
        """Request a ping after a heartbeat interval without events. Uses one timer, which events do not reset."""
        now, due = self._loop.time(), self._sender.sent_at + self._settings.heartbeat
        if now >= due:
            self._ping_due, due = True, now + self._settings.heartbeat
            self._wake.set()
        self._heartbeat_timer = self._loop.call_at(due, self._check_heartbeat)

    async def _wait(self) -> None:
        """Wait for the next wake-up. Sends a ping if nothing was sent for a heartbeat interval."""
        await self._wake.wait()
        await self._after_wake()

    async def _after_wake(self) -> None:
        if self._sender.gone:
            raise GoneError
        if self._ping_due:
            self._ping_due = False
            if self._loop.time() >= self._sender.sent_at + self._settings.heartbeat:
                await self._write(ephemeral_frame("ping", Ping(head=str(self._log.extent().head))))
