"""TCP proxy that breaks connections on purpose, at byte positions chosen by a test or a demonstration.

The proxy forwards bytes unchanged and counts the bytes that the server sends on each connection. At the position of a
`Cut` it closes the connection, resets it, or stops forwarding. The proxy does not parse HTTP.

    with FaultProxy(("127.0.0.1", 8000), plan=lambda n: Cut(after=1000) if n < 2 else None) as proxy:
        ...  # connect to proxy.url
"""

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

_READ = 65536


@dataclass(frozen=True, slots=True)
class Cut:
    """Position in the server's output at which one connection breaks, and how it breaks."""

    after: int = 0
    """Number of bytes that are forwarded before the break.

    Counting starts at the end of `mark` if `mark` is set, and at the first byte otherwise.
    """
    mark: bytes = b""
    """Byte string in the server's output. Counting starts at the end of this string.

    If it is empty, counting starts at the first byte of the output.
    """
    occurrence: int = 1
    """Which occurrence of `mark` starts the count: 1 for the first one, 2 for the second one, and so on."""
    how: Literal["fin", "rst", "stall"] = "fin"


Plan = Callable[[int], Cut | None]
"""Function that maps the number of a connection to its cut, or to None if the connection is not to be broken.

Connections are numbered from 0 in the order in which the proxy accepts them.
"""


class FaultProxy:
    """Proxy that listens on a free port of 127.0.0.1 while its `with` block is active."""

    def __init__(self, upstream: tuple[str, int], plan: Plan) -> None:
        self._upstream = upstream
        self._plan = plan
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.connections = 0
        """Number of connections accepted so far."""
        self.cuts: list[bytes] = []
        """Last bytes (at most 80) that were forwarded on each connection before the proxy broke the connection."""

    @property
    def url(self) -> str:
        """Base URL of the proxy. Clients use it in place of the server's URL."""
        if self._listener is None:
            raise RuntimeError("FaultProxy.url is available only inside the `with` block of the proxy")
        host, port = self._listener.getsockname()[:2]
        return f"http://{host}:{port}"

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._start(self._accept, self._listener)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            still_open = list(self._open)
        for one in still_open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=5)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True, name="cutting-proxy")
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            number, self.connections = self.connections, self.connections + 1
            self._start(self._serve, client, self._plan(number))

    def _serve(self, client: socket.socket, cut: Cut | None) -> None:
        try:
            server = socket.create_connection(self._upstream, timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        with self._lock:
            self._open |= {client, server}
        try:
            self._pass(client, server, cut)
        except OSError:
            pass  # the client or the server has closed its connection
        finally:
            with self._lock:
                self._open -= {client, server}
            client.close()
            server.close()

    def _pass(self, client: socket.socket, server: socket.socket, cut: Cut | None) -> None:
        finder = None if cut is None else _CutFinder(cut)
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in selector.select():
                    source, target = key.fileobj, key.data
                    assert isinstance(source, socket.socket)  # noqa: S101 - only sockets were registered
                    data = source.recv(_READ)
                    if not data:
                        return
                    if source is client or finder is None:
                        target.sendall(data)
                        continue
                    passed, now = finder.split(data)
                    target.sendall(passed)
                    if now:
                        self.cuts.append(finder.tail)
                        self._break(client, finder.cut.how)
                        return

    def _break(self, client: socket.socket, how: str) -> None:
        if how == "stall":
            while client.recv(_READ):
                pass  # discard all bytes from the client until the client disconnects or the proxy closes
        elif how == "rst":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            client.shutdown(socket.SHUT_WR)


class _CutFinder:
    """Searches for the position of a cut in a stream of chunks."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.tail = b""
        self._window = b""
        self._marks_left = cut.occurrence if cut.mark else 0
        self._bytes_left = cut.after

    def split(self, data: bytes) -> tuple[bytes, bool]:
        """Return the part of a chunk to forward, and whether to break the connection after that part."""
        start = 0
        if self._marks_left:
            start = self._find_marks(data)
            if self._marks_left:
                self._remember(data)
                return data, False
        room = len(data) - start
        if room < self._bytes_left:
            self._bytes_left -= room
            self._remember(data)
            return data, False
        passed = data[: start + self._bytes_left]
        self._remember(passed)
        return passed, True

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

    def _remember(self, passed: bytes) -> None:
        self.tail = (self.tail + passed)[-80:]
