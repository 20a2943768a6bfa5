"""HTTP requests and responses of a fake server."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidewire.testing.fake_server_job import Signal


@dataclass(frozen=True, slots=True)
class FakeRequest:
    """An HTTP request, with its complete body."""

    method: str
    target: str
    """Path and query of the URL."""
    headers: Mapping[str, str]
    """Headers, with names in lower case."""
    body: bytes


@dataclass(frozen=True, slots=True)
class FakeResponse:
    """An HTTP response. The body is either bytes, or a lazy iterator of a stream's frames and signals."""

    status: int
    headers: Mapping[str, str]
    body: bytes | Iterator[bytes | Signal]
