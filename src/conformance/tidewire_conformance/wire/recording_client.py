"""Requests over raw sockets; what comes back is recorded as a `RecordedExchange`, every byte with its time.

h11 takes HTTP apart; event streams are read by `event_stream_decoder`. Nothing is interpreted beyond that, nothing repeated,
no redirect followed, no coding undone.
"""

import asyncio
import contextlib
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, TypedDict, Unpack
from urllib.parse import urlsplit

import h11

from tidewire_conformance.wire import strict_json
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

BUSY: Final = frozenset({429, 503})
"""Answers that ask to come again later."""
BUSY_TRIES: Final = 8
BUSY_SECONDS: Final = 10.0
"""How often, and how long at a time, the suite does as it is asked; times `patience`."""
ANSWER_SECONDS: Final = 10.0
"""How long a status line, and each further piece of a body, may take; times `patience`."""
WHOLE_SECONDS: Final = 60.0
"""How long an answer that is no stream may take from its first byte to its last; times `patience`."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of one answer: what comes beyond is not read."""

_READ = 65536
_HEAD_BYTES = 256 * 1024

Body = bytes | Sequence[bytes] | None
"""Of a request: framed by its length, or in these chunks."""
Header = Mapping[str, str | None]
"""Fields of a request; None leaves one out that would be sent else."""


class Sent(TypedDict, total=False):
    """What a request has beside its method and its URL."""

    header: Header | None
    """Beside that of the caller."""
    json: Any
    """A body, sent as `application/json`; it overrules `body`."""
    body: Body
    """A body as it is."""
    once: bool
    """Take an answer that asks to come again later as it is."""
    old: bool
    """Ask by HTTP/1.0, as some proxies do."""


class NoAnswerError(Exception):
    """No answer, or not all of it: nothing can be judged by it."""


