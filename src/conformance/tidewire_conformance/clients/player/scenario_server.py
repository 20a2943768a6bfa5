"""Server that plays a scenario over raw TCP. It can cut a stream inside a character, stall, or violate the protocol.

Each connection has a thread. Each kind of request has a separate script of responses, so a client may send requests of
different kinds in any order that the protocol allows. Even without a script, the server answers requests for discovery,
for one endpoint, and for a queued job. The server only records the conversation, and `client_judge` judges the record.
"""

import contextlib
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from tidewire_conformance.clients.player.conversation import (
    ClientRun,
    Conversation,
    RecordedRequest,
    read_request,
)
from tidewire_conformance.clients.player.render_stream_steps import (
    Flood,
    Pause,
    StartTiming,
    Step,
    WaitForDelivery,
    WaitForRequest,
    compact,
    cut,
    regroup,
    render,
)
from tidewire_conformance.clients.player.scenario import JOB, JOB_2, Members, Scenario
from tidewire_conformance.clients.player.scenario_bodies import (
    ENDPOINT,
    discovery_body,
    job_body,
    problem_body,
)

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


class _ConnectionOver(Exception):  # noqa: N818 - never leaves this file
    """Raised when the server must stop sending on a connection."""


class ScenarioServer:
    """Context manager that serves one scenario.

    Attributes:
        conversation: Requests and reports recorded so far.
    """

    def __init__(self, scenario: Scenario, *, patience: float) -> None:
        """Create the server. It listens while its `with` block is active.

        Args:
            scenario: Scenario to play.
            patience: Time, in seconds, that a step such as `until_saw` waits for the client.
        """
        self.conversation = Conversation()
        self._scenario = scenario
        self._patience = patience
        self._changed = threading.Condition()
        self._seen: list[Any] = []
        self._last_id: str | None = None
        self._stopping = threading.Event()
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
        self._stopping.set()
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

    def add_report(self, run: ClientRun, report: Members) -> None:
        """Record a report of the client and wake the threads that wait for reports."""
        with self._changed:
            run.reports.append((time.monotonic(), report))
            if "saw" in report:
                self._seen.append(report["value"])
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
        while not self._stopping.is_set():
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
                while not self._stopping.is_set() and (request := read_request(stream)) is not None:
                    request.foreign = foreign
                    exchange = self._record_and_find_response(request)
                    if not self._respond(connection, request, exchange):
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
            request.last_id = self._last_id
            request.exchange = self._scripted(request)
            self.conversation.requests.append(request)
            self._changed.notify_all()
        if request.exchange is not None:
            return request.exchange
        match request.kind:
            case "discoveries":
                return {"json": discovery_body(self._scenario.discovery)}
            case "endpoint":
                return {"json": ENDPOINT}
            case "jobs" | "attaching":
                found = _JOB.fullmatch(request.path)
                return {"json": job_body({}, JOB if found is None else found[1])}
        return _UNEXPECTED_REQUEST

    def _scripted(self, request: RecordedRequest) -> Members | None:
        if request.kind == "jobs" and not self.conversation.of_kind("streams"):
            request.kind = "attaching"
            return None
        script = self._scenario.scripts.get(request.kind, ())
        if request.number < len(script):
            found = script[request.number]
        elif script and (script[-1].get("repeat") or request.kind == "jobs"):
            found = script[-1]
        else:
            return None
        streams = self._scenario.scripts.get("streams", ())
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

    # ---- responses ---------------------------------------------------------------------------------------------

    def _respond(self, connection: socket.socket, request: RecordedRequest, exchange: Members) -> bool:
        """Send the response. Returns whether the connection stays open for another request."""
        if (
            "problem" in exchange
            and request.kind == "streams"
            and request.query_parameter("errors") == "inband"
        ):
            exchange = _in_band(exchange)
        is_stream = "events" in exchange
        status = exchange.get(
            "status", 201 if request.kind == "submits" and "problem" not in exchange else 200
        )
        then = exchange.get("then", "close" if status is None else "eof" if is_stream else "keep")
        try:
            if self._scenario.late:
                self._wait_and_probe(connection, request, lambda: False, self._scenario.late)
            request.last_sent_at = time.monotonic()
            if status is not None:
                if is_stream:
                    self._stream(connection, request, exchange, status, ends=then == "eof")
                else:
                    self._body(connection, request, exchange, status, closes=then != "keep")
            # Record the end before the connection closes. A fast client may send its next request before this thread continues.
            request.ending = request.ending or (time.monotonic(), then)
            if then == "stall":
                self._stay_open(connection, request)
        except (_ConnectionOver, OSError):
            # The client closed the connection, unless this server is stopping or has timed out waiting for the client.
            if not self._stopping.is_set() and request.waited_for is None:
                self._closed_by_client(request)
            return False
        if then == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return bool(then == "keep")

    def _body(
        self,
        connection: socket.socket,
        request: RecordedRequest,
        exchange: Members,
        status: int,
        *,
        closes: bool,
    ) -> None:
        kind, text = "application/json", ""
        if "problem" in exchange:
            kind, text = "application/problem+json", compact(problem_body(exchange["problem"], status))
        elif "job" in exchange:
            text = compact(job_body(exchange["job"]))
        elif "json" in exchange:
            text = compact(exchange["json"])
        elif "text" in exchange:
            kind, text = "text/html", exchange["text"]
        body = self._fill(text).encode()
        headers = {"Content-Type": kind if body else None, "Content-Length": str(len(body))}
        headers["Cache-Control"] = "no-store"
        headers["Connection"] = "close" if closes else None
        if request.kind == "submits" and "job" in exchange:
            headers["Location"] = f"/v1/jobs/{JOB}"
        self._send(connection, request, self._head(status, headers, exchange, request) + body)

    def _stream(
        self,
        connection: socket.socket,
        request: RecordedRequest,
        exchange: Members,
        status: int,
        *,
        ends: bool,
    ) -> None:
        framing = exchange.get("framing", "chunked")
        headers = {
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-store, no-transform",
            "X-Accel-Buffering": "no",
            "Connection": "close",
            "Transfer-Encoding": "chunked" if framing == "chunked" else None,
        }
        version = "1.0" if framing == "http/1.0" else "1.1"
        self._send(connection, request, self._head(status, headers, exchange, request, version))
        line_end = exchange.get("line_end", "lf")
        log, cursor = self._scenario.log, request.cursor
        steps = list(render(exchange["events"], self._fill, line_end=line_end, log=log, cursor=cursor))
        if "cut_after" in exchange:
            steps = list(cut(steps, exchange["cut_after"]))
        for step in regroup(steps, exchange.get("chunk", "step")):
            self._step(connection, request, step, chunked=framing == "chunked")
        if framing == "chunked" and ends:
            request.ending = time.monotonic(), "eof"
            connection.sendall(b"0\r\n\r\n")

    def _step(
        self, connection: socket.socket, request: RecordedRequest, step: Step, *, chunked: bool
    ) -> None:
        match step:
            case bytes():
                if step:
                    framed = b"%x\r\n%b\r\n" % (len(step), step) if chunked else step
                    self._send(connection, request, step, framed)
            case Flood(size, line):
                row = b"data:" + b"x" * (line - 6) + b"\n" if line else b"x"
                piece = row * (_FLOOD_PIECE // len(row))
                framed = b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece
                self._send(connection, request, b"(a flood of x)", framed)
                for _ in range(size // len(piece)):
                    connection.sendall(framed)
                request.flood_read = True
            case StartTiming(name):
                request.laps.append((name, time.monotonic()))
            case Pause(seconds):
                self._wait_and_probe(connection, request, lambda: False, seconds)
            case WaitForDelivery(value):
                if not self._wait_and_probe(connection, request, lambda: value in self._seen, self._patience):
                    self._timed_out(request, f"the client delivers {compact(value)}")
            case WaitForRequest(kind):
                if not self._wait_and_probe(
                    connection, request, lambda: bool(self.conversation.of_kind(kind)), self._patience
                ):
                    self._timed_out(request, f"the client sends a request of kind {kind!r}")

    def _timed_out(self, request: RecordedRequest, what: str) -> None:
        request.waited_for = what
        raise _ConnectionOver

    def _send(
        self, connection: socket.socket, request: RecordedRequest, data: bytes, framed: bytes | None = None
    ) -> None:
        request.last_sent_at = time.monotonic()
        request.sent.append((request.last_sent_at, data))
        # Record the id before the data is sent. A fast client may send its next request before this thread continues.
        if data[-1:] in {b"\n", b"\r"}:
            self._record_last_id(request)
        connection.sendall(data if framed is None else framed)

    def _head(
        self,
        status: int,
        headers: dict[str, str | None],
        exchange: Members,
        request: RecordedRequest,
        version: str = "1.1",
    ) -> bytes:
        # Allow every origin, because cross-origin access control is a feature of servers, and this scenario tests a client.
        headers["Access-Control-Allow-Origin"] = request.headers.get("origin")
        scripted = exchange.get("headers", {})
        kept = {
            name: value for name, value in headers.items() if name.lower() not in map(str.lower, scripted)
        }
        lines = [f"HTTP/{version} {status} Scripted"]
        lines += [f"{name}: {self._fill(value)}" for name, value in {**kept, **scripted}.items() if value]
        return "\r\n".join(lines).encode() + b"\r\n\r\n"

    def _fill(self, text: str) -> str:
        for name, value in (
            ("{job}", JOB),
            ("{job2}", JOB_2),
            ("{base}", self.url),
            ("{other}", _origin(self._listeners[1])),
        ):
            text = text.replace(name, value)
        return text

    # ---- waiting -----------------------------------------------------------------------------------------------

    def _wait_and_probe(
        self,
        connection: socket.socket,
        request: RecordedRequest,
        condition: Callable[[], bool],
        seconds: float,
    ) -> bool:
        """Wait for a condition, and check meanwhile whether the connection is still open. Returns False on timeout."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.wait(lambda: condition() or self._stopping.is_set(), min(_PROBE_INTERVAL, left)):
                if self._stopping.is_set():
                    raise _ConnectionOver
                return True
            if _is_closed(connection):
                raise _ConnectionOver
        return False

    def _stay_open(self, connection: socket.socket, request: RecordedRequest) -> None:
        while not self._stopping.is_set():
            self._wait_and_probe(connection, request, lambda: False, self._patience)
        raise _ConnectionOver

    def _closed_by_client(self, request: RecordedRequest) -> None:
        with self._changed:
            request.closed = time.monotonic()
            self._changed.notify_all()

    def _record_last_id(self, request: RecordedRequest) -> None:
        """Record the id of the last event that was sent completely. The client is expected to use this id as its
        cursor.
        """
        if request.exchange is not None and "events" in request.exchange:
            for name in _logged(b"".join(data for _, data in request.sent[1:])):
                self._last_id = name


def _in_band(exchange: Members) -> Members:
    """Convert a problem response to an event stream, as the query parameter `errors=inband` requests (section 10.1)."""
    problem = problem_body(exchange["problem"], exchange["status"])
    event: dict[str, Any] = {"event": "problem", "data": problem}
    if not problem["retryable"]:
        event["id"] = "0-1"
    rest = {name: value for name, value in exchange.items() if name not in {"problem", "status", "headers"}}
    return {**rest, "events": [event], "then": "eof"}


def _logged(body: bytes) -> Iterator[str]:
    """Yield the ids of the logged events that a body contains completely."""
    body = body.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for block in body.split(b"\n\n")[:-1]:
        lines = block.split(b"\n")
        names = [line[3:] for line in lines if line.startswith(b"id:")]
        if names and any(line.startswith(b"data:") for line in lines):
            yield names[-1].strip().decode("utf-8", "replace")


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
