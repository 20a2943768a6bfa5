"""HTTP client over raw sockets that records each request and response, with the arrival time of each byte.

h11 parses HTTP, and `event_stream_decoder` parses event streams. The client does not follow redirects and does not
decode content codings. It retries a request only after a response that has status 429 or 503 and a `Retry-After`
header. If a server ends an event stream with `goaway`, the client resumes the stream on a new connection.
"""

import asyncio
import contextlib
import copy
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypedDict, Unpack
from urllib.parse import urlsplit

import h11

from tidewire_conformance.wire import json_violations
from tidewire_conformance.wire.recorded_exchange import RecordedExchange, resolve

BUSY_STATUSES: Final = frozenset({429, 503})
"""Status codes after which the client repeats a request. The response must also have `Retry-After`."""
BUSY_TRIES: Final = 8
BUSY_SECONDS: Final = 10.0
"""Longest `Retry-After`, in seconds, that the client waits before a retry. The option `--patience` multiplies it."""
RESPONSE_SECONDS: Final = 10.0
"""Timeout, in seconds, for a response header and for each part of a body. The option `--patience` multiplies it."""
COMPLETE_RESPONSE_SECONDS: Final = 60.0
"""Timeout, in seconds, for a complete response that is not a stream. The option `--patience` multiplies it."""
OTHER_MEDIA_SECONDS: Final = 2.0
"""Timeout, in seconds, for the body of a response that should be JSON and has another media type. The option `--patience`
multiplies it.
"""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of one response body. The client stops reading when a body exceeds this size."""
FINAL_REASONS: Final = frozenset({"auth_expired", "slow_consumer"})
"""Reasons of a `goaway` after which the client does not resume the stream. The first one requires new credentials, and
the second one is the result of a test with a slow reader.
"""
MAX_RESUME_SECONDS: Final = 1.0
"""Longest time in seconds that the client waits before it resumes a stream, even if a `goaway` contains a longer time."""
MAX_EMPTY_RESPONSES: Final = 100
"""Maximum number of consecutive responses with no other events than `hello` and `goaway` after which the client resumes a
stream. A server that ends every response at once would otherwise use up the time of the run.
"""

_BODY_FIELDS = frozenset({"content-type", "content-length", "transfer-encoding", "idempotency-key"})
"""Header fields of a request to submit a job that a request for its stream does not have, in lower case."""
_READ = 65536
_HEAD_BYTES = 256 * 1024

Body = bytes | Sequence[bytes] | None
"""Request body. A `bytes` body is sent with `Content-Length`. A sequence is sent in chunked coding, one chunk per
element.
"""
Header = Mapping[str, str | None]
"""Request header fields. The value None removes a field that the client sends by default."""


class RequestOptions(TypedDict, total=False):
    """Optional parts of a request, passed as keyword arguments."""

    header: Header | None
    """Header fields to send in addition to those of the caller."""
    json: Any
    """Value to send as `application/json`. It takes precedence over `body`."""
    body: Body
    """Raw request body."""
    once: bool
    """Whether to return a response with status 429 or 503 at once, without a retry."""
    old: bool
    """Whether to send the request as HTTP/1.0, as some proxies do."""


class IncompleteResponseError(Exception):
    """Raised if a response is missing or incomplete, so that a check cannot judge it."""


@dataclass(frozen=True)
class _Request:
    """Request that the client may send several times."""

    method: str
    url: str
    fields: tuple[tuple[str, str], ...]
    body: Body
    seconds: float
    read_ahead: int
    once: bool
    old: bool


class Stream:
    """Response whose body is read only on demand.

    If the server ends an event stream with `goaway`, the suite requests the stream again, and this object continues with
    the new response. The attribute `exchange` then contains the bytes and events of all responses, one after the other.
    The record contains each response separately.
    """

    def __init__(self, wire: "Wire", request: "_Request", connection: "_Connection") -> None:
        self.exchange = connection.exchange
        self._wire = wire
        self._request = request
        self._connection = connection
        self._resumed = contextlib.AsyncExitStack()
        self._chunks = self._blocks = self._empty_responses = 0

    async def until(
        self, holds: Callable[[RecordedExchange], object], seconds: float = RESPONSE_SECONDS
    ) -> bool:
        """Read the response until a condition holds for the recorded exchange.

        Args:
            holds: Condition on the blocks of the stream, to evaluate after each block and at the end of the response.
            seconds: Timeout in seconds, which is multiplied by `patience`.

        Returns:
            Whether the condition holds. The result is False if the response ends or the timeout expires first.
        """
        try:
            async with asyncio.timeout(seconds * self._wire.patience):
                while not holds(self.exchange):
                    # A server may send each byte in a separate chunk, so do not evaluate the condition after each one.
                    count = len(self.exchange.blocks)
                    while count == len(self.exchange.blocks) or not self.exchange.is_stream:
                        if not await self._read():
                            return bool(holds(self.exchange))
        except TimeoutError:
            return False
        return True

    async def next(self, seconds: float = RESPONSE_SECONDS) -> bool:
        """Read the next part of the response.

        Returns False if the response has ended, or if nothing arrives within `seconds` times `patience`.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds * self._wire.patience):
                return await self._read()
        return False

    async def to_end(self, seconds: float = RESPONSE_SECONDS) -> RecordedExchange:
        """Read until the response ends, or until nothing has arrived for `seconds` times `patience`."""
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(seconds * self._wire.patience):
                    if not await self._read():
                        break
        return self.exchange

    async def close(self) -> None:
        """Close the connection on which the stream was resumed, if there is one."""
        await self._resumed.aclose()
        self._append()

    async def _read(self) -> bool:
        """Read the next part of the response, or resume the stream after a `goaway`. Returns False at the end."""
        more = await self._connection.read()
        self._append()
        if more:
            return True
        request = self._resume_request()
        if request is None:
            return False
        await asyncio.sleep(_resume_delay(self._connection.exchange))
        await self.close()
        if self._connection.exchange is self.exchange:
            self._connection.close()
            self.exchange.finished = self._wire.now()
            # The caller has this object already, so it becomes the whole stream, and a copy of it stays in the record.
            self._wire.record[self.exchange.number - 1] = replace(
                self.exchange, chunks=[*self.exchange.chunks], blocks=[*self.exchange.blocks]
            )
        self.exchange.ended = ""
        self._connection = await self._resumed.enter_async_context(self._wire.exchange(request))
        self._request, self._chunks, self._blocks = request, 0, 0
        self._append()
        return True

    def _append(self) -> None:
        """Append the new bytes and blocks of a resumed stream to those of the whole stream."""
        part, whole = self._connection.exchange, self.exchange
        if part is whole:
            return
        whole.chunks += part.chunks[self._chunks :]
        whole.blocks += part.blocks[self._blocks :]
        self._chunks, self._blocks = len(part.chunks), len(part.blocks)
        whole.ended, whole.fault, whole.finished = part.ended, part.fault, part.finished
        whole.reader = part.reader

    def _resume_request(self) -> "_Request | None":
        """Return the request that resumes the stream, or None if the stream did not end with `goaway`."""
        part = self._connection.exchange
        last = part.events[-1] if self._wire.resumes and part.is_stream and part.events else None
        if last is None or last.type != "goaway" or last.member("reason") in FINAL_REASONS:
            return None
        is_empty = all(each.type in {"hello", "goaway"} for each in part.events)
        self._empty_responses = self._empty_responses + 1 if is_empty else 0
        if self._empty_responses >= MAX_EMPTY_RESPONSES:
            return None
        url, logged = part.url, self.exchange.logged_ids
        if part.method == "POST":
            links = [each.member("events") for each in part.of_type("hello")]
            url = resolve(part, str(links[0] if links else part.response_header("content-location")))
        if not _is_http_url(url):
            return None
        dropped = _BODY_FIELDS | {"host"} | ({"last-event-id"} if logged else set())
        if _origin(url) != _origin(part.url):
            dropped |= {name.lower() for name, _ in self._wire.header}
        fields = [pair for pair in part.request_headers if pair[0].lower() not in dropped]
        fields += [("Last-Event-ID", logged[-1] or "")] if logged else []
        fields.insert(0, ("Host", urlsplit(url).netloc))
        return replace(self._request, method="GET", url=url, fields=tuple(fields), body=None)


