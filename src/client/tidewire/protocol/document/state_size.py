"""Limit on the size of a job's state, which the client enforces without measuring the state at each event.

An op adds at most its own size to the state. The client therefore adds up the sizes of the events, and measures the state
only when the sum exceeds the limit. When the state is nearly as large as the limit, the client measures the state again
each time the events since the last measurement add up to a sixteenth of the limit. The state can therefore exceed the limit
by up to a sixteenth.
"""

from json.encoder import encode_basestring
from typing import Any, Final

from msgspec.json import encode

from tidewire.protocol.document.versioned_text_and_arrays import LATEST, Rope, RopeArray
from tidewire.protocol.strict_json import is_number_array

MAX_STATE_BYTES: Final = 64 * 2**20
"""Default of the client's limit for the size of a job's state as JSON, in bytes. It is four times the server's default."""

_SLACK: Final = 16
"""The client measures a state at most once for each `limit / _SLACK` bytes of events, because measuring takes long."""

_PART: Final = 2**16
"""Number of code points of a long text that are serialized at a time."""


def cost(data: str) -> int:
    """Return an upper bound for the size of an event's data in UTF-8, in bytes. The function takes constant time."""
    return len(data) if data.isascii() else 4 * len(data)


def room_for_more(limit: int, size: int) -> int:
    """Return the number of bytes that may arrive before a state of this size must be measured again."""
    return max(limit - size, limit // _SLACK)


def json_bytes(node: Any) -> int:
    """Return the current size of a document node as compact JSON, in bytes, without serializing the node as a whole."""
    kind = type(node)
    if kind is str:
        return 2 + _inner(node)
    if kind is Rope:
        return 2 + sum(map(_inner, node.pieces()))
    if kind is dict:
        return 1 + max(1, sum(4 + _inner(name) + json_bytes(member) for name, member in node.items()))
    if kind is RopeArray:
        node = node.items_at(LATEST)
    if type(node) is list:
        if is_number_array(node):
            return len(encode(node))
        return 1 + max(1, len(node) + sum(map(json_bytes, node)))
    return len(repr(node)) if kind is int or kind is float else 5 if node is False else 4


def _inner(text: str) -> int:
    size = 0
    for start in range(0, len(text), _PART):
        written = encode_basestring(text[start : start + _PART])
        size += (len(written) if written.isascii() else len(written.encode())) - 2
    return size
