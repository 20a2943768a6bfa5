"""Which texts owe a check, and when one is due (TW-DIF-051, TW-DIF-052).

A text that grew or shrank since its last check owes one. It is due in an event that truncates the text, with the 64th
logged change since the last one, and when its item ends. What sets or deletes a text settles what it owes.
"""

from collections.abc import Iterable
from typing import Final

from tidewire.protocol.diff import Op
from tidewire.protocol.document import Document

CHECK_EVERY: Final = 64
"""Logged changes of a text after which a check has been sent."""


class CheckSchedule:
    """The texts of one job that owe a check."""

    __slots__ = ("_changes",)

    def __init__(self) -> None:
        """Begin with nothing owed."""
        self._changes: dict[str, int] = {}
        """Logged changes of each text since its last check."""

    def grew(self, paths: Iterable[str]) -> list[str]:
        """Some texts grew in one event; returns those whose check is due in it."""
        due: dict[str, None] = {}
        for path in paths:
            self._count(path, due)
        return self._settled(due)

    def grew_one(self, path: str) -> bool:
        """One text grew in one event; returns whether its check is due in it."""
        changes = self._changes.get(path, 0) + 1
        if changes < CHECK_EVERY:
            self._changes[path] = changes
            return False
        self._changes.pop(path, None)
        return True

    def changed(self, ops: Iterable[Op], document: Document) -> list[str]:
        """These ops, applied in one event, led to this document; returns the texts whose check is due in it."""
        due: dict[str, None] = {}
        for op in ops:
            self._account(op, document, due)
        return self._settled(due)

    def below(self, place: str) -> list[str]:
        """Settle whatever is owed at or below a place; returns the texts."""
        return self._settled(dict.fromkeys(path for path in self._changes if _within(path, place)))

    def _settled(self, due: dict[str, None]) -> list[str]:
        for path in due:
            self._changes.pop(path, None)
        return list(due)

    def _account(self, op: Op, document: Document, due: dict[str, None]) -> None:
        letter, path = op[0], str(op[1])
        if letter == "a" and type(op[2]) is str:
            self._count(path, due)
        elif letter == "t" and is_text(document, path):
            due[path] = None
        elif letter in {"s", "d"}:
            for gone in [owing for owing in self._changes if _within(owing, path)]:
                del self._changes[gone]
            for gone in [owing for owing in due if _within(owing, path)]:
                del due[gone]
        if letter in {"i", "d"}:
            self._shift(path, document, 1 if letter == "i" else -1)

    def _count(self, path: str, due: dict[str, None]) -> None:
        changes = self._changes.get(path, 0) + 1
        self._changes[path] = changes
        if changes >= CHECK_EVERY:
            due[path] = None

    def _shift(self, path: str, document: Document, by: int) -> None:
        """An element came or went: what is owed in those that follow it is owed at another index."""
        parent, _, index = path.rpartition("/")
        if not index.isdigit() or not is_array(document, parent):
            return
        moved: dict[str, int] = {}
        for owing, changes in self._changes.items():
            place, *rest = owing[len(parent) + 1 :].split("/") if _within(owing, parent) else [""]
            if place.isdigit() and int(place) >= int(index):
                moved["/".join([parent, str(int(place) + by), *rest])] = changes
            else:
                moved[owing] = changes
        self._changes = moved


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
