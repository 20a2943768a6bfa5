"""TCP proxy that holds back the body of the first request, as if the client's machine slept after sending the head."""

import asyncio

from tidewire_conformance.wire.fault_proxy import FaultProxy, close, forward


class LateBodyProxy(FaultProxy):
    """Proxy that forwards only the head of the request on its first connection, and everything on later connections."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        super().__init__(upstream, plan=lambda _: None)

    async def serve(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if number > 0:
            await super().serve(number, reader, writer)
            return
        server_reader, server_writer = await asyncio.open_connection(*self.upstream)
        try:
            server_writer.write(await reader.readuntil(b"\r\n\r\n"))
            await forward(server_reader, writer)
            self.faults["late body"] += 1
        finally:
            close(server_writer)
