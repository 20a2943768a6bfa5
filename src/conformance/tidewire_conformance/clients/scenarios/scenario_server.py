"""Server that plays a scenario over raw TCP. It can cut a stream inside a character, stall, or violate the protocol.

Each connection has a thread. Each kind of request has a separate script of responses, so a client may send requests of
different kinds in any order that the protocol allows. Even without a script, the server answers requests for discovery,
for one endpoint, and for a queued job. The server only records the conversation, and `judge_conversation` judges the record.
"""

import contextlib
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tidewire_conformance.clients.scenarios.conversation import (
    ClientRun,
    Conversation,
    RecordedRequest,
    read_request,
)
from tidewire_conformance.clients.scenarios.render_stream_steps import Step, compact, cut, regroup, render
from tidewire_conformance.clients.scenarios.scenario import JOB, JOB_2, Members, Scenario
from tidewire_conformance.clients.scenarios.scenario_bodies import (
    ENDPOINT,
    discovery_body,
    job_body,
    problem_body,
)
from tidewire_conformance.wire.event_stream_decoder import EventStreamDecoder

_JOB = re.compile(r"/v1/jobs/([^/]+)")
_JOBS_OF = re.compile(r"/v1/endpoints/[^/]+/jobs")
_PROBE_INTERVAL = 0.02
"""Interval, in seconds, at which the server checks whether the client has closed an idle connection."""
_FLOOD_PIECE = 2**20
"""Number of bytes per send call for an endless event. Each call switches threads, so smaller pieces would be slow."""
_UNEXPECTED_REQUEST: Members = {
    "status": 410,
    "problem": {"code": "job_expired", "detail": "the scenario does not expect another request of this kind"},
}
_END_OF_STREAMS: Members = {"status": 204, "text": ""}
"""Response that asks a client of the profile `sse` not to reconnect."""
_PROMPT_SECONDS = 2.0
"""Time, in seconds, after which an event is late. The server then sends the next byte. `patience` multiplies this time."""


class _ConnectionOver(Exception):  # noqa: N818 - never leaves this file
    """Raised when the server must stop sending on a connection."""


