"""Adapter for `SSEClient` of sseclient-py, which decodes the bytes of a response."""

from collections.abc import Iterator
from typing import Any

from tidewire_conformance.clients.event_stream_clients.adapter_loop import Opened, library, serve
from tidewire_conformance.clients.event_stream_clients.decoded_response import chunks


class _Source:
    """The bytes of a response, in the form that the library expects."""

    def __init__(self, url: str) -> None:
        self._chunks = chunks(url)

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks

    def close(self) -> None:
        pass


def open_stream(url: str, _: dict[str, Any]) -> Opened:
    """Decode one response. The library does not reconnect.

    The `id` of an event without an `id` field is None, so this function keeps the last event id.
    """
    last_id = ""
    client = library("sseclient", "sseclient-py").SSEClient(_Source(url))
    for event in client.events():
        last_id = last_id if event.id is None else event.id
        yield {"type": event.event or "message", "data": event.data, "last_event_id": last_id}


if __name__ == "__main__":
    library("sseclient", "sseclient-py")
    serve("sseclient-py", ["types", "ids"], open_stream)
