"""Adapters with which the suite tests other projects' readers of event streams, in the profile `sse`.

`python -m tidewire_conformance.clients.event_stream_clients.NAME` is the program for one library. An adapter needs only
its library and, for a decoder without an HTTP client, httpx2. It does not need the rest of this package.
"""
