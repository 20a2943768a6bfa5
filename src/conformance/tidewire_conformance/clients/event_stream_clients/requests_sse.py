"""requests-sse: `EventSource`, which reconnects."""

from typing import Any

from tidewire_conformance.clients.event_stream_clients.adapter_loop import Opened, library, serve


def open_stream(url: str, _: dict[str, Any]) -> Opened:
    """Read the stream, over several connections, until a response is not an event stream."""
    requests_sse = library("requests_sse", "requests-sse")
    with requests_sse.EventSource(url, timeout=20, max_connect_retry=0) as source:
        for event in source:
            yield {"type": event.type, "data": event.data, "last_event_id": event.last_event_id or ""}


if __name__ == "__main__":
    library("requests_sse", "requests-sse")
    serve("requests-sse", ["types", "ids", "reconnect"], open_stream)
