"""What `tidewire.protocol.sse` decodes from a stream that arrives in chunks."""

from collections.abc import Iterable
from typing import Any

from tidewire.protocol.sse import Decoder, Event


def decode(chunks: Iterable[bytes], **options: Any) -> tuple[list[Event], str, int | None]:
    """Return the events, the last event id and the retry time in milliseconds. `options` are those of `Decoder`."""
    decoder = Decoder(**options)
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events, decoder.last_event_id, decoder.retry_ms


def in_chunks_of(size: int, stream: bytes) -> list[bytes]:
    return [stream[i : i + size] for i in range(0, len(stream), size)]
