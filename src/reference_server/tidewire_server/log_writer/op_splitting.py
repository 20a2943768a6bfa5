"""Split a large op into several ops that each fit in an event and together have the same effect.

A large text is set in part and then appended to. A large array or object is set empty and then filled.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

from tidewire.protocol.diff import Op
from tidewire.protocol.document import Document
from tidewire.protocol.document.json_pointer import escape
from tidewire.protocol.document.json_values import common_prefix
from tidewire_server.log_writer.text_check_schedule import is_array, is_text

MAX_ESCAPED_BYTES: Final = 6
"""Worst-case JSON size of one code point: an escaped control character such as ``\\u0001``."""

_BRACKETS = 16
"""Upper bound of the bytes of an op in addition to its path and its value."""


def split_text(text: str, limit: int) -> Iterator[str]:
    """Split a text into parts whose JSON takes at most `limit` bytes each."""
    step = max(1, limit // MAX_ESCAPED_BYTES)
    for start in range(0, len(text), step):
        yield text[start : start + step]


def split_in_document(op: Op, limit: int, document: Document) -> Iterable[Op]:
    """Split an op like `split_op`, for the document that it will be applied to. Call before applying the op."""
    if _size(op) <= limit:
        return [op]
    path = str(op[1])
    if op[0] == "s" and type(op[2]) is str and is_text(document, path):
        # Keep the common prefix in place: it may be declared stable, and must not be truncated (TW-DIF-057).
        old = str(document.value(path))
        kept = common_prefix(old, op[2])
        dropped = [["t", path, len(old) - kept]] if kept < len(old) else []
        added = op[2][kept:]
        more = split_op(["a", path, added], limit) if added or not dropped else ()
        return [*dropped, *more]
    grows = op[0] == "a" and is_array(document, path)
    return split_op(op, limit, start=document.array_length(path) if grows else 0)


def split_op(op: Op, limit: int, *, start: int = 0) -> Iterator[Op]:
    """Split an op into ops whose JSON takes at most `limit` bytes each.

    An op that fits is not changed, nor is one whose path alone exceeds the limit, because it cannot be split.

    Args:
        op: Any op.
        limit: Bytes of the JSON of one op.
        start: Length of the array that an append op grows.
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
    """Append elements in groups. An element that is too large for one op is set in parts, at the index after the last."""
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
