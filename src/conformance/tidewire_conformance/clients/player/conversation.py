"""What was said between a client and the server of a scenario, with the times: all that a judge goes by.

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
    """One request, and what was answered."""

    method: str
    target: str
    """Path and query, as they were sent."""
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    head: bytes
    """The request line and the header, as they came."""
    at: float
    """When the request had been read."""
    foreign: bool = False
    """Whether it came to the other origin."""
    lane: str = ""
    number: int = 0
    """Which request of its lane, from 0."""
    opens_stream: bool = False
    """Whether it is a submit that was answered with the first stream."""
    exchange: Members | None = None
    """What was expected; None: nothing was."""
    sent: list[tuple[float, bytes]] = field(default_factory=list)
    """Pieces of the answer, without the framing of chunks, each with the time before it was handed to the network."""
    said: float | None = None
    """The time before the last piece, or before the close where there was none."""
    closed: float | None = None
    """When the client closed the connection, if it did so by itself."""
    ending: tuple[float, str] | None = None
    """When and how the server ended its answer, in the words of a scenario; None where the client went away first."""
    in_vain: Any = None
    """What the server waited for in vain, in words."""
    swallowed: bool = False
    """Whether the client took all of a flood."""
    laps: list[tuple[str, float]] = field(default_factory=list)
    """When each lap began."""
    held: str | None = None
    """The id of the last logged event that had been sent whole before this request."""

    def lasted(self, name: str) -> list[float]:
        """Seconds of each lap of this name that has ended."""
        return [ends - at for (lap, at), (_, ends) in pairwise(self.laps) if lap == name]

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def cursor(self) -> str | None:
        """The cursor, as a server takes it: the header where it is not empty, else `after`."""
        return self.headers.get("last-event-id") or self.asks_for("after") or None

    def asks_for(self, name: str) -> str:
        """A parameter of its query; empty where it has none of this name."""
        return parse_qs(urlsplit(self.target).query).get(name, [""])[-1]


@dataclass
class ClientRun:
    """What a client was told to do, and what it reported."""

    command: Members
    reports: list[tuple[float, Members]] = field(default_factory=list)
    hung: bool = False
    died: str = ""
    """How the client ended instead of coming to an end of the job."""

    @property
    def end(self) -> Members | None:
        """The last report, if it is the end."""
        last = self.reports[-1][1] if self.reports else {}
        return last if "end" in last else None

    def saw(self) -> Iterator[Members]:
        """The values, in order."""
        return (report for _, report in self.reports if "saw" in report)


@dataclass
class Conversation:
    """A scenario as it was played."""

    began: float = field(default_factory=time.monotonic)
    room: float = 1.0
    """A factor to the bounds at the top, which leave room for a slow machine."""
    talks: list[RecordedRequest] = field(default_factory=list)
    runs: list[ClientRun] = field(default_factory=list)

    def lane(self, name: str) -> list[RecordedRequest]:
        """The requests of one kind; a submit that was answered with a stream is one of two kinds."""
        return [talk for talk in self.talks if talk.lane == name or (talk.opens_stream and name == "streams")]


def read_request(stream: BinaryIO) -> RecordedRequest | None:
    """Read one request; None: the client closed, or sent no HTTP."""
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
