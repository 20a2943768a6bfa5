"""Options of a test run with the URL of an event stream."""

from dataclasses import dataclass

from tidewire_conformance.judging.grade import Settings


@dataclass(frozen=True)
class EventStreamOptions(Settings):
    """Options of a test run with the URL of an event stream."""

    url: str
    header: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    """Body to send with POST, or None for GET."""
