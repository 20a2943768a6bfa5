"""Limit on the size of a job's state, enforced without measuring the state at each event.

An op adds at most its own size to the state. The client therefore adds up the sizes of events, and measures the state only
when the sum could exceed the limit. Near the limit it measures once per sixteenth of the limit instead of at each event.
The state can therefore exceed the limit by up to a sixteenth.
"""

from json.encoder import encode_basestring
from typing import Any, Final

from tidewire.protocol.document.versioned_text_and_arrays import LATEST, Rope, RopeArray

MAX_STATE_BYTES: Final = 64 * 2**20
"""Default limit of the client for a job's state as JSON, in bytes. Four times the default limit of the server."""

_SLACK: Final = 16
"""A state is measured again only after at least `limit / _SLACK` bytes have arrived."""

_PART: Final = 2**16
"""Number of code points of a text that are serialized at a time."""


def cost(data: str) -> int:
    """Upper bound of the UTF-8 size of an event's data, in bytes. Takes constant time."""
    return len(data) if data.isascii() else 4 * len(data)


def room_for_more(limit: int, size: int) -> int:
    """Bytes that may arrive before a state of this size must be measured again."""
    return max(limit - size, limit // _SLACK)


def json_bytes(node: Any) -> int:
    """Current size of a document node as compact JSON, in bytes, computed without building that JSON."""
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
        return 1 + max(1, len(node) + sum(map(json_bytes, node)))
    return len(repr(node)) if kind is int or kind is float else 5 if node is False else 4


def _inner(text: str) -> int:
    size = 0
    for start in range(0, len(text), _PART):
        written = encode_basestring(text[start : start + _PART])
        size += (len(written) if written.isascii() else len(written.encode())) - 2
    return size
