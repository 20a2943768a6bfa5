"""An ASGI wrapper around the reference server that changes requests, responses and events as the hooks of a fault say.

A faulty server hooks in at one of five places, each a function of the `Exchange`, plain or async:

  requests(exchange)                          before the server sees the request; exchange.headers, path, query and body may be changed
  instead(exchange) -> answer or None         answers in place of the server: (status, headers, body)
  heads(exchange, status, headers) -> status  the header of each answer
  bodies(exchange, status, body) -> answer    the whole of an answer that is no event stream: (status, body)
  frames(exchange, frame) -> bytes            one event of an event stream, its empty line included

A frame may end in `HANG`, after which nothing follows, or in `CUT`, at which the connection breaks.
"""

import asyncio
import inspect
import json
from dataclasses import dataclass, field
from typing import Any

HANG, CUT = b"\0hang", b"\0cut"

LONGEST_CUT = 2048
"""Bytes of a body, or of a part of one, that is cut into pieces: a snapshot of a megabyte would take minutes."""


class ConnectionCutError(Exception):
    """Breaks the connection: the ASGI server closes what is not finished."""


@dataclass
class Exchange:
    """One request."""

    scope: dict[str, Any]
    body: bytes
    shared: dict[str, Any]
    """Of all requests to this server."""
    own: dict[str, Any] = field(default_factory=dict)
    """Of this request."""

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
        """Of a submit of several, as far as it has the right shape."""
        given = self.json.get("inputs") if self.is_submit and isinstance(self.json, dict) else None
        return given if isinstance(given, list) and "input" not in self.json else []

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
    """Of the table engine: change what it says of a block of tokens."""
    settings: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    """Of all requests to this server; `life` counts its starts, `replica` is the port of its second address."""
    has_script: bool = True
    has_durable_log: bool = False
    """Whether its log is a file, which outlives a restart."""
    piece: int = 0
    """Bytes of each chunk of a body, where they are not sent as they come."""
    raw_head: Any = None
    """Change the header of each request before the server sees it."""
    speaks_http_1_0: bool = False
    """Whether it answers by HTTP/1.0."""

    def wrap(self, app: Any) -> Any:
        async def meddled(scope, receive, send):
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
            await _all(self.requests, exchange)
            if exchange.header("content-length"):
                exchange.set_header("content-length", str(len(exchange.body)))
            for hook in self.instead:
                if (answer := await _value(hook(exchange))) is not None:
                    await _answer(send, *answer)
                    return
            await app(exchange.scope, _replay(exchange, receive), _Sender(self, exchange, send))

        return meddled


def _replay(exchange, receive):
    given = False

    async def again():
        nonlocal given
        if given or exchange.method != "POST":
            return await receive()
        given = True
        return {"type": "http.request", "body": exchange.body, "more_body": False}

    return again


class _Sender:
    def __init__(self, hooks, exchange, send):
        self._hooks, self._exchange, self._send = hooks, exchange, send
        # Without the attribute by which the server finds its connection: what it writes there would pass by the hooks.
        self._start, self._body, self._stream = None, b"", False
        # uvicorn sends chunks, whatever it is asked by; HTTP/1.0 knows none, and gets its streams whole.
        self._is_of_old = exchange.scope["http_version"] == "1.0"

    async def __call__(self, message):
        if message["type"] == "http.response.start":
            headers = {name.decode().lower(): value.decode("latin-1") for name, value in message["headers"]}
            self._stream = headers.get("content-type", "").startswith("text/event-stream")
            status = message["status"]
            for hook in self._hooks.heads:
                status = await _value(hook(self._exchange, status, headers)) or status
            pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            self._start = {"type": "http.response.start", "status": status, "headers": pairs}
            if self._stream and not self._is_of_old:
                await self._send(self._start)
        elif self._stream:
            await self._pass_frames(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._pass_body()

    async def _out(self, body, *, more):
        """Send a part of a body, in small pieces where the fault says so; what is long goes as it is."""
        if self._stream and self._is_of_old:
            self._body += body
            if more:
                return
            body = self._body
            self._start["headers"].append((b"content-length", str(len(body)).encode()))
            await self._send(self._start)
        piece = self._hooks.piece
        if piece and len(body) <= LONGEST_CUT:
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
            status, body = await _value(hook(self._exchange, status, body)) or (status, body)
        headers = [pair for pair in self._start["headers"] if pair[0] != b"content-length"]
        self._start |= {"status": status, "headers": [*headers, (b"content-length", str(len(body)).encode())]}
        if status in {204, 304}:
            self._start["headers"] = headers
        await self._send(self._start)
        await self._out(body, more=False)

    async def _pass_frames(self, message):
        out = b""
        for part in message.get("body", b"").split(b"\n\n")[:-1]:
            frame = part + b"\n\n"
            for hook in self._hooks.frames:
                frame = await _value(hook(self._exchange, frame)) if frame else frame
                if frame.endswith((HANG, CUT)):
                    out += frame.removesuffix(HANG).removesuffix(CUT)
                    await self._out(out, more=True)
                    if frame.endswith(CUT):
                        raise ConnectionCutError
                    await asyncio.Event().wait()
            out += frame
        await self._out(out, more=message.get("more_body", False))


async def _answer(send, status, headers, body):
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*pairs, (b"content-length", str(len(body)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _all(hooks, *given):
    for hook in hooks:
        await _value(hook(*given))


async def _value(found):
    return await found if inspect.isawaitable(found) else found
