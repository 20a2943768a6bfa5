"""Adapter for `Client.sse`, the event-stream reader of httpx2."""

from typing import Any

from tidewire_conformance.clients.event_stream_clients.adapter_loop import Opened, library, serve


def open_stream(url: str, at_end: dict[str, Any]) -> Opened:
    """Read one response. The library leaves the status and the reconnection to its caller."""
    httpx2 = library("httpx2")
    with httpx2.Client(follow_redirects=True, timeout=20) as client, client.sse(url) as source:
        source.response.raise_for_status()
        at_end["retry_ms"] = None
        for event in source:
            at_end["retry_ms"] = event.retry if event.retry is not None else at_end["retry_ms"]
            yield {"type": event.event, "data": event.data, "last_event_id": event.id}


if __name__ == "__main__":
    library("httpx2")
    serve("httpx2", ["types", "ids", "retry"], open_stream)