class Stream:
    """An answer that is read on demand."""

    def __init__(self, exchange: RecordedExchange, connection: "_Connection", patience: float) -> None:
        self.exchange = exchange
        self._connection = connection
        self._patience = patience

    async def until(
        self, holds: Callable[[RecordedExchange], object], seconds: float = ANSWER_SECONDS
    ) -> bool:
        """Read on until something holds of what came.

        Args:
            holds: Asked after each chunk.
            seconds: How long to wait at most; times `patience`.

        Returns:
            Whether it holds; False where the stream ended, or the time was over.
        """
        try:
            async with asyncio.timeout(seconds * self._patience):
                while not holds(self.exchange):
                    if not await self._connection.read():
                        return bool(holds(self.exchange))
        except TimeoutError:
            return False
        return True

    async def next(self, seconds: float = ANSWER_SECONDS) -> bool:
        """Read what comes next; False where nothing more does, or nothing came for this long; times `patience`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds * self._patience):
                return await self._connection.read()
        return False

    async def to_end(self, seconds: float = ANSWER_SECONDS) -> RecordedExchange:
        """Read until the answer ends, or nothing came for this long; times `patience`."""
        with contextlib.suppress(TimeoutError):
            while not self.exchange.ended:
                async with asyncio.timeout(seconds * self._patience):
                    await self._connection.read()
        return self.exchange


class Wire:
    """Talks to one address as one caller, and keeps all that was said."""

    def __init__(
        self,
        base_url: str,
        *,
        header: Sequence[tuple[str, str]] = (),
        patience: float = 1.0,
        record: list[RecordedExchange] | None = None,
        began: float | None = None,
        caller: str = "",
    ) -> None:
        """Nothing is sent yet.

        Args:
            base_url: Where the server is mounted.
            header: Sent with each request, such as credentials; never to another origin.
            patience: Multiplies each wait.
            record: Where each exchange is kept, in the order of the requests.
            began: The monotonic time at which the run began.
            caller: Who it is, where there is more than one: before the names of variables for its secrets.
        """
        self.base_url = base_url.rstrip("/")
        self.header = tuple(header)
        self.patience = patience
        self.record = [] if record is None else record
        self.caller = caller
        self.check = ""
        self.began = time.monotonic() if began is None else began
        """The monotonic time of second 0 of the run."""

    def as_check(self, name: str) -> "Wire":
        """The same caller, whose exchanges are noted for a check."""
        twin = Wire(
            self.base_url,
            header=self.header,
            patience=self.patience,
            record=self.record,
            began=self.began,
            caller=self.caller,
        )
        twin.check = name
        return twin

    @property
    def secrets(self) -> tuple[tuple[str, str], ...]:
        """What no report may show, and the names of variables that stand for it."""
        named = ((value, f"{self.caller}{name}") for name, value in self.header)
        return tuple((value, re.sub(r"\W", "_", name).upper()) for value, name in named)

    def now(self) -> float:
        """Seconds of the run."""
        return time.monotonic() - self.began

    def url(self, place: str) -> str:
        """The URL of a path below the base, or of a link that was resolved."""
        return place if "://" in place else self.base_url + place

    async def ask(
        self, method: str, place: str, *, seconds: float = ANSWER_SECONDS, **sent: Unpack[Sent]
    ) -> RecordedExchange:
        """Send a request, and read its answer to the end.

        Args:
            method: Of HTTP.
            place: A path below the base URL, or a URL.
            seconds: How long each part of the answer may take; times `patience`.
            **sent: The rest of the request.

        Raises:
            NoAnswerError: The connection failed, or no answer came whole in time.
        """
        async with self.open(method, place, seconds=seconds, **sent) as stream:
            exchange = stream.exchange
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, WHOLE_SECONDS) * self.patience):
                    await stream.to_end(seconds)
        if not exchange.is_whole:
            came = f"the answer ({exchange.status}) had not ended after {len(exchange.body)} bytes"
            raise NoAnswerError(f"{exchange}: {exchange.fault or came}")
        return exchange

    @contextlib.asynccontextmanager
    async def open(
        self,
        method: str,
        place: str,
        *,
        seconds: float = ANSWER_SECONDS,
        read_ahead: int = _READ,
        **sent: Unpack[Sent],
    ) -> AsyncIterator[Stream]:
        """Send a request, read the header of its answer, and leave the rest to be read.

        Args:
            method: Of HTTP.
            place: A path below the base URL, or a URL.
            seconds: How long the header may take; times `patience`.
            read_ahead: Bytes that are taken in before they are asked for.
            **sent: The rest of the request.

        Raises:
            NoAnswerError: The connection failed, or no header came in time.
        """
        url, header, body = self.url(place), sent.get("header") or {}, sent.get("body")
        if sent.get("json") is not None:
            header, body = {"Content-Type": "application/json", **header}, strict_json.compact(sent["json"])
        fields = self._fields(method, url, header, body)
        for attempt in range(BUSY_TRIES):
            async with self._once(method, url, fields, body, seconds, read_ahead, sent.get("old")) as stream:
                wait = None if sent.get("once") else _retry_after(stream.exchange)
                if wait is None or wait > BUSY_SECONDS * self.patience or attempt == BUSY_TRIES - 1:
                    yield stream
                    return
                await stream.to_end(seconds)
            await asyncio.sleep(wait)

    @contextlib.asynccontextmanager
    async def _once(
        self,
        method: str,
        url: str,
        fields: tuple[tuple[str, str], ...],
        body: Body,
        seconds: float,
        read_ahead: int,
        old: bool | None,
    ) -> AsyncIterator[Stream]:
        """One request, whatever comes of it."""
        whole = body if isinstance(body, bytes) else b"".join(body or ())
        exchange = RecordedExchange(len(self.record) + 1, method, url, fields, whole, self.check, self.now())
        exchange.secrets = self.secrets
        self.record.append(exchange)
        connection = _Connection(exchange, self.now, read_ahead)
        try:
            async with asyncio.timeout(seconds * self.patience):
                await connection.begin(body, old=bool(old))
        except TimeoutError:
            exchange.fault = exchange.fault or f"no header within {seconds * self.patience:g} s"
        except OSError as error:
            exchange.fault = f"{type(error).__name__}: {error}"
        try:
            if not exchange.status:
                raise NoAnswerError(f"{exchange}: {exchange.fault or 'the connection was closed'}")
            yield Stream(exchange, connection, self.patience)
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
    """The wait that an answer asks for, in seconds; None where it asks for none."""
    told = exchange.says("retry-after")
    return float(told) if exchange.status in BUSY and told.isascii() and told.isdigit() else None


def _origin(url: str) -> tuple[str, str]:
    split = urlsplit(url)
    return split.scheme, split.netloc


class _Connection:
    """One connection for one request."""

    def __init__(self, exchange: RecordedExchange, now: Callable[[], float], read_ahead: int) -> None:
        self._exchange = exchange
        self._now = now
        self._read_ahead = read_ahead
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        self._writer: asyncio.StreamWriter | None = None
        self._taken = 0

    async def begin(self, body: Body, *, old: bool) -> None:
        """Send the request, of HTTP/1.0 where that is wanted, and read up to the end of the answer's header."""
        exchange = self._exchange
        split = urlsplit(exchange.url)
        secure = ssl.create_default_context() if split.scheme == "https" else None
        port = split.port or (443 if secure else 80)
        self._reader, self._writer = await asyncio.open_connection(
            split.hostname, port, ssl=secure, limit=self._read_ahead
        )
        target = (split.path or "/") + (f"?{split.query}" if split.query else "")
        head = self._http.send(
            h11.Request(method=exchange.method, target=target, headers=list(exchange.asked))
        )
        # What asks by HTTP/1.0 understands no chunks: h11 writes none but its own version.
        self._writer.write(
            (head or b"").replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n" if old else b" HTTP/1.1\r\n", 1)
        )
        for chunk in [body] if isinstance(body, bytes) else body or ():
            self._write(h11.Data(data=chunk))
        self._write(h11.EndOfMessage())
        while not exchange.status and not exchange.ended:
            await self.read()

    def _write(self, event: h11.Event) -> None:
        assert self._writer is not None  # noqa: S101 - begin() opened it
        self._writer.write(self._http.send(event) or b"")

    async def read(self) -> bool:
        """Take what comes next; False once nothing more will."""
        if self._exchange.ended:
            return False
        try:
            event = self._http.next_event()
            while event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(self._read_ahead))
                event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            return self._cut(str(error))
        except OSError as error:
            return self._cut(f"{type(error).__name__}: {error}")
        return self._take(event)

    def _take(self, event: Any) -> bool:
        exchange = self._exchange
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
                return self._cut(f"more than {MAX_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage):
            exchange.ended = "whole"
        elif not isinstance(event, h11.InformationalResponse):
            return self._cut("the connection was closed")
        return True

    def _cut(self, why: str) -> bool:
        self._exchange.ended, self._exchange.fault = "cut", why
        return False

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort() if self._exchange.ended == "left" else self._writer.close()
