"""Strict JSON parser, writer and validator for I-JSON (RFC 7493) with a limit on nesting.

Rejected are NaN and infinities (also numbers that overflow to infinity, such as `1e400`), integers beyond ±2^53,
duplicate member names in an object, lone surrogates, and nesting deeper than the limit. A number with neither fraction
nor exponent is an integer.

Nearly every event is a short string or a row of numbers. A few substring searches find out whether a text could break a
rule. Only such texts take the slower exact parser. Each substring is searched by itself, because a single regular
expression for all of them took a hundred times as long.
"""

import json
import math
import re
from collections.abc import Iterable
from typing import Any

import pydantic_core
from pydantic import JsonValue

MAX_DEPTH = 64
"""Maximum nesting of arrays and objects in one body or event."""

MAX_INTEGER = 2**53
"""Largest magnitude of an integer, inclusive. A double represents all integers up to this one exactly."""

# Possessive quantifiers avoid backtracking, which would store a position for each character of a long text.
_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[{\]}]', re.DOTALL)

_PART = 2**16
"""Characters per slice when a long text is encoded for inspection, so that memory stays bounded."""

_SUSPECT_NUMBER = re.compile(r"[0-9](?:[0-9]{15}|[eE])")


class StrictJsonError(ValueError):
    """Invalid JSON, or JSON that breaks a rule of the protocol. The message names the rule and, if known, the location."""


def loads(text: str | bytes, *, max_depth: int = MAX_DEPTH) -> JsonValue:
    """Parse one JSON text.

    Args:
        text: UTF-8 bytes or a string.
        max_depth: Maximum nesting of arrays and objects.

    Raises:
        StrictJsonError: The text is not JSON, or holds NaN, an infinity, an integer beyond ±2^53, a duplicate member
            name, a lone surrogate, or too deep nesting.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            raise StrictJsonError(f"not UTF-8: byte {error.start} cannot be decoded") from None
    if not _is_suspect(text) and text.count("[") <= max_depth:
        try:
            return pydantic_core.from_json(text, allow_inf_nan=False)  # type: ignore[no-any-return]
        except ValueError as error:
            raise StrictJsonError(f"not JSON: {error}") from None
    if _nests_deeper_than(max_depth, text):
        raise StrictJsonError(f"nested deeper than {max_depth} levels")
    try:
        value = _EXACT.decode(text)
    except json.JSONDecodeError as error:
        if text.startswith("\ufeff"):
            raise StrictJsonError("not JSON: a byte order mark at character 0") from None
        raise StrictJsonError(f"not JSON: {error.msg} at character {error.pos}") from None
    # Searching one character is much faster than searching two, and long base64 texts hold no backslash.
    if ("\\" in text and "\\u" in text) or not text.isascii():
        refuse_lone_surrogates(value)
    return value  # type: ignore[no-any-return]


def dumps(value: JsonValue, *, max_depth: int = MAX_DEPTH) -> str:
    """Serialize a value as compact JSON on one line, without escaping non-ASCII characters.

    Raises:
        StrictJsonError: The value is not valid I-JSON, or is nested too deep (see `check`).
    """
    check(value, max_depth=max_depth)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def check(value: Any, *, max_depth: int = MAX_DEPTH) -> None:
    """Validate a Python value as I-JSON.

    Raises:
        StrictJsonError: The value is not valid I-JSON, or is nested too deep. The message names one violation and, except
            for the nesting, its JSON Pointer.
    """
    # Recursion would overflow the interpreter's stack on hostile nesting, so the stack is explicit.
    pending: list[tuple[Any, str, int]] = [(value, "", 0)]
    while pending:
        node, pointer, depth = pending.pop()
        if node is None or node is True or node is False:
            continue
        kind = type(node)
        if kind is str:
            _check_text(node, pointer)
        elif kind is int:
            if not -MAX_INTEGER <= node <= MAX_INTEGER:
                raise StrictJsonError(f"at {pointer!r}: integer beyond ±2^53; send it as a string")
        elif kind is float:
            if not math.isfinite(node):
                raise StrictJsonError(f"at {pointer!r}: {node!r} is not a JSON number")
        elif kind is list or kind is dict:
            if depth >= max_depth:
                raise StrictJsonError(f"nested deeper than {max_depth} levels")
            for key, child in _members(node):
                if type(key) is str:
                    _check_text(key, pointer)
                    token = key.replace("~", "~0").replace("/", "~1")
                elif kind is dict:
                    raise StrictJsonError(f"at {pointer!r}: member name {key!r} is not a string")
                else:
                    token = str(key)
                pending.append((child, f"{pointer}/{token}", depth + 1))
        else:
            raise StrictJsonError(f"at {pointer!r}: {kind.__name__} is not a JSON type")


def refuse_lone_surrogates(value: JsonValue) -> None:
    """Raise `StrictJsonError` if a string or member name in the value holds a lone surrogate."""
    pending: list[Any] = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, str):
            _check_text(node, "")
        elif isinstance(node, list):
            pending.extend(node)
        elif isinstance(node, dict):
            pending.extend(node)
            pending.extend(node.values())


def lone_surrogate(text: str) -> int | None:
    """Return the index of the first lone surrogate in a text, or None.

    Long texts are encoded slice by slice, so memory does not double.
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
    """Whether a JSON text might break a rule and therefore needs the exact parser."""
    return (
        "{" in text
        or ("\\" in text and ("\\ud" in text or "\\uD" in text))
        or "NaN" in text
        or "Infinity" in text
        or _SUSPECT_NUMBER.search(text) is not None
        or (not text.isascii() and lone_surrogate(text) is not None)
    )


def _members(node: list[Any] | dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    return node.items() if isinstance(node, dict) else enumerate(node)


def _check_text(text: str, pointer: str) -> None:
    at = lone_surrogate(text)
    if at is not None:
        raise StrictJsonError(f"at {pointer!r}: lone surrogate at character {at}")


def _nests_deeper_than(most: int, text: str) -> bool:
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

    `str.find` stops at the limit, whereas `str.count` would scan the whole text.
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
        # A set keeps this linear. Counting each name in a large body would block the server for minutes.
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise StrictJsonError(f"duplicate member {name!r} in one object")
            seen.add(name)
    return members


def _bounded_integer(digits: str) -> int:
    # `int` raises its own error for more than 4,300 digits, so the length is checked first.
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


# Defined at module level, because `json.loads` with hooks creates a decoder per call.
_EXACT = json.JSONDecoder(
    object_pairs_hook=_unique_members,
    parse_int=_bounded_integer,
    parse_float=_finite_float,
    parse_constant=_no_constant,
)
