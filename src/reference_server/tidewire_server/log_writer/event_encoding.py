"""Changes that become one event, in their wire form as they come: adjacent appends, or adjacent rows."""

from typing import Any, Final

import orjson
from pydantic import JsonValue

from tidewire.protocol import strict_json
from tidewire.protocol.diff import DiffError

_AROUND_OP: Final = 16
"""Bytes of an append beside its place and what it appends."""


class Appends:
    """Appends to places, each place once, in the order in which they were first appended to."""

    def __init__(self) -> None:
        self.size = 0
        self.texts: dict[str, list[bytes]] = {}
        self.arrays: dict[str, list[bytes]] = {}

    def add(self, path: str, part: bytes, *, text: bool) -> None:
        """Take in an append: the inside of its JSON string or array."""
        places = self.texts if text else self.arrays
        if (parts := places.get(path)) is not None:
            parts.append(part)
            self.size += len(part)
        else:
            places[path] = [part]
            self.size += len(part) + len(path) + _AROUND_OP

    def ops(self) -> bytes:
        """All of them, as JSON."""
        texts = [b'["a",%b,"%b"]' % (to_json(path), b"".join(parts)) for path, parts in self.texts.items()]
        arrays = [b'["a",%b,[%b]]' % (to_json(path), b",".join(parts)) for path, parts in self.arrays.items()]
        # An array first: a text appended to may stand in an element that came with it.
        return b"[%b]" % b",".join(arrays + texts)


class Rows:
    """Rows, each the JSON of its op."""

    def __init__(self) -> None:
        self.size = 0
        self.rows: list[bytes] = []

    def add(self, rows: list[bytes]) -> None:
        """Take in rows."""
        self.rows += rows
        self.size += sum(map(len, rows)) + len(rows)

    def ops(self) -> bytes:
        """All of them, as JSON."""
        return b"[%b]" % b",".join(self.rows)


def shape(ops: bytes, checks: list[JsonValue]) -> bytes:
    """A diff: ops, which are JSON already, and its checks."""
    return b'{"ops":%b,"check":%b}' % (ops, to_json(checks)) if checks else ops


def to_json(value: Any) -> bytes:
    """Compact JSON. What orjson would write silently in another form (NaN as null) is refused by the document."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        strict_json.check(value)
        raise DiffError(str(error)) from None
