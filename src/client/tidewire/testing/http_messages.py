"""Classes for the HTTP requests and responses of a fake server."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidewire.testing.fake_server_job import Signal


@dataclass(frozen=True, slots=True)
class FakeRequest:
    """An HTTP request with its complete body."""

    method: str
    target: str
    """Path and query of the requested URL."""
    headers: Mapping[str, str]
    """Headers of the request. Their names are in lower case."""
    body: bytes


@dataclass(frozen=True, slots=True)
class FakeResponse:
    """An HTTP response.

    Its body is bytes or, for an event stream, an iterator of encoded events and connection faults.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes | Iterator[bytes | Signal]
