"""Fast path for streamed response bodies, which reads from the network stream of httpcore2 and returns all chunks that
arrived together.

A server sends each event as one HTTP chunk. httpcore2 yields each chunk separately, through several generators and
timeouts, which takes more time than processing the event. `FastBody` reads from the network stream directly, and returns
the content of all chunks that one read has returned. It parses simple chunks with `ChunkedDecoder` and all other bytes
with h11.

The internal objects of httpx2 and httpcore2 are not public. If they are not of the expected kind, for example because of HTTP/2,
another transport or a later version of httpcore2, `fast_body_of` returns None and the client reads the body through
httpx2.
"""

import math
import ssl
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import h11
import httpcore2
import httpx2

from tidewire.errors import Where
from tidewire.http.chunked_coding import ChunkedDecoder
from tidewire.http.owning_loop import OwningLoop
from tidewire.http.response import Body, shutdown_socket

SEGMENT_BYTES: Final = 256 * 2**10
"""Maximum number of bytes per read from the network stream."""

_LAST_CHUNK: Final = b"0\r\n\r\n"

_LAYERS: Final = ("_stream", "_httpcore_stream", "_stream", "_connection", "_h11_state")


class FastBody(Body):
    """A streamed response body that is read directly from httpcore2's network stream. After a cancelled `read`, `read`
    may be called again.

    One timer watches all reads, so that a read neither starts nor cancels a timer. When the limit has passed, the timer
    shuts the connection down, which ends a waiting read.
    """

    resumable: bool = True
    being_read: bool = False

    def __init__(
        self,
        where: Where,
        http: h11.Connection,
        network: httpcore2.AsyncNetworkStream,
        loop: OwningLoop,
        *,
        chunked: bool,
    ) -> None:
        super().__init__(where)
        self._http = http
        self._network = network
        self._loop = loop
        self._ended = False
        self._since = 0.0
        """Time at which the last read began, or received a byte."""
        self._stop_timer: Callable[[], object] | None = None
        self._expired = False
        self._error: h11.RemoteProtocolError | None = None
        """Error in the bytes after the data that the last read has returned."""
        # These bytes of the body arrived together with the headers, and h11 has not parsed them yet.
        self._chunks = ChunkedDecoder() if chunked else None
        self._buffer = self._first_bytes = http.trailing_data[0] if chunked else b""

    async def read(self) -> bytes | None:
        if self._stop_timer is None and self.limit < math.inf:
            self._start_timer(self.limit - self._waited)
        self.was_read = self.being_read = True
        self._since = time.monotonic()
        try:
            while not self._ended:
                chunks = self._chunks
                if chunks is None:
                    segment = self._h11_data()
                elif chunks.broken:
                    raise ConnectionError("a chunk is longer than its size")
                else:
                    data, self._buffer = self._buffer, b""
                    segment = chunks.feed(data)
                    if chunks.rest is not None:
                        self._leave_chunks(chunks.rest)
                if segment:
                    return segment
                if self._ended:
                    break
                data = await self._network.read(SEGMENT_BYTES)
                if self._expired and not data:
                    raise self._timed_out()
                if self._limits_silence and data:
                    self._since, self._waited = time.monotonic(), 0.0
                if self._chunks is None:
                    self._http.receive_data(data)
                elif data:
                    self._buffer = data
                else:
                    raise ConnectionError("the connection was closed within a chunked body")
        except (httpcore2.NetworkError, h11.RemoteProtocolError, ConnectionError, ssl.SSLError) as error:
            raise (self._timed_out() if self._expired else self._broken(error)) from None
        finally:
            self.being_read = False
            self._waited += time.monotonic() - self._since
        return None

    # ---- the timer ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._stop_timer is not None:
            self._stop_timer()
            self._stop_timer = None

    def _start_timer(self, seconds: float) -> None:
        # Use a weak reference, so that an abandoned client is still garbage-collected, which closes it.
        self._stop_timer = self._loop.call_later(max(0.0, seconds), partial(_check, weakref.ref(self)))

    def check_time(self) -> None:
        """Shut the connection down if the limit has passed, and otherwise start the timer again if a read waits."""
        self._stop_timer = None
        if self.being_read:
            left = self.limit - self._waited - (time.monotonic() - self._since)
            if left > 0:
                self._start_timer(left)
            else:
                self._expired = True
                shutdown_socket(self._network)

    # ---- decoding ----------------------------------------------------------------------------------------------

    def _leave_chunks(self, rest: bytes) -> None:
        """Continue with h11 at the first bytes that are not a simple chunk, or end the body.

        The connection can be reused only if nothing follows the last chunk. httpcore2 would otherwise read the bytes after it as
        the response to the next request.
        """
        if rest == _LAST_CHUNK:
            self._ended = True
            self._end_h11_of_httpcore()
        else:
            self._chunks, self._http = None, _h11_in_chunked_body()
            self._http.receive_data(rest)

    def _end_h11_of_httpcore(self) -> None:
        """Make the h11 connection inside httpcore2 parse the end of the body, so that httpcore2 can reuse the
        connection.
        """
        chunks = ChunkedDecoder()
        chunks.feed(self._first_bytes)
        if chunks.rest is None and chunks.between:
            self._http.receive_data(_LAST_CHUNK)
        elif chunks.rest != _LAST_CHUNK:
            return
        while type(self._http.next_event()) is h11.Data:
            pass

    def _h11_data(self) -> bytes:
        if self._error is not None:
            raise self._error
        next_event, parts = self._http.next_event, []
        try:
            while type(event := next_event()) is h11.Data:
                parts.append(event.data)
        except h11.RemoteProtocolError as error:
            # First return the valid data that precedes the error. The next call of h11 would not name the cause again.
            if not parts:
                raise
            self._error = error
        else:
            self._ended = event is not h11.NEED_DATA
            if self._ended and self._http.trailing_data[0]:
                # httpcore2 would read these bytes as the response to the next request on this connection.
                shutdown_socket(self._network)
        return b"".join(parts)


def _check(body: "weakref.ref[FastBody]") -> None:
    if (found := body()) is not None:
        found.check_time()


def _h11_in_chunked_body() -> h11.Connection:
    """Create an h11 connection that has just parsed the headers of a response with a chunked body.

    The h11 connection inside httpcore2 cannot be used, because it still contains bytes that this module has already
    returned to the caller.
    """
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[("Host", "-")]))
    http.send(h11.EndOfMessage())
    http.receive_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    http.next_event()
    return http


def fast_body_of(response: httpx2.Response, where: Where, loop: OwningLoop) -> FastBody | None:
    """Create a `FastBody` for a response whose body has not been read. Returns None if the internal objects of httpx2 and
    httpcore2 are not as expected.

    Args:
        response: The response.
        where: Context for error messages.
        loop: The running event loop.
    """
    layer: Any = response.stream
    for name in _LAYERS:
        layer = getattr(layer, name, None)
    network = response.extensions.get("network_stream")
    if not isinstance(layer, h11.Connection) or not isinstance(network, httpcore2.AsyncNetworkStream):
        return None
    if network.get_extra_info("socket") is None:
        return None
    chunked = response.headers.get("transfer-encoding", "").strip().lower() == "chunked"
    return FastBody(where, layer, network, loop, chunked=chunked and layer.their_state is h11.SEND_BODY)
