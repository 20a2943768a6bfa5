"""ASGI wrapper around the reference server. Its hooks change requests, responses and events.

A hook is a sync or async function of the `Exchange`. There are five kinds:

  requests(exchange)                          changes the path, query, header or body before the request reaches the server
  instead(exchange) -> response or None       responds instead of the server: (status, headers, body)
  heads(exchange, status, headers) -> status  changes the header of each response; may return another status
  bodies(exchange, status, body) -> response  changes a response that is not an event stream: (status, body)
  frames(exchange, frame) -> bytes            changes one event of an event stream, including its blank line

If a frame ends in `HANG`, nothing is sent after it. If it ends in `CUT`, the connection is closed after it.
"""

import asyncio
import inspect
import json
from dataclasses import dataclass, field
from typing import Any

HANG, CUT = b"\0hang", b"\0cut"

MAX_SPLIT_BYTES = 2048
"""Longer parts of a body are not split into pieces, since splitting a snapshot of a megabyte would take minutes."""


class ConnectionCutError(Exception):
    """Aborts the response, so that the ASGI server closes the connection."""


@dataclass
class Exchange:
    """Request to a faulty server, with storage for the hooks."""

    scope: dict[str, Any]
    body: bytes
    shared: dict[str, Any]
    """Values that the hooks store for all requests to this server."""
    own: dict[str, Any] = field(default_factory=dict)
    """Values that the hooks store for this request."""

    @property
    def method(self) -> str:
        return self.scope["method"]

    @property
    def path(self) -> str:
        return self.scope["path"]

    @path.setter
    def path(self, path: str) -> None:
        self.scope["path"], self.scope["raw_path"] = path, path.encode()

    @property
    def query(self) -> bytes:
        return self.scope["query_string"]

    @query.setter
    def query(self, query: bytes) -> None:
        self.scope["query_string"] = query

    def header(self, name: str) -> str:
        return next(
            (value.decode("latin-1") for each, value in self.scope["headers"] if each == name.encode()), ""
        )

    def set_header(self, name: str, value: str | None) -> None:
        kept = [pair for pair in self.scope["headers"] if pair[0] != name.encode()]
        self.scope["headers"] = kept + ([(name.encode(), value.encode())] if value is not None else [])

    @property
    def is_submit(self) -> bool:
        return self.method == "POST" and self.path.endswith("/jobs")

    @property
    def is_to_the_replica(self) -> bool:
        return self.header("host").endswith(f":{self.shared.get('replica')}")

    @property
    def key(self) -> str:
        return self.header("idempotency-key") if self.is_submit else ""

    @property
    def cursor(self) -> str:
        return self.header("last-event-id") if self.method == "GET" else ""

    @property
    def inputs(self) -> list[Any]:
        """Inputs of a well-formed request to submit a batch. For any other request, the list is empty."""
        inputs = self.json.get("inputs") if self.is_submit and isinstance(self.json, dict) else None
        return inputs if isinstance(inputs, list) and "input" not in self.json else []

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


def problem(status: int, code: str, **more: Any) -> tuple[int, dict[str, str], bytes]:
    body = {"code": code, "title": code, "status": status, "retryable": False, **more}
    return (
        status,
        {"content-type": "application/problem+json", "cache-control": "no-store"},
        json.dumps(body).encode(),
    )


@dataclass
class FaultProxy:
    """The hooks of one faulty server."""

    requests: list[Any] = field(default_factory=list)
    instead: list[Any] = field(default_factory=list)
    heads: list[Any] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    frames: list[Any] = field(default_factory=list)
    deltas: list[Any] = field(default_factory=list)
    """Hooks that change the deltas of the table engine."""
    settings: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    """Values shared by all requests. `life` is the number of starts, `replica` the port of the second address."""
    has_script: bool = True
    has_durable_log: bool = False
    """Whether the log is a file that survives a restart."""
    piece: int = 0
    """Size of each chunk of a body; 0 keeps the server's chunks."""
    raw_head: Any = None
    """Function that changes the raw bytes of each request header before they reach the server."""
    speaks_http_1_0: bool = False
    """Whether responses use HTTP/1.0."""
    prefix: str = ""
    """Prefix of the paths in the server's URL, which a reverse proxy removes."""

    def wrap(self, app: Any) -> Any:
        async def proxied(scope, receive, send):
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            body = b""
            while scope["method"] == "POST":
                message = await receive()
                body += message.get("body", b"")
                if not message.get("more_body"):
                    break
            exchange = Exchange(scope, body, self.shared)
            exchange.path = exchange.path.removeprefix(self.prefix)
            for hook in self.requests:
                await _resolved(hook(exchange))
            if exchange.header("content-length"):
                exchange.set_header("content-length", str(len(exchange.body)))
            for hook in self.instead:
                if (response := await _resolved(hook(exchange))) is not None:
                    await _send_response(send, *response)
                    return
            await app(exchange.scope, _replay(exchange, receive), _Sender(self, exchange, send))

        return proxied


