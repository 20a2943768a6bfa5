"""The server of a scenario: raw TCP, so that it can cut inside a character, reset, stall and lie.

Each connection has a thread. Requests are sorted into lanes by what they ask for, and each lane answers by its own
list, so that no client has to ask in an order that the protocol does not give. Beside the answers of the scenario it
knows discovery, one endpoint, and the job as it stood at its start. It judges nothing: it keeps a record.
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
    Lap,
    Pause,
    Step,
    UntilAsked,
    UntilSaw,
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
_PROBE = 0.02
"""Seconds between two looks at a connection while the server holds still."""
_FLOOD_PIECE = 2**20
"""Bytes at a time: each call gives other threads their turn, and waits for its own."""
_BEYOND: Members = {
    "status": 410,
    "problem": {"code": "job_expired", "detail": "the scenario expects no further request of this kind"},
}


class _Over(Exception):  # noqa: N818 - never leaves this file
    """Nothing more is to be said on this connection."""


class Adversary:
    """Plays one scenario while it is entered.

    Attributes:
        conversation: What was said so far.
    """

    def __init__(self, scenario: Scenario, *, patience: float) -> None:
        """Make ready to listen.

        Args:
            scenario: What to play.
            patience: Seconds that a step waits for the client.
        """
        self.conversation = Conversation()
        self._scenario = scenario
        self._patience = patience
        self._changed = threading.Condition()
        self._seen: list[Any] = []
        self._held: str | None = None
        self._stopping = threading.Event()
        self._listeners: list[socket.socket] = []
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    # ---- for the player ----------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The origin that the client is given."""
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

    def took(self, run: ClientRun, report: Members) -> None:
        """The client has reported something."""
        with self._changed:
            run.reports.append((time.monotonic(), report))
            if "saw" in report:
                self._seen.append(report["value"])
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition of the conversation holds; whether it does."""
        with self._changed:
            return self._changed.wait_for(condition, seconds)

    # ---- connections -------------------------------------------------------------------------------------------

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True, name="adversary")
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
                while not self._stopping.is_set() and (talk := read_request(stream)) is not None:
                    talk.foreign = foreign
                    exchange = self._expect(talk)
                    if not self._answer(connection, talk, exchange):
                        return
        except (OSError, ValueError):
            pass  # the client went away, or sends what is no HTTP: the record shows what it left undone
        finally:
            with self._changed:
                self._open.discard(connection)

    def _expect(self, talk: RecordedRequest) -> Members:
        """Find the answer to a request, and enter both into the record."""
        with self._changed:
            talk.lane = _lane(talk)
            talk.number = len(self.conversation.lane(talk.lane))
            talk.held = self._held
            talk.exchange = self._scripted(talk)
            self.conversation.talks.append(talk)
            self._changed.notify_all()
        if talk.exchange is not None:
            return talk.exchange
        match talk.lane:
            case "discovery":
                return {"json": discovery_body(self._scenario.discovery)}
            case "endpoint":
                return {"json": ENDPOINT}
            case "jobs" | "attaching":
                found = _JOB.fullmatch(talk.path)
                return {"json": job_body({}, JOB if found is None else found[1])}
        return _BEYOND

    def _scripted(self, talk: RecordedRequest) -> Members | None:
        if talk.lane == "jobs" and not self.conversation.lane("streams"):
            talk.lane = "attaching"
            return None
        script = self._scenario.lanes.get(talk.lane, ())
        if talk.number < len(script):
            found = script[talk.number]
        elif script and (script[-1].get("repeat") or talk.lane == "jobs"):
            found = script[-1]
        else:
            return None
        streams = self._scenario.lanes.get("streams", ())
        if talk.lane == "submits" and "job" in found and streams and _asks_for_stream(talk):
            # The other form of a submit: its answer is the first stream.
            talk.opens_stream = True
            place = f"/v1/jobs/{JOB}"
            headers = {
                "Location": place,
                "Content-Location": f"{place}/events",
                **streams[0].get("headers", {}),
            }
            return {**streams[0], "status": 200, "headers": headers, "asked": found.get("asked", {})}
        return found

    # ---- answers -----------------------------------------------------------------------------------------------

    def _answer(self, connection: socket.socket, talk: RecordedRequest, exchange: Members) -> bool:
        """Answer; whether the connection is kept for a further request."""
        if "problem" in exchange and talk.lane == "streams" and talk.asks_for("errors") == "inband":
            exchange = _in_band(exchange)
        is_stream = "events" in exchange
        status = exchange.get("status", 201 if talk.lane == "submits" and "problem" not in exchange else 200)
        then = exchange.get("then", "close" if status is None else "eof" if is_stream else "keep")
        try:
            if self._scenario.late:
                self._until(connection, talk, lambda: False, self._scenario.late)
            talk.said = time.monotonic()
            if status is not None:
                if is_stream:
                    self._stream(connection, talk, exchange, status, ends=then == "eof")
                else:
                    self._body(connection, talk, exchange, status, closes=then != "keep")
            # Before the connection closes: a quick client has asked again before this thread goes on.
            talk.ending = talk.ending or (time.monotonic(), then)
            if then == "stall":
                self._hold(connection, talk)
        except (_Over, OSError):
            # A reset that the client did not ask for would be ours alone: all else that breaks a send is its close.
            if not self._stopping.is_set() and talk.in_vain is None:
                self._gone(talk)
            return False
        if then == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return bool(then == "keep")

    def _body(
        self,
        connection: socket.socket,
        talk: RecordedRequest,
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
        if talk.lane == "submits" and "job" in exchange:
            headers["Location"] = f"/v1/jobs/{JOB}"
        self._send(connection, talk, self._head(status, headers, exchange, talk) + body)

    def _stream(
        self, connection: socket.socket, talk: RecordedRequest, exchange: Members, status: int, *, ends: bool
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
        self._send(connection, talk, self._head(status, headers, exchange, talk, version))
        line_end = exchange.get("line_end", "lf")
        log, cursor = self._scenario.log, talk.cursor
        steps = list(render(exchange["events"], self._fill, line_end=line_end, log=log, cursor=cursor))
        if "cut_after" in exchange:
            steps = list(cut(steps, exchange["cut_after"]))
        for step in regroup(steps, exchange.get("chunk", "step")):
            self._step(connection, talk, step, chunked=framing == "chunked")
        if framing == "chunked" and ends:
            talk.ending = time.monotonic(), "eof"
            connection.sendall(b"0\r\n\r\n")

    def _step(self, connection: socket.socket, talk: RecordedRequest, step: Step, *, chunked: bool) -> None:
        match step:
            case bytes():
                if step:
                    framed = b"%x\r\n%b\r\n" % (len(step), step) if chunked else step
                    self._send(connection, talk, step, framed)
            case Flood(size, line):
                row = b"data:" + b"x" * (line - 6) + b"\n" if line else b"x"
                piece = row * (_FLOOD_PIECE // len(row))
                framed = b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece
                self._send(connection, talk, b"(a flood of x)", framed)
                for _ in range(size // len(piece)):
                    connection.sendall(framed)
                talk.swallowed = True
            case Lap(name):
                talk.laps.append((name, time.monotonic()))
            case Pause(seconds):
                self._until(connection, talk, lambda: False, seconds)
            case UntilSaw(value):
                if not self._until(connection, talk, lambda: value in self._seen, self._patience):
                    self._in_vain(talk, f"the client to hand over {compact(value)}")
            case UntilAsked(lane):
                if not self._until(
                    connection, talk, lambda: bool(self.conversation.lane(lane)), self._patience
                ):
                    self._in_vain(talk, f"a request of the kind {lane!r}")

    def _in_vain(self, talk: RecordedRequest, what: str) -> None:
        talk.in_vain = what
        raise _Over

    def _send(
        self, connection: socket.socket, talk: RecordedRequest, data: bytes, framed: bytes | None = None
    ) -> None:
        talk.said = time.monotonic()
        talk.sent.append((talk.said, data))
        # Before the bytes leave: a quick client has asked again before this thread goes on.
        if data[-1:] in {b"\n", b"\r"}:
            self._hold_on_to(talk)
        connection.sendall(data if framed is None else framed)

    def _head(
        self,
        status: int,
        headers: dict[str, str | None],
        exchange: Members,
        talk: RecordedRequest,
        version: str = "1.1",
    ) -> bytes:
        # A page of any origin may read: whether it may is no matter of a client.
        headers["Access-Control-Allow-Origin"] = talk.headers.get("origin")
        asked = exchange.get("headers", {})
        kept = {name: value for name, value in headers.items() if name.lower() not in map(str.lower, asked)}
        lines = [f"HTTP/{version} {status} Told"]
        lines += [f"{name}: {self._fill(value)}" for name, value in {**kept, **asked}.items() if value]
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

    # ---- holding still -----------------------------------------------------------------------------------------

    def _until(
        self, connection: socket.socket, talk: RecordedRequest, condition: Callable[[], bool], seconds: float
    ) -> bool:
        """Wait for a condition and watch the client; whether it came to hold."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.wait(lambda: condition() or self._stopping.is_set(), min(_PROBE, left)):
                if self._stopping.is_set():
                    raise _Over
                return True
            if _is_closed(connection):
                raise _Over
        return False

    def _hold(self, connection: socket.socket, talk: RecordedRequest) -> None:
        while not self._stopping.is_set():
            self._until(connection, talk, lambda: False, self._patience)
        raise _Over

    def _gone(self, talk: RecordedRequest) -> None:
        with self._changed:
            talk.closed = time.monotonic()
            self._changed.notify_all()

    def _hold_on_to(self, talk: RecordedRequest) -> None:
        """Keep what a client now holds that read all that was sent."""
        if talk.exchange is not None and "events" in talk.exchange:
            for name in _logged(b"".join(data for _, data in talk.sent[1:])):
                self._held = name


