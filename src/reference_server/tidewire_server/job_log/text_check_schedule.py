"""Decide which text checks an event must contain (TW-DIF-051, TW-DIF-052).

A check is the length and the CRC-32 of a text. The server sends it with a diff, so that readers can verify their copy of
the text. A text needs a check if it grew or shrank since its last check. The check is sent with an event that truncates
the text, with the 64th logged change since the last check, and when the item ends. If an op sets or deletes the text,
no check is needed anymore.

`Unchecked` counts the logged changes of each text since its last check. Each function of this module updates these
counts for one event.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import orjson
from pydantic import JsonValue

from tidewire.protocol.diff import Op
from tidewire.protocol.document import Document

CHECK_EVERY: Final = 64
"""Maximum number of logged changes of a text between two checks."""


class Unchecked(NamedTuple):
    """Number of logged changes of each text since its last check. Texts without such changes are absent.

    The paths are also stored as a tree of dicts, so that the texts below a path are found without a search through all paths.
    """

    changes: dict[str, int]
    tree: dict[str | None, Any]
    """Token of a path → tree of the tokens that follow it. The key None marks the end of a path."""


def nothing_unchecked() -> Unchecked:
    return Unchecked({}, {})


def note_growth(unchecked: Unchecked, paths: Iterable[str]) -> list[str]:
    """Count one change of each text that grew in an event. Return the texts for which the event must contain a check."""
    due = []
    for path in paths:
        if _count(unchecked, path) >= CHECK_EVERY:
            _take(unchecked, path)
            due.append(path)
    return due


def note_change(unchecked: Unchecked, ops: Sequence[Op], document: Document) -> list[str]:
    """Count the changes of one event, and return the texts for which the event must contain a check.

    Args:
        unchecked: The counts. Updated in place.
        ops: The ops of the event.
        document: The document after the event.
    """
    if not unchecked.changes and not any(op[0] in {"a", "t"} for op in ops):
        return []
    due = nothing_unchecked()
    for op in ops:
        letter, path = op[0], str(op[1])
        if letter == "a" and type(op[2]) is str:
            if _count(unchecked, path) >= CHECK_EVERY:
                _count(due, path)
        elif letter == "t" and is_text(document, path):
            _count(due, path)
        elif letter == "t":
            most = sum(map(_elements, ops))
            _forget_truncated(unchecked, path, document, most)
            _forget_truncated(due, path, document, most)
        elif letter in {"s", "d"}:
            _take(unchecked, path)
            _take(due, path)
        if letter in {"i", "d"}:
            _shift(unchecked, path, document, 1 if letter == "i" else -1)
    found = list(due.changes)
    for path in found:
        _take(unchecked, path)
    return found


def checks_of(paths: Iterable[str], document: Document) -> list[JsonValue]:
    """Compute the checks (length and CRC-32) of texts, for the member `check` of an event."""
    return [[path, document.text_length(path), document.text_crc(path)] for path in paths]


def split_checks(checks: list[JsonValue], max_bytes: int) -> Iterator[list[JsonValue]]:
    """Divide checks into lists of at most `max_bytes` bytes as JSON. A single check may be larger."""
    longest = max([len(orjson.dumps(check)) + 1 for check in checks], default=1)
    at_once = max(1, max_bytes // longest)
    for start in range(0, len(checks), at_once):
        yield checks[start : start + at_once]


def take_below(unchecked: Unchecked, place: str) -> list[str]:
    """Remove the counts of all texts at or below a path. Return these texts, which need a check."""
    return list(_take(unchecked, place))


def _count(unchecked: Unchecked, path: str, changes: int = 1) -> int:
    """Add to the number of changes of a text, and return the sum."""
    before = unchecked.changes.get(path)
    if before is not None:
        changes += before
    else:
        node = unchecked.tree
        for token in path.split("/"):
            node = node.setdefault(token, {})
        node[None] = path
    unchecked.changes[path] = changes
    return changes


def _take(unchecked: Unchecked, place: str) -> dict[str, int]:
    """Remove the texts at or below a path, and return their counts."""
    if not unchecked.changes:
        return {}
    *parents, last = place.split("/")
    node, trail = unchecked.tree, []
    for token in parents:
        trail.append((node, token))
        node = node.get(token, {})
    pending = deque([node.pop(last, {})])
    for parent, token in reversed(trail):  # Remove the parents that are now empty.
        if parent.get(token, True):
            break
        del parent[token]
    taken: dict[str, int] = {}
    while pending:
        for token, below in pending.popleft().items():
            if token is None:
                taken[below] = unchecked.changes.pop(below)
            else:
                pending.append(below)
    return taken


def _shift(unchecked: Unchecked, path: str, document: Document, by: int) -> None:
    """Move the counts of later array elements to their new indexes after an element was inserted or deleted."""
    parent, _, index = path.rpartition("/")
    if not unchecked.changes or not index.isdigit() or not is_array(document, parent):
        return
    for checked_path, changes in _take(unchecked, parent).items():
        place, *rest = checked_path[len(parent) + 1 :].split("/")
        if place.isdigit() and int(place) >= int(index):
            _count(unchecked, "/".join([parent, str(int(place) + by), *rest]), changes)
        else:
            _count(unchecked, checked_path, changes)


def _elements(op: Op) -> int:
    """Return the maximum number of elements by which an op changes the length of an array."""
    size = op[2] if len(op) > 2 else 1
    if op[0] == "t" and isinstance(size, int):
        return size
    return len(size) if op[0] == "a" and isinstance(size, list) else 1


def _forget_truncated(unchecked: Unchecked, path: str, document: Document, most: int) -> None:
    """Remove the counts of texts in array elements that an event has removed. Their paths may belong to other elements now.

    Args:
        unchecked: The counts. Updated in place.
        path: Path of the array.
        document: The document after the event.
        most: Maximum number of elements by which the event has changed the length of the array.
    """
    if not unchecked.changes or not is_array(document, path):
        return
    node = unchecked.tree
    for token in path.split("/"):
        node = node.get(token, {})
    length = document.array_length(path)
    first, end = max(0, length - most), length + most
    if len(node) < end - first:
        indexes = [int(token) for token in node if token is not None and token.isdigit()]
        indexes = [index for index in indexes if index >= first]
    else:
        indexes = [index for index in range(first, end) if str(index) in node]
    for index in indexes:
        for text, changes in _take(unchecked, f"{path}/{index}").items():
            if index < length and is_text(document, text):
                _count(unchecked, text, changes)


def is_text(document: Document, path: str) -> bool:
    """Whether the value at a path is a string."""
    try:
        document.text_length(path)
    except LookupError:
        return False
    return True


def is_array(document: Document, path: str) -> bool:
    """Whether the value at a path is an array."""
    try:
        document.array_length(path)
    except LookupError:
        return False
    return True
