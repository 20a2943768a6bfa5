"""Fast path for streamed response bodies, which reads from the network stream of httpcore and returns all chunks that
arrived together.

A server sends each event as one HTTP chunk. httpcore yields each chunk separately, through several generators and
timeouts, which takes more time than processing the event. `FastBody` reads from the network stream directly, and returns
the content of all chunks that one read has returned. It parses simple chunks with `ChunkedDecoder` and all other bytes
with h11.

The internal objects of httpcore are not public. If they are not of the expected kind, for example because of HTTP/2,
another transport or a later version of httpcore, `fast_body_of` returns None and the client reads the body through
httpx.
"""

from collections.abc import Mapping
from typing import Any, Final

import h11
import httpcore

from tidewire.http.chunked_coding import ChunkedDecoder
from tidewire.http.connection_diagnosis import text_of

SEGMENT_BYTES: Final = 256 * 2**10
"""Maximum number of bytes per read from the network stream."""

_LAST_CHUNK: Final = b"0\r\n\r\n"

_LAYERS: Final = ("_stream", "_httpcore_stream", "_stream", "_connection", "_h11_state")


class FastBody:
    """A streamed response body that is read directly from httpcore's network stream. After a cancelled `read`, `read`
    may be called again.
    """

    resumable = True

    def __init__(self, http: h11.Connection, network: httpcore.AsyncNetworkStream, *, chunked: bool) -> None:
        self._http = http
        self._network = network
        self._ended = False
        # These bytes of the body arrived together with the headers, and h11 has not parsed them yet.
        self._chunks = ChunkedDecoder() if chunked else None
        self._buffer = self._first_bytes = http.trailing_data[0] if chunked else b""

    async def read(self, limit: float) -> bytes | None:
        """Wait for the next bytes of the body and return all bytes that have arrived. Returns None at the end of the
        body.

        Args:
            limit: Maximum time to wait for a byte, in seconds.

        Raises:
            TimeoutError: No byte arrived in time.
            ConnectionError: The connection broke, or the bytes are not valid HTTP.
        """
        try:
            while not self._ended:
                segment = self._h11_data() if self._chunks is None else self._decode_chunks(self._chunks)
                if segment:
                    return segment
                if not self._ended:
                    self._receive(await self._network.read(SEGMENT_BYTES, timeout=limit))
        except httpcore.ReadTimeout:
            raise TimeoutError from None
        except (httpcore.NetworkError, h11.RemoteProtocolError) as error:
            raise ConnectionError(text_of(error)) from None
        return None

    def _receive(self, data: bytes) -> None:
        if self._chunks is None:
            self._http.receive_data(data)
        elif data:
            self._buffer = data
        else:
            raise ConnectionError("the connection was closed within a chunked body")

    def _decode_chunks(self, chunks: ChunkedDecoder) -> bytes:
        if chunks.broken:
            raise ConnectionError("a chunk is longer than its size")
        data, self._buffer = self._buffer, b""
        segment = chunks.feed(data)
        if chunks.rest == _LAST_CHUNK:
            self._ended = True
            self._end_h11_of_httpcore()
        elif chunks.rest is not None:
            self._chunks, self._http = None, _h11_in_chunked_body()
            self._http.receive_data(chunks.rest)
        return segment

    def _end_h11_of_httpcore(self) -> None:
        """Make the h11 connection inside httpcore parse the end of the body, so that httpcore can reuse the
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
        next_event, parts = self._http.next_event, []
        try:
            while type(event := next_event()) is h11.Data:
                parts.append(event.data)
        except h11.RemoteProtocolError:
            # First return the valid data that precedes the error. The next call of h11 raises the same error again.
            if not parts:
                raise
        else:
            self._ended = event is not h11.NEED_DATA
        return b"".join(parts)

    async def unwind(self) -> None:
        """Do nothing, because this body has no open generators."""


def _h11_in_chunked_body() -> h11.Connection:
    """Create an h11 connection that has just parsed the headers of a response with a chunked body.

    The h11 connection inside httpcore cannot be used, because it still contains bytes that this module has already
    returned to the caller.
    """
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[("Host", "-")]))
    http.send(h11.EndOfMessage())
    http.receive_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    http.next_event()
    return http


def fast_body_of(stream: Any, headers: Mapping[str, str], extensions: Mapping[str, Any]) -> FastBody | None:
    """Create a `FastBody` for a response whose body has not been read. Returns None if httpcore's internal objects are
    not as expected.

    Args:
        stream: The attribute `stream` of a response of httpx.
        headers: Headers of the response.
        extensions: Extensions of the response.
    """
    for name in _LAYERS:
        stream = getattr(stream, name, None)
    network = extensions.get("network_stream")
    if isinstance(stream, h11.Connection) and isinstance(network, httpcore.AsyncNetworkStream):
        chunked = headers.get("transfer-encoding", "").strip().lower() == "chunked"
        return FastBody(stream, network, chunked=chunked and stream.their_state is h11.SEND_BODY)
    return None
