"""Operations on the uvicorn connection of an ASGI request, which ASGI itself does not offer (`UvicornConnection`).

The operations are:

- Check whether the client is slow to read the response.
- Distinguish a slow client from a stalled client. Abort the connection of a stalled client and discard its buffers.
- Detect that a client has disconnected, even if it had sent another request on the same connection during a stream.
- Send a body of unknown length to an HTTP/1.0 client, which does not support chunked encoding.
- Write a part of a body from a callback, which cannot await.

Under other ASGI servers, these operations do nothing, and streams are sent only through `send`.
"""

import asyncio
import contextlib
import socket
import struct
import sys
from contextlib import AbstractContextManager
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send

SEND_BUFFER_BYTES: Final = 64 * 1024
"""Size of the kernel's send buffer of each connection.

With the default size, a stalled reader would occupy megabytes.
"""

_CLOSE_SECONDS: Final = 60.0
"""Number of seconds that an HTTP/1.0 client has to receive the rest of a body before the connection is aborted."""

_STATUS_LINE: Final = b"HTTP/1.1 %d \r\n"


class UvicornConnection:
    """Connection on which a request arrived. If the ASGI server is not uvicorn, each method has a fallback."""

    __slots__ = ("_bounded", "_chunks", "_cycle", "_flow", "_transport")

    def __init__(self, send: Send, *, bounded: bool = False) -> None:
        """Find the uvicorn objects to which the `send` function of a request belongs.

        Args:
            send: ASGI `send` of the server.
            bounded: Whether the socket has inherited `SEND_BUFFER_BYTES` from the listening socket.
        """
        self._bounded = bounded
        self._cycle: Any = getattr(send, "__self__", None)
        self._transport: Any = getattr(self._cycle, "transport", None)
        self._flow: Any = getattr(self._cycle, "flow", None)
        self._chunks = False

    def coalesce_writes(self) -> AbstractContextManager[object]:
        """Send everything that is written during a `with` block in one write, which does not wait for a slow client.

        uvloop makes a system call for each write. In a short response, these calls take most of the CPU time.
        """
        if self._transport is None:
            return contextlib.nullcontext()
        self._transport.set_write_buffer_limits()
        return _WriteCollector(self._cycle)

    def limit_buffering(self) -> None:
        """Limit the amount of unsent data. This process buffers only the last write, and the kernel at most
        `SEND_BUFFER_BYTES`.

        After this call, `send` waits until the kernel has accepted all earlier writes.
        """
        if (
            self._transport is None or self._transport.is_closing()
        ):  # asyncio's closed TLS transports have no limits
            return
        # The TLS transports of asyncio and uvloop compare `size >= high`. With `high=0` an empty buffer would pause the
        # writer, and nothing would resume it.
        self._transport.set_write_buffer_limits(high=1, low=0)
        sock = None if self._bounded else _socket_of(self._transport)
        if sock is not None:
            with contextlib.suppress(OSError):  # the socket is already closed
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def body_started(self) -> None:
        """Enable `write_at_once`. This method must be called after the response head was sent."""
        # Direct writes work only with uvicorn's httptools protocol. With h11, the h11 library must encode and count all
        # bytes.
        self._chunks = (
            self._transport is not None
            and not hasattr(self._cycle, "conn")
            and getattr(self._cycle, "chunked_encoding", None) is True
        )

    def behind(self) -> bool | None:
        """Return whether earlier writes are still buffered in this process, or None if the buffer is not accessible.

        If the result is False, the next `send` does not wait.
        """
        return None if self._transport is None else _buffered_bytes(self._transport) > 0

    def write_at_once(self, part: bytes) -> bool:
        """Write a part of a chunked body synchronously. This method can be called from any callback of the event loop.

        Returns:
            Whether the part was written. It is not written if the client is slow or has disconnected, or if the server
            is not uvicorn with httptools. The caller must then use `send`.
        """
        transport = self._transport
        if not self._chunks or transport.is_closing() or transport.get_write_buffer_size():
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        return True

    def unacknowledged(self) -> int | None:
        """Return the number of bytes that the client has not acknowledged, or None if the connection is not accessible."""
        return None if self._transport is None else unacknowledged_bytes(self._transport)

    def lost(self) -> bool:
        """Return whether the connection was closed while the response was being sent.

        When a client with several pipelined requests disconnects, uvicorn notifies only the last request, and not the
        request whose response is being sent.
        """
        if self._transport is None or not self._transport.is_closing():
            return False
        self._cycle.disconnected = True
        return True

    def abort(self) -> None:
        """Close the connection and discard its buffers. A normal close would wait until the client has read the
        buffered data.
        """
        if self._transport is not None:
            drop(self._transport)

    def framed(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """Wrap `send` to frame bodies for HTTP/1.0 clients, which do not support chunked encoding.

        uvicorn uses chunked encoding for every HTTP version. For HTTP/1.0 clients, this wrapper sends a body of unknown
        length without an encoding and then closes the connection, which marks the end of the body.
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
                # Ignore writes after a disconnect, as uvicorn does. The disconnect is reported by `receive`.
                if self._transport.is_closing():
                    return
                self._transport.write(message.get("body", b""))
                if not message.get("more_body", False):
                    await self._close(receive)
            else:
                await send(message)

        return send_plain

    async def _close(self, receive: Receive) -> None:
        """Close the connection, and wait until uvicorn has detected that it is closed.

        Otherwise uvicorn would log an incomplete response.
        """
        self._transport.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                while (await receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            self.abort()


class _WriteCollector:
    """Replaces the transport of a uvicorn request during a `with` block. It collects all writes until the block ends."""

    __slots__ = ("_cycle", "_parts", "_transport")

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._parts: list[bytes] = []

    def __enter__(self) -> None:
        self._cycle.transport = self

    def __exit__(self, *_: object) -> None:
        self._cycle.transport = self._transport
        self.flush()

    def write(self, part: bytes) -> None:
        self._parts.append(part)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def drop(transport: Any) -> None:
    """Abort a connection and discard its buffers. Otherwise the kernel would retransmit the content of its buffer."""
    sock = _socket_of(transport)
    if sock is not None:
        with contextlib.suppress(OSError):  # the socket is already closed
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


def _socket_of(transport: Any) -> Any:
    """Return the socket of a transport, or None if the transport is closed."""
    try:
        return transport.get_extra_info("socket")
    except AttributeError:  # A closed TLS transport of asyncio has no connection any more.
        return None


def _buffered_bytes(transport: Any) -> int:
    try:
        return int(transport.get_write_buffer_size())
    except AttributeError:  # A closed TLS transport of asyncio has no buffer.
        return 0


_NO_LINGER: Final = struct.pack("ii", 1, 0)


def unacknowledged_bytes(transport: Any) -> int:
    """Return the number of bytes that the peer has not acknowledged, including the bytes in the kernel's send buffer.

    The size of the write buffer alone would not show that a slow peer makes progress, because the kernel accepts more
    bytes only when a third of its buffer is free. If the peer reads only a few bytes per second, this can take minutes.
    """
    return _buffered_bytes(transport) + _unacknowledged_in_kernel(transport)


if sys.platform == "linux":
    import fcntl
    import termios

    def _unacknowledged_in_kernel(transport: Any) -> int:
        """Return the number of bytes in the socket's send queue that the peer has not acknowledged."""
        sock = _socket_of(transport)
        try:
            queued: int = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        except (AttributeError, OSError):  # The transport has no socket, or the socket is closed.
            return 0
        return queued

else:

    def _unacknowledged_in_kernel(_transport: Any) -> int:
        """Return 0, because this platform does not report the size of the socket's send queue."""
        return 0


def _has_length(message: Message) -> bool:
    return message["status"] in {204, 304} or any(name == b"content-length" for name, _ in message["headers"])