class ScenarioServer:
    """Context manager that serves one scenario."""

    def __init__(self, scenario: Scenario, *, patience: float) -> None:
        """Create the server. It listens while its `with` block is active.

        Args:
            scenario: Scenario to play.
            patience: Time, in seconds, that a step such as `until_saw` waits for the client.
        """
        self.scenario = scenario
        self.patience = patience
        self.conversation = Conversation()
        """Requests and reports recorded so far."""
        self.seen: list[Any] = []
        """Values that the client has delivered to its user."""
        self.last_id: str | None = None
        """Id of the last event that was sent completely. The client is expected to use this id as its cursor."""
        self.action: Members = {}
        """Action of the client that is running."""
        self.streams_before = 0
        """Number of stream requests before the current action, if the script of responses starts again for each action."""
        self.completed_events = 0
        """Number of events that were sent completely in the current action."""
        self.stopping = threading.Event()
        """Set when the `with` block ends."""
        self._changed = threading.Condition()
        self._listeners: list[socket.socket] = []
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    # ---- interface for the player ------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Base URL that the client must use."""
        return _origin(self._listeners[0])

    def __enter__(self) -> Self:
        for foreign in (False, True):
            listener = socket.create_server(("127.0.0.1", 0))
            self._listeners.append(listener)
            self._start(self._accept, listener, foreign)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        with self._changed:
            still_open = [*self._listeners, *self._open]
            self._changed.notify_all()
        for one in still_open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for listener in self._listeners:
            listener.close()
        for thread in self._threads:
            thread.join(5)

    def begin_action(self, action: Members) -> None:
        """Set the action that the client runs next."""
        with self._changed:
            self.action, self.completed_events = action, 0
            if action["do"] == "open":
                self.streams_before = len(self.conversation.of_kind("streams"))

    def add_report(self, run: ClientRun, report: Members) -> None:
        """Record a report of the client and wake the threads that wait for reports."""
        with self._changed:
            run.reports.append((time.monotonic(), report))
            if report.get("saw") == "value":
                self.seen.append(report["value"])
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition on the conversation is true. Returns False if the timeout expires first."""
        with self._changed:
            return self._changed.wait_for(condition, seconds)

    # ---- connections -------------------------------------------------------------------------------------------

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True, name="scenario-server")
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket, foreign: bool) -> None:
        while not self.stopping.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._changed:
                self._open.add(connection)
            self._start(self._serve, connection, foreign)

    def _serve(self, connection: socket.socket, foreign: bool) -> None:
        try:
            with connection, connection.makefile("rb") as stream:
                while not self.stopping.is_set() and (request := read_request(stream)) is not None:
                    request.foreign = foreign
                    exchange = self._record_and_find_response(request)
                    if not _Response(self, connection, request, exchange).send():
                        return
        except (OSError, ValueError):
            pass  # The client closed the connection or sent invalid HTTP. The record shows which requests are missing.
        finally:
            with self._changed:
                self._open.discard(connection)

    def _record_and_find_response(self, request: RecordedRequest) -> Members:
        """Record a request, and find and record the response to it."""
        with self._changed:
            request.kind = _kind(request)
            request.number = len(self.conversation.of_kind(request.kind))
            request.last_id = self.last_id
            request.exchange = self._scripted(request)
            self.conversation.requests.append(request)
            self._changed.notify_all()
        if request.exchange is not None:
            return request.exchange
        match request.kind:
            case "discoveries":
                return {"json": discovery_body(self.scenario.discovery)}
            case "endpoint":
                return {"json": ENDPOINT}
            case "jobs" | "attaching":
                found = _JOB.fullmatch(request.path)
                job = JOB if found is None else found[1]
                return {"json": self._unstarted_job() if job == JOB else job_body({}, job)}
        return _END_OF_STREAMS if self.scenario.is_of_any_client else _UNEXPECTED_REQUEST

    def _unstarted_job(self) -> dict[str, Any]:
        """Return the job at the cursor 1-1, as in the scenario's own event with this id. By default, the job is queued."""
        batch = any("inputs" in action for action in self.scenario.actions)
        for exchange in self.scenario.scripts.get("streams", ()):
            decoder = EventStreamDecoder()
            for step in render(exchange.get("events", ()), self.fill, log=self.scenario.log):
                for block in decoder.feed(step, 0.0) if isinstance(step, bytes) else ():
                    if (block.id, block.type) == ("1-1", "snapshot") and not block.typed.violation:
                        opening = {name: block.json[name] for name in ("state", "columns")}
                        return job_body({**opening, "batch": batch})
        return job_body({"batch": batch})

    def _scripted(self, request: RecordedRequest) -> Members | None:
        if request.kind == "jobs" and not self.conversation.of_kind("streams"):
            request.kind = "attaching"
            return None
        script = self.scenario.scripts.get(request.kind, ())
        number = request.number - self.streams_before
        if number < len(script):
            found = script[number]
        elif script and (script[-1].get("repeat") or request.kind == "jobs"):
            found = script[-1]
        else:
            return None
        has_read = request.cursor == "1-1" and bool(self.conversation.of_kind("attaching"))
        if has_read and found.get("status") == 400 and found.get("asked", {}).get("cursor", "") is None:
            # A request with a cursor must be followed by one without (TW-CLI-034), which the scenario is about.
            request.kind = "attaching"
        streams = self.scenario.scripts.get("streams", ())
        if request.kind == "submits" and "job" in found and streams and _asks_for_stream(request):
            # This request submits a job and accepts a stream, so respond with the first scripted stream.
            request.opens_stream = True
            job = f"/v1/jobs/{JOB}"
            headers = {
                "Location": job,
                "Content-Location": f"{job}/events",
                **streams[0].get("headers", {}),
            }
            return {**streams[0], "status": 200, "headers": headers, "asked": found.get("asked", {})}
        return found

    def closed_by_client(self, request: RecordedRequest) -> None:
        """Record that the client closed the connection, and wake the threads that wait for this."""
        with self._changed:
            request.closed = time.monotonic()
            self._changed.notify_all()

    def fill(self, text: str) -> str:
        """Replace the placeholders of scenarios in a text."""
        base, other = map(_origin, self._listeners)
        for name, value in (("{job}", JOB), ("{job2}", JOB_2), ("{base}", base), ("{other}", other)):
            text = text.replace(name, value)
        return text


