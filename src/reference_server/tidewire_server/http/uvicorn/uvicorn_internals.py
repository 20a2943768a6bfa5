"""Access to uvicorn's connection behind an ASGI `send`, for operations that the ASGI interface lacks.

- check whether the request's body has arrived, and whether the client is slow to read the response;
- distinguish a slow client from a stalled one, and abort the stalled one's connection together with its buffers;
- detect that a client has disconnected after it pipelined another request behind its stream;
- send a body of unknown length to an HTTP/1.0 client, which does not support chunked encoding;
- write a part of a body from a callback, which cannot await.

Under other ASGI servers these operations do nothing, and streams use only `send`.
"""

import asyncio
import contextlib
import socket
import struct
import sys
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send

SEND_BUFFER_BYTES: Final = 64 * 1024
"""Kernel send buffer of each connection. With the default size, a stalled reader would occupy megabytes."""

_CLOSE_SECONDS: Final = 60.0
"""Seconds for an HTTP/1.0 client to receive the last bytes of a body that ends with the connection."""

_STATUS_LINE: Final = b"HTTP/1.1 %d \r\n"


class UvicornConnection:
    """Connection of one request, with a fallback for each operation if the server is not uvicorn."""

    __slots__ = ("_bounded", "_chunks", "_cycle", "_flow", "_transport")

    def __init__(self, send: Send, *, bounded: bool = False) -> None:
        """Find uvicorn's objects behind a request's `send`.

        Args:
            send: ASGI `send` of the server.
            bounded: Whether the socket has inherited `SEND_BUFFER_BYTES` from the listening socket.
        """
        self._bounded = bounded
        self._cycle: Any = getattr(send, "__self__", None)
        self._transport: Any = getattr(self._cycle, "transport", None)
        self._flow: Any = getattr(self._cycle, "flow", None)
        self._chunks = False

    def body_received(self) -> bool:
        """Return whether the whole request body has arrived, so that receiving it does not wait."""
        return getattr(self._cycle, "more_body", True) is False

    def coalesce_writes(self) -> None:
        """Raise the write buffer limits, so that the next writes do not wait and can be sent together."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits()

    def limit_buffering(self) -> None:
        """Limit buffering to the last write in this process, and to `SEND_BUFFER_BYTES` in the kernel.

        After this call, a send waits until the kernel has accepted all earlier writes.
        """
        if self._transport is None:
            return
        self._transport.set_write_buffer_limits(high=0)
        sock = None if self._bounded else self._transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):  # the socket is already closed
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def body_started(self) -> None:
        """Enable `write_at_once`. Call this after the response head was sent."""
        # Only with uvicorn's httptools cycle: under h11 the parser encodes the body and counts its bytes.
        self._chunks = (
            self._transport is not None
            and not hasattr(self._cycle, "conn")
            and getattr(self._cycle, "chunked_encoding", None) is True
        )

    def behind(self) -> bool | None:
        """Return whether earlier writes are still buffered in this process. None if the buffer is not accessible.

        If False, the next send does not wait.
        """
        return None if self._transport is None else self._transport.get_write_buffer_size() > 0

    def write_at_once(self, part: bytes) -> bool:
        """Write a part of a chunked body synchronously, from any callback of the event loop.

        Returns:
            False if nothing was written and the caller must use `send`, because the client is slow or disconnected, or
            the server is not uvicorn with httptools.
        """
        transport = self._transport
        if not self._chunks or transport.get_write_buffer_size() or transport.is_closing():
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        return True

    def unacknowledged(self) -> int | None:
        """Return the number of bytes that the client has not acknowledged. None if the connection is not accessible."""
        return None if self._transport is None else unacknowledged_bytes(self._transport)

    def lost(self) -> bool:
        """Return whether the connection closed during the response.

        When a client with pipelined requests disconnects, uvicorn notifies only the last request, not the one whose
        response is being sent.
        """
        if self._transport is None or not self._transport.is_closing():
            return False
        self._cycle.disconnected = True
        return True

    def abort(self) -> None:
        """Close the connection and discard its buffers. A normal close would wait for the client to read them."""
        if self._transport is not None:
            drop(self._transport)

    def framed(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """Wrap `send` to frame bodies for HTTP/1.0 clients, which do not support chunked encoding.

        uvicorn uses chunked encoding regardless of the HTTP version. For HTTP/1.0 this wrapper sends a body of unknown
        length without encoding, and closes the connection to mark its end.
        """
        if scope["http_version"] != "1.0" or self._transport is None or self._flow is None:
            return send
        plain = False

        async def send_plain(message: Message) -> None:
            nonlocal plain
            if message["type"] == "http.response.start" and not _has_length(message):
                plain = True
                head = [*message["headers"], (b"connection", b"close")]
                lines = b"".join(b"%b: %b\r\n" % (name, value) for name, value in head)
                self._transport.write(_STATUS_LINE % message["status"] + lines + b"\r\n")
            elif plain:
                await self._flow.drain()
                # Like uvicorn, ignore writes after a disconnect, which is reported through `receive`.
                if self._transport.is_closing():
                    return
                self._transport.write(message.get("body", b""))
                if not message.get("more_body", False):
                    await self._close(receive)
            else:
                await send(message)

        return send_plain

    async def _close(self, receive: Receive) -> None:
        """Close the connection and wait until uvicorn notices. Otherwise uvicorn reports the response as incomplete."""
        self._transport.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                while (await receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            self.abort()


def drop(transport: Any) -> None:
    """Abort a connection and discard its buffers, including the kernel's, which would otherwise keep retransmitting."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):  # the socket is already closed
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


_NO_LINGER: Final = struct.pack("ii", 1, 0)


def unacknowledged_bytes(transport: Any) -> int:
    """Return the number of bytes that the peer has not acknowledged, including those in the kernel's send buffer.

    The write buffer alone would not show slow progress: the kernel accepts more bytes only once a third of its buffer
    is free, which takes minutes if the peer reads a few bytes per second.
    """
    return int(transport.get_write_buffer_size()) + _unacknowledged_in_kernel(transport)


if sys.platform == "linux":
    import fcntl
    import termios

    def _unacknowledged_in_kernel(transport: Any) -> int:
        """Return the number of bytes in the socket's send queue that the peer has not acknowledged."""
        sock = transport.get_extra_info("socket")
        try:
            queued: int = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        except (AttributeError, OSError):  # the transport has no socket, or the socket is closed
            return 0
        return queued

else:

    def _unacknowledged_in_kernel(_transport: Any) -> int:
        """Return 0, because this platform does not report the socket's send queue."""
        return 0


def _has_length(message: Message) -> bool:
    return message["status"] in {204, 304} or any(name == b"content-length" for name, _ in message["headers"])