def _replay(exchange, receive):
    replayed = False

    async def replay():
        nonlocal replayed
        if replayed or exchange.method != "POST":
            return await receive()
        replayed = True
        return {"type": "http.request", "body": exchange.body, "more_body": False}

    return replay


class _Sender:
    def __init__(self, hooks, exchange, send):
        self._hooks, self._exchange, self._send = hooks, exchange, send
        # Do not provide the attribute by which the server finds its connection. The server would otherwise write directly
        # to the connection, which would bypass the hooks.
        self._start, self._body, self._stream = None, b"", False
        self._unfinished = b""
        """Start of an event whose end the server has not sent yet."""
        # HTTP/1.0 has no chunked coding, but uvicorn always uses it. Send streams to such clients as a whole.
        self._is_http_1_0 = exchange.scope["http_version"] == "1.0"

    async def __call__(self, message):
        if message["type"] == "http.response.start":
            headers = {name.decode().lower(): value.decode("latin-1") for name, value in message["headers"]}
            self._stream = headers.get("content-type", "").startswith("text/event-stream")
            status = message["status"]
            for hook in self._hooks.heads:
                status = await _resolved(hook(self._exchange, status, headers)) or status
            pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            self._start = {"type": "http.response.start", "status": status, "headers": pairs}
            if self._stream and not self._is_http_1_0:
                await self._send(self._start)
        elif self._stream:
            await self._pass_frames(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._pass_body()

    async def _out(self, body, *, more):
        """Send a part of a body. If the fault asks for small chunks, split the part into pieces, unless it is long."""
        if self._stream and self._is_http_1_0:
            self._body += body
            if more:
                return
            body = self._body
            self._start["headers"].append((b"content-length", str(len(body)).encode()))
            await self._send(self._start)
        piece = self._hooks.piece
        if piece and len(body) <= MAX_SPLIT_BYTES:
            for at in range(0, len(body), piece):
                await self._send(
                    {"type": "http.response.body", "body": body[at : at + piece], "more_body": True}
                )
            body = b""
        if body or not more:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _pass_body(self):
        status, body = self._start["status"], self._body
        for hook in self._hooks.bodies:
            status, body = await _resolved(hook(self._exchange, status, body)) or (status, body)
        headers = [pair for pair in self._start["headers"] if pair[0] != b"content-length"]
        self._start |= {"status": status, "headers": [*headers, (b"content-length", str(len(body)).encode())]}
        if status in {204, 304}:
            self._start["headers"] = headers
        await self._send(self._start)
        await self._out(body, more=False)

    async def _pass_frames(self, message):
        out = b""
        *complete, self._unfinished = (self._unfinished + message.get("body", b"")).split(b"\n\n")
        for part in complete:
            frame = part + b"\n\n"
            for hook in self._hooks.frames:
                frame = await _resolved(hook(self._exchange, frame)) if frame else frame
                if frame.endswith((HANG, CUT)):
                    out += frame.removesuffix(HANG).removesuffix(CUT)
                    await self._out(out, more=True)
                    if frame.endswith(CUT):
                        raise ConnectionCutError
                    await asyncio.Event().wait()
            out += frame
        await self._out(out, more=message.get("more_body", False))


async def _send_response(send, status, headers, body):
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*pairs, (b"content-length", str(len(body)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _resolved(found):
    return await found if inspect.isawaitable(found) else found
