"""Split a large op into several ops. Each of them fits in an event, and together they have the same effect.

For a large text, the first op sets the beginning, and further ops append to it. For a large array or object, the first op
sets an empty array or object, and further ops fill it.
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
"""Maximum size of one code point in JSON, in bytes. Escaped control characters such as ``\\u0001`` have this size."""

_BRACKETS = 16
"""Upper bound of the size of an op without its path and its value, in bytes."""


def split_text(text: str, limit: int) -> Iterator[str]:
    """Split a text into parts whose JSON takes at most `limit` bytes each."""
    step = max(1, limit // MAX_ESCAPED_BYTES)
    for start in range(0, len(text), step):
        yield text[start : start + step]


def split_change(
    ops: Iterable[Op], document: Document, *, max_bytes: int, max_ops: int
) -> Iterator[list[Op]]:
    """Divide the ops of a change into parts that fit in an event each.

    The caller must apply each part before it takes the next one, because the division depends on the document.

    Args:
        ops: The ops, of which some may be larger than an event.
        document: The document to which the parts are applied.
        max_bytes: Maximum size of the ops of an event as JSON, with their separators, in bytes.
        max_ops: Maximum number of ops of an event.
    """
    part: list[Op] = []
    size = 0
    for whole in ops:
        op, op_size = whole, _size(whole) + 1
        if part and (size + op_size > max_bytes or len(part) == max_ops):
            yield part
            part, size = [], 0
        if op_size > max_bytes:
            *smaller_ops, op = split_in_document(whole, max_bytes - 1, document)
            for smaller in smaller_ops:
                yield [smaller]
            op_size = _size(op) + 1
        part.append(op)
        size += op_size
    yield part


def split_in_document(op: Op, limit: int, document: Document) -> Iterable[Op]:
    """Split an op as `split_op` does, but take into account the document to which the op will be applied.

    If an op sets an existing text, the ops keep the common prefix of the old and the new text. Call this function
    before the op is applied.
    """
    if _size(op) <= limit:
        return [op]
    path = str(op[1])
    if op[0] == "s" and type(op[2]) is str and is_text(document, path):
        # Do not truncate the common prefix, because the function may have declared it stable (TW-DIF-057).
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

    An op that fits is returned unchanged. An op whose path alone exceeds the limit cannot be reduced to the limit.

    Args:
        op: Any op.
        limit: Maximum size of the JSON of one op, in bytes.
        start: Current length of the array, if the op appends to an array.
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
    """Make ops that append elements to an array, several elements per op. An element that is too large for one op is
    set in parts.
    """
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
