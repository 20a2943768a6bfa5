"""A streamed body, read from the socket under httpx: what came together is given together, under one time limit.

A server sends each event as a chunk of its own. httpx gives each chunk by itself, through six generators and two time
limits, which costs more than all that is made of the event. Here all chunks that one read from the socket has brought
are given at once. Plain chunks are taken apart here, too; all else of HTTP stays h11's to judge.

The objects under httpx are not public. Where they are not the ones that are known here (HTTP/2, a transport of another
kind, a later httpx), there are no segments, and the body is read as httpx gives it.
"""

from collections.abc import Mapping
from typing import Any, Final

import h11
import httpcore

from tidewire.http.chunked_coding import ChunkedDecoder

SEGMENT_BYTES: Final = 16 * 2**10
"""Bytes that are read from the socket at a time."""

_LAST_CHUNK: Final = b"0\r\n\r\n"

_LAYERS: Final = ("_stream", "_httpcore_stream", "_stream", "_connection", "_h11_state")


class FastBody:
    """See the top of this file."""

    resumable = True

    def __init__(self, http: h11.Connection, socket: httpcore.AsyncNetworkStream, *, chunked: bool) -> None:
        self._http = http
        self._socket = socket
        self._over = False
        # h11 has not looked at what came of the body together with the head.
        self._chunks = ChunkedDecoder() if chunked else None
        self._came = self._with_head = http.trailing_data[0] if chunked else b""

    async def read(self, limit: float) -> bytes | None:
        """What has come of the body, None at its end.

        Args:
            limit: Seconds without a byte.

        Raises:
            TimeoutError: No byte came.
            ConnectionError: The connection broke, or what came is no HTTP.
        """
        try:
            while not self._over:
                segment = self._whole_chunks() if self._chunks is None else self._plain(self._chunks)
                if segment:
                    return segment
                if not self._over:
                    self._take(await self._socket.read(SEGMENT_BYTES, timeout=limit))
        except httpcore.ReadTimeout as error:
            raise TimeoutError from error
        except (httpcore.NetworkError, h11.RemoteProtocolError) as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        return None

    def _take(self, data: bytes) -> None:
        if self._chunks is None:
            self._http.receive_data(data)
        elif data:
            self._came = data
        else:
            raise ConnectionError("the end of the connection within a body in chunks")

    def _plain(self, chunks: ChunkedDecoder) -> bytes:
        if chunks.broken:
            raise ConnectionError("a chunk does not end where its size says")
        came, self._came = self._came, b""
        segment = chunks.feed(came)
        if chunks.rest == _LAST_CHUNK:
            self._over = True
            self._end_under_httpx()
        elif chunks.rest is not None:
            self._chunks, self._http = None, _at_a_body_in_chunks()
            self._http.receive_data(chunks.rest)
        return segment

    def _end_under_httpx(self) -> None:
        """Let the h11 there know that the body is over: then its connection serves the next request."""
        chunks = ChunkedDecoder()
        chunks.feed(self._with_head)
        if chunks.rest is None and chunks.between:
            self._http.receive_data(_LAST_CHUNK)
        elif chunks.rest != _LAST_CHUNK:
            return
        while type(self._http.next_event()) is h11.Data:
            pass

    def _whole_chunks(self) -> bytes:
        next_event, parts = self._http.next_event, []
        try:
            while type(event := next_event()) is h11.Data:
                parts.append(event.data)
        except h11.RemoteProtocolError:
            # What came before it is good. After it, h11 says the same again.
            if not parts:
                raise
        else:
            self._over = event is not h11.NEED_DATA
        return b"".join(parts)

    async def unwind(self) -> None:
        """Nothing was begun that must be ended."""


def _at_a_body_in_chunks() -> h11.Connection:
    """An h11 that has just read a head that announces chunks. The one under httpx holds what was read here already."""
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[("Host", "-")]))
    http.send(h11.EndOfMessage())
    http.receive_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    http.next_event()
    return http


def fast_body_of(stream: Any, headers: Mapping[str, str], extensions: Mapping[str, Any]) -> FastBody | None:
    """The segments of a response's body, nothing of which was read yet; None where they are out of reach.

    Args:
        stream: The stream of an httpx response.
        headers: The response's, names in any case.
        extensions: The response's.
    """
    for name in _LAYERS:
        stream = getattr(stream, name, None)
    socket = extensions.get("network_stream")
    if isinstance(stream, h11.Connection) and isinstance(socket, httpcore.AsyncNetworkStream):
        chunked = headers.get("transfer-encoding", "").strip().lower() == "chunked"
        return FastBody(stream, socket, chunked=chunked and stream.their_state is h11.SEND_BODY)
    return None
