"""Check that diffs leave the stable prefix of a text unchanged.

An item may have the member `stable`, which maps JSON Pointers within the item's value to numbers. If a pointer is mapped to
the number n, no diff may change the first n code points of the text at the pointer, or decrease the number. The check
compares the document before a diff with the document after the diff.
"""

from collections.abc import Iterable
from typing import Final

from tidewire.protocol.document.apply_ops import ARRAYS, Tokens, length_of
from tidewire.protocol.document.diff_shapes import DiffError, StableError, is_count
from tidewire.protocol.document.json_pointer import PointerError, parse
from tidewire.protocol.document.view import View

_CHECKED: Final = frozenset({"value", "stable"})
"""Members of an item whose changes are checked."""


def check_stable_prefix(before: View, now: View, touched: Iterable[Tokens]) -> None:
    """Raise an error if a diff changed the stable prefix of a text, or decreased or removed the length of a stable prefix.

    Args:
        before: The document before the diff.
        now: The document after the diff.
        touched: Paths that the diff changed.

    Raises:
        StableError: The diff changed a stable prefix, or decreased or removed the length of a stable prefix.
        DiffError: The member `stable` of an item is malformed.
    """
    for index in _items(touched, before, now):
        kept = _stable_lengths(now, index)
        for pointer, n in _stable_lengths(before, index).items():
            if kept.get(pointer, -1) < n:
                raise StableError(f"'stable' of item {index} at {pointer[:200]!r} is less than before ({n})")
            tokens = ("items", index, "value", *parse(pointer))
            if not before.same_prefix(now, tokens, n):
                raise StableError(
                    f"item {index}: the diff changes one of the first {n} code points at {pointer[:200]!r}, which `stable` had declared final"
                )


def _items(touched: Iterable[Tokens], *views: View) -> set[str]:
    found: set[str] = set()
    for tokens in touched:
        if not tokens or tokens == ("items",):
            for view in views:
                items = view.node(("items",))
                found.update(map(str, range(length_of(items) if type(items) in ARRAYS else 0)))
        elif tokens[0] == "items" and (len(tokens) == 2 or tokens[2] in _CHECKED):
            found.add(tokens[1])
    return found


def _stable_lengths(view: View, index: str) -> dict[str, int]:
    item = view.node(("items", index))
    lengths = item.get("stable") if type(item) is dict else None
    if lengths is None:
        return {}
    try:
        if type(lengths) is dict and all(is_count(n) for n in lengths.values()):
            for pointer in lengths:
                parse(pointer)
            return lengths
    except PointerError:
        pass
    raise DiffError(f"'stable' of item {index} does not map JSON Pointers to integers ≥ 0")
