"""uvicorn's HTTP protocol with limits on connections, request heads, pipelined requests, and responses nobody reads.

uvicorn's httptools parser buffers a request head until it is complete, however long and however slow it arrives, and
uvicorn does not limit connections. The limits hold for this parser only, so h11 is not offered.
"""

import asyncio
import json
import math
from typing import Any, Final

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error.name} is not installed, and without it requests could be as slow as they like: "
        "pip install 'tidewire[server]'",
        name=error.name,
    ) from None

from tidewire.protocol.problems import MEDIA_TYPE, Problem, problem, to_json
from tidewire_server.errors import late
from tidewire_server.http.uvicorn.uvicorn_internals import drop, untaken
from tidewire_server.settings import Settings

_LINGER: Final = 2.0
"""Seconds that the sender of a body has to read an answer that did not wait for its end, before the close resets it."""

_TURNED_AWAY: Final = 100
"""Connections past the bound that are told so at a time; further ones are closed at once."""

MAX_PIPELINED: Final = 16
"""Requests of one connection that wait for the answer to an earlier one, or those of one slice; what comes behind them
waits as the bytes that came. A request takes a hundred times the memory of its few bytes."""

_SLICE: Final = 16 * 1024
"""Bytes that are read at a time."""


def http_protocol(settings: Settings, max_connections: int) -> Any:
    """What uvicorn shall speak HTTP with: its fast parser within bounds."""

    class BoundedHttp(HttpToolsProtocol):
        """One connection."""

        _in_head = False
        _head_bytes = 0
        _passed_end = False
        """Whether a request ended in the data at hand: where in it the next head begins is not known."""
        _late: asyncio.TimerHandle | None = None
        _stall: asyncio.TimerHandle | None = None
        _untaken = 0
        _turned_away = False
        _held = b""
        """What came behind more requests than may wait."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            past = len(self.connections) - max_connections
            if past > 0:
                self._turn_away(said=past <= _TURNED_AWAY)
            else:
                self._late = self.loop.call_later(settings.head_timeout, self._refuse_late)

        def _turn_away(self, *, said: bool) -> None:
            """Take no request of it. Its sender can read why, unless there are too many like it."""
            self._turned_away = True
            if not said:
                drop(self.transport)
                return
            self.transport.write(
                _as_sent(
                    problem(
                        "unavailable",
                        f"{max_connections} connections are open, no more may be (max_connections)",
                    )
                )
            )
            if self.transport.can_write_eof():
                self.transport.write_eof()
            # To close at once, with a request on its way, would be to reset: the answer would be lost with it.
            self._late = self.loop.call_later(_LINGER, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self._held = b""
            self._stop_clock()
            if self._stall is not None:
                self._stall.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._turned_away:
                return
            data, self._held = self._held + data, b""
            for start in range(0, len(data), _SLICE):
                if len(self.pipeline) >= MAX_PIPELINED:
                    self._held = data[start:]
                    self.flow.pause_reading()
                    return
                self._take(data[start : start + _SLICE])
                if self.transport.is_closing():
                    return

        def _go_on(self) -> None:
            if self._held and not self.transport.is_closing():
                self.data_received(b"")

        def _take(self, data: bytes) -> None:
            self._passed_end = False
            super().data_received(data)
            # Here, and not where a head begins: one that comes whole needs no clock.
            if self._in_head and self._late is None:
                self._late = self.loop.call_later(settings.head_timeout, self._refuse_late)
            if self._in_head and not self._passed_end:
                self._head_bytes += len(data)
                if self._head_bytes > settings.max_head_bytes:
                    self._refuse(
                        problem(
                            "bad_parameter",
                            f"the head of the request is larger than {settings.max_head_bytes} bytes (max_head_bytes)",
                        )
                    )

        def send_400_response(self, msg: str) -> None:
            # uvicorn's own would stand in the middle of a stream that is being sent.
            self._refuse(problem("bad_parameter", "this is not HTTP/1.1, or not one request after the other"))

        def on_message_begin(self) -> None:
            self._in_head, self._head_bytes = True, 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._stop_clock()
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._passed_end = True
            self._stop_clock()
            super().on_message_complete()

        def on_response_complete(self) -> None:
            unfinished = self.cycle is not None and self.cycle.response_complete and self.cycle.more_body
            super().on_response_complete()
            if self._held:
                self.flow.pause_reading()
                if len(self.pipeline) < MAX_PIPELINED:
                    self.loop.call_soon(self._go_on)
            if unfinished and not self.transport.is_closing():
                self._stop_clock()
                self._late = self.loop.call_later(_LINGER, self.transport.close)

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._stall is None:
                self._watch_reader()

        def _watch_reader(self) -> None:
            self._untaken = untaken(self.transport)
            self._stall = self.loop.call_later(settings.stall_timeout, self._judge_reader)

        def _judge_reader(self) -> None:
            """Drop an answer that is whole and of which no byte was taken. A stream judges its reader by itself."""
            self._stall = None
            waiting = untaken(self.transport)
            if not waiting:
                return
            streams = self.cycle is not None and not self.cycle.response_complete
            if waiting < self._untaken or streams:
                self._watch_reader()
            else:
                drop(self.transport)

        def _stop_clock(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _refuse_late(self) -> None:
            self._late = None
            self._refuse(
                late(f"no whole head of a request came within {settings.head_timeout:g} s (head_timeout)")
            )

        def _refuse(self, found: Problem) -> None:
            """Say so, unless an answer to an earlier request is on its way, and close."""
            self._in_head = False
            if self.transport.is_closing():
                return
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_as_sent(found))
            self.transport.close()

    return BoundedHttp


def _as_sent(found: Problem) -> bytes:
    """An answer whose connection closes behind it."""
    body = json.dumps(to_json(found)).encode()
    head = f"HTTP/1.1 {found.status} \r\nContent-Type: {MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n"
    if found.retry_after_ms is not None:
        head += f"Retry-After: {math.ceil(found.retry_after_ms / 1000)}\r\n"
    return f"{head}Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode() + body
