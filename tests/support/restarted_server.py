"""Server of the transcripts in which a server is killed and started again."""

import asyncio
import time
from typing import Any

from tidewire_server import Server, Stream
from tidewire_server.script_endpoint import add_script


def restarted_server(**settings: Any) -> Server:
    server = Server(**settings)
    add_script(server)

    @server.endpoint(on_restart="fail")
    async def printed(text: str, stream: Stream[str]) -> None:
        stream.append(text)
        await asyncio.sleep(60)

    @server.endpoint(on_restart="continue")
    async def copy(text: str, stream: Stream[str]) -> None:
        if not stream.value:
            stream.append(text[:3])
            await asyncio.sleep(60)
        stream.append(text[len(stream.value) :])

    @server.endpoint
    def heedless(text: str, stream: Stream[str]) -> None:
        stream.append(text)
        time.sleep(60)

    return server
