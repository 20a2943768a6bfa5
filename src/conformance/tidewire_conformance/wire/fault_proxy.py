"""TCP proxy that breaks or slows down connections on purpose, at byte positions chosen by a test or a demonstration.

At the position of a `Cut`, the proxy closes the connection, resets it, or stops forwarding. With `Slow`, it forwards bytes
late or one at a time. The bytes themselves are unchanged, and the proxy does not parse them. It therefore also works
between a client and a server with TLS.

    with FaultProxy(("127.0.0.1", 8000), plan=lambda n: Cut(after=1000) if n < 2 else None) as proxy:
        ...  # connect to proxy.url
"""

import asyncio
import contextlib
import socket
import struct
import threading
from abc import ABC, abstractmethod
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

READ: Final = 65536
"""Maximum number of bytes that a proxy reads at once."""


class TcpProxy(ABC):
    """Proxy on 127.0.0.1 while its `with` block is active. Its event loop runs in a separate thread."""

    def __init__(self, upstream: tuple[str, int], listener: socket.socket | None = None) -> None:
        """Configure the proxy.

        Args:
            upstream: Host and port of the server.
            listener: Listening socket. By default, the proxy listens on a free port.
        """
        self.upstream = upstream
        self._listener = listener
        self._address: tuple[str, int] | None = None
        self.connections = 0
        """Number of connections accepted so far."""
        self.faults: Counter[str] = Counter()
        """Number of faults of each kind that have occurred."""

    @property
    def url(self) -> str:
        """Base URL of the proxy. Clients use it in place of the server's URL."""
        return "http://{}:{}".format(*self.address)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the proxy."""
        if self._address is None:
            raise RuntimeError("the address of a proxy is available only inside its `with` block")
        return self._address

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live(ready)), daemon=True, name="fault-proxy"
        )
        self._thread.start()
        ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def break_all(self) -> None:
        """Close all connections."""
        self._loop.call_soon_threadsafe(self._cancel_all)

    @abstractmethod
    async def serve(self, number: int, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one connection. The proxy closes the connection afterwards.

        Args:
            number: Number of the connection. Connections are numbered from 0 in the order in which they are accepted.
            reader: Bytes from the client.
            writer: Bytes to the client.
        """

    def _cancel_all(self) -> None:
        for task in self._serving:
            task.cancel()

    async def _live(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()
        listener = self._listener or socket.create_server(("127.0.0.1", 0), backlog=1000)
        server = await asyncio.start_server(self._accept, sock=listener)
        self._address = server.sockets[0].getsockname()[:2]
        ready.set()
        await self._stop.wait()
        server.close()
        self._cancel_all()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)  # `drain` then waits until all bytes are sent.
        number, self.connections = self.connections, self.connections + 1
        task = asyncio.ensure_future(self.serve(number, reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        # A task that is cancelled before its first step runs no code of `serve`, not even the code that closes.
        task.add_done_callback(lambda _: close(writer))


@dataclass(frozen=True, slots=True)
class Cut:
    """Position in the bytes of one direction at which one connection breaks, and how it breaks."""

    after: int = 0
    """Number of bytes that are forwarded before the break.

    Counting starts at the end of `mark` if `mark` is set, and at the first byte otherwise.
    """
    mark: bytes = b""
    """Byte string in the forwarded bytes. Counting starts at the end of this string.

    If it is empty, counting starts at the first byte.
    """
    occurrence: int = 1
    """Which occurrence of `mark` starts the count: 1 for the first one, 2 for the second one, and so on."""
    how: Literal["fin", "rst", "stall"] = "fin"
    of: Literal["request", "response"] = "response"
    """Direction in which the bytes are counted."""


@dataclass(frozen=True, slots=True)
class Slow:
    """Delay of all bytes on one connection, in both directions."""

    singly: int = 0
    """Number of bytes at the beginning of each direction that are forwarded in segments of one byte."""
    delay: float = 0.0
    """Seconds by which each piece is forwarded late."""


Fault = Cut | Slow
Plan = Callable[[int], Fault | None]
"""Function that maps the number of a connection to its fault, or to None if the connection has no fault."""


class FaultProxy(TcpProxy):
    """Proxy whose connections have the faults that a plan assigns to them."""

    def __init__(self, upstream: tuple[str, int], plan: Plan) -> None:
        super().__init__(upstream)
        self._plan = plan
        self.cuts: list[bytes] = []
        """Last bytes (at most 80) that were forwarded on each connection before the proxy broke the connection."""

    async def serve(self, number: int, reader: StreamReader, writer: StreamWriter) -> None:
        """Forward the bytes of both directions until one direction ends or breaks."""
        fault = self._plan(number)
        opening = asyncio.ensure_future(asyncio.open_connection(*self.upstream))
        try:
            server_reader, server_writer = await opening
        except OSError:
            return  # The server cannot be reached.
        except asyncio.CancelledError:
            # If the connection was opened before this task could run again, nothing else would close it.
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                close(opening.result()[1])
            raise
        server_writer.transport.set_write_buffer_limits(0)
        finders = {
            of: _CutFinder(fault) if isinstance(fault, Cut) and fault.of == of else None
            for of in ("request", "response")
        }
        slow = fault if isinstance(fault, Slow) else None
        directions = [
            asyncio.ensure_future(forward(reader, server_writer, finders["request"], slow)),
            asyncio.ensure_future(forward(server_reader, writer, finders["response"], slow)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            finder = finders["request"] or finders["response"]
            if finder is not None and finder.found:
                self.cuts.append(finder.tail)
                self.faults[f"{finder.cut.how} of a {finder.cut.of}"] += 1
                await end_directions(directions)
                await break_connection(finder.cut.how, reader, writer)
            elif slow is not None:
                self.faults["slow"] += 1
        except OSError:
            pass  # The client or the server has closed its connection.
        finally:
            # The proxy may cancel this task while it waits here.
            try:
                await end_directions(directions)
            finally:
                close(server_writer)


async def forward(
    reader: StreamReader, writer: StreamWriter, finder: "_CutFinder | None" = None, slow: Slow | None = None
) -> None:
    """Forward bytes until the reader ends, or up to the position of a cut."""
    sent = 0
    while data := await reader.read(READ):
        passed = data if finder is None else finder.split(data)
        pieces = [passed]
        if slow is not None:
            await asyncio.sleep(slow.delay)
            singly = max(0, slow.singly - sent)
            pieces = [*(passed[at : at + 1] for at in range(len(passed[:singly]))), passed[singly:]]
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if finder is not None and finder.found:
            return
        sent += len(data)


def close(writer: StreamWriter) -> None:
    """Close a connection. Bytes that the peer has not read are lost, because to send them could take forever."""
    if writer.transport.get_write_buffer_size():
        writer.transport.abort()
    else:
        writer.close()


async def end_directions(directions: list[asyncio.Task[None]]) -> None:
    """Cancel the tasks that forward the bytes of a connection."""
    for task in directions:
        task.cancel()
    await asyncio.gather(*directions, return_exceptions=True)


async def break_connection(how: str, reader: StreamReader, writer: StreamWriter) -> None:
    """Reset a connection, or discard its bytes until the client closes it. After `fin`, the caller closes it."""
    if how == "stall":
        while await reader.read(READ):
            pass
    elif how == "rst":
        linger = struct.pack("ii", 1, 0)
        with contextlib.suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()


class _CutFinder:
    """Search for the position of a cut in a stream of chunks."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.found = False
        """Whether the position has been reached."""
        self.tail = b""
        self._window = b""
        self._marks_left = cut.occurrence if cut.mark else 0
        self._bytes_left = cut.after

    def split(self, data: bytes) -> bytes:
        """Return the part of a chunk to forward."""
        start = self._find_marks(data) if self._marks_left else 0
        room = len(data) - start
        if not self._marks_left:
            self.found = room >= self._bytes_left
            data = data[: start + self._bytes_left]
            self._bytes_left -= room
        self.tail = (self.tail + data)[-80:]
        return data

    def _find_marks(self, data: bytes) -> int:
        """Count the occurrences of the mark, even if a mark is split across chunks.

        Returns the index in `data` just after the last occurrence that has to be counted, or 0 if more occurrences have
        to follow.
        """
        mark = self.cut.mark
        seen = len(self._window)
        joined = self._window + data
        at = 0
        while self._marks_left:
            found = joined.find(mark, at)
            if found < 0:
                # Keep only the bytes that may begin another mark. Without this limit, a mark could be counted twice.
                keep = max(at, len(joined) - len(mark) + 1)
                self._window = joined[keep:]
                return 0
            at = found + len(mark)
            self._marks_left -= 1
        return at - seen
