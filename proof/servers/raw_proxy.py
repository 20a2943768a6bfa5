"""TCP proxy for faults that an ASGI wrapper cannot produce, in raw request headers and HTTP/1.0 responses.

It also provides a second address for a server, which then acts as another replica.
"""

import asyncio
import socket
import threading
from collections.abc import Callable

import h11

_READ = 65536


def serve_proxy(
    listener: socket.socket,
    port: int,
    *,
    head: Callable[[bytes], bytes] = lambda head: head,
    http_1_0: bool = False,
) -> None:
    """Forward connections in a daemon thread.

    Args:
        listener: Listening socket of the proxy.
        port: Port of the server on this machine.
        head: Function that changes the raw header of each request.
        http_1_0: Whether to convert responses to HTTP/1.0, in which the end of the connection ends the body.
    """

    async def proxy_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        upload = asyncio.create_task(_forward_request(reader, server_writer, head))
        try:
            await (
                _respond_by_http_1_0(server_reader, writer) if http_1_0 else _forward(server_reader, writer)
            )
        except OSError:
            pass
        finally:
            upload.cancel()
            server_writer.transport.abort()
            writer.close()

    async def main() -> None:
        async with await asyncio.start_server(proxy_connection, sock=listener) as server:
            await server.serve_forever()

    threading.Thread(target=asyncio.run, args=[main()], daemon=True).start()


async def _forward_request(
    reader: asyncio.StreamReader, server_writer: asyncio.StreamWriter, change: Callable[[bytes], bytes]
) -> None:
    try:
        server_writer.write(change(await reader.readuntil(b"\r\n\r\n")))
        while data := await reader.read(_READ):
            server_writer.write(data)
            await server_writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    # When the client closes its connection, close the connection to the server, even if the response has not ended.
    server_writer.transport.abort()


async def _forward(server_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await server_reader.read(_READ):
        writer.write(data)
        await writer.drain()


async def _respond_by_http_1_0(server_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    http = h11.Connection(h11.CLIENT)
    # Response framing depends on the request method only for HEAD and CONNECT, so GET can be used for all other methods.
    http.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    http.send(h11.EndOfMessage())
    while not isinstance(event := http.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
        if event is h11.NEED_DATA:
            http.receive_data(await server_reader.read(_READ))
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
