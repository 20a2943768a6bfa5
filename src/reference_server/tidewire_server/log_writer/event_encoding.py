"""Encoding of diffs as JSON. Parts that are already encoded are joined and not encoded again."""

from typing import Any

import orjson
from pydantic import JsonValue

from tidewire.protocol import strict_json
from tidewire.protocol.diff import DiffError


def append_op(path: str, x: bytes) -> bytes:
    """Encode an append op for a path. The argument `x` is the string or array to append, already encoded as JSON."""
    return b'["a",%b,%b]' % (to_json(path), x)


def shape(ops: bytes, checks: list[JsonValue]) -> bytes:
    """Encode the data of an event from ops that are already JSON, and from the lengths and CRC-32s of texts, if there
    are any.
    """
    return b'{"ops":%b,"check":%b}' % (ops, to_json(checks)) if checks else ops


def to_json(value: Any) -> bytes:
    """Encode a value as compact JSON.

    orjson would encode NaN as null. This does not happen here, because the document rejects NaN before a value reaches
    this function.
    """
    try:
        return orjson.dumps(value)
    except TypeError as error:
        strict_json.check(value)
        raise DiffError(str(error)) from None
