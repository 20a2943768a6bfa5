"""Event-stream decoder that follows the WHATWG standard and keeps the raw bytes of each block.

A block is the text between two empty lines. A `Block` contains its bytes, its line endings, the arrival time of its
last byte, and its fields in order. Its properties return the parsed event type, data and last event id.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from tidewire_conformance.wire import json_violations
from tidewire_conformance.wire.json_violations import ParsedJson
from tidewire_conformance.wire.typed_json import TypedJson, typed_event

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""UTF-8 byte order mark. The decoder removes a mark at the start of a stream."""

LOGGED_TYPES: Final = frozenset({"snapshot", "message", "done"})
"""Types of the events that a server keeps in its log (section 3.4)."""
CLOSING_TYPES: Final = frozenset({"done", "goaway", "problem"})
"""Types of the events after which a server ends the stream."""

_LINE_END = re.compile(rb"\r\n|\r|\n")
_KNOWN = frozenset({"event", "data", "id", "retry"})


@dataclass(frozen=True)
class Block:
    """Block of an event stream, with its raw bytes and its parsed fields."""

    raw: bytes
    """All bytes of the block, including the empty line that ends it."""
    at: float
    """Arrival time of the last byte, in seconds since the run began."""
    line_ends: frozenset[bytes]
    fields: tuple[tuple[str, bytes], ...]
    """Names and values of the fields, in order. One leading space is removed from each value."""
    last_id: str
    """Last event id after this block, as `EventSource` reports it in `lastEventId`."""

    def values(self, name: str) -> list[bytes]:
        return [value for each, value in self.fields if each == name]

    @cached_property
    def is_event(self) -> bool:
        """Whether the block is an event. According to the standard, a block without `data` is not an event."""
        return bool(self.values("data"))

    @cached_property
    def type(self) -> str:
        """Event type, or `message` if the `event` field is absent or empty."""
        return b"".join(self.values("event")[-1:]).decode("utf-8", "replace") or "message"

    @cached_property
    def data(self) -> bytes:
        return b"\n".join(self.values("data"))

    @cached_property
    def id(self) -> str | None:
        """Last valid `id` field of this block, or None. A value that contains NUL is invalid."""
        own = [value for value in self.values("id") if b"\0" not in value]
        return own[-1].decode("utf-8", "replace") if own else None

    @cached_property
    def retry(self) -> int | None:
        """Milliseconds in the last valid `retry` field, or None if there is none."""
        found = [int(value) for value in self.values("retry") if re.fullmatch(rb"[0-9]{1,15}", value)]
        return found[-1] if found else None

    @cached_property
    def reading(self) -> ParsedJson:
        return json_violations.read(self.data)

    @property
    def json(self) -> Any:
        """Data as JSON of any type. To read a member, use `member`."""
        return self.reading.value

    @cached_property
    def typed(self) -> TypedJson:
        """Data with the schema of the event type."""
        return typed_event(self.type, self.json)

    @property
    def members(self) -> dict[str, Any]:
        """Members of the JSON object in the data that have the right type."""
        return self.typed.members

    def member(self, name: str, default: Any = None) -> Any:
        """Return a member of the JSON object in the data, or the default if it is absent or has another type."""
        return self.members.get(name, default)

    @property
    def snapshot_reason(self) -> str:
        """Reason of a snapshot, or an empty string for any other event."""
        return str(self.member("reason", "")) if self.type == "snapshot" else ""

    @property
    def is_merged(self) -> bool:
        """Whether the event is a diff that replaces several events, and so has the member `on`."""
        return self.type == "message" and "on" in self.members

    @property
    def is_logged(self) -> bool:
        return self.is_event and self.type in LOGGED_TYPES


@dataclass
class EventStreamDecoder:
    """Incremental decoder. The method `feed` accepts bytes and returns the blocks that they complete."""

    last_id: str = ""
    marks: int = 0
    """Number of byte order marks that were removed at the start of the stream, which is 0 or 1."""
    _buffer: bytearray = field(default_factory=bytearray)
    _scanned: int = 0
    _lines: list[bytes] = field(default_factory=list)
    _ends: list[bytes] = field(default_factory=list)
    _after_cr: bool = False
    _at_start: bool = True

    def feed(self, chunk: bytes, at: float) -> list[Block]:
        """Decode a chunk and return the blocks that it completes.

        Args:
            chunk: The next bytes of the stream.
            at: Arrival time of the chunk.
        """
        self._buffer += chunk
        if self._at_start and not self._drop_mark():
            return []
        if self._after_cr and self._buffer:
            self._after_cr = False
            if self._buffer[:1] == b"\n":
                del self._buffer[:1]
                if self._ends:
                    self._ends[-1] = b"\r\n"
        blocks: list[Block] = []
        begin = 0
        for end in _LINE_END.finditer(self._buffer, self._scanned):
            self._lines.append(bytes(self._buffer[begin : end.start()]))
            self._ends.append(end[0])
            begin = end.end()
            if not self._lines[-1]:
                blocks.append(self._end_block(at))
            self._after_cr = end[0] == b"\r" and begin == len(self._buffer)
        del self._buffer[:begin]
        self._scanned = len(self._buffer)
        return blocks

    @property
    def unfinished(self) -> bytes:
        """Bytes that were received after the last complete block."""
        begun = b"".join(line + end for line, end in zip(self._lines, self._ends, strict=False))
        return begun + bytes(self._buffer)

    def _drop_mark(self) -> bool:
        """Remove a byte order mark at the start of the stream.

        Returns False if too few bytes have arrived to recognize a mark.
        """
        if len(self._buffer) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(self._buffer):
            return False
        self._at_start = False
        if self._buffer.startswith(BYTE_ORDER_MARK):
            del self._buffer[: len(BYTE_ORDER_MARK)]
            self.marks = 1
        return True

    def _end_block(self, at: float) -> Block:
        lines, self._lines = self._lines, []
        ends, self._ends = self._ends, []
        fields = [_field(line) for line in lines[:-1] if not line.startswith(b":")]
        known = tuple((name, value) for name, value in fields if name in _KNOWN)
        ids = [value for name, value in known if name == "id" and b"\0" not in value]
        if ids:
            self.last_id = ids[-1].decode("utf-8", "replace")
        return Block(
            raw=b"".join(line + end for line, end in zip(lines, ends, strict=True)),
            at=at,
            line_ends=frozenset(ends),
            fields=tuple(fields),
            last_id=self.last_id,
        )


def _field(line: bytes) -> tuple[str, bytes]:
    name, _, value = line.partition(b":")
    return name.decode("utf-8", "replace"), value.removeprefix(b" ")
