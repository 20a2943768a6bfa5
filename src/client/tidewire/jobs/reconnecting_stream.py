"""`JobStream`, which reads a job's event stream, detects connections without traffic and reconnects.

The module `tidewire.following.follower` contains the logic of the protocol and decides how the client reacts to each
event and each broken connection. This module does the I/O and the waiting. It has no background task and reads only
while a caller waits, so a slow caller exerts backpressure on the server. When a wait is cancelled, the connection stays
open for the next read. The caller must close the connection if there is no next read.
"""

import logging
from collections import deque
from http import HTTPStatus
from typing import Any, Final

import anyio

from tidewire.errors import (
    JobNotFoundError,
    NotATidewireServerError,
    ProtocolError,
    SilenceTimeoutError,
    StateTooLargeError,
    TidewireError,
    TransportError,
    UnsupportedProtocolError,
    Where,
    refusal,
)
from tidewire.following.follower import Follower
from tidewire.following.follower_outcomes import (
    Applied,
    Cause,
    Fatal,
    FatalKind,
    Ignored,
    Notice,
    Outcome,
    Reconnect,
)
from tidewire.following.http_status_actions import Action, RequestKind, is_event_stream, retry_after
from tidewire.following.request_policy import MAX_REDIRECTS, RequestPolicy
from tidewire.hooks import EndEvent, ReconnectEvent, ResyncEvent, tell, watched
from tidewire.http.api_session import ApiSession
from tidewire.http.connection_diagnosis import fault_of
from tidewire.http.response import Connection, Response
from tidewire.options import Options
from tidewire.protocol.resources import JobResource
from tidewire.protocol.sse import Decoder, Event, EventTooLargeError
from tidewire.terminal_escapes import one_line

LEAST_EVENT_BYTES: Final = 2**20
"""Smallest size limit for an event, in bytes. If `max_state_bytes` is larger, that value is the limit. [TW-FRM-078]"""

SILENT_HEARTBEATS: Final = 2.5
"""Duration of silence after which a connection counts as lost, as a multiple of the heartbeat interval."""
SILENT_CONNECTIONS: Final = 2
"""After this many connections in a row that ended in silence without a logged event, the client reads the job instead
of its stream. [TW-CLI-059]"""
READS_PER_STREAM: Final = 8
"""After this many reads of the job, the client requests the stream again."""

log: Final = logging.getLogger("tidewire")


