"""Strict parser, serializer and validator for I-JSON (RFC 7493), with a limit on nesting.

The module rejects NaN, infinities and numbers that overflow to infinity, such as `1e400`. It also rejects integers beyond
±2^53, duplicate member names in an object, lone surrogates, and nesting deeper than the limit. A number without a fraction
and without an exponent is an integer.

A few searches for substrings determine whether a text could violate the rules about strings. Texts with objects, many
arrays or unusual numbers are checked after they were parsed: duplicate member names, for example, are found by counting
colons. Only a text that may violate a rule is parsed by the slower exact parser, which reports the violation. Each
substring is searched separately, because a single regular expression for all of them took a hundred times as long.

An array of numbers can have thousands of elements, for example an embedding. Such arrays are checked by a few calls of C
functions (`is_number_array`), because a step of Python code for each number would take several times as long as parsing.
"""

import json
import math
import re
from collections.abc import Iterable
from operator import countOf
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    import pydantic

    JsonValue: TypeAlias = pydantic.JsonValue
else:
    # Do not import pydantic here, because this slow import would delay the first response to every client.
    JsonValue = Any

MAX_DEPTH = 64
"""Maximum nesting of arrays and objects in one request body, response body or event."""

MAX_INTEGER = 2**53
"""Largest absolute value of an integer. A double can represent all integers up to this value exactly."""

# The quantifiers are possessive, because backtracking would need memory for each character of a long text.
_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[{\]}]', re.DOTALL)

_PART = 2**16
"""Number of characters of a long text that are encoded at a time, which limits the memory for the encoded text."""

_UNUSUAL_NUMBER = re.compile(r"[0-9](?:[0-9]{15}|[eE])")

_NUMBERS = frozenset({int, float})

_UNDECIDED = object()


class StrictJsonError(ValueError):
    """A text is not valid JSON, or it violates a rule of the protocol. The message names the rule and, if known, the path."""


class _NestedTooDeepError(StrictJsonError):
    pass


