"""Adapter for `EventSource` of requests-sse, which reconnects by itself."""

from datetime import timedelta
from typing import Any, Final

from tidewire_conformance.clients.event_stream_clients.adapter_loop import Opened, library, serve

_RECONNECTION_TIME: Final = timedelta(milliseconds=10)
"""Time before the library reconnects, unless the stream sets it. The library doubles its default of 5 seconds before each wait."""


def open_stream(url: str, _: dict[str, Any]) -> Opened:
    """Read the stream, over several connections, until a response is not an event stream."""
    requests_sse = library("requests_sse", "requests-sse")
    with requests_sse.EventSource(url, reconnection_time=_RECONNECTION_TIME, timeout=20) as source:
        for event in source:
            yield {
                "type": event.type or "message",
                "data": event.data,
                "last_event_id": event.last_event_id or "",
            }


if __name__ == "__main__":
    library("requests_sse", "requests-sse")
    serve("requests-sse", ["types", "ids", "reconnect"], open_stream)
