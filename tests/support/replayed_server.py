"""Server that replays the recorded responses of a run, some of them mutated, over real sockets.

A check sends the same requests as in the recorded run as long as it gets the same responses, so its requests find their
recorded responses by method and target. A mutation leads it off this path. A request that was not recorded gets the
response to a similar request, with other ids in its path.
"""

import asyncio
import contextlib
import json
import random
import re
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import h11

from support.mutated_server import FAULTS, mutated, paths
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

NOT_FOUND = b'{"type":"about:blank","title":"Not found","status":404,"code":"not_found"}'
JOB_ID = re.compile(r"(?<=/jobs/)[^/?]+")
FRAMING = {"content-length", "transfer-encoding", "connection"}
STATUSES = (200, 201, 202, 204, 206, 301, 304, 400, 401, 404, 409, 410, 413, 422, 429, 500, 503, 999)
DEEP, DEEP_SHARE = b"[" * 400 + b"]" * 400, 0.1
"""Deeply nested arrays, and the share of mutations that use them instead of a short text."""
HEADERS = (
    ("content-type", "text/html"),
    ("content-type", "text/event-stream"),
    ("content-type", "application/json; charset=\xff"),
    ("content-encoding", "gzip"),
    ("location", "http://[::1"),
    ("location", ""),
    ("location", "/v1/jobs/"),
    ("location", "//elsewhere.example/v1/jobs/x"),
    ("content-location", "\xe9"),
    ("retry-after", "soon"),
    ("retry-after", "-1"),
    ("retry-after", "9" * 30),
    ("etag", '"'),
    ("access-control-allow-origin", "*, *"),
    ("cache-control", ",;="),
)
"""Header fields that a mutation sets, with forms that a parser may not expect."""


@dataclass(frozen=True)
class Request:
    """Request by which the server finds the response."""

    method: str
    target: str
    header: frozenset[tuple[str, str]] = frozenset()
    body: bytes = b""

    @property
    def keys(self) -> tuple[object, ...]:
        """Properties of which an earlier one identifies the request more precisely."""
        # A job id in the path, and the query, can differ from the recorded request.
        shape = JOB_ID.sub("*", self.target.partition("?")[0])
        return self, (self.method, self.target), (self.method, shape)


@dataclass(frozen=True)
class Response:
    """Recorded response with its request."""

    request: "Request"
    status: int
    header: tuple[tuple[str, str], ...]
    body: bytes
    cut: bool = False
    """Whether the connection is closed before the whole body was sent."""
    stays_open: bool = False
    """Whether the connection stays open after the body, until the client closes it."""


def recorded(record: Iterable[RecordedExchange]) -> dict[str, list[Response]]:
    """Return the responses of a run by the name of the check that sent the requests."""
    found = defaultdict(list)
    for each in record:
        split = urlsplit(each.url)
        target = split.path + (f"?{split.query}" if split.query else "")
        header = tuple(pair for pair in each.header if pair[0].lower() not in FRAMING)
        request = Request(each.method, target, _identifying(each.request_headers), each.sent)
        if each.status:
            found[each.check].append(
                Response(request, each.status, header, each.body, stays_open=each.ended == "left")
            )
    return found


