"""JSON values in a document: limits on their nesting, validated copies, and comparison.

The depth of a value is the number of nested arrays and objects. A text has the depth 0, and `[[]]` has the depth 2. The
value of an item may have at most the depth 56. In a state, it is located at `/items/k/value`, which adds three levels. The
protocol's limit for an event is 64 levels. The remaining levels are reserved for the structure of the event.
"""

from math import copysign
from typing import Any, Final

from tidewire.protocol import strict_json
from tidewire.protocol.strict_json import JsonValue, is_number_array

MAX_VALUE_DEPTH: Final = 56
"""Maximum depth of the value of an item."""

MAX_STATE_DEPTH: Final = MAX_VALUE_DEPTH + 3
"""Maximum depth of a document. Ops that would exceed it are rejected."""


_PART: Final = 2**16
"""Number of code points of long texts that are compared at a time."""


def admit(value: JsonValue, max_depth: int = MAX_STATE_DEPTH) -> JsonValue:
    """Validate a value as I-JSON, and return a copy of its arrays and objects.

    Args:
        value: Any value.
        max_depth: Maximum depth of the value.

    Raises:
        StrictJsonError: The value is nested too deep, or is not I-JSON. The message contains the path of the violation,
            unless the nesting is too deep.
    """
    if type(value) is str and value.isascii():  # as most values of single ops are, such as a status
        return value
    strict_json.check(value, max_depth=max_depth)
    copy: JsonValue = _copy(value)
    return copy


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


def _copy(value: Any) -> Any:
    if type(value) is dict:
        return {name: _copy(member) for name, member in value.items()}
    if type(value) is list:
        return value[:] if is_number_array(value) else [_copy(element) for element in value]
    return value


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
