"""Event stream for one reader, written with raw ASGI messages.

A stream stores only an offset into the log, and never a queue of copied events. Its memory is therefore limited to the
kernel's send buffer and one chunk of events that waits for space in that buffer. A chunk has at most `_CHUNK_BYTES`, or
`_MERGED_BYTES` for a slow reader. A larger chunk or event, such as a snapshot, is sent in slices. All streams at the same
position of the job share its text. The data that the server sends depends on the speed of the reader:

  the reader                                    | the server sends
  ----------------------------------------------+---------------------------------------------------------------------
  keeps up                                      | each block of events as soon as it is logged, directly from the
                                                |   append, without waking the stream's own task
  resumes after a cursor                        | the missed events as they were logged, in chunks
  has not yet received the last chunk           | after that chunk, the events logged meanwhile, merged unless
                                                |   they are long and set different values
  has missed so many events that a snapshot is  | a snapshot of the current state
    smaller, or that some were trimmed          |
  accepts no byte for `stall_timeout`           | nothing; the server closes the connection

The server never closes a stream only because the reader is slow [TW-DIF-068]. The server prepares a chunk only when
there is space in the send buffer, so a slow reader costs no more than a fast reader. A reader that has sent the cursor
`0-0` gets every event as it was logged [TW-RES-017].

If a stream was opened with a stream token, the server ends it when the token expires [TW-BRW-016]. The timer of the pings
also watches the token.
"""

import asyncio
import logging
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

import orjson
from starlette.types import Receive, Scope, Send

from tidewire.protocol import messages
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.messages import Goaway, Ping, SnapshotReason, ephemeral_frame
from tidewire_server.errors import ProblemError
from tidewire_server.http.event_merging import EventMerger, sets_different_long_values
from tidewire_server.http.replay_plan import ReplayPlan, ReplayStart
from tidewire_server.http.shared_response import slices
from tidewire_server.http.uvicorn.slow_reader_sender import BackpressuredSender, GoneError, StalledError
from tidewire_server.http.uvicorn.uvicorn_internals import UvicornConnection
from tidewire_server.jobs.job_service import JobService
from tidewire_server.jobs.shared_texts import MIN_SHARED_BYTES, SharedText
from tidewire_server.log_writer.snapshot_events import snapshot_parts
from tidewire_server.store.interfaces import Block, JobRecord, LogChunk, LogReader, StateAt, StoreError

_CHUNK_BYTES: Final = 32 * 1024
"""Maximum size of the events that are passed to the ASGI server in one call of `send`."""

_SLICE_BYTES: Final = 16 * 1024
"""Total size of the events that are merged in one step. A step takes about two milliseconds, and blocks the event loop
during this time.
"""

_MERGED_BYTES: Final = 256 * 1024
"""Total size of merged events after which merging stops and the result is sent."""

_SMALL_STATE_BYTES: Final = 64 * 1024
"""Initial value of `_snapshot_bytes`. A backlog that is smaller than this attribute is sent as merged events and never
as a snapshot.
"""

_CLOCK_CHECK_SECONDS: Final = 4.0
"""Maximum number of seconds after which a stream notices that the wall clock was set past the expiry of its token."""

_GOAWAY_SECONDS: Final = 5.0
"""Maximum number of seconds in which a reader must accept `goaway` after its token has expired. Otherwise the server aborts
the connection. Together with the previous constant, it must be less than the 10 seconds of TW-BRW-016.
"""

HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]

STREAM: Final = "tidewire.stream"
"""Key in the ASGI scope under which a stream stores the coroutine function that sends its body."""


_log = logging.getLogger(__name__)

_GoawayReason = Literal["restart", "auth_expired"]

_CANCELLED_SECONDS: Final = 2.0
"""Number of seconds that a stream stays open after the ASGI server has cancelled it, if the log is in memory. In this time,
the application that contains this one should call `close`, which fails the job, so that the reader receives `done`.
"""


