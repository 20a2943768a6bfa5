"""Finds the text of each item in a job's state, and computes how an event changed this text.

A column is a value in the state that grows by appending. The text of an item is its first column that contains a
string. A change of the text is a number of code points that are deleted at the end, and text that is then appended.
"""

from collections.abc import Mapping
from typing import Final

from tidewire.protocol.document.document import TextChange
from tidewire.updates import Position

_UNCHANGED: Final = TextChange("", 0, "")


class TextColumns:
    """Locations of the items' texts in a job's state. The locations are updated while the event stream is read."""

    def __init__(self, delivered: Position | None) -> None:
        """Find the texts in the initial state. There is an initial state if reading continues from a checkpoint."""
        self._job_columns: tuple[str, ...] = ()
        """Columns of the job from which `_by_item` was computed."""
        self._by_item: dict[int, list[str]] = {}
        """Item index → JSON Pointers of its columns. This dict avoids a search through the columns of all items."""
        self.columns: dict[int, str] = {}
        """Item index → JSON Pointer of its text column."""
        if delivered is not None:
            for index in self._columns_by_item(delivered):
                self.column(index, delivered)

    def column(self, index: int, position: Position) -> str | None:
        """Return the JSON Pointer of an item's text after the event at a position; None if the item had no text yet."""
        known = self.columns.get(index)
        if known is None or known not in self._columns_by_item(position).get(index, ()):
            known = self._first_text(index, position) or known
            if known is not None:
                self.columns[index] = known
        return known

    def change(self, index: int, position: Position, changes: Mapping[str, TextChange]) -> tuple[int, str]:
        """Return how an event changed an item's text.

        Args:
            index: Index of the item.
            position: Position of the event in the job's stream.
            changes: The changes that the event makes to all texts, by pointer.

        Returns:
            The number of code points deleted at the end of the text, and the text appended afterwards.
        """
        if not changes:
            return 0, ""
        before = self.columns.get(index)
        # After a restart of the job, the text of an item may be at another path. Report the old text as deleted and the
        # new text as appended.
        now = self.column(index, position)
        lost, gained = (changes.get(pointer or "", _UNCHANGED) for pointer in (before, now))
        return lost.deleted, gained.text

    def between(self, index: int, base: Position | None, position: Position) -> tuple[int, str]:
        """Compare an item's texts at two positions, and return how the text changed between them.

        Returns:
            The number of code points deleted at the end of the text, and the text appended afterwards.
        """
        before, now = (None if one is None else self._first_text(index, one) for one in (base, position))
        old = (base.text(before) if base is not None and before is not None else None) or ""
        new = (position.text(now) if now is not None else None) or ""
        if before is not None and now is not None and before != now:
            return len(old), new
        change = TextChange.between("", old, new)
        return change.deleted, change.text

    def _first_text(self, index: int, position: Position) -> str | None:
        for pointer in self._columns_by_item(position).get(index, ()):
            if position.text(pointer) is not None:
                return pointer
        return None

    def _columns_by_item(self, position: Position) -> dict[int, list[str]]:
        if position.columns is not self._job_columns:
            self._job_columns, self._by_item = position.columns, {}
            for pointer in position.columns:
                _, items, index, *_ = f"{pointer}///".split("/")
                if items == "items" and index.isdigit():
                    self._by_item.setdefault(int(index), []).append(pointer)
        return self._by_item
