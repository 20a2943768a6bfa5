"""Adapter for `connect_sse` of httpx-sse, which decodes responses of httpx."""

from typing import Any

from tidewire_conformance.clients.event_stream_clients.adapter_loop import Opened, library, serve


def open_stream(url: str, at_end: dict[str, Any]) -> Opened:
    """Read one response. The library leaves the status and the reconnection to its caller."""
    httpx, httpx_sse = library("httpx"), library("httpx_sse", "httpx-sse")
    with (
        httpx.Client(follow_redirects=True, timeout=20) as client,
        httpx_sse.connect_sse(client, "GET", url) as source,
    ):
        source.response.raise_for_status()
        at_end["retry_ms"] = None
        for event in source.iter_sse():
            at_end["retry_ms"] = event.retry if event.retry is not None else at_end["retry_ms"]
            yield {"type": event.event, "data": event.data, "last_event_id": event.id}


if __name__ == "__main__":
    library("httpx_sse", "httpx-sse")
    serve("httpx-sse", ["types", "ids", "retry"], open_stream)
