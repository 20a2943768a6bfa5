"""JSON as the protocol takes it: I-JSON (RFC 7493) with a bound on depth.

Refused: NaN and infinities (also numbers that overflow to one, `1e400`), integers beyond ±2^53, members that stand
twice in an object, lone surrogates, and nesting deeper than the limit. A number with neither fraction nor exponent
is an integer.

Nearly every event is a short string or a row of numbers. A few searches tell whether a text could break any rule; only
those that could take the exact path. Words are looked for one by one: that runs at the speed of memory, and one regular
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
"""Nesting of arrays and objects in one body or event."""

MAX_INTEGER = 2**53
"""Largest magnitude of an integer, inclusive: what a double holds exactly."""

# No quantifier gives back what it took: one that could would remember each character of a long text.
_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[{\]}]', re.DOTALL)

_PART = 2**16
"""Characters of a long text that are looked at in a copy of their own."""

_SUSPECT_NUMBER = re.compile(r"[0-9](?:[0-9]{15}|[eE])")


class StrictJsonError(ValueError):
    """A text is no JSON, or JSON that the protocol refuses; says what and, where known, where."""


def loads(text: str | bytes, *, max_depth: int = MAX_DEPTH) -> JsonValue:
    """Parse one JSON text.

    Args:
        text: UTF-8 bytes or a string.
        max_depth: Nesting that is still accepted.

    Raises:
        StrictJsonError: The text is no JSON, or breaks a rule named at the top of this file.
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
    # One character is found much faster than two, and a long text in base64 has no backslash at all.
    if ("\\" in text and "\\u" in text) or not text.isascii():
        refuse_lone_surrogates(value)
    return value  # type: ignore[no-any-return]


def dumps(value: JsonValue, *, max_depth: int = MAX_DEPTH) -> str:
    """Write compact JSON on one line, characters beyond ASCII as themselves.

    Raises:
        StrictJsonError: The value breaks a rule named at the top of this file.
    """
    check(value, max_depth=max_depth)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def check(value: Any, *, max_depth: int = MAX_DEPTH) -> None:
    """Refuse a Python value that is not JSON as the protocol takes it.

    Raises:
        StrictJsonError: Names the first breach and its JSON Pointer.
    """
    # An explicit stack: a value nested a hundred thousand deep must be refused, not overflow the interpreter.
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
    """Raise `StrictJsonError` if any text in the value holds half of a surrogate pair."""
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
    """Where a text holds half of a surrogate pair, if it does. Its form in UTF-8 is never held as a whole."""
    if text.isascii():
        return None
    for start in range(0, len(text), _PART):
        try:
            text[start : start + _PART].encode()
        except UnicodeEncodeError as error:
            return start + error.start
    return None


def _is_suspect(text: str) -> bool:
    """Whether a text might break a rule, so that it must be read exactly."""
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
    """Whether there are more opening brackets. Found one by one: to count them would look at each character of a megabyte."""
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
        # By what was seen: to count each name in a body of many would hold a server for minutes.
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise StrictJsonError(f"member {name!r} stands twice in one object")
            seen.add(name)
    return members


def _bounded_integer(digits: str) -> int:
    # Python refuses to convert more than 4,300 digits with an error of its own: judge the length first.
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


# Made once: `json.loads` with hooks makes one for each text.
_EXACT = json.JSONDecoder(
    object_pairs_hook=_unique_members,
    parse_int=_bounded_integer,
    parse_float=_finite_float,
    parse_constant=_no_constant,
)
