"""Parser for transcripts of the specification, and comparison of shown with received messages.

`spec/README.md` defines the notation.
"""

import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple


class TranscriptError(ValueError):
    """The text is not a transcript."""


# ---- reading -----------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """A request of the client."""

    line: int
    channel: str
    target: str
    fields: list[str]
    body: str


class Head(NamedTuple):
    """Status and header fields of a response."""

    line: int
    channel: str
    status: int
    fields: list[tuple[str, str]]


class Body(NamedTuple):
    """A JSON body of a response."""

    line: int
    channel: str
    text: str


class Block(NamedTuple):
    """One event of a response, or a single `retry` field, as a mapping from field name to value."""

    line: int
    channel: str
    fields: dict[str, str]


class Eof(NamedTuple):
    """The server ends the response."""

    line: int
    channel: str


class Cut(NamedTuple):
    """The client closes the connection."""

    line: int
    channel: str


class Rest(NamedTuple):
    """Any number of logged events may precede the next shown event."""

    line: int
    channel: str


class Remark(NamedTuple):
    """A remark about something that happens between requests."""

    line: int
    text: str


Step = Request | Head | Body | Block | Eof | Cut | Rest | Remark

_LINE = re.compile(r"(?P<mark>>>|<<|>|<|#)(?: (?P<text>.*))?")
_STATUS = re.compile(r"[1-5][0-9]{2}")


class _Line(NamedTuple):
    number: int
    mark: str
    text: str


def read(text: str) -> list[Step]:
    """Parse a transcript into steps.

    Raises:
        TranscriptError: A line breaks the notation; the message has its number.
    """
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        found = _LINE.fullmatch(line)
        if found is None:
            raise TranscriptError(f"line {number} has no mark: {line!r}")
        lines.append(_Line(number, found["mark"], found["text"] or ""))
    steps: list[Step] = []
    for mark, group in groupby(lines, key=lambda line: line.mark):
        run = list(group)
        if mark == "#":
            steps += [Remark(line.number, line.text) for line in run]
        elif mark in {">", ">>"}:
            steps.append(_request(mark, run))
        else:
            steps += _answer(mark.replace("<", ">"), run)
    return steps


def _request(channel: str, run: list[_Line]) -> Request:
    target, *fields = [line.text for line in run]
    body = ""
    if "" in fields:
        at = fields.index("")
        body = "\n".join(fields[at + 1 :])
        del fields[at:]
    return Request(run[0].number, channel, target, fields, body)


def _answer(channel: str, run: list[_Line]) -> Iterator[Step]:
    rest = iter(run)
    if _STATUS.fullmatch(run[0].text):
        next(rest)
        fields = []
        for line in rest:
            if not line.text:
                break
            name, _, value = line.text.partition(": ")
            fields.append((name, value))
        yield Head(run[0].number, channel, int(run[0].text), fields)
    block: dict[str, str] = {}
    start = 0
    for line in rest:
        if line.text == "" and block:
            yield Block(start, channel, block)
            block = {}
        elif line.text == "EOF":
            yield Eof(line.number, channel)
        elif line.text == "CUT":
            yield Cut(line.number, channel)
        elif line.text == "...":
            yield Rest(line.number, channel)
        elif line.text[:1] in {"{", "["} and not block:
            yield Body(line.number, channel, line.text)
        elif line.text:
            start = start if block else line.number
            name, _, value = line.text.partition(":")
            block[name] = value
    if block:
        raise TranscriptError(f"line {start}: the event has no end")


# ---- comparing ---------------------------------------------------------------------------------------------------

_NAME = re.compile(r"\{([a-z]+)\}")
_BARE = re.compile(r"(?<=[:\[,])\s*\{int\}")
"""`{int}` in place of a JSON number. Within a string, quotes surround it."""
_GRAMMAR = {
    "id": r"[1-9][0-9]{0,9}-[1-9][0-9]{0,14}",
    "int": r"[0-9]+",
    "time": r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z",
    "job": r"[A-Za-z0-9_-]{22,128}",
}
_UNBOUND_NAMES = frozenset({"id", "int", "time"})
_EVENT_ID = re.compile(_GRAMMAR["id"])


