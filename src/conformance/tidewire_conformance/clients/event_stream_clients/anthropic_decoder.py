"""Adapter for the class `SSEDecoder` of the package anthropic. The adapter requests the stream with httpx2."""

from typing import Any

from tidewire_conformance.clients.event_stream_clients.adapter_loop import Opened, library, serve
from tidewire_conformance.clients.event_stream_clients.decoded_response import chunks


def open_stream(url: str, at_end: dict[str, Any]) -> Opened:
    """Decode one response. The decoder cannot reconnect."""
    decoder = library("anthropic._streaming", "anthropic").SSEDecoder()
    at_end["retry_ms"] = None
    for event in decoder.iter_bytes(chunks(url)):
        at_end["retry_ms"] = event.retry if event.retry is not None else at_end["retry_ms"]
        yield {"type": event.event or "message", "data": event.data, "last_event_id": event.id or ""}


if __name__ == "__main__":
    library("anthropic._streaming", "anthropic")
    serve("anthropic", ["types", "ids", "retry"], open_stream)