def _in_band(exchange: Members) -> Members:
    """An answer with a problem, as a page with an EventSource asks for it (section 10.1)."""
    problem = problem_body(exchange["problem"], exchange["status"])
    event: dict[str, Any] = {"event": "problem", "data": problem}
    if not problem["retryable"]:
        event["id"] = "0-1"
    rest = {name: value for name, value in exchange.items() if name not in {"problem", "status", "headers"}}
    return {**rest, "events": [event], "then": "eof"}


def _logged(body: bytes) -> Iterator[str]:
    """The ids of the logged events that stand whole in a body."""
    body = body.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for block in body.split(b"\n\n")[:-1]:
        lines = block.split(b"\n")
        names = [line[3:] for line in lines if line.startswith(b"id:")]
        if names and any(line.startswith(b"data:") for line in lines):
            yield names[-1].strip().decode("utf-8", "replace")


def _lane(talk: RecordedRequest) -> str:
    path = talk.path
    if talk.method == "POST":
        if _JOBS_OF.fullmatch(path):
            return "submits"
        return "cancels" if path.endswith("/cancel") else "unknown"
    if talk.method != "GET":
        return "unknown"
    if path == "/v1":
        return "discovery"
    if path.startswith("/v1/endpoints/"):
        return "endpoint"
    return "jobs" if _JOB.fullmatch(path) else "streams"


def _asks_for_stream(talk: RecordedRequest) -> bool:
    return "text/event-stream" in talk.headers.get("accept", "")


def _origin(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"


def _is_closed(connection: socket.socket) -> bool:
    try:
        readable, _, _ = select.select([connection], [], [], 0)
        return bool(readable) and not connection.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):
        return True
