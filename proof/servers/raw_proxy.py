"""TCP proxy for faults that an ASGI wrapper cannot produce, in raw request headers and HTTP/1.0 responses.

It also provides a second address for a server, which then acts as another replica.
"""

import asyncio
import contextlib
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable

import h11

from tidewire_conformance.wire.fault_proxy import READ, TcpProxy, forward


class RawProxy(TcpProxy):
    """Proxy that changes the raw header of requests, or converts responses to HTTP/1.0."""

    def __init__(
        self,
        listener: socket.socket,
        port: int,
        *,
        head: Callable[[bytes], bytes] = bytes,
        http_1_0: bool = False,
    ) -> None:
        """Configure the proxy.

        Args:
            listener: Listening socket of the proxy.
            port: Port of the server on this machine.
            head: Function that changes the raw header of each request.
            http_1_0: Whether to convert responses to HTTP/1.0, in which the end of the connection ends the body.
        """
        super().__init__(("127.0.0.1", port), listener)
        self._head = head
        self._respond = _respond_by_http_1_0 if http_1_0 else forward

    async def serve(self, _number: int, reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection(*self.upstream)
            upload = asyncio.create_task(self._forward_request(reader, server_writer))
            try:
                await self._respond(server_reader, writer)
            finally:
                upload.cancel()
                server_writer.transport.abort()

    async def _forward_request(self, reader: StreamReader, server_writer: StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            server_writer.write(self._head(await reader.readuntil(b"\r\n\r\n")))
            await forward(reader, server_writer)
        # When the client closes its connection, close the connection to the server, even if the response has not ended.
        server_writer.transport.abort()


async def _respond_by_http_1_0(server_reader: StreamReader, writer: StreamWriter) -> None:
    http = h11.Connection(h11.CLIENT)
    # Response framing depends on the request method only for HEAD and CONNECT, so GET can be used for all other methods.
    http.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    http.send(h11.EndOfMessage())
    while not isinstance(event := http.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
        if event is h11.NEED_DATA:
            http.receive_data(await server_reader.read(READ))
        elif isinstance(event, h11.Response):
            fields = [
                (name, value) for name, value in event.headers.raw_items()
                if name.lower() not in {b"transfer-encoding", b"content-length", b"connection"}
            ]  # fmt: skip
            head = b"".join(b"%b: %b\r\n" % pair for pair in [*fields, (b"Connection", b"close")])
            writer.write(b"HTTP/1.0 %d %b\r\n%b\r\n" % (event.status_code, event.reason, head))
        elif isinstance(event, h11.Data):
            writer.write(bytes(event.data))
            await writer.drain()
