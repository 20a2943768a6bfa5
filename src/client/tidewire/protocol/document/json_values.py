"""JSON values in a document: limits on their nesting, validated copies, and comparison.

The depth of a value is the number of nested arrays and objects. A text has the depth 0, and `[[]]` has the depth 2. The
value of an item may have at most the depth 56. In a state, it is located at `/items/k/value`, which adds three levels. The
protocol's limit for an event is 64 levels. The remaining levels are reserved for the structure of the event.
"""

from collections.abc import Iterable
from math import copysign, isfinite
from typing import Any, Final

from tidewire.protocol import strict_json
from tidewire.protocol.strict_json import JsonValue, is_number_array

MAX_VALUE_DEPTH: Final = 56
"""Maximum depth of the value of an item."""

MAX_STATE_DEPTH: Final = MAX_VALUE_DEPTH + 3
"""Maximum depth of a document. Ops that would exceed it are rejected."""


_PART: Final = 2**16
"""Number of code points of long texts that are compared at a time."""

_SHORT: Final = 16
"""Number of elements up to which an array of numbers is copied as fast element by element."""

_NUMBERS: Final = frozenset({int, float})
_LEAST: Final = -strict_json.MAX_INTEGER
_MOST: Final = strict_json.MAX_INTEGER


def admit(value: JsonValue, max_depth: int = MAX_STATE_DEPTH) -> JsonValue:
    """Validate a value as I-JSON, and return a copy of its arrays and objects.

    Args:
        value: Any value.
        max_depth: Maximum depth of the value.

    Raises:
        StrictJsonError: The value is nested too deep, or is not I-JSON. The message contains the path of the violation,
            unless the nesting is too deep.
    """
    kind = type(value)
    if value is None or kind is bool or (kind is str and value.isascii()):  # type: ignore[union-attr]
        return value
    if kind is int and _LEAST <= value <= _MOST:  # type: ignore[operator]
        return value
    try:
        copy: JsonValue = _copies((value,), max_depth)[0]
    except _NotAdmitted:
        strict_json.check(value, max_depth=max_depth)
        raise
    return copy


def nests_deeper_than(max_depth: int, value: Any) -> bool:
    """Whether a JSON value contains more than `max_depth` nested arrays and objects.

    Arrays of numbers are recognized by `sum`, which takes a quarter of the time of a look at each element.
    """
    kind = type(value)
    if kind is not list and kind is not dict:
        return False
    if max_depth <= 0:
        return True
    if kind is list and holds_only_numbers(value):
        return False
    members = value if kind is list else value.values()
    return any(nests_deeper_than(max_depth - 1, member) for member in members)


def holds_only_numbers(elements: list[Any]) -> bool:
    """Whether all elements of a list are finite numbers or booleans. If not, the elements may be anything.

    `sum` raises an error for all other types. It takes a quarter of the time of a look at each type.
    """
    if not elements or type(elements[0]) not in _NUMBERS:
        return False
    try:
        return isfinite(sum(elements))
    except (TypeError, OverflowError):
        return False


def admit_all(values: Iterable[JsonValue], max_depth: int = MAX_STATE_DEPTH) -> list[JsonValue]:
    """Copy and validate several values like `admit`, with a less specific error message.

    Raises:
        StrictJsonError: A value is nested too deep, or is not I-JSON. The message does not contain the path.
    """
    return _copies(values, max_depth)


def same(one: JsonValue, other: JsonValue) -> bool:
    """Whether two JSON values are equal and have the same types.

    `1`, `1.0` and `true` are different values, and so are `-0.0` and `0.0`. The order of an object's members is ignored.
    """
    return one is other or _same(one, other, MAX_STATE_DEPTH)


def is_text(text: str) -> bool:
    """Whether a string can be encoded as UTF-8, that is, whether it contains no lone surrogates."""
    return text.isascii() or strict_json.lone_surrogate(text) is None


def common_prefix(one: str, other: str) -> int:
    """Return the length of the longest common prefix of two texts, in code points.

    For speed, the function compares large slices instead of single characters. It never copies a long text as a whole.
    """
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


def _copies(values: Iterable[Any], max_depth: int) -> list[Any]:
    copies = []
    for value in values:
        kind = type(value)
        if kind is str:
            if not (
                value.isascii() or is_text(value)
            ):  # `isascii` makes the call of `is_text` unnecessary in most cases
                raise _NotAdmitted("the value contains a lone surrogate")
        elif kind is float:
            if not isfinite(value):
                raise _NotAdmitted(
                    "the value contains a number that JSON cannot represent (NaN or an infinity)"
                )
        elif kind is int:
            if not _LEAST <= value <= _MOST:
                raise _NotAdmitted("the value contains an integer beyond ±2^53")
        elif kind is list or kind is dict:
            if max_depth <= 0:
                raise _NotAdmitted("the value is nested too deep")
            if not value:
                value = kind()  # noqa: PLW2901 - the copy replaces the original
            elif kind is list:
                # `_copies` takes five times as long for a long array of numbers (bench/arrays.py).
                is_plain = len(value) > _SHORT and is_number_array(value)
                value = value[:] if is_plain else _copies(value, max_depth - 1)  # noqa: PLW2901
            elif _are_names(value):
                value = dict(zip(value, _copies(value.values(), max_depth - 1), strict=True))  # noqa: PLW2901
            else:
                raise _NotAdmitted("a member name is not a string, or contains a lone surrogate")
        elif value is not None and kind is not bool:
            raise _NotAdmitted("the value contains an object of a type that JSON does not have")
        copies.append(value)
    return copies


def _are_names(members: Iterable[Any]) -> bool:
    for name in members:  # noqa: SIM110 - `all` with a generator takes twice as long
        if type(name) is not str or not (name.isascii() or is_text(name)):
            return False
    return True


def _same(one: Any, other: Any, max_depth: int) -> bool:
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is dict or kind is list:
        if len(one) != len(other):
            return False
        if max_depth <= 0:
            raise strict_json.StrictJsonError(f"nested deeper than {MAX_STATE_DEPTH} levels")
        for key in one if kind is dict else range(len(one)):
            if kind is dict and key not in other:
                return False
            a, b = one[key], other[key]
            if a is not b and not _same(a, b, max_depth - 1):
                return False
        return True
    if kind is float and one == 0.0:
        return bool(other == 0.0) and copysign(1.0, one) == copysign(1.0, other)
    return bool(one == other)
