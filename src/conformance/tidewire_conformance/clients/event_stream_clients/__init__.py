"""Adapters for event-stream libraries of other projects, which `tidewire conformance --profile sse` tests as clients.

`python -m tidewire_conformance.clients.event_stream_clients.NAME` runs the adapter of one library. An adapter needs only
its library and, for a decoder without an HTTP client, httpx2. It does not need the rest of this package.
"""