def _identifying(header: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Header fields of a request, without those that differ between runs."""
    return frozenset(
        (name.lower(), value) for name, value in header if name.lower() not in {*FRAMING, "host"}
    )


class ReplayedServer:
    """Replays the responses of one conversation after the other. Each response is sent once, as long as there are others."""

    def __init__(self) -> None:
        self._responses: dict[object, deque[Response]] = {}

    def play(self, responses: Iterable[Response]) -> None:
        """Start a new conversation."""
        self._responses = defaultdict(deque)
        for each in responses:
            for key in each.request.keys:
                self._responses[key].append(each)

    def _response(self, request: Request) -> Response:
        for key in request.keys:
            if found := self._responses.get(key):
                response = found.popleft() if len(found) > 1 else found[0]
                for other in response.request.keys:
                    left = self._responses[other]
                    if len(left) > 1:
                        with contextlib.suppress(ValueError):
                            left.remove(response)
                return response
        return Response(request, 404, (("content-type", "application/problem+json"),), NOT_FOUND)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the one request of a connection."""
        http = h11.Connection(h11.SERVER)
        request, body = None, b""
        try:
            while not isinstance(event := http.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
                if isinstance(event, h11.Request):
                    request = event
                if isinstance(event, h11.Data):
                    body += event.data
                if event is h11.NEED_DATA:
                    http.receive_data(await reader.read(1 << 20))
            if request is not None:
                header = _identifying(
                    (name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers
                )
                asked = Request(request.method.decode(), request.target.decode(), header, body)
                response = self._response(asked)
                writer.write(_bytes(response))
                await writer.drain()
                while response.stays_open and await reader.read(1 << 20):
                    pass
        except (h11.RemoteProtocolError, OSError):
            pass
        finally:
            writer.close()


def _bytes(found: Response) -> bytes:
    """Return the HTTP response as it is sent."""
    has_body = found.request.method != "HEAD" and found.status not in {204, 304}
    length = len(found.body) + 10 * found.cut
    is_framed = has_body and not found.stays_open
    fields = [*found.header, ("content-length", str(length))] if is_framed else found.header
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    head = f"HTTP/1.1 {found.status} Replayed\r\n{lines}connection: close\r\n\r\n"
    return head.encode("latin-1") + (found.body if has_body else b"")


@contextlib.asynccontextmanager
async def replayed_server() -> AsyncIterator[tuple[ReplayedServer, str]]:
    """Start a server on a free port, and yield it with its URL."""
    server = ReplayedServer()
    listener = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        yield server, f"http://127.0.0.1:{port}"


# ---- mutations ---------------------------------------------------------------------------------------------------------


def mutated_json(text: bytes, rng: random.Random) -> bytes:
    """Give a JSON text one to four faults: a member is absent, or has another type or size."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    whole = {"": value}
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        whole = mutated(whole, rng.choice([*paths(whole)]), rng.choice(FAULTS))
        if "" not in whole:
            return b""
    text = json.dumps(whole[""]).encode()
    return text.replace(b': "x"', b": " + DEEP) if rng.random() < DEEP_SHARE else text


def _with_mutated_event(body: bytes, rng: random.Random) -> bytes:
    blocks = body.split(b"\n\n")
    at = rng.randrange(len(blocks))
    head, mark, data = blocks[at].partition(b"data:")
    blocks[at] = head + mark + mutated_json(data, rng)
    return b"\n\n".join(blocks)


def _with_mutated_events(body: bytes, rng: random.Random) -> bytes:
    blocks = body.split(b"\n\n")
    at, other = rng.randrange(len(blocks)), rng.randrange(len(blocks))
    match rng.randrange(4):
        case 0:
            del blocks[at]
        case 1:
            blocks.insert(at, blocks[other])
        case 2:
            blocks[at], blocks[other] = blocks[other], blocks[at]
        case _:
            kind = rng.choice([b"done", b"snapshot", b"goaway", b"problem", b"hello", b"ping", b"progress"])
            blocks[at] = re.sub(rb"^event:.*$", b"event: " + kind, blocks[at], flags=re.MULTILINE)
            blocks[at] = re.sub(rb"^id:.*$", b"id: 7-0", blocks[at], flags=re.MULTILINE)
    return b"\n\n".join(blocks)


def _with_mutated_bytes(body: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(body) + 1)
    more = rng.choice(
        [b"", b"\0", b"\xff\xfe", b"\n", b"\r", b"{", b'"', b"9" * 400, b"\xed\xa0\x80", b"\n\n"]
    )
    return body[:at] + more + body[at + rng.choice([0, 1, 1, 8, 1000]) :]


def mutated_response(response: Response, rng: random.Random) -> Response:
    """Return a response with a random fault in its JSON, events, bytes, status or header."""
    is_stream = any(value.startswith("text/event-stream") for _, value in response.header)
    match rng.randrange(12):
        case 0:
            return replace(response, status=rng.choice(STATUSES))
        case 1:
            return replace(response, body=_with_mutated_bytes(response.body, rng))
        case 2:
            name, value = rng.choice(HEADERS)
            kept = [pair for pair in response.header if pair[0].lower() != name]
            return replace(response, header=(*kept, (name, value)))
        case 3 if response.header:
            dropped = rng.choice(response.header)
            return replace(response, header=tuple(pair for pair in response.header if pair != dropped))
        case 4:
            return replace(response, body=response.body[: rng.randrange(len(response.body) + 1)], cut=True)
        case 5 if is_stream:
            return replace(response, body=_with_mutated_events(response.body, rng))
        case _ if is_stream:
            return replace(response, body=_with_mutated_event(response.body, rng))
        case _:
            return replace(response, body=mutated_json(response.body, rng))


def mutated_conversation(responses: Sequence[Response], rng: random.Random) -> list[Response]:
    """Mutate one or several responses of a conversation."""
    if not responses:
        return []
    share = rng.choice([0.0, 0.1, 0.5, 1.0])
    chosen = {rng.randrange(len(responses))} | {at for at in range(len(responses)) if rng.random() < share}
    return [mutated_response(each, rng) if at in chosen else each for at, each in enumerate(responses)]


def mutated_description(responses: Sequence[Response], rng: random.Random) -> list[Response]:
    """Mutate the discovery document and the descriptions of endpoints, but not the protocol that they name."""

    def change(each: Response) -> Response:
        method, target = each.request.method, each.request.target
        described = target.startswith("/v1/endpoints/") and method == "GET"
        if not (target == "/v1" or (described and rng.random() < 0.5)):
            return each
        body = mutated_json(each.body, rng)
        value: Any = json.loads(body or b"{}")
        if target == "/v1":
            value = {**(value if isinstance(value, dict) else {}), "protocol": "tidewire/1"}
        return replace(each, body=json.dumps(value).encode())

    return [change(each) for each in responses]
