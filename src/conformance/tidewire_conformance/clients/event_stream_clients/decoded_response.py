"""HTTP requests for libraries that decode event streams but have no HTTP client."""

from collections.abc import Iterator

from tidewire_conformance.clients.event_stream_clients.adapter_loop import library


def chunks(url: str) -> Iterator[bytes]:
    """Request an event stream and yield its bytes as they arrive.

    Raises:
        ValueError: The response is not an event stream. The decoder is then not used.
    """
    httpx2 = library("httpx2")
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    with (
        httpx2.Client(follow_redirects=True, timeout=20, headers=headers) as client,
        client.stream("GET", url) as response,
    ):
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code != 200 or media_type != "text/event-stream":
            raise ValueError(f"not an event stream: status {response.status_code}, media type {media_type!r}")
        yield from response.iter_raw()
