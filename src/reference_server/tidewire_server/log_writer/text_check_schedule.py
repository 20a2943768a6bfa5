"""Which texts owe a check, and when one is due (TW-DIF-051, TW-DIF-052).

A text that grew or shrank since its last check owes one. It is due in an event that truncates the text, with the 64th
logged change since the last one, and when its item ends. What sets or deletes a text settles what it owes.

`Owed` counts the logged changes of each text since its last check. The functions update it for one event.
"""

from collections.abc import Iterable
from typing import Final

from tidewire.protocol.diff import Op
from tidewire.protocol.document import Document

CHECK_EVERY: Final = 64
"""Logged changes of a text after which a check has been sent."""

Owed = dict[str, int]


def note_growth(owed: Owed, paths: Iterable[str]) -> list[str]:
    """Count that texts grew in one event; returns those whose check is due in it."""
    due = []
    for path in paths:
        changes = owed.get(path, 0) + 1
        if changes < CHECK_EVERY:
            owed[path] = changes
        else:
            owed.pop(path, None)
            due.append(path)
    return due


def note_change(owed: Owed, ops: Iterable[Op], document: Document) -> list[str]:
    """Count what ops changed in one event that led to this document; returns the texts whose check is due in it."""
    due: dict[str, None] = {}
    for op in ops:
        letter, path = op[0], str(op[1])
        if letter == "a" and type(op[2]) is str:
            owed[path] = owed.get(path, 0) + 1
            if owed[path] >= CHECK_EVERY:
                due[path] = None
        elif letter == "t" and is_text(document, path):
            due[path] = None
        elif letter in {"s", "d"}:
            _drop(owed, path)
            _drop(due, path)
        if letter in {"i", "d"}:
            _shift(owed, path, document, 1 if letter == "i" else -1)
    for path in due:
        owed.pop(path, None)
    return list(due)


def settle_below(owed: Owed, place: str) -> list[str]:
    """The texts at or below a place that owe a check; they owe none afterwards."""
    return _drop(owed, place)


def _drop(paths: dict[str, int] | dict[str, None], place: str) -> list[str]:
    dropped = [path for path in paths if _within(path, place)]
    for path in dropped:
        del paths[path]
    return dropped


def _shift(owed: Owed, path: str, document: Document, by: int) -> None:
    """Move what the elements after an inserted or deleted one owe to their new index."""
    parent, _, index = path.rpartition("/")
    if not index.isdigit() or not is_array(document, parent):
        return
    moved: Owed = {}
    for owing, changes in owed.items():
        place, *rest = owing[len(parent) + 1 :].split("/") if _within(owing, parent) else [""]
        if place.isdigit() and int(place) >= int(index):
            moved["/".join([parent, str(int(place) + by), *rest])] = changes
        else:
            moved[owing] = changes
    owed.clear()
    owed.update(moved)


def is_text(document: Document, path: str) -> bool:
    """Whether there is a text at a place."""
    try:
        document.text_length(path)
    except LookupError:
        return False
    return True


def is_array(document: Document, path: str) -> bool:
    """Whether there is an array at a place."""
    try:
        document.array_length(path)
    except LookupError:
        return False
    return True


def _within(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")
