"""aiohttp-sse-client: `EventSource`, which reconnects."""

import asyncio
from typing import Any

from tidewire_conformance.clients.event_stream_clients.adapter_loop import Opened, library, serve


def open_stream(url: str, _: dict[str, Any]) -> Opened:
    """Read the stream, over several connections, until a response is not an event stream."""
    client = library("aiohttp_sse_client.client", "aiohttp-sse-client")
    source: Any = None

    async def enter() -> None:
        nonlocal source
        source = client.EventSource(url, max_connect_retry=0)
        await source.connect(0)

    with asyncio.Runner() as runner:
        runner.run(enter())
        try:
            while True:
                event = runner.run(anext(source))
                yield {"type": event.type, "data": event.data, "last_event_id": event.last_event_id or ""}
        except StopAsyncIteration:
            pass
        finally:
            runner.run(source.close())


if __name__ == "__main__":
    library("aiohttp_sse_client.client", "aiohttp-sse-client")
    serve("aiohttp-sse-client", ["types", "ids", "reconnect"], open_stream)