def _resume_delay(part: RecordedExchange) -> float:
    """Return the time, in seconds, that a client waits after the `goaway` of a stream before it resumes the stream."""
    wait = part.events[-1].member("retry_ms")
    return min(max(wait, 0) / 1000, MAX_RESUME_SECONDS) if isinstance(wait, int | float) else 0.0


class Wire:
    """HTTP client for one base URL and one user. It records all its requests and responses."""

    def __init__(
        self,
        base_url: str,
        *,
        header: Sequence[tuple[str, str]] = (),
        patience: float = 1.0,
        source: str = "",
        resumes: bool = True,
    ) -> None:
        """Create the client. It does not connect until the first request.

        Args:
            base_url: Base URL of the server.
            header: Header fields, such as credentials. The client sends them with each request to the origin of
                `base_url`, and never to another origin.
            patience: Factor that multiplies all timeouts.
            source: Address of this machine from which the client connects. By default, the system chooses it.
            resumes: Whether to resume a stream that ends with `goaway`.
        """
        self.base_url = base_url.rstrip("/")
        # Checks drop or replace a field by its name, so `authorization` in an option must not be another field.
        self.header = tuple((name.title(), value) for name, value in header)
        self.patience = patience
        self.record: list[RecordedExchange] = []
        """All exchanges, in the order of the requests."""
        self.caller = ""
        """Prefix for the names of the variables that replace this user's secrets in reports."""
        self.source = source
        self.resumes = resumes
        self.check = ""
        self.began = time.monotonic()
        """Monotonic time at which the run began."""

    def as_check(self, name: str) -> "Wire":
        """Return a client for the same user that records its requests under the name of a check."""
        client = copy.copy(self)
        client.check = name
        return client

    def as_caller(
        self,
        header: Sequence[tuple[str, str]] = (),
        *,
        base_url: str = "",
        source: str = "",
        caller: str = "",
    ) -> "Wire":
        """Return a client for another user, which records its requests for the same check in the same record.

        Args:
            header: Header fields, such as credentials.
            base_url: Base URL of the server. By default, that of this client.
            source: Address of this machine from which the client connects. By default, the system chooses it.
            caller: Prefix for the names of the variables that replace the user's secrets in reports.
        """
        client = Wire(base_url or self.base_url, header=header, patience=self.patience, source=source)
        client.record, client.began, client.check = self.record, self.began, self.check
        client.caller = caller
        return client

    @property
    def secrets(self) -> tuple[tuple[str, str], ...]:
        """Header values that no report may show, each with the name of the variable that replaces the value."""
        named = ((value, f"{self.caller}{name}") for name, value in self.header)
        return tuple((value, re.sub(r"\W", "_", name).upper()) for value, name in named)

    def now(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self.began

    def url(self, place: str) -> str:
        """Return the URL of a path below the base URL. An absolute URL is returned unchanged."""
        return place if "://" in place else self.base_url + place

    async def request(
        self, method: str, place: str, *, seconds: float = RESPONSE_SECONDS, **sent: Unpack[RequestOptions]
    ) -> RecordedExchange:
        """Send a request and read the whole response.

        An event stream that the request does not ask for may be endless. Its body is not read, because its media type
        already shows that it is not the expected response. For the same reason, a body of another media type than JSON is
        read for at most `OTHER_MEDIA_SECONDS`.

        Args:
            method: HTTP method.
            place: Path below the base URL, or an absolute URL.
            seconds: Timeout for each part of the response, in seconds. It is multiplied by `patience`.
            **sent: Optional parts of the request.

        Raises:
            IncompleteResponseError: The connection failed, or the response was not complete before the timeout.
        """
        async with self.open(method, place, seconds=seconds, **sent) as stream:
            exchange = stream.exchange
            if exchange.is_stream and not exchange.asks_for_stream:
                return exchange
            is_expected = "json" in exchange.media_type or exchange.asks_for_stream
            most = max(seconds, COMPLETE_RESPONSE_SECONDS) if is_expected else OTHER_MEDIA_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(most * self.patience):
                    await stream.to_end(seconds)
        if exchange.ended != "whole" and (is_expected or exchange.ended == "cut"):
            incomplete = f"the response ({exchange.status}) was incomplete after {len(exchange.body)} bytes"
            raise IncompleteResponseError(f"{exchange}: {exchange.fault or incomplete}")
        return exchange

    @contextlib.asynccontextmanager
    async def open(
        self,
        method: str,
        place: str,
        *,
        seconds: float = RESPONSE_SECONDS,
        read_ahead: int = _READ,
        **sent: Unpack[RequestOptions],
    ) -> AsyncIterator[Stream]:
        """Send a request and read the header of the response. The caller reads the body from the returned stream.

        Args:
            method: HTTP method.
            place: Path below the base URL, or an absolute URL.
            seconds: Timeout for the response header, in seconds. It is multiplied by `patience`.
            read_ahead: Number of bytes that the connection may buffer before the caller reads them.
            **sent: Optional parts of the request.

        Raises:
            IncompleteResponseError: The connection failed, no response header arrived before the timeout, or a link of the
                server is not the URL of an HTTP resource.
        """
        url, header, body = self.url(place), sent.get("header") or {}, sent.get("body")
        if not _is_http_url(url):
            raise IncompleteResponseError(f"{method} {url[:200]!r}: this is not an http URL")
        if sent.get("json") is not None:
            header, body = (
                {"Content-Type": "application/json", **header},
                json_violations.compact(sent["json"]),
            )
        request = _Request(
            method, url, self._fields(method, url, header, body), body, seconds, read_ahead,
            once=bool(sent.get("once")), old=bool(sent.get("old")),
        )  # fmt: skip
        async with self.exchange(request) as connection:
            stream = Stream(self, request, connection)
            try:
                yield stream
            finally:
                await stream.close()

    @contextlib.asynccontextmanager
    async def exchange(self, request: "_Request") -> AsyncIterator["_Connection"]:
        """Send a request, again if the server is busy, and read the header of the response."""
        for attempt in range(BUSY_TRIES):
            async with self._once(request) as connection:
                wait = None if request.once else _retry_after(connection.exchange)
                if wait is None or wait > BUSY_SECONDS * self.patience or attempt == BUSY_TRIES - 1:
                    yield connection
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(request.seconds * self.patience):
                        while await connection.read():
                            pass
            await asyncio.sleep(wait)

    @contextlib.asynccontextmanager
    async def _once(self, request: "_Request") -> AsyncIterator["_Connection"]:
        """Send one request, without any retry."""
        body, seconds = request.body, request.seconds * self.patience
        whole = body if isinstance(body, bytes) else b"".join(body or ())
        exchange = RecordedExchange(
            len(self.record) + 1, request.method, request.url, request.fields, whole, self.check, self.now()
        )
        exchange.secrets = self.secrets
        self.record.append(exchange)
        connection = _Connection(exchange, self.now, request.read_ahead, self.source)
        try:
            try:
                async with asyncio.timeout(seconds):
                    await connection.begin(body, old=request.old)
            except TimeoutError:
                exchange.fault = exchange.fault or f"no response header within {seconds:g} s"
            except OSError as error:
                exchange.fault = f"{type(error).__name__}: {error}"
            except (h11.LocalProtocolError, UnicodeError) as error:
                # The request repeats data of the server, such as an event id that contains a line feed.
                exchange.fault = f"the request cannot be sent: {error}"
            if not exchange.status:
                raise IncompleteResponseError(f"{exchange}: {exchange.fault}")
            yield connection
        finally:
            exchange.ended = exchange.ended or "left"
            exchange.finished = self.now()
            connection.close()

    def _fields(self, method: str, url: str, header: Header, body: Body) -> tuple[tuple[str, str], ...]:
        own = self.header if _origin(url) == _origin(self.base_url) else ()
        fields: dict[str, str | None] = {"Host": urlsplit(url).netloc}
        fields |= {name: value for name, value in own if name not in header}
        fields |= header
        if isinstance(body, bytes) or (body is None and method == "POST"):
            fields.setdefault("Content-Length", str(len(body or b"")))
        elif body is not None:
            fields["Transfer-Encoding"] = "chunked"
        return tuple((name, value) for name, value in fields.items() if value is not None)


def _retry_after(exchange: RecordedExchange) -> float | None:
    """Return the seconds in `Retry-After` if the response has status 429 or 503. Otherwise, return None."""
    value = exchange.response_header("retry-after")
    return float(value) if exchange.status in BUSY_STATUSES and value.isascii() and value.isdigit() else None


def _is_http_url(url: str) -> bool:
    try:
        split = urlsplit(url)
        sound = split.scheme in {"http", "https"} and bool(split.hostname) and split.port != 0
    except ValueError:
        return False
    return sound and url.isascii() and url.isprintable() and " " not in url


def _origin(url: str) -> tuple[str, str]:
    split = urlsplit(url)
    return split.scheme, split.netloc


class _Connection:
    """TCP connection that carries one request and its response."""

    def __init__(
        self, exchange: RecordedExchange, now: Callable[[], float], read_ahead: int, source: str
    ) -> None:
        self._source = (source, 0) if source else None
        self.exchange = exchange
        self._now = now
        self._read_ahead = read_ahead
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        self._writer: asyncio.StreamWriter | None = None
        self._taken = 0
        self._event: Any = None
        """HTTP event or error that follows the body data that was read last."""

    async def begin(self, body: Body, *, old: bool) -> None:
        """Send the request, as HTTP/1.0 if `old` is set, and read the response header."""
        exchange = self.exchange
        split = urlsplit(exchange.url)
        secure = ssl.create_default_context() if split.scheme == "https" else None
        port = split.port or (443 if secure else 80)
        self._reader, self._writer = await asyncio.open_connection(
            split.hostname, port, ssl=secure, limit=self._read_ahead, local_addr=self._source
        )
        target = (split.path or "/") + (f"?{split.query}" if split.query else "")
        head = self._http.send(
            h11.Request(method=exchange.method, target=target, headers=list(exchange.request_headers))
        )
        # h11 writes only HTTP/1.1, so replace the version in the request line to send HTTP/1.0.
        self._writer.write(
            (head or b"").replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n" if old else b" HTTP/1.1\r\n", 1)
        )
        for chunk in [body] if isinstance(body, bytes) else body or ():
            self._write(h11.Data(data=chunk))
        # h11 refuses to end a body that is shorter than its `Content-Length`. Such a request stays incomplete.
        with contextlib.suppress(h11.LocalProtocolError):
            self._write(h11.EndOfMessage())
        while not exchange.status and not exchange.ended:
            await self.read()

    def _write(self, event: h11.Event) -> None:
        assert self._writer is not None  # noqa: S101 - begin() opened it
        self._writer.write(self._http.send(event) or b"")

    async def read(self) -> bool:
        """Read and record the next HTTP event. Returns False if the response has ended."""
        if self.exchange.ended:
            return False
        try:
            event = self._next_event()
            while event is h11.NEED_DATA:
                data = await self._reader.read(self._read_ahead)
                if not data and not self.exchange.status and not self._http.trailing_data[0]:
                    return self._cut("the server closed the connection without a response")
                self._http.receive_data(data)
                event = self._next_event()
        except h11.RemoteProtocolError as error:
            return self._cut(f"the response violates HTTP/1.1: {error}")
        except OSError as error:
            return self._cut(f"{type(error).__name__}: {error}")
        return self._take(event)

    def _next_event(self) -> Any:
        """Return the next HTTP event, with all body data that has been received as one event."""
        event, self._event = self._event or self._http.next_event(), None
        if isinstance(event, h11.RemoteProtocolError):
            raise event
        if not isinstance(event, h11.Data):
            return event
        # A server may send each byte in a separate chunk.
        data = [bytes(event.data)]
        try:
            while isinstance(following := self._http.next_event(), h11.Data):
                data.append(bytes(following.data))
            self._event = None if following is h11.NEED_DATA else following
        except h11.RemoteProtocolError as error:
            self._event = error
        return h11.Data(data=b"".join(data))

    def _take(self, event: Any) -> bool:
        exchange = self.exchange
        if isinstance(event, h11.Response):
            exchange.status = event.status_code
            exchange.header = tuple(
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers
            )
            exchange.answered = self._now()
        elif isinstance(event, h11.Data):
            at, chunk = self._now(), bytes(event.data)
            exchange.chunks.append((at, chunk))
            if exchange.is_stream:
                exchange.blocks += exchange.reader.feed(chunk, at)
            self._taken += len(chunk)
            if self._taken > MAX_BYTES:
                return self._cut(f"the response has more than {MAX_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage):
            exchange.ended = "whole"
        elif not isinstance(event, h11.InformationalResponse):
            return self._cut("the server closed the connection")
        return True

    def _cut(self, why: str) -> bool:
        self.exchange.ended, self.exchange.fault = "cut", why
        return False

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort() if self.exchange.ended == "left" else self._writer.close()