class JobStream:
    """The event stream of one job, which may extend over several connections. Only one task at a time may read the
    stream.

    Attributes:
        session: The client's session with the server.
        options: Options of the client.
        follower: State of the protocol for this job: the document, the cursor and the number of retries.
        events_url: URL of the event stream.
        job_url: URL of the job.
    """

    def __init__(
        self, session: ApiSession, follower: Follower, options: Options, *, job_url: str, events_url: str
    ) -> None:
        self.session = session
        self.options = options
        self.follower = follower
        self.job_url = job_url
        self.events_url = events_url
        self._connection: Connection | None = None
        self._decoder = Decoder()
        self._events: deque[Event] = deque()
        self._oversized: str | None = None
        self._pending: Outcome | None = None
        self._policy = follower.policy
        self._stream_url: str | None = None
        """URL of the last response with an event stream. Relative links in the events are resolved against this URL."""
        self._last_fault: TidewireError | None = None
        self._silent_connections = 0
        """Number of connections in a row that ended in silence without a logged event."""
        self._reads = 0
        """Number of reads of the job since the last request for the stream."""

    @property
    def ended(self) -> bool:
        """Whether the client has received and applied the event `done`, which ends the job."""
        return self.follower.done is not None

    async def next_outcomes(self, limit: int, until: float | None = None) -> list[Applied | Notice]:
        """Wait for events and return their outcomes, which are changes of the job's state, or notices such as queue
        positions.

        If a connection breaks, this method reconnects as often as the retry policy allows.

        Args:
            limit: Maximum number of outcomes to return.
            until: Time on the event loop's clock at which to stop waiting for bytes and to return an empty list. A
                request is not interrupted, because it would have to be repeated.

        Raises:
            TidewireError: The client could not read the event stream up to the job's end.
        """
        outcomes: list[Applied | Notice] = []
        events, follower = self._events, self.follower
        try:
            while True:
                # Do not await between applying events and returning, because a cancellation would lose the outcomes.
                # Ignore events after the job's end and after an event that ends the connection.
                while events and len(outcomes) < limit and self._pending is None and follower.done is None:
                    outcome = follower.receive(events.popleft())
                    if type(outcome) is Applied or type(outcome) is Notice:
                        outcomes.append(outcome)
                    else:
                        self._note(outcome)
                if outcomes:
                    self._silent_connections = 0
                    return outcomes
                connection, decoder = self._connection, self._decoder
                if connection is None or self._pending is not None or self._oversized is not None:
                    if outcomes := await self._proceed():
                        return outcomes
                    continue
                try:
                    if until is None or not connection.body.resumable:
                        segment = await connection.body.read()
                    else:
                        with anyio.CancelScope(deadline=until) as wait:
                            segment = await connection.body.read()
                        if wait.cancelled_caught:
                            return []
                    if segment is None:
                        raise TransportError("the stream ended before the job did")
                    events.extend(decoder.feed(segment))
                except TransportError as error:
                    self._pending = self._read_failed(connection, error)
                except EventTooLargeError as error:
                    events.extend(error.events)
                    reason = f"an event is larger than {error.limit} bytes"
                    self._oversized = f"{reason}, the limit for a job's state (max_state_bytes)"
                if decoder.retry_ms is not None:
                    self._policy.delay = decoder.retry_ms / 1000
        except Exception:
            await self.aclose()
            raise
        except BaseException:
            if self._connection is not None and not self._connection.body.resumable:
                await self.aclose()
            raise

    def _note(self, outcome: Outcome) -> None:
        """Process an outcome that is not a change of the job's state: an ignored event, or the end of the connection."""
        if not isinstance(outcome, Ignored):
            self._pending = outcome
            return
        log.debug("%s: %s", self._label, outcome.why)
        if self.follower.greeted and self._connection is not None:
            self.session.outage_log.responded()
            self._connection.body.set_limit(SILENT_HEARTBEATS * self.follower.heartbeat, of_silence=True)

    async def adopt_response(self, connection: Connection) -> None:
        """Continue with the event stream that the server sent in response to the request that submitted the job. If
        this stream is not usable, the next read opens another stream.
        """
        self.session.contacted = True
        if not _is_stream(connection):
            await connection.aclose()
            return
        self.follower.connected()
        self._connect(connection, "", connection.url)

    async def aclose(self) -> None:
        """Close the connection, if a connection is open."""
        connection, self._connection = self._connection, None
        self._events.clear()
        self._oversized = None
        if connection is not None:
            await connection.aclose()

    def close_soon(self) -> None:
        """Close the connection soon, without awaiting the close. Finalizers and other threads use this method."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close_soon()

    # ---- reading -----------------------------------------------------------------------------------------------

    async def _proceed(self) -> list[Applied | Notice]:
        """Reconnect, open a connection or read the job.

        Raises:
            TidewireError: The client cannot continue.
        """
        match outcome := self._pending or await self._open_or_poll():
            case Applied() | Notice():
                return [outcome]
            case Reconnect():
                # Keep the pending reconnect while waiting. If a caller cancels the wait and calls again, the new call
                # must wait too. Otherwise quick calls would flood the server with requests.
                self._pending = outcome
                await self._reconnect(outcome)
                self._pending = None
            case Fatal():
                self._pending = None
                raise self._error(outcome)
        return []

    async def _open_or_poll(self) -> Outcome | None:
        """Open a connection, or read the job instead of its stream.

        Returns None if a connection was opened, and otherwise an outcome.
        """
        if self._oversized is not None:
            why, self._oversized = self._oversized, None
            return self.follower.oversized(why)
        # With on_disconnect="cancel", the server cancels a job whose stream has no reader. Reading the job with GET
        # does not count as reading its stream.
        reads = READS_PER_STREAM if self.options.on_disconnect == "continue" else 1
        if self._silent_connections >= SILENT_CONNECTIONS and self._reads < reads:
            return await self._poll()
        return await self._open()

    def _read_failed(self, connection: Connection, error: TransportError) -> Outcome:
        if isinstance(error, SilenceTimeoutError):
            if self.follower.greeted:
                return self._cut(error, silence=connection.body.limit)
            error.what = "the server sent no hello event in time"
        return self._cut(error)

    def _cut(self, fault: TidewireError, *, silence: float = 0.0) -> Outcome:
        self._last_fault = fault
        if isinstance(fault, SilenceTimeoutError) and self.follower.delivered_nothing:
            self._silent_connections += 1
        return self.follower.lost(fault.what, silence=silence)

    async def _reconnect(self, reconnect: Reconnect) -> None:
        await self.aclose()
        if reconnect.cause is Cause.POLL:
            await self.session.sleep(reconnect.wait)
            return
        level = {Cause.GOAWAY: logging.DEBUG, Cause.RESYNC: logging.WARNING}.get(
            reconnect.cause, logging.INFO
        )
        log.log(
            level,
            "%s: %s (%s); reconnecting in %.2f s",
            self._label,
            one_line(reconnect.why),
            reconnect.cause.value,
            reconnect.wait,
        )
        # Do not report these two cases as an outage. A resync logs its own warning. After several silent connections,
        # the client reads the job, and then knows whether only the stream is held back, for example by a proxy.
        if reconnect.cause is not Cause.RESYNC and self._silent_connections < SILENT_CONNECTIONS:
            self.session.report_failure(self._policy, reconnect.why, reconnect.wait)
        hooks, job_id = self.session.hooks, self.follower.job_id
        if reconnect.cause is Cause.RESYNC:
            await tell(hooks.on_resync, ResyncEvent(job_id, reconnect.why))
        event = ReconnectEvent(
            job_id,
            reconnect.cause.value,
            reconnect.why,
            reconnect.wait,
            self._last_event_id,
            failures=self._policy.failures,
            remaining=self._policy.remaining,
        )
        await tell(hooks.on_reconnect, event)
        await self.session.sleep(reconnect.wait)

    async def notify_end(self) -> None:
        """Log the job's end and call the `on_end` hook."""
        done = self.follower.done
        if done is not None:
            log.debug("%s: %s", self._label, done.status)
            event = EndEvent(self.follower.job_id, done.status, self._last_event_id)
            await tell(self.session.hooks.on_end, event)

    # ---- polling -----------------------------------------------------------------------------------------------

    async def _poll(self) -> Outcome:
        """Read the job instead of its stream, because the stream delivers nothing. A proxy may be holding the stream
        back.
        """
        if self._reads == 0 and self._silent_connections == SILENT_CONNECTIONS:
            log.warning(
                "%s: the stream delivers nothing, possibly because a proxy buffers it; reading the job repeatedly instead",
                self._label,
            )
        self._reads += 1
        outcome = self.follower.poll(await self.read_job(self._policy))
        if self.ended or not isinstance(outcome, Applied | Ignored):
            return outcome
        wait = self._policy.after_read(changed=isinstance(outcome, Applied))
        self._pending = Reconnect(wait, Cause.POLL, "the stream delivers nothing")
        return outcome if isinstance(outcome, Applied) else self._pending

    # ---- opening -----------------------------------------------------------------------------------------------

    async def _open(self) -> Outcome | None:
        """Request the event stream after the current cursor, and handle the response as the request policy decides."""
        follower, policy = self.follower, self._policy
        self._reads = 0
        follower.connected()
        policy.begin()
        cursor = "" if follower.cursor is None else str(follower.cursor)
        url = self._next_url()
        while True:
            headers = await self.session.headers(self.options)
            credentials = self.session.credentials.current
            headers.pop("Accept")
            if cursor:
                headers["Last-Event-ID"] = cursor
            try:
                opening = self.session.transport.open_stream(
                    url,
                    headers=headers,
                    connect_timeout=self.options.connect_timeout,
                    answer_timeout=self.session.timing.hello_timeout,
                )
                connection = await watched(self.session.hooks.on_request, "GET", url, opening)
            except (TransportError, NotATidewireServerError) as error:
                return await self._handle_fault(error)
            what = policy.action(
                connection.status, RequestKind.STREAM, has_cursor=bool(cursor), usable=_is_stream(connection)
            )
            if what is Action.USE:
                log.debug("%s: connected, after %s", self._label, cursor or "nothing")
                self._connect(connection, cursor, url)
                return None
            try:
                response = await connection.read_response()
            except TransportError as error:
                return self._cut(error)
            finally:
                await connection.aclose()
            if what is Action.REFRESH and await self.session.credentials.renew(credentials):
                continue
            if what is not Action.REDIRECT:
                return await self._handle_response(what, response)
            url = self.session.links.redirected(response)

    def _next_url(self) -> str:
        """Return the URL of the event stream for the next request. If the last `hello` event contains a URL with the
        server's origin, the next request uses this URL.

        A URL with another origin is ignored, because the client must not send its credentials to another origin.
        """
        link = self.follower.events_url
        if link is None or self._stream_url is None:
            return self.events_url
        return self.session.links.same_origin(self._stream_url, link, self.events_url)

    def _connect(self, connection: Connection, cursor: str, url: str) -> None:
        self._connection = connection
        self._stream_url = url
        self.session.contacted = True
        limit = max(LEAST_EVENT_BYTES, self.options.max_state_bytes)
        self._decoder = Decoder(max_event_bytes=limit, last_event_id=cursor)
        # Until `hello` arrives, this limits the total time of all reads. After `hello`, the limit applies to silence.
        connection.body.set_limit(self.session.timing.hello_timeout, of_silence=False)

    async def _handle_fault(self, error: TransportError | NotATidewireServerError) -> Outcome:
        error.placed(job_id=self.follower.job_id)
        if self._policy.fault(fault_of(error), contacted=self.session.contacted) is Action.FATAL:
            raise error
        await self.session.check_http(error, self._policy)
        return self._cut(error)

    async def _handle_response(self, what: Action, response: Response) -> Outcome:
        """Handle a response that is not an event stream."""
        if self._policy.redirects > MAX_REDIRECTS:
            raise ProtocolError(f"the server sent more than {MAX_REDIRECTS} redirects", where=self._where)
        refused = self.session.refused(response, self.options, self.follower.job_id, self._last_event_id)
        self._last_fault = refused
        match what:
            case Action.READ_JOB:
                return self.follower.read_job(await self.read_job(self._policy))
            case Action.RESYNC:
                return self.follower.malformed(refused.what)
            case Action.WAIT:
                return self.follower.busy(
                    refused.what, asked=retry_after(response.headers.get("retry-after"))
                )
            case Action.CUT:
                if response.status == HTTPStatus.OK and not self.session.contacted:
                    raise self.session.not_tidewire(response)
                if isinstance(refused, NotATidewireServerError):
                    raise refused
                return self.follower.lost(refused.what)
            case _:
                if isinstance(refused, JobNotFoundError) and self.follower.cursor is not None:
                    refused.advice = self.session.links.advice(response.url) or _FORGOTTEN
                raise refused

    async def read_job(self, policy: RequestPolicy | None = None) -> JobResource:
        """Request the job, including its state, with GET.

        Args:
            policy: If the job is read in place of its stream, the retry counters of the stream. None: this request has
                its own counters.
        """
        job_id = self.follower.job_id
        response = await self.session.request("GET", self.job_url, self.options, job_id=job_id, policy=policy)
        job = self.session.read(JobResource, response, what="job", job_id=job_id)
        if job_id is not None and job.id != job_id:
            raise ProtocolError(
                f"requested job {job_id}, but the response is job {job.id}", where=response.where()
            )
        return job

    # ---- messages and errors -----------------------------------------------------------------------------------

    @property
    def _label(self) -> str:
        return f"job {self.follower.job_id}"

    @property
    def _last_event_id(self) -> str | None:
        return None if self.follower.cursor is None else str(self.follower.cursor)

    @property
    def _where(self) -> Where:
        return Where("GET", self.events_url, self.follower.job_id, self._last_event_id)

    def _error(self, fatal: Fatal) -> TidewireError:
        where = self._where
        match fatal.kind:
            case FatalKind.PROBLEM if fatal.problem is not None:
                return refusal(fatal.problem, where)
            case FatalKind.UNSUPPORTED:
                return UnsupportedProtocolError(fatal.why, where=where)
            case FatalKind.TOO_LARGE:
                return StateTooLargeError(fatal.why, where=where)
            case FatalKind.EXHAUSTED:
                # Reset the retry counters, so that a caller that tries again after this error has all attempts
                # available.
                self._policy.progress()
                fault = self._last_fault
                hint = None if fault is None else self.session.links.advice(fault.where.url)
                return _exhausted(fatal.why, fault, where, hint)
            case _:
                return ProtocolError(fatal.why, where=where)


_FORGOTTEN: Final = (
    "The job existed earlier. A server that keeps jobs in memory loses them when it restarts, and several processes, as with "
    "`uvicorn --workers`, need a log in PostgreSQL. Submit the job again."
)


def _is_stream(connection: Connection) -> bool:
    coding = connection.headers.get("content-encoding", "identity").strip().lower()
    return is_event_stream(connection.headers.get("content-type")) and coding in {"", "identity"}


def _exhausted(why: str, fault: TidewireError | None, where: Where, hint: str | None) -> TidewireError:
    advice = hint or "The job may still run. Continue later with client.job(checkpoint=job.checkpoint())."
    kind: type[Any] = type(fault) if isinstance(fault, TransportError) else TransportError
    error: TidewireError = kind(f"gave up on the stream: {why}", where=where, advice=advice, retryable=True)
    # The cause has the details of the last attempt. Drop its traceback, which shows only this package.
    error.__cause__ = None if fault is None else fault.with_traceback(None)
    return error
