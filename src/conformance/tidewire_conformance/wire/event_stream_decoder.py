"""Event streams by the letter of the WHATWG standard, and how they were written.

A block is what stands between two empty lines. It is kept as it came: its bytes, its fields in their order, when its
last byte was there, how its lines ended. What a reader makes of it (type, data, last id) stands beside that.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from tidewire_conformance.wire import strict_json
from tidewire_conformance.wire.strict_json import Reading

MARK: Final = b"\xef\xbb\xbf"
"""A byte order mark, which is dropped once, at the start."""

LOGGED: Final = frozenset({"snapshot", "message", "done"})
"""Types of events that the log holds (section 3.4)."""
CLOSING: Final = frozenset({"done", "goaway", "problem"})
"""Types of events after which a stream is closed."""

_LINE_END = re.compile(rb"\r\n|\r|\n")
_KNOWN = frozenset({"event", "data", "id", "retry"})


@dataclass(frozen=True)
class Block:
    """One block of an event stream."""

    raw: bytes
    """All of its bytes, the empty line that ended it included."""
    at: float
    """When its last byte came, in seconds of the run."""
    line_ends: frozenset[bytes]
    fields: tuple[tuple[str, bytes], ...]
    """Names and values in the order in which they stand; the one space after the colon is taken away."""
    comments: int
    last_id: str
    """The last event id after this block, as an EventSource would tell it."""

    def values(self, name: str) -> list[bytes]:
        return [value for each, value in self.fields if each == name]

    @property
    def is_event(self) -> bool:
        """Whether a reader dispatches an event: a block without `data` is none."""
        return bool(self.values("data"))

    @cached_property
    def type(self) -> str:
        """An absent or empty `event` field is the type `message`."""
        return b"".join(self.values("event")[-1:]).decode("utf-8", "replace") or "message"

    @cached_property
    def data(self) -> bytes:
        return b"\n".join(self.values("data"))

    @cached_property
    def id(self) -> str | None:
        """Its own id; None where it has no `id` field that counts."""
        own = [value for value in self.values("id") if b"\0" not in value]
        return own[-1].decode("utf-8", "replace") if own else None

    @cached_property
    def retry(self) -> int | None:
        """Milliseconds of the last valid `retry` field."""
        found = [int(value) for value in self.values("retry") if re.fullmatch(rb"[0-9]{1,15}", value)]
        return found[-1] if found else None

    @cached_property
    def reading(self) -> Reading:
        return strict_json.read(self.data)

    @property
    def json(self) -> Any:
        return self.reading.value

    @property
    def is_logged(self) -> bool:
        return self.is_event and self.type in LOGGED


@dataclass
class Reader:
    """Takes bytes as they come, and gives blocks as they end."""

    last_id: str = ""
    marks: int = 0
    """Byte order marks at the start: 0 or 1."""
    _buffer: bytearray = field(default_factory=bytearray)
    _scanned: int = 0
    _lines: list[bytes] = field(default_factory=list)
    _ends: list[bytes] = field(default_factory=list)
    _after_cr: bool = False
    _at_start: bool = True

    def feed(self, chunk: bytes, at: float) -> list[Block]:
        """The blocks that a chunk ends.

        Args:
            chunk: The next bytes.
            at: When they came.
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
        """What came after the last empty line."""
        begun = b"".join(line + end for line, end in zip(self._lines, self._ends, strict=False))
        return begun + bytes(self._buffer)

    def _drop_mark(self) -> bool:
        """Whether enough has come to tell a byte order mark."""
        if len(self._buffer) < len(MARK) and MARK.startswith(self._buffer):
            return False
        self._at_start = False
        if self._buffer.startswith(MARK):
            del self._buffer[: len(MARK)]
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
            comments=sum(line.startswith(b":") for line in lines),
            last_id=self.last_id,
        )


def _field(line: bytes) -> tuple[str, bytes]:
    name, _, value = line.partition(b":")
    return name.decode("utf-8", "replace"), value.removeprefix(b" ")
