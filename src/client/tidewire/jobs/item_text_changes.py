"""Finds the text of each item in a job's state, and computes how an event changed this text.

A column is a value in the state that grows by appending. The text of an item is its first column that contains a
string. A change of the text is a number of code points that are deleted at the end, and text that is then appended.
"""

from collections.abc import Sequence

from tidewire.protocol.document.document import TextChange
from tidewire.types import Position


class TextColumns:
    """Locations of the items' texts in a job's state. They are updated while the event stream is read."""

    def __init__(self, delivered: Position | None) -> None:
        """Find the texts in the initial state. There is an initial state if reading continues from a checkpoint."""
        self._columns: dict[int, str] = {} if delivered is None else _text_columns(delivered)
        """Item index → JSON Pointer of its text column."""

    def known(self, index: int) -> str | None:
        """Return the last known JSON Pointer of an item's text; None if the item had no text yet."""
        return self._columns.get(index)

    def column(self, index: int, position: Position) -> str | None:
        """Return the JSON Pointer of an item's text after the event at a position; None if the item had no text yet."""
        known = self._columns.get(index)
        if known is None or known not in position.columns:
            known = _first_text(index, position) or known
            if known is not None:
                self._columns[index] = known
        return known

    def change(self, index: int, position: Position, changes: Sequence[TextChange]) -> tuple[int, str]:
        """Return how an event changed an item's text.

        Args:
            index: Index of the item.
            position: Position of the event in the job's stream.
            changes: The changes that the event makes to all texts.

        Returns:
            The number of code points deleted at the end of the text, and the text appended afterwards.
        """
        if not changes:
            return 0, ""
        before = self._columns.get(index)
        if len(changes) == 1 and changes[0][0] == before and position.columns == (before,):
            return changes[0][1:]
        # After a restart of the job, the text of an item may be at another path. Report the old text as deleted and the
        # new text as appended.
        now = self.column(index, position)
        deleted, text = 0, ""
        for change in changes:
            if change.pointer == before:
                deleted = change.deleted
            if change.pointer == now:
                text = change.text
        return deleted, text

    def between(self, index: int, base: Position | None, position: Position) -> tuple[int, str]:
        """Compare an item's texts at two positions, and return how the text changed between them.

        Returns:
            The number of code points deleted at the end of the text, and the text appended afterwards.
        """
        before, now = (None if one is None else _first_text(index, one) for one in (base, position))
        old = (base.text(before) if base is not None and before is not None else None) or ""
        new = (position.text(now) if now is not None else None) or ""
        if before is not None and now is not None and before != now:
            return len(old), new
        change = TextChange.between("", old, new)
        return change.deleted, change.text


def _text_columns(position: Position) -> dict[int, str]:
    """Return the JSON Pointer of each item's text, by the index of the item."""
    found: dict[int, str] = {}
    for pointer in position.columns:
        _, items, index, *_ = f"{pointer}///".split("/")
        if items == "items" and index.isdigit() and position.text(pointer) is not None:
            found.setdefault(int(index), pointer)
    return found


def _first_text(index: int, position: Position) -> str | None:
    root = f"/items/{index}/value"
    for pointer in position.columns:
        if pointer.startswith(root) and position.text(pointer) is not None:
            return pointer
    return None
