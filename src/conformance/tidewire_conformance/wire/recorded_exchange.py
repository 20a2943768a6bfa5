"""Record of one HTTP request and its response, with arrival times. `recording_client` fills in the record."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal
from urllib.parse import parse_qs, urljoin, urlsplit

from tidewire_conformance.wire import strict_json
from tidewire_conformance.wire.event_stream_decoder import Block, EventStreamDecoder
from tidewire_conformance.wire.strict_json import ParsedJson

SECRET: Final = 8
"""Minimum length at which a credential is replaced wherever it occurs. Shorter values are replaced only in their own
header field.
"""


@dataclass(repr=False)
class RecordedExchange:
    """One HTTP request and the response received for it."""

    number: int
    method: str
    url: str
    request_headers: tuple[tuple[str, str], ...]
    """Header fields of the request."""
    sent: bytes
    """Body of the request."""
    check: str
    """Name of the check that sent the request."""
    began: float
    """Time of the request, in seconds since the run began."""
    status: int = 0
    """Status code of the response; 0 until one arrives."""
    header: tuple[tuple[str, str], ...] = ()
    answered: float = 0.0
    """Arrival time of the response header, in seconds since the run began."""
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    """Body of the response as received: pairs of arrival time and bytes."""
    blocks: list[Block] = field(default_factory=list)
    """Decoded blocks, if the response is an event stream."""
    ended: Literal["", "whole", "cut", "left"] = ""
    """How the response ended: `whole` as its framing declares, `cut` before that, `left` because the suite closed the
    connection.
    """
    fault: str = ""
    """HTTP or connection error; empty if there was none."""
    finished: float = 0.0
    reader: EventStreamDecoder = field(default_factory=EventStreamDecoder)
    secrets: tuple[tuple[str, str], ...] = ()
    """Header values that no report may show, each with the name of the variable printed in its place."""

    def without_secrets(self, text: str) -> str:
        """Return the text with this exchange's credentials replaced by variable names."""
        for value, variable in self.secrets:
            for part in (value, value.rpartition(" ")[2]):
                text = text.replace(part, f"${variable}") if len(part) >= SECRET else text
        return text

    @property
    def path(self) -> str:
        return urlsplit(self.url).path

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.url).query, keep_blank_values=True)

    @property
    def body(self) -> bytes:
        return b"".join(chunk for _, chunk in self.chunks)

    def response_header(self, name: str) -> str:
        """Return a response header field, repeated lines joined by commas; empty if absent."""
        return ", ".join(value for each, value in self.header if each.lower() == name.lower())

    def request_header(self, name: str) -> str:
        """Return a request header field, repeated lines joined by commas; empty if absent."""
        return ", ".join(value for each, value in self.request_headers if each.lower() == name.lower())

    @property
    def media_type(self) -> str:
        return self.response_header("content-type").partition(";")[0].strip().lower()

    @property
    def is_stream(self) -> bool:
        return self.status == 200 and self.media_type == "text/event-stream"

    @property
    def is_whole(self) -> bool:
        return self.ended == "whole"

    @cached_property
    def reading(self) -> ParsedJson:
        """Response body parsed as JSON. The value is cached, so read it only after the response has ended."""
        return strict_json.read(self.body)

    @property
    def json(self) -> Any:
        return self.reading.value

    @property
    def code(self) -> str:
        """Code of the problem document; empty if the response is not a problem."""
        found = self.json if self.status >= 400 and isinstance(self.json, dict) else {}
        return str(found.get("code", ""))

    @property
    def events(self) -> list[Block]:
        return [block for block in self.blocks if block.is_event]

    @property
    def logged(self) -> list[Block]:
        return [block for block in self.blocks if block.is_logged]

    def of_type(self, name: str) -> list[Block]:
        return [block for block in self.events if block.type == name]

    @property
    def cursor(self) -> str:
        """Cursor sent with a GET, from `Last-Event-ID` or `after`; empty if none was sent."""
        if self.method != "GET":
            return ""
        return self.request_header("last-event-id").strip(" \t") or self.query.get("after", [""])[0]

    def __str__(self) -> str:
        return f"{self.method} {self.url}"


def resolve(exchange: RecordedExchange, link: str) -> str:
    """Resolve a link of a response against the request URL."""
    return urljoin(exchange.url, link)
