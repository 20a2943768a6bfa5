"""A TCP proxy that breaks connections on purpose, at places that a test or a demonstration chooses.

It passes bytes on as they come and counts what the server sends on each connection. Where a `Cut` says so, it stops
in the middle: with an orderly close, with a reset, or by falling silent. It knows nothing of HTTP.

    with FaultProxy(("127.0.0.1", 8000), plan=lambda n: Cut(after=1000) if n < 2 else None) as proxy:
        ...  # talk to proxy.url
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
    """Where one connection breaks, counted in what the server sent on it, and how."""

    after: int = 0
    """Bytes that still pass, counted from `mark` where one is given, else from the connection's first byte."""
    mark: bytes = b""
    """Count from the end of the n-th appearance of these bytes…"""
    occurrence: int = 1
    """…and this is n."""
    how: Literal["fin", "rst", "stall"] = "fin"


Plan = Callable[[int], Cut | None]
"""Connection number, from 0, in the order in which they are accepted → where it breaks; None: never."""


class FaultProxy:
    """Listens on a free port of 127.0.0.1 while it is entered."""

    def __init__(self, upstream: tuple[str, int], plan: Plan) -> None:
        self._upstream = upstream
        self._plan = plan
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.connections = 0
        """Connections accepted so far."""
        self.cuts: list[bytes] = []
        """For each connection that was broken, the last bytes (at most 80) that passed before it broke."""

    @property
    def url(self) -> str:
        """Where to connect instead of the server."""
        if self._listener is None:
            raise RuntimeError("the proxy listens only inside its `with` block")
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
                near, _ = listener.accept()
            except OSError:
                return
            number, self.connections = self.connections, self.connections + 1
            self._start(self._serve, near, self._plan(number))

    def _serve(self, near: socket.socket, cut: Cut | None) -> None:
        try:
            far = socket.create_connection(self._upstream, timeout=10)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        with self._lock:
            self._open |= {near, far}
        try:
            self._pass(near, far, cut)
        except OSError:
            pass  # either side went away: what a proxy is there to survive
        finally:
            with self._lock:
                self._open -= {near, far}
            near.close()
            far.close()

    def _pass(self, near: socket.socket, far: socket.socket, cut: Cut | None) -> None:
        knife = None if cut is None else _Knife(cut)
        with selectors.DefaultSelector() as selector:
            selector.register(near, selectors.EVENT_READ, far)
            selector.register(far, selectors.EVENT_READ, near)
            while True:
                for key, _ in selector.select():
                    source, target = key.fileobj, key.data
                    assert isinstance(source, socket.socket)  # noqa: S101 - only sockets were registered
                    data = source.recv(_READ)
                    if not data:
                        return
                    if source is near or knife is None:
                        target.sendall(data)
                        continue
                    passed, now = knife.let_pass(data)
                    target.sendall(passed)
                    if now:
                        self.cuts.append(knife.tail)
                        self._break(near, knife.cut.how)
                        return

    def _break(self, near: socket.socket, how: str) -> None:
        if how == "stall":
            while near.recv(_READ):
                pass  # what the client still says goes nowhere, until it hangs up or the proxy closes
        elif how == "rst":
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            near.shutdown(socket.SHUT_WR)


class _Knife:
    """Finds the place of a cut in a stream of chunks."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.tail = b""
        self._window = b""
        self._marks_left = cut.occurrence if cut.mark else 0
        self._bytes_left = cut.after

    def let_pass(self, data: bytes) -> tuple[bytes, bool]:
        """The part of a chunk that still passes, and whether the connection breaks after it."""
        start = 0
        if self._marks_left:
            start = self._after_marks(data)
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

    def _after_marks(self, data: bytes) -> int:
        """Count marks, also those that began in an earlier chunk; the index in `data` after the last one needed."""
        mark = self.cut.mark
        seen = len(self._window)
        joined = self._window + data
        at = 0
        while self._marks_left:
            found = joined.find(mark, at)
            if found < 0:
                # Only what could still begin a mark is kept, and never bytes of a mark that was counted.
                keep = max(at, len(joined) - len(mark) + 1)
                self._window = joined[keep:]
                return 0
            at = found + len(mark)
            self._marks_left -= 1
        return at - seen

    def _remember(self, passed: bytes) -> None:
        self.tail = (self.tail + passed)[-80:]
