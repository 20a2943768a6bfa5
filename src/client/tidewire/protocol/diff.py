"""Find the diff between two JSON values, and apply a diff.

For any two JSON values a and b, `apply(a, diff(a, b))` equals b. Types are preserved, so that `1`, `1.0` and `true` are
different values, and so are `-0.0` and `0.0`. The order of an object's members is not preserved.

`diff` compares values by these rules:

- If both values are the same Python object, they are equal and are not compared further.
- If a text only grew, the diff has an append op (`a`). If the end of a text changed, the diff has a truncate op (`t`) and
  an append op. If the old and the new text have little in common, the diff has a set op (`s`).
- Objects are compared member by member.
- For arrays, the elements that both arrays have in common at the beginning and at the end are skipped. If the remaining
  parts have the same length, and at least half of their elements are equal at the same index, the parts are compared index
  by index. Otherwise `match_list_elements` aligns the two parts, and the elements between two matches are paired in order.
- If nested values differ, the diff has ops for the nested paths, unless an op that sets the whole value is shorter.
"""

import json
import math
from collections.abc import Hashable
from typing import Any, Final

from tidewire.protocol.document.diff_shapes import DiffError, Op, StableError, UnknownOpError
from tidewire.protocol.document.digests import IntegrityError
from tidewire.protocol.document.document import apply
from tidewire.protocol.document.json_pointer import escape
from tidewire.protocol.document.json_values import MAX_STATE_DEPTH, admit, common_prefix, is_text, same
from tidewire.protocol.document.match_list_elements import Matches, align
from tidewire.protocol.strict_json import JsonValue, StrictJsonError, check

__all__ = ["DiffError", "IntegrityError", "JsonValue", "Op", "StableError", "UnknownOpError", "apply", "diff"]

_OP_BYTES: Final = 10
"""Bytes that an op takes in addition to its path and its value, for example `["s","",],`."""


def diff(old: JsonValue, new: JsonValue) -> list[Op]:
    """Compute the ops that change one JSON value to another.

    The function does not modify the values, and the ops share no objects with the values.

    Raises:
        DiffError: A value is nested too deep, or is not valid I-JSON (see `strict_json`).
    """
    try:
        return _between(old, new, "", MAX_STATE_DEPTH).ops
    except StrictJsonError as error:
        raise DiffError(str(error)) from None


class _Change:
    """A list of ops, with an estimate of their size as JSON in bytes."""

    __slots__ = ("ops", "size")

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.size = 0

    def add(self, letter: str, path: str, *value: JsonValue) -> None:
        self.ops.append([letter, path, *value])
        self.size += _OP_BYTES + len(path) + sum(map(_size, value))

    def include(self, other: "_Change") -> None:
        self.ops += other.ops
        self.size += other.size


def _between(old: Any, new: Any, path: str, max_depth: int) -> _Change:
    """Compute the ops that change `old` to `new` at a path. The new value may be nested at most `max_depth` levels deep."""
    change = _Change()
    kind = type(new)
    if old is new:
        return change
    if kind is type(old):
        if kind is dict or kind is list:
            if max_depth <= 0:
                raise DiffError(f"nested deeper than {MAX_STATE_DEPTH} levels", path=path)
            (_members if kind is dict else _elements)(change, old, new, path, max_depth - 1)
        elif kind is str:
            _text(change, old, new, path)
        elif not same(old, new):
            change.add("s", path, admit(new))
        # If the value is smaller than this limit, one op that sets the whole value (`s`) is shorter than all ops of the
        # diff.
        limit = change.size - _OP_BYTES - len(path)
        if _size(new, limit) >= limit:
            return change
    whole = _Change()
    whole.add("s", path, admit(new, max_depth))
    return whole


def _text(change: _Change, old: str, new: str, path: str) -> None:
    kept = common_prefix(old, new)
    if kept < len(old):
        change.add("t", path, len(old) - kept)
    if kept < len(new):
        change.add("a", path, admit(new[kept:]))


def _members(change: _Change, old: dict[str, Any], new: dict[str, Any], path: str, max_depth: int) -> None:
    for name in old:
        if name not in new:
            change.add("d", f"{path}/{_token(name)}")
    for name, value in new.items():
        if name not in old:
            change.add("s", f"{path}/{_token(name)}", admit(value, max_depth))
        elif value is not old[name]:
            change.include(_between(old[name], value, f"{path}/{_token(name)}", max_depth))


def _elements(change: _Change, old: list[Any], new: list[Any], path: str, max_depth: int) -> None:
    head, tail = _common_ends(old, new)
    old, new = old[head : len(old) - tail], new[head : len(new) - tail]
    at, i, j = head, 0, 0
    # Each iteration handles the elements before one match. Add a pair of indexes after the ends of both lists, so that the
    # elements after the last match are handled, too.
    for i_match, j_match in [*_matches(old, new, max_depth), (len(old), len(new))]:
        while i < i_match and j < j_match:
            change.include(_between(old[i], new[j], f"{path}/{at}", max_depth))
            at, i, j = at + 1, i + 1, j + 1
        if j_match == len(new) and not tail:
            if i < i_match:
                change.add("t", path, i_match - i)
            if j < j_match:
                change.add("a", path, admit(new[j:], max_depth + 1))
            return
        for _ in range(i, i_match):
            change.add("d", f"{path}/{at}")
        for value in new[j:j_match]:
            change.add("i", f"{path}/{at}", admit(value, max_depth))
            at += 1
        at, i, j = at + 1, i_match + 1, j_match + 1


def _common_ends(old: list[Any], new: list[Any]) -> tuple[int, int]:
    """Return the lengths of the common prefix and the common suffix of two lists.

    The prefix and the suffix never overlap.
    """
    shorter = min(len(old), len(new))
    head = 0
    for one, other in zip(old, new, strict=False):
        if one is not other and not same(one, other):
            break
        head += 1
    tail = 0
    while tail < shorter - head and same(old[-1 - tail], new[-1 - tail]):
        tail += 1
    return head, tail


def _matches(old: list[Any], new: list[Any], max_depth: int) -> Matches:
    if len(old) * len(new) <= 1:
        return []
    if len(old) == len(new):
        unmoved = [(i, i) for i, (one, other) in enumerate(zip(old, new, strict=True)) if same(one, other)]
        if 2 * len(unmoved) >= len(old):
            return unmoved
    return align([_key(element, max_depth) for element in old], [_key(element, max_depth) for element in new])


def _key(element: Any, max_depth: int) -> Hashable:
    """Return a hashable key for an element. Two elements have equal keys if and only if they are the same JSON value."""
    if type(element) is str:
        return element
    check(element, max_depth=max_depth)
    return (json.dumps(element, sort_keys=True),)


def _token(name: str) -> str:
    if type(name) is not str or not is_text(name):
        raise DiffError(
            f"{name!r:.80} is not a valid member name; a name must be a string without lone surrogates"
        )
    return escape(name)


def _size(value: Any, limit: float = math.inf) -> int:
    """Estimate the size of a value as JSON, in bytes. The function stops when the estimate exceeds `limit`."""
    kind = type(value)
    if kind is str:
        return len(value) + 2
    if kind is not dict and kind is not list:
        return len(repr(value))
    size = 2
    for element in value:
        if size > limit:
            break
        size += 1 + _size(element, limit - size)
        if kind is dict:
            size += 1 + _size(value[element], limit - size)
    return size
