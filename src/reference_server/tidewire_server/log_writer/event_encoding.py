"""The wire form of a diff, from parts that are JSON already."""

from typing import Any

import orjson
from pydantic import JsonValue

from tidewire.protocol import strict_json
from tidewire.protocol.diff import DiffError


def append_op(path: str, x: bytes) -> bytes:
    """An append to a place, by a JSON string or array."""
    return b'["a",%b,%b]' % (to_json(path), x)


def shape(ops: bytes, checks: list[JsonValue]) -> bytes:
    """A diff: ops and the checks of its event."""
    return b'{"ops":%b,"check":%b}' % (ops, to_json(checks)) if checks else ops


def to_json(value: Any) -> bytes:
    """Compact JSON. What orjson would write silently in another form (NaN as null) is refused by the document."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        strict_json.check(value)
        raise DiffError(str(error)) from None
