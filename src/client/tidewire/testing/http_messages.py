"""A request and its answer, as a fake server sees them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidewire.testing.fake_server_job import Signal


@dataclass(frozen=True, slots=True)
class FakeRequest:
    """A request that was read whole."""

    method: str
    target: str
    """Path and query."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


@dataclass(frozen=True, slots=True)
class FakeResponse:
    """An answer: its body whole, or a stream's frames as they are asked for."""

    status: int
    headers: Mapping[str, str]
    body: bytes | Iterator[bytes | Signal]
