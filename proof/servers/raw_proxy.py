"""A plain TCP proxy before a server: for what an ASGI application never sees, the spelling and the version of HTTP.

It serves a second address of one server as well, as another replica would.
"""

import asyncio
import socket
import threading
from collections.abc import Callable

import h11

_READ = 65536


def serve_before(
    listener: socket.socket,
    port: int,
    *,
    head: Callable[[bytes], bytes] = lambda head: head,
    old: bool = False,
) -> None:
    """Pass connections on, from a thread that lasts as long as its process.

    Args:
        listener: Where they come in.
        port: Of the server on this machine.
        head: Changes the header of each request.
        old: Answer as HTTP/1.0 does, with bodies that are ended by the end of the connection.
    """

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, away = await asyncio.open_connection("127.0.0.1", port)
        up = asyncio.create_task(_pass_request(reader, away, head))
        try:
            await (_answer_as_of_old(there, writer) if old else _pass(there, writer))
        except OSError:
            pass
        finally:
            up.cancel()
            away.transport.abort()
            writer.close()

    async def main() -> None:
        async with await asyncio.start_server(talk, sock=listener) as server:
            await server.serve_forever()

    threading.Thread(target=asyncio.run, args=[main()], daemon=True).start()


async def _pass_request(
    reader: asyncio.StreamReader, away: asyncio.StreamWriter, change: Callable[[bytes], bytes]
) -> None:
    try:
        away.write(change(await reader.readuntil(b"\r\n\r\n")))
        while data := await reader.read(_READ):
            away.write(data)
            await away.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    # Who goes away before the answer has ended goes away from the server, too.
    away.transport.abort()


async def _pass(there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await there.read(_READ):
        writer.write(data)
        await writer.drain()


async def _answer_as_of_old(there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    http = h11.Connection(h11.CLIENT)
    # The framing of an answer depends on the method for HEAD and CONNECT alone.
    http.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    http.send(h11.EndOfMessage())
    while not isinstance(event := http.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
        if event is h11.NEED_DATA:
            http.receive_data(await there.read(_READ))
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
