"""Schedule of text checks: decide which checks an event must contain (TW-DIF-051, TW-DIF-052).

A check is the length and the CRC-32 of a text. The server sends it with a diff, so that readers can verify their copy of
the text. A text needs a check if it grew or shrank since its last check. The check is sent with an event that truncates
the text, with the 64th logged change since the last check, and when the item ends. If an op sets or deletes the text,
no check is needed anymore.

`Unchecked` counts the logged changes of each text since its last check. Each function of this module updates these
counts for one event.
"""

from collections.abc import Iterable
from typing import Final

from tidewire.protocol.diff import Op
from tidewire.protocol.document import Document

CHECK_EVERY: Final = 64
"""Maximum number of logged changes of a text between two checks."""

Unchecked = dict[str, int]


def note_growth(unchecked: Unchecked, paths: Iterable[str]) -> list[str]:
    """Count one more change for each text that grew in an event. Return the texts for which the event must contain a
    check.
    """
    due = []
    for path in paths:
        changes = unchecked.get(path, 0) + 1
        if changes < CHECK_EVERY:
            unchecked[path] = changes
        else:
            unchecked.pop(path, None)
            due.append(path)
    return due


def note_change(unchecked: Unchecked, ops: Iterable[Op], document: Document) -> list[str]:
    """Count the changes of one event, and return the texts whose length and CRC-32 the event must contain.

    Args:
        unchecked: For each text, the number of changes since its length and CRC-32 were last sent. Updated in place.
        ops: The ops of the event.
        document: The document after the event.
    """
    due: dict[str, None] = {}
    for op in ops:
        letter, path = op[0], str(op[1])
        if letter == "a" and type(op[2]) is str:
            unchecked[path] = unchecked.get(path, 0) + 1
            if unchecked[path] >= CHECK_EVERY:
                due[path] = None
        elif letter == "t" and is_text(document, path):
            due[path] = None
        elif letter in {"s", "d"} and (unchecked or due):
            _drop(unchecked, path)
            _drop(due, path)
        if letter in {"i", "d"}:
            _shift(unchecked, path, document, 1 if letter == "i" else -1)
    for path in due:
        unchecked.pop(path, None)
    return list(due)


def take_below(unchecked: Unchecked, place: str) -> list[str]:
    """Return the texts at or below a path that need a check, and remove them from the counts."""
    return _drop(unchecked, place)


def _drop(paths: dict[str, int] | dict[str, None], place: str) -> list[str]:
    dropped = [path for path in paths if _within(path, place)]
    for path in dropped:
        del paths[path]
    return dropped


def _shift(unchecked: Unchecked, path: str, document: Document, by: int) -> None:
    """Adapt the counts of changes after an array element was inserted or deleted: the counts of later elements belong
    to other indexes now.
    """
    parent, _, index = path.rpartition("/")
    if not index.isdigit() or not is_array(document, parent):
        return
    moved: Unchecked = {}
    for checked_path, changes in unchecked.items():
        place, *rest = checked_path[len(parent) + 1 :].split("/") if _within(checked_path, parent) else [""]
        if place.isdigit() and int(place) >= int(index):
            moved["/".join([parent, str(int(place) + by), *rest])] = changes
        else:
            moved[checked_path] = changes
    unchecked.clear()
    unchecked.update(moved)


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


def _within(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")