def loads(text: str | bytes, *, max_depth: int = MAX_DEPTH) -> JsonValue:
    """Parse one JSON text.

    Args:
        text: UTF-8 bytes or a string.
        max_depth: Maximum nesting of arrays and objects.

    Raises:
        StrictJsonError: The text is not JSON, or is nested too deep, or contains NaN, an infinity, an integer beyond
            ±2^53, a duplicate member name or a lone surrogate.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            raise StrictJsonError(f"not UTF-8: byte {error.start} cannot be decoded") from None
    if not _is_suspect(text):
        fast = _loads_fast(text, max_depth)
        if fast is not _UNDECIDED:
            return fast  # type: ignore[no-any-return]
    if nests_deeper_than(max_depth, text):
        raise StrictJsonError(f"nested deeper than {max_depth} levels")
    try:
        value = _EXACT.decode(text)
    except json.JSONDecodeError as error:
        if text.startswith("\ufeff"):
            raise StrictJsonError("not JSON: a byte order mark at character 0") from None
        raise StrictJsonError(f"not JSON: {error.msg} at character {error.pos}") from None
    # Search for a single character first, which is much faster. Long base64 texts, for example, contain no backslash.
    if ("\\" in text and "\\u" in text) or not text.isascii():
        check(value, max_depth=max_depth)
    return value  # type: ignore[no-any-return]


def dumps(value: JsonValue, *, max_depth: int = MAX_DEPTH) -> str:
    """Serialize a value as compact JSON on one line, without escaping non-ASCII characters.

    Raises:
        StrictJsonError: The value is not valid I-JSON, or is nested too deep (see `check`).
    """
    check(value, max_depth=max_depth)
    return _COMPACT.encode(value)


def check(value: Any, *, max_depth: int = MAX_DEPTH) -> None:
    """Validate a Python value as I-JSON.

    Raises:
        StrictJsonError: The value is not valid I-JSON, or is nested too deep. The message describes one violation, with its
            JSON Pointer unless the nesting is too deep.
    """
    try:
        _check_all((value,), max_depth)
    except _NestedTooDeepError:
        raise StrictJsonError(f"nested deeper than {max_depth} levels") from None
    except StrictJsonError as error:
        raise StrictJsonError(f"at {_place_of_violation(value)!r}: {error}") from None


def _check_all(values: Iterable[Any], max_depth: int) -> None:
    """Validate the elements of an array or the members of an object. The errors do not contain the path."""
    for value in values:
        kind = type(value)
        if kind is str:
            # `isascii` makes the call of a Python function unnecessary in most cases.
            if not value.isascii():
                _check_text(value)
        elif kind is int:
            if not -MAX_INTEGER <= value <= MAX_INTEGER:
                raise StrictJsonError("integer beyond ±2^53; send it as a string")
        elif kind is float:
            if not math.isfinite(value):
                raise StrictJsonError(f"{value!r} is not a JSON number; send null or a string")
        elif kind is list or kind is dict:
            if max_depth <= 0:
                raise _NestedTooDeepError
            if kind is dict:
                for name in value:
                    if type(name) is not str:
                        raise StrictJsonError(f"member name {name!r} is not a string")
                    if not name.isascii():
                        _check_text(name)
                _check_all(value.values(), max_depth - 1)
            elif not is_number_array(value):
                _check_all(value, max_depth - 1)
        elif value is not None and kind is not bool:
            raise StrictJsonError(f"{kind.__name__} is not a JSON type")


def _place_of_violation(value: Any) -> str:
    """Return the JSON Pointer of the innermost value that is not I-JSON. A name has that of its object."""
    if type(value) is list or type(value) is dict:
        for name, member in value.items() if type(value) is dict else enumerate(value):
            try:
                _check_all((member,), MAX_DEPTH)
            except StrictJsonError:
                token = str(name).replace("~", "~0").replace("/", "~1")
                return f"/{token}{_place_of_violation(member)}"
    return ""


def is_number_array(value: list[Any]) -> bool:
    """Whether a list has at least one element, and all elements are numbers that I-JSON allows.

    For floats, the function takes a twentieth of the time that `json.loads` takes to parse them (`bench/arrays.py`).
    """
    if not value or type(value[0]) not in _NUMBERS:
        return False
    if countOf(map(type, value), float) != len(value):
        if not _NUMBERS.issuperset(map(type, value)):
            return False
        integers = [number for number in value if type(number) is int]
        if min(integers) < -MAX_INTEGER or max(integers) > MAX_INTEGER:
            return False
    # The sum of finite numbers can be infinite. Therefore, look at each number if the sum is not finite.
    return math.isfinite(sum(value)) or all(map(math.isfinite, value))


def lone_surrogate(text: str) -> int | None:
    """Return the index of the first lone surrogate in a text, or None if there is no lone surrogate.

    A long text is encoded in slices, because encoding it as a whole would double the memory.
    """
    if text.isascii():
        return None
    for start in range(0, len(text), _PART):
        try:
            text[start : start + _PART].encode()
        except UnicodeEncodeError as error:
            return start + error.start
    return None


def _is_suspect(text: str) -> bool:
    """Whether a JSON text could violate a rule of the protocol, and must therefore be parsed by the exact parser."""
    return (
        # Escaped colons, too, are left to the exact parser, because they would make the count of the colons wrong.
        ("\\" in text and ("\\ud" in text or "\\uD" in text or "\\u003" in text))
        or (not text.isascii() and lone_surrogate(text) is not None)
    )


def _loads_fast(text: str, max_depth: int) -> Any:
    """Parse a text that is not suspect. Return `_UNDECIDED` if it may violate a rule, so that the exact parser decides."""
    is_simple = (  # nearly every event
        "{" not in text and _UNUSUAL_NUMBER.search(text) is None and text.count("[") <= max_depth
    )
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        # msgspec also reports a word such as `foo` as truncated. The message of the exact parser has a position.
        if is_simple and "NaN" not in text and "Infinity" not in text and "truncated" not in str(error):
            raise StrictJsonError(f"not JSON: {str(error).removeprefix('JSON is malformed: ')}") from None
        return _UNDECIDED
    if is_simple:
        return value
    try:
        check(value, max_depth=max_depth)
    except StrictJsonError:
        return _UNDECIDED
    # A text has one colon for each member, plus the colons in its strings. If a member name occurs twice, the parsed
    # value has only one of the two members, so the text has more colons than the value accounts for.
    return value if "{" not in text or _count_colons(value) == text.count(":") else _UNDECIDED


def _count_colons(value: Any) -> int:
    """Return the number of members in a value plus the number of colons in its strings, except in member names."""
    count = 0
    level = [value]
    while level:
        deeper: list[Any] = []
        for node in level:
            kind = type(node)
            if kind is str:
                count += node.count(":")
            elif kind is dict:
                count += len(node)
                deeper += node.values()
            elif kind is list and not is_number_array(node):
                deeper += node
        level = deeper
    return count


def _check_text(text: str) -> None:
    at = lone_surrogate(text)
    if at is not None:
        raise StrictJsonError(f"lone surrogate at character {at}")


def nests_deeper_than(most: int, text: str) -> bool:
    """Whether a JSON text, or the start of one, nests arrays and objects deeper than `most` levels.

    `check` cannot replace this function. It needs a parsed value, and the exact parser would recurse into a text that is
    nested too deep [TW-SEC-016]. The server does not parse a body with too many values at all.
    """
    if not _opens_more_than(most, text):
        return False
    depth = 0
    for token in _BRACKETS.finditer(text):
        first = text[token.start()]
        if first in "[{":
            depth += 1
            if depth > most:
                return True
        elif first in "]}":
            depth -= 1
    return False


def _opens_more_than(most: int, text: str) -> bool:
    """Whether a text has more than `most` opening brackets.

    The function stops at the first bracket above the limit. `str.count` would scan the whole text.
    """
    found = 0
    for bracket in "[{":
        at = text.find(bracket)
        while at >= 0:
            found += 1
            if found > most:
                return True
            at = text.find(bracket, at + 1)
    return False


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        # Use a set, which needs linear time. Counting each name in a large body would block the server for minutes.
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise StrictJsonError(f"duplicate member {name!r} in one object")
            seen.add(name)
    return members


def _bounded_integer(digits: str) -> int:
    # Check the number of digits first, because `int` raises a different error for more than 4,300 digits.
    if len(digits) > 17 or not -MAX_INTEGER <= int(digits) <= MAX_INTEGER:
        raise StrictJsonError(f"integer {digits[:20]} is beyond ±2^53; send it as a string")
    return int(digits)


def _finite_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise StrictJsonError(f"number {digits[:20]} is too large for a double")
    return number


def _no_constant(name: str) -> Any:
    raise StrictJsonError(f"{name} is not JSON")


# The encoder and the decoder are created only once, because `json.dumps` and `json.loads` would create new ones for each
# call.
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_EXACT = json.JSONDecoder(
    object_pairs_hook=_unique_members,
    parse_int=_bounded_integer,
    parse_float=_finite_float,
    parse_constant=_no_constant,
)