class _Response:
    """Response to one request, in the form that the scenario prescribes."""

    def __init__(
        self, server: ScenarioServer, connection: socket.socket, request: RecordedRequest, exchange: Members
    ) -> None:
        self._server, self._connection, self._request = server, connection, request
        self._exchange = exchange
        self._decoder = EventStreamDecoder()
        """Decoder of the bytes that were sent."""
        if (
            "problem" in exchange
            and request.kind == "streams"
            and request.query_parameter("errors") == "inband"
        ):
            self._exchange = _in_band(exchange)
        is_submit = request.kind == "submits" and "problem" not in exchange
        self._status = self._exchange.get("status", 201 if is_submit else 200)
        # A client of HTTP/1.0 cannot decode chunks (RFC 9112, section 6.1).
        self._is_chunked = (
            self._exchange.get("framing", "chunked") == "chunked" and request.version != "HTTP/1.0"
        )

    def send(self) -> bool:
        """Send the response. Returns whether the connection stays open for another request."""
        request, is_stream = self._request, "events" in self._exchange
        default = "close" if self._status is None else "eof" if is_stream else "keep"
        then = self._exchange.get("then", default)
        if then == "keep" and request.is_last:
            then = "eof"
        try:
            if self._server.scenario.late:
                self._wait_and_probe(lambda: False, self._server.scenario.late)
            request.last_sent_at = time.monotonic()
            if self._status is not None and is_stream:
                self._send_stream(ends=then == "eof")
            elif self._status is not None:
                self._send_body(closes=then != "keep")
            # Record the end before the connection closes. A fast client may send its next request before this thread continues.
            request.ending = request.ending or (time.monotonic(), then)
            while then == "stall":
                self._wait_and_probe(lambda: False, self._server.patience)
        except (_ConnectionOver, OSError):
            # The client closed the connection, unless this server is stopping or has timed out waiting for the client.
            if not self._server.stopping.is_set() and request.waited_for is None:
                self._server.closed_by_client(request)
            return False
        if then == "reset":
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return bool(then == "keep")

    def _send_body(self, *, closes: bool) -> None:
        kind, text = "application/json", ""
        match self._exchange:
            case {"problem": members}:
                kind, text = "application/problem+json", compact(problem_body(members, self._status))
            case {"job": members}:
                text = compact(job_body(members))
            case {"json": value}:
                text = compact(value)
            case {"text": html}:
                kind, text = "text/html", html
        body = self._server.fill(text).encode()
        headers = {"Content-Type": kind if body else None}
        headers["Content-Length"] = str(len(body)) if self._status != 204 else None
        headers["Cache-Control"] = "no-store"
        headers["Connection"] = "close" if closes else None
        if self._request.kind == "submits" and "job" in self._exchange:
            headers["Location"] = f"/v1/jobs/{JOB}"
        self._send(self._head(headers) + body)

    def _send_stream(self, *, ends: bool) -> None:
        headers = {
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-store, no-transform",
            "X-Accel-Buffering": "no",
            "Connection": "close",
            "Transfer-Encoding": "chunked" if self._is_chunked else None,
        }
        self._send(self._head(headers))
        line_end, log = self._exchange.get("line_end", "lf"), self._server.scenario.log
        events, cursor = self._exchange["events"], self._request.cursor
        if self._request.last_id is None:
            # A client that has read the job has the cursor 1-1. A cut must be at the same event for all clients.
            cursor = None
        steps = list(render(events, self._server.fill, line_end=line_end, log=log, cursor=cursor))
        if "cut_after" in self._exchange:
            steps = list(cut(steps, self._exchange["cut_after"]))
        chunk = self._server.action.get("chunk", self._exchange.get("chunk", "step"))
        for step in regroup(steps, chunk):
            self._take_step(step)
        if self._is_chunked and ends:
            self._request.ending = time.monotonic(), "eof"
            self._connection.sendall(b"0\r\n\r\n")

    def _take_step(self, step: Step) -> None:
        server = self._server
        match step:
            case bytes():
                if step:
                    self._send_events(step)
            case {"flood": size}:
                line = step.get("line", 0)
                row = b"data:" + b"x" * (line - 6) + b"\n" if line else b"x"
                piece = row * (_FLOOD_PIECE // len(row))
                framed = self._framed(piece)
                self._send(b"(a flood of x)", framed)
                for _ in range(size // len(piece)):
                    self._connection.sendall(framed)
                self._request.flood_read = True
            case {"lap": name}:
                self._request.laps.append((name, time.monotonic()))
            case {"pause_ms": pause}:
                self._wait_and_probe(lambda: False, pause / 1000)
            case {"until_saw": value}:
                self._wait_for_client(lambda: value in server.seen, f"the client delivers {compact(value)}")
            case {"until_asked": kind}:
                self._wait_for_client(
                    lambda: bool(server.conversation.of_kind(kind)),
                    f"the client sends a request of kind {kind!r}",
                )

    def _send_events(self, data: bytes) -> None:
        """Send a part of the stream. If the scenario tests promptness, wait until the client has delivered each complete event."""
        events = [block for block in self._decoder.feed(data, 0.0) if block.is_event]
        # Record the id before the data is sent. A fast client may send its next request before this thread continues.
        if "events" in (self._request.exchange or {}):
            for name in (block.id for block in events if block.id is not None):
                self._server.last_id = name
        self._send(data, self._framed(data))
        if self._server.action.get("prompt"):
            self._wait_for_events(len(events))

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data

    def _send(self, data: bytes, framed: bytes | None = None) -> None:
        request = self._request
        request.last_sent_at = time.monotonic()
        request.sent.append((request.last_sent_at, data))
        self._connection.sendall(data if framed is None else framed)

    def _head(self, headers: dict[str, str | None]) -> bytes:
        # Allow every origin, because cross-origin access control is a feature of servers, and this scenario tests a client.
        headers["Access-Control-Allow-Origin"] = self._request.headers.get("origin")
        scripted = {
            name: value
            for name, value in self._exchange.get("headers", {}).items()
            if self._is_chunked or name.lower() != "transfer-encoding"
        }
        kept = {
            name: value for name, value in headers.items() if name.lower() not in map(str.lower, scripted)
        }
        version = "1.0" if self._exchange.get("framing") == "http/1.0" else "1.1"
        lines = [f"HTTP/{version} {self._status} Scripted"]
        lines += [
            f"{name}: {self._server.fill(value)}" for name, value in {**kept, **scripted}.items() if value
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n"

    # ---- waiting -----------------------------------------------------------------------------------------------

    def _wait_for_client(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for an action of the client. After the timeout, record the missing action and end the response."""
        if not self._wait_and_probe(condition, self._server.patience):
            self._request.waited_for = what
            raise _ConnectionOver

    def _wait_for_events(self, completed: int) -> None:
        """Wait until the client has delivered all complete events. Once an event was late, do not wait for later ones."""
        server = self._server
        server.completed_events += completed
        if not completed or self._request.waited_for is not None:
            return
        count, run = server.completed_events, server.conversation.runs[-1]
        seconds = _PROMPT_SECONDS * server.conversation.bound_factor
        if not self._wait_and_probe(lambda: len(run.events) >= count, seconds):
            self._request.waited_for = f"the client delivers event {count}"

    def _wait_and_probe(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition, and check meanwhile whether the connection is still open. Returns False on timeout."""
        stopping, until = self._server.stopping, time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._server.wait(lambda: condition() or stopping.is_set(), min(_PROBE_INTERVAL, left)):
                if stopping.is_set():
                    raise _ConnectionOver
                return True
            if _is_closed(self._connection):
                raise _ConnectionOver
        return False


def _in_band(exchange: Members) -> Members:
    """Convert a problem response to an event stream, as the query parameter `errors=inband` requests (section 10.1)."""
    problem = problem_body(exchange["problem"], exchange["status"])
    event: dict[str, Any] = {"event": "problem", "data": problem}
    if not problem["retryable"]:
        event["id"] = "0-1"
    rest = {name: value for name, value in exchange.items() if name not in {"problem", "status", "headers"}}
    return {**rest, "events": [event], "then": "eof"}


def _kind(request: RecordedRequest) -> str:
    path = request.path
    if request.method == "POST":
        if _JOBS_OF.fullmatch(path):
            return "submits"
        return "cancels" if path.endswith("/cancel") else "unknown"
    if request.method != "GET":
        return "unknown"
    if path == "/v1":
        return "discoveries"
    if path.startswith("/v1/endpoints/"):
        return "endpoint"
    return "jobs" if _JOB.fullmatch(path) else "streams"


def _asks_for_stream(request: RecordedRequest) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


def _origin(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"


def _is_closed(connection: socket.socket) -> bool:
    try:
        readable, _, _ = select.select([connection], [], [], 0)
        return bool(readable) and not connection.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):
        return True
