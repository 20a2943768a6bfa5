"""The promise that the beginning of a text stays.

An item may have `stable: {pointer within its value: n}`: the first n code points of that text are never taken back
within an epoch. It binds truncating, setting and deleting alike, is judged between two diffs, and never shrinks.
"""

from collections.abc import Iterable

from tidewire.protocol.document.apply_ops import ARRAYS, Tokens, length_of
from tidewire.protocol.document.diff_shapes import DiffError, StableError, is_count
from tidewire.protocol.document.json_pointer import PointerError, parse
from tidewire.protocol.document.view import View


def hold(before: View, now: View, touched: Iterable[Tokens]) -> None:
    """Hold what a diff made against what was promised before it.

    Args:
        before: The document before the diff.
        now: The document after it.
        touched: The places that the diff changed.

    Raises:
        StableError: A promise is broken or withdrawn.
        DiffError: A promise is malformed.
    """
    for index in _items(touched, before, now):
        kept = _promises(now, index)
        for pointer, n in _promises(before, index).items():
            if kept.get(pointer, -1) < n:
                raise StableError(f"'stable' of item {index} at {pointer[:200]!r} falls below {n}")
            tokens = ("items", index, "value", *parse(pointer))
            if not before.begins_alike(now, tokens, n):
                raise StableError(f"item {index}: the first {n} code points at {pointer[:200]!r} are stable")


def _items(touched: Iterable[Tokens], *views: View) -> set[str]:
    found: set[str] = set()
    for tokens in touched:
        if not tokens or tokens == ("items",):
            for view in views:
                items = view.node(("items",))
                found.update(map(str, range(length_of(items) if type(items) in ARRAYS else 0)))
        elif tokens[0] == "items":
            found.add(tokens[1])
    return found


def _promises(view: View, index: str) -> dict[str, int]:
    item = view.node(("items", index))
    promises = item.get("stable") if type(item) is dict else None
    if promises is None:
        return {}
    try:
        if type(promises) is dict and all(is_count(n) for n in promises.values()):
            for pointer in promises:
                parse(pointer)
            return promises
    except PointerError:
        pass
    raise DiffError(f"'stable' of item {index} does not map JSON Pointers to whole numbers ≥ 0")
