# ruff: noqa: A002 - field names of SSE such as `id` and `type` shadow built-ins
"""Scripted HTTP server: sends exactly the bytes of a test's script, over real sockets.

A `Script` is called for each request. It yields bytes to send, or one of the constants `RESET`, `CLOSE` and `HOLD`.
"""

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import anyio

from tidewire.http.api_session import Timing
from tidewire.protocol.document.digests import digest

RESET = object()
"""Script step: reset the TCP connection."""
CLOSE = object()
"""Script step: close the connection normally. Without this step the connection is kept for the next request."""
HOLD = object()
"""Script step: send nothing until the client closes the connection or the server stops."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    lines: tuple[str, ...] = ()
    """Names of the header fields in lower case, in the order of the request, including repetitions."""

    @property
    def cursor(self) -> str | None:
        return self.headers.get("last-event-id")

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script = Callable[[Request], Iterable[object]]


@dataclass
class ScriptedServer:
    script: Script
    requests: list[Request] = field(default_factory=list)
    open: int = 0
    """Number of connections that are open now."""
    connections: int = 0
    """Number of connections accepted so far."""

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._changed = threading.Condition()
        self._sockets: set[socket.socket] = set()
        self._stopping = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._changed:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def paths(self, method: str = "GET") -> list[str]:
        return [request.path for request in self.requests if request.method == method]

    def wait_until(self, condition: Callable[[], bool], timeout: float = 30) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout), "the condition did not become true in time"

    def wait_until_none_is_open(self) -> None:
        self.wait_until(lambda: self.open == 0)

    def _accept(self) -> None:
        while not self._stopping:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            self.connections += 1
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._changed:
            self._sockets.add(connection)
            self.open += 1
        try:
            with connection, connection.makefile("rb") as stream:
                while (request := _read(stream)) is not None:
                    with self._changed:
                        self.requests.append(request)
                        self._changed.notify_all()
                    if not self._answer(connection, request):
                        return
        except OSError:
            pass
        finally:
            with self._changed:
                self._sockets.discard(connection)
                self.open -= 1
                self._changed.notify_all()

    def _answer(self, connection: socket.socket, request: Request) -> bool:
        for step in self.script(request):
            if step is RESET:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            if step is CLOSE:
                return False
            if step is HOLD:
                while connection.recv(4096):
                    pass
                return False
            connection.sendall(step)
        return True


def _read(stream: Any) -> Request | None:
    words = stream.readline().decode("latin-1").split(" ")
    if len(words) != 3:
        return None
    method, path, _ = words
    headers, lines = {}, []
    while (line := stream.readline().decode("latin-1").strip()) != "":
        name, _, value = line.partition(":")
        lines.append(name.lower())
        headers[name.lower()] = value.strip()
    body = stream.read(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body, (*lines,))


# ---- responses and events of the protocol ------------------------------------------------------------------------


def answer(status: int, body: object = b"", *, media: str = "application/json", **headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {media}", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def problem(
    status: int, code: str, detail: str = "told so", *, retry_after: str | None = None, **members: Any
) -> bytes:
    body = {"code": code, "title": code, "status": status, "detail": detail, **members}
    headers = {} if retry_after is None else {"Retry_After": retry_after}
    return answer(status, body, media="application/problem+json", **headers)


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n"


def event(data: object, *, id: str | None = None, type: str | None = None, retry: int | None = None) -> bytes:
    lines = [] if id is None else [f"id:{id}"]
    if type is not None:
        lines.append(f"event:{type}")
    if retry is not None:
        lines.append(f"retry:{retry}")
    lines.append(f"data:{data if isinstance(data, str) and type == 'raw' else json.dumps(data)}")
    return "\n".join(lines).encode() + b"\n\n"


def hello(job: str = "j1", *, head: str = "1-1", heartbeat_ms: int = 15_000, retry: int = 1) -> bytes:
    return event(
        {
            "protocol": "tidewire/1",
            "job": job,
            "events": f"/v1/jobs/{job}/events",
            "head": head,
            "heartbeat_ms": heartbeat_ms,
        },
        type="hello",
        retry=retry,
    )


def state(*values: object, status: str = "running", **members: Any) -> dict[str, Any]:
    """Return a job's state; each item has the status of the job, and None represents an item without a value."""
    items = [{"status": status} | ({} if value is None else {"value": value}) for value in values]
    return {"status": status, "items": items, "usage": {}, "notes": [], **members}


def snapshot(
    id: str, content: dict[str, Any], *, columns: Iterable[str] = (), reason: str = "start"
) -> bytes:
    return event({"state": content, "columns": [*columns], "reason": reason}, id=id, type="snapshot")


def done(id: str, items: list[Any], *, status: str = "succeeded", **members: Any) -> bytes:
    return event(
        {"status": status, "usage": {}, "check": [], "digest": digest(items), **members}, id=id, type="done"
    )


def job(
    content: dict[str, Any] | None = None,
    *,
    id: str = "j1",
    cursor: str = "1-1",
    columns: Iterable[str] = (),
    ended: dict[str, Any] | None = None,
    batch: bool = False,
    endpoint: str = "count",
) -> dict[str, Any]:
    """Return a job resource, as in the response to a submit or a read."""
    content = state(None, status="queued") if content is None else content
    return {
        "id": id,
        "endpoint": endpoint,
        "status": content["status"] if ended is None else ended["status"],
        "batch": batch,
        "state": content,
        "columns": [*columns],
        "cursor": cursor,
        "attempt": 1,
        "created_at": "2026-01-01T00:00:00Z",
        "done": ended,
        "links": {
            "self": f"/v1/jobs/{id}",
            "events": f"/v1/jobs/{id}/events",
            "cancel": f"/v1/jobs/{id}/cancel",
        },
    }


def ending(items: list[Any], *, status: str = "succeeded", **members: Any) -> dict[str, Any]:
    """Return the `done` member of the resource of an ended job."""
    return {"status": status, "usage": {}, "check": [], "digest": digest(items), **members}


def discovery(*names: str, capabilities: Iterable[str] = ("idempotency",)) -> dict[str, Any]:
    return {
        "protocol": "tidewire/1",
        "server": "scripted",
        "durability": "process",
        "capabilities": [*capabilities],
        "limits": {},
        "heartbeat_ms": 15_000,
        "endpoints": [{"name": name, "href": f"/v1/endpoints/{name}"} for name in names],
    }


def endpoint(name: str = "count", *, rollback: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "input_schema": {"type": "object"},
        "value_schema": {},
        "capabilities": {"streams": True, "rollback": rollback},
    }


def hurried(**members: Any) -> tuple[Timing, list[float]]:
    """Return timing that never waits, and a list that records the requested waits in seconds."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await anyio.sleep(0)

    return Timing(sleep=sleep, **members), waits
