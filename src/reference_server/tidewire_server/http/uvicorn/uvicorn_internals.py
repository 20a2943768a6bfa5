"""Access to uvicorn's connection behind an ASGI `send`, for what the ASGI interface cannot do.

- see whether the request's body has arrived, and whether the reader is behind;
- distinguish a slow reader from one that takes no byte, and drop the latter with what is buffered for it;
- notice that a reader has left that had pipelined another request behind its stream;
- send a body of unknown length to an HTTP/1.0 reader, which knows no chunks;
- write a part of a body from a callback, where nothing can wait.

Under another ASGI server these are left out, and a stream uses `send` alone.
"""

import asyncio
import contextlib
import socket
import struct
import sys
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send

SEND_BUFFER_BYTES: Final = 64 * 1024
"""Of each connection, in the kernel. Unset, a stalled reader pins megabytes."""

_CLOSE_SECONDS: Final = 60.0
"""How long a reader has to take the last bytes of a body that the close of its connection ends."""

_STATUS_LINE: Final = b"HTTP/1.1 %d \r\n"


class UvicornConnection:
    """One request's connection."""

    __slots__ = ("_bounded", "_chunks", "_cycle", "_flow", "_transport")

    def __init__(self, send: Send, *, bounded: bool = False) -> None:
        """Look beneath a request's `send`.

        Args:
            send: Of the ASGI server.
            bounded: The socket has inherited `SEND_BUFFER_BYTES` from the one that listens.
        """
        self._bounded = bounded
        self._cycle: Any = getattr(send, "__self__", None)
        self._transport: Any = getattr(self._cycle, "transport", None)
        self._flow: Any = getattr(self._cycle, "flow", None)
        self._chunks = False

    def has_body(self) -> bool:
        """Whether the rest of the request's body is here: to receive it waits for nothing."""
        return getattr(self._cycle, "more_body", True) is False

    def gather(self) -> None:
        """Have what is written from here on wait for the end of this turn of the loop, to go out as one."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits()

    def hold_little(self) -> None:
        """Buffer nothing in this process beyond what was last written, and little in the kernel.

        A send waits until the kernel has taken all that was written before.
        """
        if self._transport is None:
            return
        self._transport.set_write_buffer_limits(high=0)
        sock = None if self._bounded else self._transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):  # closed meanwhile
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def begun(self) -> None:
        """The head of an answer was sent: from here on its body can be written."""
        # Only uvicorn's own cycle over its fast parser is known: under h11 the parser frames a body and keeps count.
        self._chunks = (
            self._transport is not None
            and not hasattr(self._cycle, "conn")
            and getattr(self._cycle, "chunked_encoding", None) is True
        )

    def behind(self) -> bool | None:
        """Whether the reader has not made room for what was written last; None where that cannot be seen.

        While it is false a send does not wait.
        """
        return None if self._transport is None else self._transport.get_write_buffer_size() > 0

    def write_at_once(self, part: bytes) -> bool:
        """Write a part of a body whose sending has begun, from any callback of the event loop.

        Returns:
            Whether that was possible; else nothing was written, and `send` is the way: the reader is behind or gone,
            or what lies beneath is not known well enough.
        """
        transport = self._transport
        if not self._chunks or transport.get_write_buffer_size() or transport.is_closing():
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        return True

    def untaken(self) -> int | None:
        """Bytes that the reader has not taken; None where that cannot be seen."""
        return None if self._transport is None else untaken(self._transport)

    def lost(self) -> bool:
        """Whether it has closed under an answer that is still being sent.

        Of pipelined requests uvicorn tells the last one only that its reader has gone, and not the one it answers.
        """
        if self._transport is None or not self._transport.is_closing():
            return False
        self._cycle.disconnected = True
        return True

    def abort(self) -> None:
        """Drop the connection with what is buffered for it: to close it would be to wait for its reader."""
        if self._transport is not None:
            drop(self._transport)

    def framed(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """How to answer so that the reader can tell where a body ends.

        uvicorn sends chunks whatever the reader speaks. To HTTP/1.0 a body whose length is not known is sent as it
        is, and the close of the connection ends it.
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
                # As uvicorn does: whoever listens is told that the reader has gone.
                if self._transport.is_closing():
                    return
                self._transport.write(message.get("body", b""))
                if not message.get("more_body", False):
                    await self._close(receive)
            else:
                await send(message)

        return send_plain

    async def _close(self, receive: Receive) -> None:
        """Close, and wait until uvicorn has noticed: before that it takes the answer for one that was forgotten."""
        self._transport.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                while (await receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            self.abort()


def drop(transport: Any) -> None:
    """Close a connection with what is buffered for it, also by the kernel, which would else go on offering that."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):  # closed meanwhile
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


_NO_LINGER: Final = struct.pack("ii", 1, 0)


def untaken(transport: Any) -> int:
    """Bytes that the reader's side has not confirmed, the kernel's included.

    The kernel asks for more only once a third of its buffer is free: a reader of a few bytes a second would seem to
    take none for minutes.
    """
    return int(transport.get_write_buffer_size()) + _unconfirmed(transport)


if sys.platform == "linux":
    import fcntl
    import termios

    def _unconfirmed(transport: Any) -> int:
        """Bytes in a socket's send queue that its peer has not confirmed."""
        sock = transport.get_extra_info("socket")
        try:
            queued: int = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        except (AttributeError, OSError):  # no socket beneath it, or closed meanwhile
            return 0
        return queued

else:

    def _unconfirmed(_transport: Any) -> int:
        """Not to be seen here."""
        return 0


def _has_length(message: Message) -> bool:
    return message["status"] in {204, 304} or any(name == b"content-length" for name, _ in message["headers"])
