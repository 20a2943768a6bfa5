"""One large op as several small ones: each fits in an event, and together they do the same.

A large text is set in part and then appended to; a large array or object is set empty and then filled.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from tidewire.protocol.diff import Op
from tidewire.protocol.document.json_pointer import escape

_WORST_BYTES = 6
"""Bytes of JSON that one code point may take: an escaped control character."""

_BRACKETS = 16
"""Bytes of an op beside its path and its value, and some to spare."""


def split_text(text: str, limit: int) -> Iterator[str]:
    """Cut a text into parts whose JSON takes at most `limit` bytes each."""
    step = max(1, limit // _WORST_BYTES)
    for start in range(0, len(text), step):
        yield text[start : start + step]


def split_op(op: Op, limit: int, *, start: int = 0) -> Iterator[Op]:
    """Cut an op into ops whose JSON takes at most `limit` bytes each.

    An op that is small comes out as it is. So does one whose path alone passes the limit: there is no smaller form.

    Args:
        op: Any op.
        limit: Bytes of the JSON of one op.
        start: Elements that stand already in the array that an `a` appends to.
    """
    if len(op) < 3 or op[0] not in {"a", "s", "i"} or _size(op) <= limit:
        yield op
        return
    letter, path, value = str(op[0]), str(op[1]), op[2]
    room = max(1, limit - _size(path) - _BRACKETS)
    if isinstance(value, str):
        parts = split_text(value, room)
        yield [letter, path, next(parts)]
        for part in parts:
            yield ["a", path, part]
    elif isinstance(value, list):
        if letter != "a":
            yield [letter, path, []]
        yield from _append(path, value, limit, room, start)
    elif isinstance(value, dict):
        yield [letter, path, {}]
        for name, member in value.items():
            yield from split_op(["s", f"{path}/{escape(name)}", member], limit)
    else:
        yield op


def _append(path: str, elements: list[Any], limit: int, room: int, start: int) -> Iterator[Op]:
    """Append elements in groups. One that is too large by itself is set at the index that is the array's length."""
    group: list[Any] = []
    filled = 0
    for index, element in enumerate(elements, start):
        size = _size(element) + 1
        if group and filled + size > room:
            yield ["a", path, group]
            group, filled = [], 0
        if size > room:
            yield from split_op(["s", f"{path}/{index}", element], limit)
        else:
            group.append(element)
            filled += size
    if group:
        yield ["a", path, group]


def _size(value: Any) -> int:
    return len(orjson.dumps(value))
