"""TCP proxy that breaks or slows down most connections. A seed determines the faults.

  fault         | effect
  --------------+-----------------------------------------------------------------------------------------------
  none          | none: the connection passes unchanged
  refuse        | the connection is reset immediately after it is accepted
  fin, rst      | the connection is closed or reset within the bytes of one direction
  stall         | forwarding stops within the bytes of one direction, and the connection stays open
  bytes         | every byte at the beginning of each direction is sent in its own segment
  delay         | each piece is forwarded late

A fault can occur at any byte, including the first. The proxy does not parse the bytes that it forwards, so it also works
between a client and a server with TLS, where it can break the handshake.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Mapping

from support.faulty_proxy import READ, STALL, Proxy

WEIGHTS: Mapping[str, float] = {
    "none": 25, "refuse": 5, "fin": 20, "rst": 20, "stall": 5, "bytes": 10, "delay": 15,
}  # fmt: skip
REACH = 8_000
"""Number of bytes of one direction within which a connection breaks."""
SLOW_BYTES = 2_000
"""Number of bytes of each direction that the fault `bytes` sends one at a time."""


class FaultyNetwork(Proxy):
    """TCP proxy that injects faults into connections."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        [fault] = self._draw.choices(list(WEIGHTS), list(WEIGHTS.values()))
        from_client, reach = self._draw.random() < 0.3, self._draw.randrange(REACH)
        server: asyncio.StreamWriter | None = None
        directions: list[asyncio.Task[None]] = []
        try:
            if fault == "refuse":
                self.faults[fault] += 1
                reset(writer)
                return
            answers, server = await asyncio.open_connection(*self._upstream)
            breaks = fault in {"fin", "rst", "stall"}
            pipes = ((reader, server, from_client), (answers, writer, not from_client))
            directions = [
                asyncio.ensure_future(_forward(*ends, fault, reach if breaks and chosen else None))
                for *ends, chosen in pipes
            ]
            if fault in {"bytes", "delay"}:
                self.faults[fault] += 1
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            if not any(task.done() and task.exception() is None and task.result() for task in directions):
                return  # one of the peers closed the connection
            self.faults[f"{fault} of {'a request' if from_client else 'a response'}"] += 1
            if fault == "stall":
                for task in directions:
                    task.cancel()
                await asyncio.gather(*directions, return_exceptions=True)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STALL):
                        while await reader.read(READ):
                            pass
            elif fault == "rst":
                reset(writer)
        except OSError:
            reset(writer)  # the server cannot be reached
        finally:
            for task in directions:
                task.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
            writer.close()
            if server is not None:
                server.close()


async def _forward(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, fault: str, reach: int | None
) -> bool:
    """Forward bytes until the end of the source, or up to `reach` bytes. Return whether `reach` was exceeded."""
    sent = 0
    while data := await source.read(READ):
        if reach is not None and sent + len(data) > reach:
            target.write(data[: reach - sent])
            await target.drain()
            return True
        if fault == "delay":
            await asyncio.sleep(0.01)
        singly = data[: max(0, SLOW_BYTES - sent)] if fault == "bytes" else b""
        for at in range(len(singly)):
            target.write(singly[at : at + 1])
            await target.drain()
            await asyncio.sleep(0)
        target.write(data[len(singly) :])
        await target.drain()
        sent += len(data)
    return False


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a TCP reset."""
    with contextlib.suppress(OSError):
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
