"""What was seen of one request: what was sent, and all that came back, with its times; `recording_client` fills it in."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal
from urllib.parse import parse_qs, urljoin, urlsplit

from tidewire_conformance.wire import strict_json
from tidewire_conformance.wire.event_stream_decoder import Block, Reader
from tidewire_conformance.wire.strict_json import Reading

SECRET: Final = 8
"""Characters from which on the value of a caller's field is looked for in all that is told; its own field never is."""


@dataclass(repr=False)
class RecordedExchange:
    """One request, and all that came back."""

    number: int
    method: str
    url: str
    asked: tuple[tuple[str, str], ...]
    """The header of the request."""
    sent: bytes
    """The body of the request."""
    check: str
    """What asked."""
    began: float
    """Seconds of the run."""
    status: int = 0
    """0 while there is no answer."""
    header: tuple[tuple[str, str], ...] = ()
    answered: float = 0.0
    """When the header of the answer was there."""
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    """The body, as it came."""
    blocks: list[Block] = field(default_factory=list)
    """Of an event stream."""
    ended: Literal["", "whole", "cut", "left"] = ""
    """How the answer ended: as its framing says, before that, or because the suite went away."""
    fault: str = ""
    """What was wrong with it as HTTP."""
    finished: float = 0.0
    reader: Reader = field(default_factory=Reader)
    secrets: tuple[tuple[str, str], ...] = ()
    """Values of fields that no report may show, each with the name of a variable that stands for it."""

    def without_secrets(self, text: str) -> str:
        """A text that tells of this exchange, fit to be published."""
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

    def says(self, name: str) -> str:
        """A field of the answer's header, lines of one name joined; empty where there is none."""
        return ", ".join(value for each, value in self.header if each.lower() == name.lower())

    def asks(self, name: str) -> str:
        """A field of the request's header; empty where there is none."""
        return ", ".join(value for each, value in self.asked if each.lower() == name.lower())

    @property
    def media_type(self) -> str:
        return self.says("content-type").partition(";")[0].strip().lower()

    @property
    def is_stream(self) -> bool:
        return self.status == 200 and self.media_type == "text/event-stream"

    @property
    def is_whole(self) -> bool:
        return self.ended == "whole"

    @cached_property
    def reading(self) -> Reading:
        """The body as JSON; to be asked for once the answer has ended."""
        return strict_json.read(self.body)

    @property
    def json(self) -> Any:
        return self.reading.value

    @property
    def code(self) -> str:
        """The code of a problem; empty where the answer is none."""
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
        """The cursor that was sent with a GET; empty where there was none."""
        if self.method != "GET":
            return ""
        return self.asks("last-event-id").strip(" \t") or self.query.get("after", [""])[0]

    def __str__(self) -> str:
        return f"{self.method} {self.url}"


def resolve(exchange: RecordedExchange, link: str) -> str:
    """A link of an answer, resolved against its URL."""
    return urljoin(exchange.url, link)