class EventStream:
    """ASGI application that sends one event stream in response to one request."""

    __slots__ = (
        "_abort_at",
        "_as_logged",
        "_cancelled",
        "_connection",
        "_ephemeral_version",
        "_even_if_ended",
        "_events_url",
        "_goaway_reason",
        "_headers",
        "_idle_at",
        "_interval",
        "_kept_away",
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
        "_spread",
        "_timer",
        "_token_seconds_left",
        "_unsent",
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
        headers: Sequence[tuple[bytes, bytes]] = (),
        snapshot_interval: float | None = None,
        as_logged: bool = False,
        token_seconds_left: Callable[[], float] | None = None,
    ) -> None:
        """Prepare a stream.

        Args:
            service: Job service, which counts the readers of each job and closes the streams at shutdown.
            record: Record of the job.
            log: Log of the job.
            plan: Start of the stream: its first event, and the position after which the stream continues.
            release_slot: Function that releases the principal's stream slot. It is called once, when the stream ends.
            events_url: URI reference of the stream, which is sent in the `hello` event.
            headers: Additional response headers, with names in lowercase.
            snapshot_interval: Minimum number of seconds between two snapshots, if the reader wants only snapshots.
            as_logged: Whether to send every event as it was logged, without merging events for a slow reader.
            token_seconds_left: Function that returns the number of seconds until the stream token of the request
                expires. None if the request had other credentials.
        """
        self._service = service
        self._metrics = service.metrics
        self._settings = service.settings
        self._record = record
        self._log = log
        self._plan = plan
        self._events_url = events_url
        self._release_slot = release_slot
        self._headers = [*HEADERS, *headers]
        self._interval = snapshot_interval
        self._as_logged = as_logged
        self._token_seconds_left = token_seconds_left
        self._snapshot_bytes = _SMALL_STATE_BYTES
        self._wake = asyncio.Event()
        self._idle_at: Cursor | None = None
        """Id of the last event sent, while the stream's task waits for the next block.

        None while the task is running.
        """
        self._goaway_reason: _GoawayReason | None = None
        """Reason why the server is about to end the stream."""
        self._even_if_ended = False
        """Whether to end the stream although the job has ended."""
        self._spread = 0.0
        """Number of seconds over which the reconnects of many readers are spread."""
        self._cancelled = False
        """Whether the ASGI server has cancelled the stream."""
        self._kept_away = 0.0
        """Number of seconds for which a `goaway` asks the reader to wait."""
        self._abort_at: float | None = None
        """Event loop time at which the connection is aborted, because the token has expired."""
        self._unsent = b""
        """Encoded events, such as `hello`, which are sent together with the events that follow."""
        self._ephemeral_version = 0
        self._loop = asyncio.get_running_loop()
        self._ping_due = False
        self._timer: asyncio.TimerHandle | None = None
        """Timer of the next ping and of the token's expiry. Without a token, it starts when the stream's task waits for the
        first time.
        """
        self._sender: BackpressuredSender
        self._connection: UvicornConnection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store the stream in the ASGI scope. `TidewireApp` runs the stream after the router and the middleware have
        returned.

        The response head passes through the middleware, but the body does not. If the stream ran inside the middleware,
        each send would pass through all wrappers that the middleware adds, and every open stream would keep these
        wrappers in memory.
        """
        scope[STREAM] = partial(self._run, scope, receive, send)

    async def _run(self, scope: Scope, receive: Receive, send_head: Send, send: Send) -> None:
        try:
            if scope["method"] == "HEAD":  # A HEAD request gets no body, so it does not count as a reader.
                await send_head({"type": "http.response.start", "status": 200, "headers": self._headers})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            detach = self._service.readers.attach(self._record.id)
            try:
                await self._respond(scope, receive, send_head, send)
            finally:
                detach(self._kept_away)
        finally:
            self._release_slot()

    async def _respond(self, scope: Scope, receive: Receive, send_head: Send, send: Send) -> None:
        stall_timeout = self._settings.stall_timeout
        self._connection = scope["tidewire.http.response"]
        self._sender = sender = BackpressuredSender(
            send_head, send, receive, self._connection, stall_timeout=stall_timeout, gone=self._wake.set
        )
        unwatch = self._log.watch(self._on_log_change)
        self._service.shutdown.stream_opened(self)
        try:
            sender.begin(self._headers)
            if self._token_seconds_left is not None:
                self._on_timer()  # now, because the task of a stalled reader never waits for an event
            await self._serve_or_goaway()
        except StalledError:
            self._metrics.stalled.inc()
            await sender.abort()
        except GoneError:
            pass
        except asyncio.CancelledError:
            # The ASGI server cancels streams whose readers are too slow for its shutdown, or cancels a stream twice.
            if sender.behind() is None:
                raise
            await sender.abort()
        finally:
            unwatch()
            if self._timer is not None:
                self._timer.cancel()
            self._service.shutdown.stream_closed(self)
            sender.close()

    @property
    def job_id(self) -> str:
        """Id of the job."""
        return self._record.id

    def go_away(
        self, reason: _GoawayReason = "restart", *, spread: float = 0.0, even_if_ended: bool = False
    ) -> None:
        """End the stream with `goaway`, because the server is shutting down or the stream token has expired. The reader
        reconnects later. If the server is shutting down and the job has ended, the stream ends with `done` instead.

        Args:
            reason: Reason for ending the stream.
            spread: Number of seconds over which the reconnects of all readers are spread.
            even_if_ended: Whether to send `goaway` even if the job has ended, because the reader has not accepted the
                events up to `done` in time.
        """
        if self._goaway_reason != "auth_expired":
            self._goaway_reason, self._spread = reason, spread
        self._even_if_ended = self._even_if_ended or even_if_ended
        self._wake.set()

    # ---- events ----------------------------------------------------------------------------------------------

    async def _serve_or_goaway(self) -> None:
        """Send the stream.

        If an error occurs, end the stream with `goaway`, so that the reader reconnects [TW-DEP-005].
        """
        try:
            await self._serve()
        except (GoneError, StalledError):
            raise
        except (StoreError, ProblemError) as error:
            _log.error("closed a stream of job %s: %s", self._record.id, error)
        except Exception:  # noqa: BLE001 - logged, and the reader reconnects
            # Handle the exception here. The response has started, so the application can no longer send a problem
            # response.
            _log.exception("a stream of job %s failed", self._record.id)
        else:
            return
        await self._end(self._goaway())

    async def _serve(self) -> None:
        # Let a job that was just submitted start first. If it ends at once, its whole stream is sent in one write.
        await asyncio.sleep(0)
        extent = self._log.extent()
        # Encode this event without the model `Hello`, which would take five times as long on each connection.
        hello = orjson.dumps(
            {
                "protocol": messages.PROTOCOL,
                "job": self._record.id,
                "events": self._events_url,
                "head": str(extent.head),
                "heartbeat_ms": round(self._settings.heartbeat * 1000),
            }
        )
        self._unsent = b"retry:%d\nevent:hello\ndata:%b\n\n" % (self._jittered(self._settings.retry), hello)
        if self._interval is not None:
            await self._follow_snapshots(self._interval)
            return
        cursor = self._plan.after
        if cursor is None:
            assert self._plan.snapshot is not None  # noqa: S101 - the route answers an empty plan with 204
            position, reason = self._plan.snapshot
            at = await self._log.state(oldest=position is ReplayStart.OLDEST)
            await self._send_snapshot(at, reason)
            cursor = at.cursor
            del at
        await self._follow(cursor)

    async def _follow(self, cursor: Cursor) -> None:
        self._wake.set()
        while True:
            # Clear `_wake` before reading the log. If an event is appended after the read, `_wake` is set again.
            if not self._wake.is_set():
                cursor = await self._idle(cursor)
            self._wake.clear()
            if self._must_leave():
                await self._end(self._goaway())
                return
            if behind := self._sender.behind():
                await self._sender.wait_until_sent()
            ephemeral, self._ephemeral_version = self._log.ephemeral_events(self._ephemeral_version)
            if behind and not self._as_logged:
                chunk = await self._read_merged(cursor)
            else:
                chunk = await self._log.read(cursor, _CHUNK_BYTES)
            self._unsent += b"".join(ephemeral)
            if chunk is None:  # Events were trimmed before they were sent to this slow reader.
                chunk = await self._log.state()
            if isinstance(chunk, StateAt):
                await self._send_snapshot(chunk, "compacted")
                cursor = chunk.cursor
                self._wake.set()
                continue
            if chunk.frames or self._unsent:
                after, cursor, ended = cursor, chunk.last, chunk.ended
                if len(chunk.frames) > MIN_SHARED_BYTES:
                    shared = self._service.texts.events(self._record.id, after, cursor, chunk.frames)
                    # Free the chunk before `send` waits. Otherwise the stream of a stalled reader would keep a copy of
                    # the chunk in memory.
                    del chunk
                    await self._write_shared(shared)
                    del shared
                else:
                    self._unsent += chunk.frames
                if ended:
                    await self._end(b"")
                    return
                await self._write(b"")
                if cursor != self._log.extent().head:
                    self._wake.set()

    async def _idle(self, cursor: Cursor) -> Cursor:
        """Wait until the task is woken.

        Return the id of the last event that was sent. This event may be newer than `cursor`, because `_on_log_change`
        sends events while the task waits.
        """
        self._idle_at = cursor
        try:
            await self._wait_until_woken()
        finally:
            cursor, self._idle_at = self._idle_at, None
        await self._after_wake()
        return cursor

    def _on_log_change(self, block: Block | None) -> None:
        """Handle a new block or ephemeral event.

        If possible, send the block directly. Otherwise wake the stream's task.
        """
        try:
            if block is not None and self._send_directly(block):
                return
        except Exception:  # noqa: BLE001 - one reader must not make the append fail; its task will see the error
            _log.exception("a direct write to a stream of job %s failed", self._record.id)
        self._wake.set()

    def _send_directly(self, block: Block) -> bool:
        """Send a new block directly if all earlier events were sent and the send buffer is empty.

        Return whether the block was sent.
        """
        frames, state, done, _, _ = block
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

    async def _read_merged(self, cursor: Cursor) -> LogChunk | StateAt | None:
        """Read the events after a cursor and merge them. If a snapshot of the state is smaller, return the state
        instead of the events.

        Return None if events after the cursor were trimmed.
        """
        at = await self._log.state()
        # Merging needs the columns of the cursor's epoch. They are unknown if the newest event of the log is in a later
        # epoch.
        if at.cursor.epoch != cursor.epoch:
            return await self._log.read(cursor, _CHUNK_BYTES)
        chunk = await self._read_different_values(cursor)
        merges = chunk is None
        if chunk is None:
            chunk = await self._merge(cursor, at.columns)
        if chunk is None:
            return None
        frames, last = chunk.frames, chunk.last
        events = last.seq - cursor.seq
        remaining = self._log.extent().head.seq - last.seq
        whole_backlog = len(frames) * (1 + remaining / events) if remaining and events else 0.0
        # Encode a snapshot only if the backlog is larger than the previous snapshot, because encoding a large state is
        # slow.
        if whole_backlog > self._snapshot_bytes:
            at = await self._log.state()
            self._snapshot_bytes = len(await self._service.texts.state(self._record.id, at))
            if self._snapshot_bytes < whole_backlog:
                return at
        if merges:
            self._metrics.merged.inc(events)
        return chunk

    async def _read_different_values(self, cursor: Cursor) -> LogChunk | None:
        """Read the events after a cursor, if merging would hardly make them smaller. Otherwise return None."""
        chunk = None
        # Look at a few events first, because most logs have short events.
        for size in (_SLICE_BYTES, _MERGED_BYTES):
            chunk = await self._log.read(cursor, size)
            if chunk is None or not sets_different_long_values(chunk.frames):
                return None
        return chunk

    async def _merge(self, cursor: Cursor, columns: Sequence[str]) -> LogChunk | None:
        """Read the events after a cursor and merge them. Return None if they were trimmed."""
        merger = EventMerger(cursor, columns, self._settings.max_event_bytes, self._settings.max_event_ops)
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
        return LogChunk(frames, last, ended and last == merger.last)

    async def _follow_snapshots(self, interval: float) -> None:
        sent: Cursor | None = None
        earliest = 0.0
        while True:
            self._wake.clear()
            if self._must_leave():
                await self._end(self._goaway())
                return
            if self._sender.behind():
                await self._sender.wait_until_sent()
            ephemeral, self._ephemeral_version = self._log.ephemeral_events(self._ephemeral_version)
            ended = self._log.extent().ended
            at = await self._log.state()
            self._unsent += b"".join(ephemeral)
            if sent is None or at.cursor != sent:
                opening = self._plan.snapshot if sent is None else None
                await self._send_snapshot(at, "compacted" if opening is None else opening[1])
                sent = at.cursor
                earliest = self._loop.time() + interval
            if ended:
                chunk = await self._log.read(at.cursor, _CHUNK_BYTES)
                await self._end(b"" if chunk is None else chunk.frames)
                return
            del at
            if self._unsent:
                await self._write(b"")
            await self._wait()
            while (
                self._loop.time() < earliest and self._goaway_reason is None and not self._log.extent().ended
            ):
                self._wake.clear()
                timer = self._loop.call_at(earliest, self._wake.set)
                try:
                    await self._wait()
                finally:
                    timer.cancel()

    async def _send_snapshot(self, at: StateAt, reason: SnapshotReason) -> None:
        """Send a snapshot. A small snapshot is sent together with the events that follow."""
        self._metrics.snapshots.labels(reason).inc()
        head, tail = snapshot_parts(at.cursor, at.columns, reason)
        state = await self._service.texts.state(self._record.id, at)
        if len(state) > MIN_SHARED_BYTES:
            self._unsent += head
            await self._write_shared(state)
            self._unsent = tail
        else:
            self._unsent += head + state.data + tail

    def _must_leave(self) -> bool:
        """Return whether to end the stream with `goaway`.

        During a shutdown, the readers of a job that has ended receive `done`.
        """
        if self._goaway_reason == "restart":
            return self._even_if_ended or not self._log.extent().ended
        return self._goaway_reason is not None

    def _goaway(self) -> bytes:
        wait = self._jittered(self._settings.retry, self._spread)
        self._kept_away = wait / 1000
        return ephemeral_frame(
            "goaway", Goaway(reason=self._goaway_reason or "restart", retry_ms=wait), retry_ms=wait
        )

    @staticmethod
    def _jittered(seconds: float, spread: float = 0.0) -> int:
        """Return `seconds` in milliseconds, with random jitter, because browsers add no jitter when they reconnect. The
        jitter covers at least `spread` seconds.
        """
        least = 0.75 * seconds
        return round(1000 * random.uniform(least, max(2 * least, least + spread)))

    # ---- sending ----------------------------------------------------------------------------------------------

    async def _write_shared(self, text: SharedText) -> None:
        for piece in slices(text.data):
            await self._write(piece)

    async def _write(self, frames: bytes) -> None:
        frames = self._with_unsent(frames)
        await self._sender.write(frames)
        self._metrics.streamed += len(frames)

    async def _end(self, frames: bytes) -> None:
        frames = self._with_unsent(frames)
        await self._sender.end(frames)
        self._metrics.streamed += len(frames)

    def _with_unsent(self, frames: bytes) -> bytes:
        unsent, self._unsent = self._unsent, b""
        return unsent + frames

    def _on_timer(self) -> None:
        """Send a ping if no event was sent for a heartbeat interval, and end the stream if its token has expired.

        Sending an event does not reset the timer of the stream. Instead, this function compares the time of the last
        event when the timer fires.
        """
        now, due = self._loop.time(), self._sender.sent_at + self._settings.heartbeat
        if now >= due:
            self._ping_due, due = True, now + self._settings.heartbeat
            self._wake.set()
        if self._token_seconds_left is not None:
            due = min(due, self._watch_token(now, self._token_seconds_left()))
        self._timer = self._loop.call_at(due, self._on_timer)

    def _watch_token(self, now: float, seconds_left: float) -> float:
        """End the stream if its token has expired. Return the event loop time of the next check.

        The token expires at a time of the wall clock, which may be set while the stream is open. The timer uses the
        monotonic clock, so a check is due every few seconds.
        """
        if self._abort_at is None:
            if seconds_left > 0:
                return now + min(seconds_left, _CLOCK_CHECK_SECONDS)
            self._abort_at = now + min(_GOAWAY_SECONDS, self._settings.stall_timeout)
            self.go_away("auth_expired")
        if now < self._abort_at:
            return self._abort_at
        self._connection.abort()
        return math.inf

    async def _wait(self) -> None:
        """Wait until the task is woken. Send a ping if nothing was sent for a heartbeat interval."""
        await self._wait_until_woken()
        await self._after_wake()

    async def _wait_until_woken(self) -> None:
        if self._timer is None:
            self._on_timer()
        try:
            await self._wake.wait()
        except asyncio.CancelledError:
            if self._cancelled:
                raise
            self._on_cancel()
            await self._wake.wait()

    def _on_cancel(self) -> None:
        """End the stream soon, because the ASGI server has cancelled it. ASGI servers do so when their time limit for a
        shutdown is over. The stream first sends `done` or `goaway`, unless it is cancelled a second time.
        """
        self._cancelled = True
        if self._service.shutdown.durable:
            self.go_away()
        else:
            self._loop.call_later(_CANCELLED_SECONDS, self.go_away)

    async def _after_wake(self) -> None:
        if self._sender.gone:
            raise GoneError
        if self._ping_due:
            self._ping_due = False
            if self._loop.time() >= self._sender.sent_at + self._settings.heartbeat:
                await self._write(ephemeral_frame("ping", Ping(head=str(self._log.extent().head))))
