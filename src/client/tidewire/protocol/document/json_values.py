"""JSON values inside a document: how deep they may be, how they are taken in, when two are the same.

Depth counts nested arrays and objects: a text is 0 deep, `[[]]` is 2. The output of one item may be 56 deep. In a
state it stands at `/items/k/value`, three levels down; what is left up to the 64 levels of an event is for the event.
"""

from collections.abc import Iterable
from math import copysign, isfinite
from typing import Any, Final

from pydantic import JsonValue

from tidewire.protocol import strict_json

MAX_VALUE_DEPTH: Final = 56
"""Nesting of one item's value."""

MAX_STATE_DEPTH: Final = MAX_VALUE_DEPTH + 3
"""Nesting of a document: no op may build a place deeper than this."""


_PART: Final = 2**16
"""Code points that are compared at a time."""

_LEAST: Final = -strict_json.MAX_INTEGER
_MOST: Final = strict_json.MAX_INTEGER


def admit(value: JsonValue, room: int = MAX_STATE_DEPTH) -> JsonValue:
    """Copy a value's arrays and objects, and refuse what the protocol does not take as JSON.

    Args:
        value: Any value.
        room: Levels of nesting that it may have.

    Raises:
        StrictJsonError: The value is nested too deep or not JSON as the protocol takes it; says where.
    """
    try:
        copy: JsonValue = _copies((value,), room)[0]
    except _NotAdmitted:
        strict_json.check(value, max_depth=room)
        raise
    return copy


def admit_all(values: Iterable[JsonValue], room: int = MAX_STATE_DEPTH) -> list[JsonValue]:
    """Copy several values; see `admit`. Says that one is refused, not why.

    Raises:
        StrictJsonError: One is nested too deep or not JSON as the protocol takes it.
    """
    return _copies(values, room)


def same(one: JsonValue, other: JsonValue) -> bool:
    """Whether two values are the same JSON, types included: `1`, `1.0` and `true` differ, and so do `-0.0` and `0.0`.

    The order of an object's members does not count.
    """
    return one is other or _same(one, other, MAX_STATE_DEPTH)


def is_text(text: str) -> bool:
    """Whether a string is Unicode text: without lone surrogates, so that it has a form in UTF-8."""
    return text.isascii() or strict_json.lone_surrogate(text) is None


def common_prefix(one: str, other: str) -> int:
    """Code points that two texts begin with alike. Runs at the speed of memory, and holds no long text twice."""
    if len(one) > len(other):
        one, other = other, one
    low, end = 0, len(one)
    if other.startswith(one):
        return end
    high = min(end, _PART)
    while one[low:high] == other[low:high]:
        low, high = high, min(end, high + _PART)
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


class _NotAdmitted(strict_json.StrictJsonError):
    pass


def _copies(values: Iterable[Any], room: int) -> list[Any]:
    copies = []
    for value in values:
        kind = type(value)
        if kind is str:
            if not (value.isascii() or is_text(value)):  # nearly every text is: no call for those
                raise _NotAdmitted("a lone surrogate")
        elif kind is float:
            if not isfinite(value):
                raise _NotAdmitted("no number of JSON")
        elif kind is int:
            if not _LEAST <= value <= _MOST:
                raise _NotAdmitted("an integer beyond ±2^53")
        elif kind is list or kind is dict:
            if room <= 0:
                raise _NotAdmitted("nested too deep")
            if kind is list:
                value = _copies(value, room - 1)  # noqa: PLW2901 - the copy is what is kept
            elif _are_names(value):
                value = dict(zip(value, _copies(value.values(), room - 1), strict=True))  # noqa: PLW2901
            else:
                raise _NotAdmitted("a member's name is no text")
        elif value is not None and kind is not bool:
            raise _NotAdmitted("no type of JSON")
        copies.append(value)
    return copies


def _are_names(members: Iterable[Any]) -> bool:
    for name in members:  # noqa: SIM110 - `all` of a generator costs twice as much
        if type(name) is not str or not (name.isascii() or is_text(name)):
            return False
    return True


def _same(one: Any, other: Any, room: int) -> bool:
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is dict or kind is list:
        if len(one) != len(other):
            return False
        if room <= 0:
            raise strict_json.StrictJsonError(f"nested deeper than {MAX_STATE_DEPTH} levels")
        for key in one if kind is dict else range(len(one)):
            if kind is dict and key not in other:
                return False
            a, b = one[key], other[key]
            if a is not b and not _same(a, b, room - 1):
                return False
        return True
    if kind is float and one == 0.0:
        return bool(other == 0.0) and copysign(1.0, one) == copysign(1.0, other)
    return bool(one == other)