def read_json(text: str) -> Any:
    """Parse JSON of a transcript; `{int}` in place of a number becomes the string "{int}"."""
    return json.loads(_BARE.sub('"{int}"', text))


@dataclass
class Names:
    """Values of the names in a transcript, bound while the transcript is played."""

    values: dict[str, str] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 1})
    """Shown epoch → received epoch. Epochs after the first are random, but ordered."""

    def copy(self) -> "Names":
        """A copy of the bindings, for a comparison that may fail."""
        return Names(dict(self.values), dict(self.epochs))

    def fill(self, text: str) -> str:
        """Replace names by their values. A name without a value gets a random one."""
        return _NAME.sub(lambda name: self.values.setdefault(name[1], secrets.token_urlsafe(16)), text)

    def compare(self, shown: Any, got: Any, *, whole: bool, at: str = "") -> str:
        """Describe the first difference between two JSON values, including types; empty if they are equal.

        Args:
            shown: The value in the transcript.
            got: The value from the server.
            whole: Report object members that the transcript does not show.
            at: Path of the values, for the message.
        """
        if isinstance(shown, str):
            return "" if self._fits(shown, got) else f"{at or 'it'} is {_short(got)}, not {_short(shown)}"
        if type(shown) is not type(got):
            return f"{at or 'it'} is {_short(got)}, not {_short(shown)}"
        if isinstance(shown, dict):
            if missing := shown.keys() - got.keys():
                return f"{at or 'it'} lacks {', '.join(sorted(missing))}"
            if whole and (more := got.keys() - shown.keys()):
                return f"{at or 'it'} has {', '.join(sorted(more))} as well"
            pairs = [(f"{at}/{name}", shown[name], got[name]) for name in shown]
        elif isinstance(shown, list):
            if len(shown) != len(got):
                return f"{at or 'it'} has {len(got)} elements, not {len(shown)}"
            pairs = [(f"{at}/{index}", *both) for index, both in enumerate(zip(shown, got, strict=True))]
        else:
            return "" if shown == got else f"{at or 'it'} is {_short(got)}, not {_short(shown)}"
        return next(filter(None, (self.compare(a, b, whole=whole, at=where) for where, a, b in pairs)), "")

    def _fits(self, shown: str, got: Any) -> bool:
        if shown == "{int}":
            return type(got) is int
        name = None if type(got) is str else _NAME.fullmatch(shown)
        if name is not None and name[1] not in _GRAMMAR:
            text = json.dumps(got, sort_keys=True)
            return self.values.setdefault(name[1], text) == text
        return type(got) is str and (self.match_id(shown, got) or self.match(shown, got))

    def match_id(self, shown: str, got: str) -> bool:
        """Whether two event ids match: equal sequence numbers, and epochs in the same order."""
        if not (_EVENT_ID.fullmatch(shown) and _EVENT_ID.fullmatch(got)):
            return False
        (epoch, seq), (other, other_seq) = (map(int, one.split("-")) for one in (shown, got))
        if epoch not in self.epochs and epoch > max(self.epochs) and other > max(self.epochs.values()):
            self.epochs[epoch] = other
        return seq == other_seq and self.epochs.get(epoch) == other

    def match(self, shown: str, got: str) -> bool:
        """Whether a received text matches the shown text; on a match, bind the names in the shown text."""
        pattern, seen = "", set[str]()
        for index, part in enumerate(_NAME.split(shown)):
            if index % 2 == 0 or part in self.values:
                pattern += re.escape(self.values[part] if index % 2 else part)
            elif part in _UNBOUND_NAMES:
                pattern += f"(?:{_GRAMMAR[part]})"
            elif part in seen:
                pattern += f"(?P={part})"
            else:
                seen.add(part)
                pattern += f"(?P<{part}>{_GRAMMAR.get(part, '.+')})"
        found = re.fullmatch(pattern, got, re.DOTALL)
        if found is not None:
            self.values |= {name: found[name] for name in seen}
        return found is not None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"
