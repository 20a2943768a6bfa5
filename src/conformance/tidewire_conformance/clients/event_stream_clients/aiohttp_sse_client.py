"""Adapter for `EventSource` of aiohttp-sse-client, which reconnects by itself."""

import asyncio
from datetime import timedelta
from typing import Any, Final

from tidewire_conformance.clients.event_stream_clients.adapter_loop import Opened, library, serve

_RECONNECTION_TIME: Final = timedelta(milliseconds=10)
"""Time before the library reconnects, unless the stream sets it. The library doubles its default of 5 seconds before each wait."""


def open_stream(url: str, _: dict[str, Any]) -> Opened:
    """Read the stream, over several connections, until a response is not an event stream."""
    client = library("aiohttp_sse_client.client", "aiohttp-sse-client")
    source: Any = None

    async def enter() -> None:
        nonlocal source
        source = client.EventSource(url, reconnection_time=_RECONNECTION_TIME)
        await source.connect(0)

    with asyncio.Runner() as runner:
        runner.run(enter())
        try:
            while True:
                event = runner.run(anext(source))
                yield {
                    "type": event.type or "message",
                    "data": event.data,
                    "last_event_id": event.last_event_id or "",
                }
        except StopAsyncIteration:
            pass
        finally:
            runner.run(source.close())


if __name__ == "__main__":
    library("aiohttp_sse_client.client", "aiohttp-sse-client")
    serve("aiohttp-sse-client", ["types", "ids", "reconnect"], open_stream)
