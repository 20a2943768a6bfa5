"""Record of one HTTP request and its response, with arrival times. The module `recording_client` creates the records."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal
from urllib.parse import parse_qs, urljoin, urlsplit

from tidewire_conformance.wire import json_violations
from tidewire_conformance.wire.event_stream_decoder import Block, EventStreamDecoder
from tidewire_conformance.wire.json_violations import ParsedJson
from tidewire_conformance.wire.typed_json import REQUIREMENTS, TypedJson, body_schema

SECRET: Final = 8
"""Minimum length at which a credential is replaced everywhere in a report.

A shorter value is replaced only in its own header field, because it may occur in other text by chance.
"""


@dataclass(repr=False)
class RecordedExchange:
    """Recorded HTTP request with its response."""

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
    """Status code of the response, or 0 until a response arrives."""
    header: tuple[tuple[str, str], ...] = ()
    answered: float = 0.0
    """Arrival time of the response header, in seconds since the run began."""
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    """Body of the response as it was received, as pairs of arrival time and bytes."""
    blocks: list[Block] = field(default_factory=list)
    """Decoded blocks of the event stream. The list is empty if the response is not an event stream."""
    ended: Literal["", "whole", "cut", "left"] = ""
    """How the response ended.

    `whole` means that the response ended as its framing declares, and `cut` means that it ended earlier. `left` means
    that the suite closed the connection.
    """
    fault: str = ""
    """Description of an HTTP or connection error, or an empty string if there was no error."""
    finished: float = 0.0
    reader: EventStreamDecoder = field(default_factory=EventStreamDecoder)
    secrets: tuple[tuple[str, str], ...] = ()
    """Header values that no report may show, each with the name of the variable that replaces the value."""

    def without_secrets(self, text: str) -> str:
        """Return the text with the credentials of this request replaced by variable names."""
        for value, variable in self.secrets:
            for part in (value, value.rpartition(" ")[2]):
                text = text.replace(part, f"${variable}") if len(part) >= SECRET else text
        return text

    @cached_property
    def path(self) -> str:
        return urlsplit(self.url).path

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.url).query, keep_blank_values=True)

    @property
    def body(self) -> bytes:
        return b"".join(chunk for _, chunk in self.chunks)

    def response_header(self, name: str) -> str:
        """Return a header field of the response. Repeated lines are joined by commas, and an absent field is empty."""
        name = name.lower()
        return ", ".join([value for each, value in self.header if each.lower() == name])

    def request_header(self, name: str) -> str:
        """Return a header field of the request. Repeated lines are joined by commas, and an absent field is empty."""
        name = name.lower()
        return ", ".join([value for each, value in self.request_headers if each.lower() == name])

    def response_words(self, name: str) -> set[str]:
        """Return the elements of a header field of the response that is a list, in lower case."""
        return {word.strip().lower() for word in self.response_header(name).split(",")}

    @property
    def media_type(self) -> str:
        return self.response_header("content-type").partition(";")[0].strip().lower()

    @property
    def is_stream(self) -> bool:
        return self.status == 200 and self.media_type == "text/event-stream"

    @property
    def asks_for_stream(self) -> bool:
        """Whether an event stream is a possible response to the request."""
        accept = self.request_header("accept").lower()
        return "text/event-stream" in accept or "text/*" in accept or self.path.endswith("/events")

    @property
    def is_whole(self) -> bool:
        """Whether the body is complete. A response to HEAD has none."""
        return self.ended == "whole" and self.method != "HEAD"

    @cached_property
    def reading(self) -> ParsedJson:
        """Response body parsed as JSON.

        The value is cached, so it must be read only after the response has ended.
        """
        return json_violations.read(self.body)

    @property
    def json(self) -> Any:
        """Body as JSON of any type. To read a member, use `member` or `validated`."""
        return self.reading.value

    @property
    def schema(self) -> str:
        """Name of the schema that the body must fit, or an empty string if there is none."""
        return "" if self.is_stream else body_schema(self.method, self.path, self.status)

    @cached_property
    def typed(self) -> TypedJson:
        """Body with the schema of the response."""
        return TypedJson(self.json, self.schema, REQUIREMENTS.get(self.schema, ""), f"the body of {self}")

    @property
    def members(self) -> dict[str, Any]:
        """Members of the JSON object in the body that have the right type."""
        return self.typed.members

    def member(self, name: str, default: Any = None) -> Any:
        """Return a member of the JSON object in the body, or the default if it is absent or has another type."""
        return self.members.get(name, default)

    @property
    def validated(self) -> dict[str, Any]:
        """Members of a body that fits the schema of the response.

        Raises:
            MalformedJsonError: The body does not fit the schema.
        """
        return self.typed.validated

    @property
    def code(self) -> str:
        """Problem code of an error response, or an empty string if the response is not a problem document."""
        return str(self.members.get("code", "")) if self.status >= 400 else ""

    @property
    def outcome(self) -> str:
        """Status of the response, and the problem code of an error, such as `403 forbidden`."""
        return f"{self.status} {self.code}".rstrip()

    @property
    def pointer(self) -> str:
        """Pointer to the fault in a request that was refused with 422, or an empty string for any other response."""
        return str(self.member("pointer", "")) if self.status == 422 else ""

    @property
    def events(self) -> list[Block]:
        return [block for block in self.blocks if block.is_event]

    @property
    def logged(self) -> list[Block]:
        return [block for block in self.blocks if block.is_logged]

    @property
    def logged_ids(self) -> list[str | None]:
        return [block.id for block in self.logged]

    @property
    def logged_types(self) -> list[str]:
        return [block.type for block in self.logged]

    def of_type(self, name: str) -> list[Block]:
        return [block for block in self.events if block.type == name]

    @property
    def cursor(self) -> str:
        """Cursor of a GET request, from `Last-Event-ID` or `after`, or an empty string if the request has no cursor."""
        if self.method != "GET":
            return ""
        return self.request_header("last-event-id").strip(" \t") or self.query.get("after", [""])[0]

    def __str__(self) -> str:
        return f"{self.method} {self.url}"


def without_query(link: str) -> str:
    """Return a link without its query, which a server may use, for example to route requests."""
    return link.partition("?")[0]


def resolve(exchange: RecordedExchange, link: str) -> str:
    """Resolve a link in a response against the URL of the request. A link that is not a URI reference stays as it is."""
    try:
        return urljoin(exchange.url, link)
    except ValueError:  # for example an IPv6 address without a closing bracket
        return link
