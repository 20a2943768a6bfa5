"""Which column is the text of an item, and what becomes of that text: void at its end, and new after it.

The text of an item is that of its first column that holds one.
"""

from collections.abc import Sequence

from tidewire.protocol.document.document import TextChange
from tidewire.types import Position


class TextColumns:
    """The texts of a job's items, as its reader goes on."""

    def __init__(self, delivered: Position | None) -> None:
        """Begin where a reader has got to; None: before everything."""
        self._columns: dict[int, str] = {} if delivered is None else _text_columns(delivered)
        """Item → pointer of its text, once there is one."""

    def known(self, index: int) -> str | None:
        """Pointer of the text of an item, as it was known last."""
        return self._columns.get(index)

    def column(self, index: int, place: Position) -> str | None:
        """Pointer of the text of an item, once there is one."""
        known = self._columns.get(index)
        if known is None or known not in place.columns:
            known = _first_text(index, place) or known
            if known is not None:
                self._columns[index] = known
        return known

    def change(self, index: int, place: Position, changes: Sequence[TextChange]) -> tuple[int, str]:
        """Code points that became void at the end of an item's text, and what came after."""
        if not changes:
            return 0, ""
        before = self._columns.get(index)
        if len(changes) == 1 and changes[0][0] == before and place.columns == (before,):
            return changes[0][1:]
        # A new epoch may name another column: what the old one held is void, what the new one holds came.
        now = self.column(index, place)
        deleted, text = 0, ""
        for change in changes:
            if change.pointer == before:
                deleted = change.deleted
            if change.pointer == now:
                text = change.text
        return deleted, text

    def between(self, index: int, base: Position | None, place: Position) -> tuple[int, str]:
        """The same, between two places that may be far apart."""
        before, now = (None if one is None else _first_text(index, one) for one in (base, place))
        old = (base.text(before) if base is not None and before is not None else None) or ""
        new = (place.text(now) if now is not None else None) or ""
        if before is not None and now is not None and before != now:
            return len(old), new
        change = TextChange.between("", old, new)
        return change.deleted, change.text


def _text_columns(place: Position) -> dict[int, str]:
    """The first text column of each item."""
    found: dict[int, str] = {}
    for pointer in place.columns:
        _, items, index, *_ = f"{pointer}///".split("/")
        if items == "items" and index.isdigit() and place.text(pointer) is not None:
            found.setdefault(int(index), pointer)
    return found


def _first_text(index: int, place: Position) -> str | None:
    root = f"/items/{index}/value"
    for pointer in place.columns:
        if pointer.startswith(root) and place.text(pointer) is not None:
            return pointer
    return None
