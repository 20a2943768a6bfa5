"""Encoding of diffs from parts that are already JSON."""

from typing import Any

import orjson
from pydantic import JsonValue

from tidewire.protocol import strict_json
from tidewire.protocol.diff import DiffError


def append_op(path: str, x: bytes) -> bytes:
    """Encode an append op; `x` is the JSON of a string or an array."""
    return b'["a",%b,%b]' % (to_json(path), x)


def shape(ops: bytes, checks: list[JsonValue]) -> bytes:
    """Encode a diff from its encoded ops and the checks of its event."""
    return b'{"ops":%b,"check":%b}' % (ops, to_json(checks)) if checks else ops


def to_json(value: Any) -> bytes:
    """Encode as compact JSON. NaN, which orjson would encode as null, never gets here: the document rejects it."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        strict_json.check(value)
        raise DiffError(str(error)) from None
