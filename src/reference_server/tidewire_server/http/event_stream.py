"""Delivery of one event stream to its reader, written with raw ASGI messages.

A stream stores only an offset into the log, and never a queue of copied events. Its memory is therefore limited to the
kernel's send buffer and one chunk of events that waits for space in that buffer. A larger chunk or event, such as a
snapshot, is sent in slices. All streams at the same position of a job share the text of its events. `LogReplay` chooses the
events, and this module sends them:

  the reader                            | the server
  --------------------------------------+-----------------------------------------------------------------------------
  has received everything               | sends each block of events directly from the append, as soon as it is logged,
                                        |   without waking the stream's own task
  has not received the last chunk       | waits, and prepares the next chunk only when there is space in the buffer, so
                                        |   that a slow reader costs no more than a fast one
  accepts no byte for `stall_timeout`   | closes the connection

The server never closes a stream only because the reader is slow [TW-DIF-068]. If a stream was opened with a stream token,
the server ends it when the token expires [TW-BRW-027].
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, Literal

from starlette.types import Receive, Scope, Send

from tidewire.protocol.messages import PROTOCOL, Goaway, Hello, Ping, ephemeral_frame
from tidewire_server import tracing
from tidewire_server.errors import ProblemError
from tidewire_server.http.log_replay import CHUNK_BYTES, LogReplay, Part
from tidewire_server.http.replay_plan import ReplayPlan
from tidewire_server.http.shared_response import slices
from tidewire_server.http.uvicorn.slow_reader_sender import BackpressuredSender, GoneError, StalledError
from tidewire_server.http.uvicorn.uvicorn_internals import UvicornConnection
from tidewire_server.jobs.job_service import JobService
from tidewire_server.jobs.shared_texts import MIN_SHARED_BYTES
from tidewire_server.store.log_interface import Block, LogReader
from tidewire_server.store.records import JobRecord
from tidewire_server.store.store_errors import StoreError

_MAX_UNSENT_BYTES: Final = 16 * 1024
"""Size in bytes at which collected events are sent together. They are sent earlier if no more events are available."""

_CLOCK_CHECK_SECONDS: Final = 4.0
"""Interval in seconds at which a stream checks whether the wall clock was set past the expiry of its token."""

_GOAWAY_SECONDS: Final = 5.0
"""Maximum number of seconds in which a reader must accept `goaway` after its token has expired. Otherwise the server aborts
the connection. Together with the previous constant, it must be less than the 10 seconds of TW-BRW-027.
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
the outer application should call `close`. This call makes the job fail, so that the reader receives `done`.
"""


class TokenExpiry:
    """Timer that ends a stream when its token has expired [TW-BRW-027], even if the reader accepts no data.

    The token expires at a time of the wall clock, and the wall clock may be set while the stream is open. Timers of the event
    loop use a monotonic clock, so this class checks the token every few seconds.
    """

    __slots__ = ("_abort", "_leave", "_loop", "_patience", "_seconds_left", "_timer")

    def __init__(
        self,
        seconds_left: Callable[[], float],
        leave: Callable[[], None],
        abort: Callable[[], None],
        stall_timeout: float,
    ) -> None:
        """Start the timer.

        Args:
            seconds_left: Function that returns the number of seconds until the token expires.
            leave: Function that is called when the token has expired. It sends `goaway`.
            abort: Function that is called when the reader has not accepted `goaway` in time. It aborts the connection.
            stall_timeout: Number of seconds after which a reader that accepts no data is disconnected anyway.
        """
        self._seconds_left = seconds_left
        self._leave = leave
        self._abort = abort
        self._patience = min(_GOAWAY_SECONDS, stall_timeout)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._check()

    def _check(self) -> None:
        left = self._seconds_left()
        if left > 0:
            self._timer = self._loop.call_later(min(left, _CLOCK_CHECK_SECONDS), self._check)
        else:
            self._leave()
            self._timer = self._loop.call_later(self._patience, self._abort)

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()


class EventStream:
    """ASGI application that sends one event stream in response to one request."""

    __slots__ = (
        "_cancelled",
        "_connection",
        "_ephemeral_version",
        "_even_if_ended",
        "_events_url",
        "_goaway_reason",
        "_headers",
        "_interval",
        "_kept_away",
        "_log",
        "_loop",
        "_ping_due",
        "_ping_timer",
        "_record",
        "_release_slot",
        "_replay",
        "_sender",
        "_sends_directly",
        "_service",
        "_settings",
        "_span",
        "_spread",
        "_status",
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
        resumed: bool = False,
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
            snapshot_interval: Minimum number of seconds between two snapshots. None if the reader wants all events.
            as_logged: Whether to send every event as it was logged, without merging events for a slow reader.
            token_seconds_left: Function that returns the number of seconds until the stream token of the request
                expires. None if the request had other credentials.
            resumed: Whether the reader sent a cursor. The trace span of the stream contains this value.
        """
        self._service = service
        self._settings = service.settings
        self._record = record
        self._log = log
        self._replay = LogReplay(service, record, log, plan, as_logged=as_logged)
        self._events_url = events_url
        self._release_slot = release_slot
        self._headers = [*HEADERS, *headers]
        self._interval = snapshot_interval
        self._token_seconds_left = token_seconds_left
        self._wake = asyncio.Event()
        self._sends_directly = False
        """Whether `_on_log_change` may send a block. This is allowed while the stream's task waits and has sent all earlier
        events."""
        self._goaway_reason: _GoawayReason | None = None
        """Reason why the server is about to end the stream."""
        self._even_if_ended = False
        """Whether to end the stream with `goaway` even if the job has ended."""
        self._spread = 0.0
        """Number of seconds over which the reconnects of many readers are spread."""
        self._cancelled = False
        """Whether the ASGI server has cancelled the stream."""
        self._kept_away = 0.0
        """Number of seconds that a `goaway` has asked the reader to wait before it reconnects."""
        self._unsent = b""
        """Encoded events, such as `hello`, which are sent together with the events that follow."""
        self._ephemeral_version = 0
        self._loop = asyncio.get_running_loop()
        self._ping_due = False
        self._ping_timer: asyncio.TimerHandle | None = None
        """Timer of the next ping. It starts when the stream's task waits for the first time."""
        self._span = tracing.start_stream(record, resumed=resumed)
        self._status = "disconnected"
        """How the stream has ended. Its trace span contains this value."""
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
            if self._span is not None:
                self._span.end(self._status)

    async def _respond(self, scope: Scope, receive: Receive, send_head: Send, send: Send) -> None:
        stall_timeout = self._settings.stall_timeout
        self._connection = scope["tidewire.http.response"]
        self._sender = sender = BackpressuredSender(
            send_head, send, receive, self._connection, stall_timeout=stall_timeout, gone=self._wake.set
        )
        unwatch = self._log.watch(self._on_log_change)
        self._service.shutdown.stream_opened(self)
        expiry: TokenExpiry | None = None
        try:
            async with sender:
                sender.begin(self._headers)
                if self._token_seconds_left is not None:
                    leave = partial(self.go_away, "auth_expired")
                    expiry = TokenExpiry(
                        self._token_seconds_left, leave, self._connection.abort, stall_timeout
                    )
                await self._serve_or_goaway()
        finally:
            # The ASGI server may cancel a stream while the connection of a stalled reader is aborted.
            if sender.stalled:
                self._status = "stalled"
                self._service.metrics.stalled.inc()
            unwatch()
            for timer in (self._ping_timer, expiry):
                if timer is not None:
                    timer.cancel()
            self._service.shutdown.stream_closed(self)

    @property
    def job_id(self) -> str:
        """Id of the job."""
        return self._record.id

    def go_away(
        self, reason: _GoawayReason = "restart", *, spread: float = 0.0, even_if_ended: bool = False
    ) -> None:
        """End the stream with `goaway`, so that the reader reconnects later. The reason is that the server is shutting down, or
        that the stream token has expired. During a shutdown, the stream of an ended job ends with `done` instead.

        Args:
            reason: Reason for ending the stream.
            spread: Number of seconds over which the reconnects of all readers are spread.
            even_if_ended: Whether to send `goaway` even if the job has ended. Set if the reader has not accepted the events up
                to `done` in time.
        """
        if self._goaway_reason != "auth_expired":
            self._goaway_reason, self._spread = reason, spread
        self._even_if_ended = self._even_if_ended or even_if_ended
        self._wake.set()

    # ---- delivery --------------------------------------------------------------------------------------------

    async def _serve_or_goaway(self) -> None:
        """Send the stream.

        If an error occurs, end the stream with `goaway`, so that the reader reconnects [TW-DEP-005].
        """
        try:
            await self._serve()
        except (GoneError, StalledError):
            raise
        except (StoreError, ProblemError) as error:
            # Do not log an outage for each stream if the store has already logged it.
            level = logging.DEBUG if isinstance(error, StoreError) and error.logged else logging.ERROR
            _log.log(level, "closed a stream of job %s: %s", self._record.id, error)
        except Exception:  # noqa: BLE001 - logged, and the reader reconnects
            # Handle the exception here. The response has started, so the application can no longer send a problem
            # response.
            _log.exception("a stream of job %s failed", self._record.id)
        else:
            return
        await self._end(self._goaway())

    async def _serve(self) -> None:
        # Let a job that was just submitted start first. If the job ends at once, its whole stream is sent in one write.
        await asyncio.sleep(0)
        hello = Hello(
            protocol=PROTOCOL,
            job=self._record.id,
            events=self._events_url,
            head=str(self._log.extent().head),
            heartbeat_ms=round(self._settings.heartbeat * 1000),
        )
        self._unsent = ephemeral_frame("hello", hello, retry_ms=self._jittered(self._settings.retry))
        replay = self._replay
        wake = self._wake
        source = replay.events() if self._interval is None else replay.snapshots(self._interval, wake.set)
        async with aclosing(source):
            while True:
                # Clear `wake` before reading the log, so that an append during the read sets it again.
                wake.clear()
                if self._must_leave():
                    await self._end(self._goaway())
                    return
                replay.behind = bool(self._sender.behind())
                if replay.behind:
                    await self._sender.wait_until_sent()
                ephemeral, self._ephemeral_version = self._log.ephemeral_events(self._ephemeral_version)
                self._unsent += b"".join(ephemeral)
                part = await anext(source, None)
                if part is None:
                    await self._end(b"")
                    self._status = "done"
                    return
                await self._collect(part)
                caught_up = not part
                # Delete the reference. Otherwise the stream of a stalled reader would keep a second copy of the events.
                del part
                if self._unsent and (caught_up or len(self._unsent) > _MAX_UNSENT_BYTES):
                    await self._write(b"")
                if caught_up and not wake.is_set():
                    await self._wait()

    def _on_log_change(self, block: Block | None) -> None:
        """Handle a new block or ephemeral event.

        Send the block directly if all earlier events were sent and the send buffer is empty. Otherwise wake the stream's
        task.
        """
        if block is not None and self._sends_directly and block.ended is None:
            frames, cursor = block.frames, block.state.cursor
            sent = frames[0] if len(frames) == 1 else b"".join(frames)
            try:
                if (
                    self._replay.cursor == (cursor.epoch, cursor.seq - len(frames))
                    and len(sent) <= CHUNK_BYTES
                    and self._connection.write_at_once(sent)
                ):
                    self._replay.cursor = cursor
                    self._sender.sent_at = self._loop.time()
                    self._service.metrics.streamed += len(sent)
                    return
            except Exception:  # noqa: BLE001 - one reader must not make the append fail; the stream's task gets the error
                _log.exception("a direct write to a stream of job %s failed", self._record.id)
        self._wake.set()

    def _must_leave(self) -> bool:
        """Return whether to end the stream with `goaway`.

        During a shutdown, the readers of a job that has ended receive `done`.
        """
        if self._goaway_reason == "restart":
            return self._even_if_ended or not self._log.extent().ended
        return self._goaway_reason is not None

    def _goaway(self) -> bytes:
        self._status = "goaway"
        wait = self._jittered(self._settings.retry, self._spread)
        self._kept_away = wait / 1000
        return ephemeral_frame(
            "goaway", Goaway(reason=self._goaway_reason or "restart", retry_ms=wait), retry_ms=wait
        )

    @staticmethod
    def _jittered(seconds: float, spread: float = 0.0) -> int:
        """Convert a reconnect delay to milliseconds, with random jitter, because browsers add no jitter themselves. The jitter is
        0.75 to 1.5 times the delay, or up to `spread` seconds above the minimum if that is more.
        """
        least = 0.75 * seconds
        return round(1000 * random.uniform(least, max(2 * least, least + spread)))

    # ---- sending ----------------------------------------------------------------------------------------------

    async def _collect(self, part: Part) -> None:
        """Add small events to the events that are sent together. Send large ones in slices."""
        for text in part:
            if len(text) > MIN_SHARED_BYTES:
                for piece in slices(text.data):
                    await self._write(piece)
            else:
                self._unsent += text.data

    async def _write(self, frames: bytes) -> None:
        frames = self._with_unsent(frames)
        await self._sender.write(frames)
        self._service.metrics.streamed += len(frames)

    async def _end(self, frames: bytes) -> None:
        frames = self._with_unsent(frames)
        await self._sender.end(frames)
        self._service.metrics.streamed += len(frames)

    def _with_unsent(self, frames: bytes) -> bytes:
        unsent, self._unsent = self._unsent, b""
        return unsent + frames

    def _on_ping_timer(self) -> None:
        """Make the stream's task send a ping if no event was sent for a heartbeat interval.

        Sending an event does not reset the timer. Instead, this method checks the time of the last event when the timer fires.
        """
        now, due = self._loop.time(), self._sender.sent_at + self._settings.heartbeat
        if now >= due:
            self._ping_due, due = True, now + self._settings.heartbeat
            self._wake.set()
        self._ping_timer = self._loop.call_at(due, self._on_ping_timer)

    async def _wait(self) -> None:
        """Wait until the task is woken. Send a ping if nothing was sent for a heartbeat interval."""
        if self._ping_timer is None:
            self._on_ping_timer()
        self._sends_directly = self._interval is None
        try:
            await self._wake.wait()
        except asyncio.CancelledError:
            if self._cancelled:
                raise
            self._on_cancel()
            await self._wake.wait()
        finally:
            self._sends_directly = False
        if self._sender.gone:
            raise GoneError
        if self._ping_due:
            self._ping_due = False
            if self._loop.time() >= self._sender.sent_at + self._settings.heartbeat:
                await self._write(ephemeral_frame("ping", Ping(head=str(self._log.extent().head))))

    def _on_cancel(self) -> None:
        """End the stream soon, because the ASGI server has cancelled it. ASGI servers cancel streams when their time limit for
        a shutdown has passed. The stream first sends `done` or `goaway`, unless it is cancelled a second time.
        """
        self._cancelled = True
        if self._service.shutdown.durable:
            self.go_away()
        else:
            self._loop.call_later(_CANCELLED_SECONDS, self.go_away)
