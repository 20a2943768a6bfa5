"""HTTP proxy that injects network and gateway faults into most responses, drawn from a seed.

  fault         | what the client meets
  --------------+-----------------------------------------------------------------------------------------------
  none          | the answer
  lost request  | the connection closes before the server has seen the request
  fin, rst      | the connection ends in the middle of the bytes, in good order or by a reset
  clean end     | the body ends in the middle as if it were whole: the last chunk of a chunked body is sent early
  stall         | nothing more comes, and the connection stays open
  repeat        | events that were sent already come again, whole
  bytes         | every byte comes in a segment of its own
  rechunk       | the body comes in other pieces than the server sent
  delay         | each piece comes late
  gateway       | a page of a gateway instead: 502 and HTML, or 503 with Retry-After

The proxy knows HTTP, through h11, and nothing of the protocol but that an event ends with an empty line.
"""

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import h11

READ = 65536
STALL = 30.0
"""Seconds after which a stalled connection closes even where the client never does."""

WEIGHTS: Mapping[str, float] = {
    "none": 30, "lost request": 4, "fin": 14, "rst": 14, "clean end": 14, "stall": 2, "repeat": 8, "bytes": 5,
    "rechunk": 6, "delay": 4, "gateway": 5,
}  # fmt: skip


class _BrokenError(Exception):
    """The fault was reached: the connection ends."""


class FaultyProxy:
    """Listens on a free port of 127.0.0.1 while it is entered; its loop runs in a thread of its own."""

    def __init__(
        self,
        upstream: tuple[str, int],
        seed: int,
        *,
        weights: Mapping[str, float] = WEIGHTS,
        reach: int = 4000,
    ) -> None:
        """Draw the fault of each answer.

        Args:
            upstream: The server.
            seed: The n-th answer gets the same fault at the same byte in each run; which answer is the n-th is up to
                the network.
            weights: Of the faults, by name.
            reach: Bytes of an answer within which it breaks.
        """
        self._upstream = upstream
        self._draw = random.Random(seed)
        self._weights = weights
        self._reach = reach
        self._lock = threading.Lock()
        self.active = True
        """Whether there are faults at all."""
        self.faults: Counter[str] = Counter()
        """How many answers met each fault; one that was over before its fault is not counted."""

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live(ready)), name="faulty-proxy")
        self._thread.start()
        ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _live(self, ready: threading.Event) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1000)
        self.url = "http://{}:{}".format(*server.sockets[0].getsockname())
        ready.set()
        await self._over.wait()
        server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        near = _Side(h11.Connection(h11.SERVER), reader, writer)
        far: _Side | None = None
        try:
            while True:
                request = await near.next()
                if not isinstance(request, h11.Request):
                    return
                fault = self._next_fault()
                body = [event async for event in near.body()]
                if fault.name == "lost request":
                    self.faults[fault.name] += 1
                    return
                if fault.name == "gateway":
                    self.faults[fault.name] += 1
                    await near.send(*_gateway_page(fault.after))
                else:
                    if far is None:
                        far = await self._connect()
                    await far.send(request, *body, h11.EndOfMessage())
                    await self._answer(near, far, fault)
                near.http.start_next_cycle()
                if far is not None and fault.name != "gateway":
                    far.http.start_next_cycle()
        except (_BrokenError, OSError, EOFError, h11.ProtocolError):
            pass  # either side went away, or was sent away
        finally:
            near.close()
            if far is not None:
                far.close()

    async def _connect(self) -> "_Side":
        return _Side(h11.Connection(h11.CLIENT), *await asyncio.open_connection(*self._upstream))

    def _next_fault(self) -> "_Fault":
        if not self.active:
            return _Fault("none", 0, 0)
        with self._lock:
            [name] = self._draw.choices(list(self._weights), list(self._weights.values()))
            return _Fault(name, self._draw.randrange(self._reach), self._draw.randrange(2**32))

    async def _answer(self, near: "_Side", far: "_Side", fault: "_Fault") -> None:
        answer = await far.next()
        if not isinstance(answer, h11.Response):
            raise EOFError
        streamed = any(name == b"content-type" and b"event-stream" in value for name, value in answer.headers)
        near.fault = fault
        near.met = lambda: self.faults.update([fault.name])
        if fault.name in {"bytes", "rechunk", "delay"}:
            near.met()
        await near.send(answer)
        passed, last_event = 0, b""
        async for data in far.body():
            piece = bytes(data.data)
            if fault.name == "clean end" and streamed and passed + len(piece) > fault.after:
                near.met()
                await near.send(h11.Data(data=piece[: fault.after - passed]), h11.EndOfMessage())
                raise _BrokenError
            passed += len(piece)
            for part in fault.parts(piece):
                await near.send(h11.Data(data=part))
            if fault.name == "repeat" and streamed:
                last_event = (last_event + piece)[-READ:]
                if last_event.endswith(b"\n\n"):
                    again = last_event.rpartition(b"\n\nid:")[2]
                    if again != last_event:
                        near.met()
                        await near.send(h11.Data(data=b"id:" + again))
        await near.send(h11.EndOfMessage())


class _Fault:
    """What happens to one answer."""

    def __init__(self, name: str, after: int, seed: int) -> None:
        self.name = name
        self.after = after
        self._draw = random.Random(seed)

    def parts(self, piece: bytes) -> list[bytes]:
        """A piece of a body as the pieces that are sent instead."""
        if self.name != "rechunk":
            return [piece]
        cuts = sorted(self._draw.randrange(len(piece) + 1) for _ in range(self._draw.randrange(4)))
        return [part for a, b in zip([0, *cuts], [*cuts, len(piece)], strict=True) if (part := piece[a:b])]


class _Side:
    """One connection of the proxy, and what it does to the bytes that leave by it."""

    def __init__(
        self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.http = http
        self._reader = reader
        self._writer = writer
        self.fault: _Fault | None = None
        self.met: Callable[[], None] = lambda: None
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def next(self) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self._reader.read(READ))
        return event

    async def body(self) -> Any:
        while not isinstance(event := await self.next(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise EOFError
            yield event

    async def send(self, *events: Any) -> None:
        await self._write(b"".join(self.http.send(event) or b"" for event in events))

    async def _write(self, data: bytes) -> None:
        fault = self.fault
        if fault is not None:
            if fault.name in {"fin", "rst", "stall"}:
                if len(data) > fault.after:
                    self._writer.write(data[: fault.after])
                    await self._writer.drain()
                    await self._break(fault.name)
                fault.after -= len(data)
            elif fault.name == "bytes":
                for at in range(len(data)):
                    self._writer.write(data[at : at + 1])
                    await self._writer.drain()
                    await asyncio.sleep(0)
                return
            elif fault.name == "delay":
                await asyncio.sleep(0.01)
        self._writer.write(data)
        await self._writer.drain()

    async def _break(self, name: str) -> None:
        self.met()
        if name == "stall":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STALL):
                    while await self._reader.read(READ):
                        pass
        elif name == "rst":
            linger = struct.pack("ii", 1, 0)
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._writer.transport.abort()
        raise _BrokenError

    def close(self) -> None:
        self._writer.close()


def _gateway_page(number: int) -> list[Any]:
    body = b"<html><body><h1>Something went wrong</h1></body></html>"
    headers = [("Content-Type", "text/html"), ("Content-Length", str(len(body)))]
    status = 502
    if number % 2:
        status = 503
        headers.append(("Retry-After", "0"))
    return [h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()]
