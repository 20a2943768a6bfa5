"""Record of the requests, responses and reports in a scenario, the only input of `client_judge`.

Times are seconds of the monotonic clock.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlsplit

from tidewire_conformance.clients.player.scenario import Members


@dataclass
class RecordedRequest:
    """A request and its response."""

    method: str
    target: str
    """Path and query of the request line."""
    headers: dict[str, str]
    """Header fields; names are in lower case."""
    body: bytes
    head: bytes
    """Request line and header as received."""
    at: float
    """Time at which the server had read the whole request."""
    foreign: bool = False
    """Whether the request went to the second origin."""
    kind: str = ""
    number: int = 0
    """Index among the requests of the same kind, from 0."""
    opens_stream: bool = False
    """Whether the request is a submit whose response is the first stream."""
    exchange: Members | None = None
    """The scripted exchange for this request; None if the request was not expected."""
    sent: list[tuple[float, bytes]] = field(default_factory=list)
    """Pieces of the response without chunk framing. Each time is taken just before the piece is sent."""
    last_sent_at: float | None = None
    """Time just before the last piece was sent, or before the connection was closed if nothing was sent."""
    closed: float | None = None
    """Time at which the client closed the connection by itself."""
    ending: tuple[float, str] | None = None
    """Time and manner of the response's end, as in the scenario's `then`; None if the client closed first."""
    waited_for: Any = None
    """Description of the client action for which the server waited until the timeout."""
    flood_read: bool = False
    """Whether the client read all bytes of a flood, instead of closing the connection."""
    laps: list[tuple[str, float]] = field(default_factory=list)
    """Names and start times of the scenario's timed parts."""
    last_id: str | None = None
    """Id of the last logged event that the server had sent completely before this request."""

    def durations(self, name: str) -> list[float]:
        """Durations, in seconds, of all completed timed parts with this name."""
        return [ends - at for (lap, at), (_, ends) in pairwise(self.laps) if lap == name]

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def cursor(self) -> str | None:
        """The cursor: `Last-Event-ID` if present and not empty, otherwise the query parameter `after`."""
        return self.headers.get("last-event-id") or self.query_parameter("after") or None

    def query_parameter(self, name: str) -> str:
        """Last value of a query parameter; empty if the parameter is missing."""
        return parse_qs(urlsplit(self.target).query).get(name, [""])[-1]


@dataclass
class ClientRun:
    """A command for the client, with the client's reports."""

    command: Members
    reports: list[tuple[float, Members]] = field(default_factory=list)
    hung: bool = False
    died: str = ""
    """Exit summary of a client that exited before it reported an end; otherwise empty."""

    @property
    def end(self) -> Members | None:
        """The last report if it contains an end."""
        last = self.reports[-1][1] if self.reports else {}
        return last if "end" in last else None

    def values(self) -> Iterator[Members]:
        """Reports of delivered values, in order."""
        return (report for _, report in self.reports if "saw" in report)


@dataclass
class Conversation:
    """Record of one played scenario."""

    began: float = field(default_factory=time.monotonic)
    bound_factor: float = 1.0
    """Factor for upper time bounds, to allow for a slow machine."""
    requests: list[RecordedRequest] = field(default_factory=list)
    runs: list[ClientRun] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[RecordedRequest]:
        """Requests of one kind. A submit whose response is a stream also counts as a request for a stream."""
        return [
            request
            for request in self.requests
            if request.kind == kind or (request.opens_stream and kind == "streams")
        ]


def read_request(stream: BinaryIO) -> RecordedRequest | None:
    """Read one request. Returns None if the client closed the connection or did not send HTTP."""
    head = line = stream.readline()
    words = line.split()
    if len(words) != 3:
        return None
    headers: dict[str, str] = {}
    while (line := stream.readline()).strip():
        head += line
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    body = b""
    if "chunked" in headers.get("transfer-encoding", ""):
        while size := int(stream.readline().split(b";")[0] or b"0", 16):
            body += stream.read(size)
            stream.readline()
        stream.readline()
    else:
        body = stream.read(int(headers.get("content-length", "0")))
    method, target = words[0].decode("latin-1"), words[1].decode("latin-1")
    return RecordedRequest(method, target, headers, body, head, time.monotonic())
