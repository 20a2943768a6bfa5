"""Adapter for `SSEClient` of launchdarkly-eventsource, with an error strategy that reconnects. The default one does not."""

from typing import Any

from tidewire_conformance.clients.event_stream_clients.adapter_loop import Opened, library, serve


def open_stream(url: str, _: dict[str, Any]) -> Opened:
    """Read the stream, over several connections, until a response is not an event stream."""
    ld_eventsource = library("ld_eventsource", "launchdarkly-eventsource")
    config = library("ld_eventsource.config", "launchdarkly-eventsource")
    errors = library("ld_eventsource.errors", "launchdarkly-eventsource")
    # The library cannot send some ids in a header, and would retry forever.
    final = errors.HTTPStatusError, errors.HTTPContentTypeError, UnicodeEncodeError
    strategy = config.ErrorStrategy.from_lambda(lambda error: (isinstance(error, final), None))
    client = ld_eventsource.SSEClient(url, initial_retry_delay=0.01, error_strategy=strategy)
    try:
        for event in client.events:
            yield {"type": event.event, "data": event.data, "last_event_id": event.last_event_id or ""}
    finally:
        client.close()


if __name__ == "__main__":
    library("ld_eventsource", "launchdarkly-eventsource")
    serve("launchdarkly-eventsource", ["types", "ids", "reconnect"], open_stream)
