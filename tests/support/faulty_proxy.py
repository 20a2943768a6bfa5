"""HTTP proxy that injects network and gateway faults into most responses. A seed determines the faults.

  fault         | effect on the client
  --------------+-----------------------------------------------------------------------------------------------
  none          | none: the response passes unchanged
  lost request  | the connection closes before the server receives the request
  fin, rst      | the connection is closed or reset within the response
  clean end     | the body ends early but looks complete: the last chunk of a chunked body is sent early
  stall         | nothing more is sent, and the connection stays open
  repeat        | events that were already sent are sent again
  bytes         | every byte is sent in its own segment
  rechunk       | the body is split into other pieces than the server sent
  delay         | each piece is sent late
  gateway       | the response is an error page of a gateway: 502 or 504 with HTML, or 503 with Retry-After
  buffer        | nothing is sent before the response is complete

While `deploying` is true, every response is an error page. If the server cannot be reached, the response is a 502.
The proxy handles HTTP with h11. The only rule of the protocol that it uses is that an empty line ends an event.
"""

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import h11

from tidewire_conformance.wire.fault_proxy import READ, TcpProxy, break_connection

T = TypeVar("T")
STALL = 30.0
"""Seconds after which a stalled connection is closed if the client has not closed it."""

WEIGHTS: Mapping[str, float] = {
    "none": 30, "lost request": 4, "fin": 14, "rst": 14, "clean end": 14, "stall": 2, "repeat": 8, "bytes": 5,
    "rechunk": 6, "delay": 4, "gateway": 5,
}  # fmt: skip


class _BrokenError(Exception):
    """Raised to end the connection at a fault."""


class FaultyProxy(TcpProxy):
    """HTTP proxy that injects faults into responses."""

    def __init__(
        self,
        upstream: tuple[str, int],
        seed: int,
        *,
        weights: Mapping[str, float] = WEIGHTS,
        reach: int = 4000,
    ) -> None:
        """Configure the faults.

        Args:
            upstream: Host and port of the server.
            seed: Seed of the faults. The n-th response has the same fault at the same byte in each run; the order of
                responses depends on the network.
            weights: Relative frequency of each fault, by name.
            reach: Number of bytes of a response within which the fault occurs.
        """
        super().__init__(upstream)
        self._draw = random.Random(seed)
        self._weights = weights
        self._reach = reach
        self.deploying = False
        """Whether every response is an error page of a gateway."""

    async def serve(self, _number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client_side = _Side(h11.Connection(h11.SERVER), reader, writer)
        server_side: _Side | None = None
        try:
            while True:
                request = await client_side.next()
                if not isinstance(request, h11.Request):
                    return
                body = [event async for event in client_side.body()]
                fault = self.fault_for(b"".join(bytes(event.data) for event in body))
                if fault.name == "lost request":
                    self.faults[fault.name] += 1
                    return
                name = "deploy" if self.deploying else fault.name
                if name not in {"gateway", "deploy"} and server_side is None:
                    try:
                        server_side = await self._connect()
                    except OSError:
                        name = "unreachable server"
                if name in {"gateway", "deploy", "unreachable server"}:
                    self.faults[name] += 1
                    await client_side.send(*_gateway_page(fault.after))
                else:
                    assert server_side is not None
                    await server_side.send(request, *body, h11.EndOfMessage())
                    await self._forward_response(client_side, server_side, fault)
                    server_side.http.start_next_cycle()
                client_side.http.start_next_cycle()
        except (_BrokenError, OSError, EOFError, h11.ProtocolError):
            pass  # one of the peers, or a fault, closed the connection
        finally:
            client_side.close()
            if server_side is not None:
                server_side.close()

    async def _connect(self) -> "_Side":
        return _Side(h11.Connection(h11.CLIENT), *await asyncio.open_connection(*self.upstream))

    def fault_for(self, _body: bytes, /) -> "Fault":
        """Return the fault of the response to a request with this body."""
        [name] = self._draw.choices(list(self._weights), list(self._weights.values()))
        return Fault(name, self._draw.randrange(self._reach), self._draw.randrange(2**32))

    async def _forward_response(self, client_side: "_Side", server_side: "_Side", fault: "Fault") -> None:
        response = await server_side.next()
        if not isinstance(response, h11.Response):
            raise EOFError
        streamed = any(
            name == b"content-type" and b"event-stream" in value for name, value in response.headers
        )
        client_side.fault = fault
        client_side.record_fault = lambda: self.faults.update([fault.name])
        if fault.name in {"bytes", "rechunk", "delay", "buffer"}:
            client_side.record_fault()
        if fault.name == "buffer":
            whole = await client_side.unless_closed(server_side.whole_body())
            await client_side.send(response, *whole, h11.EndOfMessage())
            return
        await client_side.send(response)
        passed, last_event = 0, b""
        async for data in server_side.body():
            piece = bytes(data.data)
            if fault.name == "clean end" and streamed and passed + len(piece) > fault.after:
                client_side.record_fault()
                await client_side.send(h11.Data(data=piece[: fault.after - passed]), h11.EndOfMessage())
                raise _BrokenError
            passed += len(piece)
            for part in fault.parts(piece):
                await client_side.send(h11.Data(data=part))
            if fault.name == "repeat" and streamed:
                last_event = (last_event + piece)[-READ:]
                if last_event.endswith(b"\n\n"):
                    again = last_event.rpartition(b"\n\nid:")[2]
                    if again != last_event:
                        client_side.record_fault()
                        await client_side.send(h11.Data(data=b"id:" + again))
        await client_side.send(h11.EndOfMessage())


class Fault:
    """The fault of one response."""

    def __init__(self, name: str, after: int, seed: int) -> None:
        self.name = name
        self.after = after
        self._draw = random.Random(seed)

    def parts(self, piece: bytes) -> list[bytes]:
        """Split a piece of the body into the pieces to send."""
        if self.name != "rechunk":
            return [piece]
        cuts = sorted(self._draw.randrange(len(piece) + 1) for _ in range(self._draw.randrange(4)))
        return [part for a, b in zip([0, *cuts], [*cuts, len(piece)], strict=True) if (part := piece[a:b])]


class _Side:
    """One connection of the proxy, which applies the fault to the bytes that it sends."""

    def __init__(
        self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.http = http
        self._reader = reader
        self._writer = writer
        self.fault: Fault | None = None
        self.record_fault: Callable[[], None] = lambda: None
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

    async def whole_body(self) -> list[h11.Data]:
        return [event async for event in self.body()]

    async def unless_closed(self, work: Coroutine[Any, Any, T]) -> T:
        """Await the work, but cancel it if the peer closes this connection before it sends another request."""
        working, closed = asyncio.ensure_future(work), asyncio.ensure_future(self._reader.read(1))
        try:
            await asyncio.wait({working, closed}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise EOFError
            return working.result()
        finally:
            for task in (working, closed):
                task.cancel()
            await asyncio.gather(working, closed, return_exceptions=True)

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
        self.record_fault()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STALL):
                await break_connection(name, self._reader, self._writer)
        raise _BrokenError

    def close(self) -> None:
        self._writer.close()


def _gateway_page(number: int) -> list[Any]:
    body = b"<html><body><h1>Something went wrong</h1></body></html>"
    headers = [("Content-Type", "text/html"), ("Content-Length", str(len(body)))]
    status = (502, 503, 504)[number % 3]
    if status == 503:
        headers.append(("Retry-After", "0"))
    return [h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()]
