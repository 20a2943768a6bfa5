"""How large a state may become, known without measuring it at each event.

What comes in bounds what a state grows by: an op adds no more than its own bytes. So bytes are counted, and the state
is measured only where that sum might pass the limit. Near the limit that would be at each event; there it is measured
once in a sixteenth of the limit, and may be larger by so much.
"""

from json.encoder import encode_basestring
from typing import Any, Final

from tidewire.protocol.document.versioned_text_and_arrays import LATEST, Rope, RopeArray

MAX_STATE_BYTES: Final = 64 * 2**20
"""Bytes that a client lets a job's state have as JSON, by default: four times what servers allow by default."""

_SLACK: Final = 16
"""Which part of the limit comes in between two measurements, at least."""

_PART: Final = 2**16
"""Code points that are written at a time."""


def cost(data: str) -> int:
    """Bytes that an event's data has at most; costs no look at the text."""
    return len(data) if data.isascii() else 4 * len(data)


def room_for_more(limit: int, size: int) -> int:
    """Bytes that may come before a state of some size is measured again."""
    return max(limit - size, limit // _SLACK)


def json_bytes(node: Any) -> int:
    """Bytes of the compact JSON of a node of a document's tree, at present; nothing is held a second time."""
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
