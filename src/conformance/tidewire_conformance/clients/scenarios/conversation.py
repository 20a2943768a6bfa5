"""Record of the requests, responses and reports in a scenario. The record is the only input of `judge_conversation`.

All times are in seconds of the monotonic clock.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlsplit

from tidewire_conformance.clients.scenarios.scenario import Members

_MAX_HEAD = 2**20
"""Maximum length, in bytes, of a request line with its header fields."""
_MAX_BODY = 16 * 2**20
"""Maximum length, in bytes, of a request body. It is twice the `max_body_bytes` of the scenario server's discovery."""


@dataclass
class RecordedRequest:
    """Request of the client, with the response of the scenario's server."""

    method: str
    target: str
    """Path and query from the request line."""
    version: str
    """HTTP version from the request line, such as `HTTP/1.1`."""
    headers: dict[str, str]
    """Header fields of the request. Their names are in lower case."""
    body: bytes
    head: bytes
    """Request line and header fields as the server received them."""
    at: float
    """Time at which the server had read the whole request."""
    foreign: bool = False
    """Whether the client sent the request to the second origin of the server."""
    kind: str = ""
    number: int = 0
    """Index of the request among the requests of the same kind, starting at 0."""
    opens_stream: bool = False
    """Whether the request submits a job and its response is the first stream of that job."""
    exchange: Members | None = None
    """Scripted exchange for this request, or None if the scenario does not expect the request."""
    sent: list[tuple[float, bytes]] = field(default_factory=list)
    """Pieces of the response without chunk framing, each with the time just before the server sent it."""
    last_sent_at: float | None = None
    """Time just before the server sent the last piece of the response or, if it sent none, closed the connection."""
    closed: float | None = None
    """Time at which the client closed the connection."""
    ending: tuple[float, str] | None = None
    """Time of the response's end, and the way in which the server ended it.

    The way is a value of the scenario member `then`. None means that the client closed the connection first.
    """
    waited_for: Any = None
    """Description of a client action for which the server waited in vain until its timeout."""
    flood_read: bool = False
    """Whether the client read all bytes of an excessively long event instead of closing the connection."""
    laps: list[tuple[str, float]] = field(default_factory=list)
    """Names and start times of the parts of the response that the scenario measures."""
    last_id: str | None = None
    """Id of the last logged event that the server had sent completely before it received this request."""

    def durations(self, name: str) -> list[float]:
        """Return the durations, in seconds, of the completed parts of the stream that have this name.

        A scenario names the parts that it measures.
        """
        return [ends - at for (lap, at), (_, ends) in pairwise(self.laps) if lap == name]

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def is_last(self) -> bool:
        """Whether the server must close the connection after its response (RFC 9112, section 9.6)."""
        options = [option.strip() for option in self.headers.get("connection", "").lower().split(",")]
        return self.version == "HTTP/1.0" or "close" in options

    @property
    def last_event_id(self) -> str | None:
        """Value of `Last-Event-ID`, decoded as UTF-8, or None if the request does not have this header."""
        value = self.headers.get("last-event-id")
        return None if value is None else value.encode("latin-1").decode("utf-8", "replace")

    @property
    def cursor(self) -> str | None:
        """Cursor of the request.

        The cursor is the `Last-Event-ID` header if it is not empty, and the query parameter `after` otherwise.
        """
        return self.headers.get("last-event-id") or self.query_parameter("after") or None

    def query_parameter(self, name: str) -> str:
        """Return the last value of a query parameter, or an empty string if the parameter is missing."""
        return parse_qs(urlsplit(self.target).query).get(name, [""])[-1]


@dataclass
class ClientRun:
    """Command for the client, with the reports that the client wrote for it."""

    command: Members
    reports: list[tuple[float, Members]] = field(default_factory=list)
    first_request: int = 0
    """Number of requests that the server had received before the command."""
    hung: bool = False
    died: str = ""
    """Summary of how the client exited before it reported the end of the command. Empty if there was no such exit."""

    @property
    def end(self) -> Members | None:
        """Last report if it says how the command ended, otherwise None."""
        last = self.reports[-1][1] if self.reports else {}
        return last if "end" in last else None

    def values(self) -> Iterator[Members]:
        """Yield the reports of delivered values, in order."""
        return (report for _, report in self.reports if report.get("saw") == "value")

    @property
    def events(self) -> list[Members]:
        """Reports of delivered events, in order."""
        return [report for _, report in self.reports if report.get("saw") == "event"]


@dataclass
class Conversation:
    """Recorded requests and reports of one played scenario."""

    began: float = field(default_factory=time.monotonic)
    bound_factor: float = 1.0
    """Factor that multiplies upper time bounds, so that a slow machine does not cause failures."""
    requests: list[RecordedRequest] = field(default_factory=list)
    runs: list[ClientRun] = field(default_factory=list)

    def of_run(self, number: int) -> list[RecordedRequest]:
        """Return the requests that the server received while a command ran. Commands are numbered from 0."""
        ends = [run.first_request for run in self.runs[number + 1 : number + 2]] or [len(self.requests)]
        return self.requests[self.runs[number].first_request : ends[0]]

    def of_kind(self, kind: str) -> list[RecordedRequest]:
        """Return the requests of one kind.

        A request that submits a job and gets a stream also counts as a request for a stream.
        """
        return [
            request
            for request in self.requests
            if request.kind == kind or (request.opens_stream and kind == "streams")
        ]


def read_request(stream: BinaryIO) -> RecordedRequest | None:
    """Read one HTTP request.

    Returns None if the client closed the connection, did not send HTTP, or sent a request that is too long.
    """
    head = line = stream.readline(_MAX_HEAD)
    words = line.split()
    if len(words) != 3:
        return None
    headers: dict[str, str] = {}
    while (line := stream.readline(_MAX_HEAD)).strip():
        head += line
        if len(head) > _MAX_HEAD:
            return None
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if "chunked" in headers.get("transfer-encoding", ""):
        body = _read_chunks(stream)
    else:
        body = _read_exactly(stream, int(headers.get("content-length", "0")))
    method, target, version = (word.decode("latin-1") for word in words)
    return RecordedRequest(method, target, version, headers, body, head, time.monotonic())


def _read_chunks(stream: BinaryIO) -> bytes:
    body = b""
    while size := int(stream.readline(_MAX_HEAD).split(b";")[0] or b"0", 16):
        body += _read_exactly(stream, size, _MAX_BODY - len(body))
        stream.readline(_MAX_HEAD)
    stream.readline(_MAX_HEAD)
    return body


def _read_exactly(stream: BinaryIO, size: int, most: int = _MAX_BODY) -> bytes:
    if not 0 <= size <= most:
        raise ValueError(f"a request body has more than {_MAX_BODY} bytes or a negative length")
    return stream.read(size)
