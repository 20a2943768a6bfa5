"""Strict JSON parser for the rules of section 1.4. It collects violations instead of raising an exception.

A client may stop at the first violation, but the suite has to judge the rest of the text, too.
"""

import json
import math
import re
from collections import Counter
from typing import Any, Final, NamedTuple

MAX_INTEGER: Final = 2**53
MAX_DEPTH: Final = 64
MAX_READ_DEPTH: Final = 200
"""Nesting depth above which the parser returns null for the value, because recursive code would fail for it."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
"""Escape of a surrogate. UTF-8 has no other form for one, so most texts need no closer look."""
_MAX_INTEGER_DIGITS = 20
"""Maximum number of digits of an integer. The parser rejects a longer integer without converting it."""


class JsonViolation(NamedTuple):
    """Violation that was found in a JSON text, with the id of the violated requirement."""

    requirement: str
    detail: str


class ParsedJson(NamedTuple):
    """Result of parsing a JSON text: the value and the violations that were found."""

    value: Any
    faults: tuple[JsonViolation, ...]
    is_json: bool


def read(text: bytes) -> ParsedJson:
    """Parse a JSON text. Violations are returned and never raised."""
    faults: list[JsonViolation] = []

    def fault(requirement: str, detail: str) -> None:
        faults.append(JsonViolation(requirement, detail))

    def constant(word: str) -> float:
        fault("TW-OVR-002", f"{word} is not a JSON number")
        return math.nan

    def real(digits: str) -> float:
        if not math.isfinite(float(digits)):
            fault("TW-OVR-002", f"{digits[:40]} is not finite")
        return float(digits)

    def integer(digits: str) -> int:
        if len(digits) > _MAX_INTEGER_DIGITS or abs(int(digits)) > MAX_INTEGER:
            fault("TW-OVR-003", f"the integer {digits[:40]} is outside the range from -2^53 to 2^53")
            return 0
        return int(digits)

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            fault("TW-OVR-004", f"the member name {twice!r} occurs more than once")
        return found

    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        fault("TW-OVR-001", f"the text is not UTF-8: {error}")
        decoded = text.decode("utf-8", "replace")
    if decoded.startswith("\ufeff"):
        fault("TW-OVR-001", "the text begins with a byte order mark")
        decoded = decoded[1:]
    try:
        value = json.loads(
            decoded, parse_constant=constant, parse_float=real, parse_int=integer, object_pairs_hook=members
        )
    except (ValueError, RecursionError) as error:
        fault("TW-OVR-001", f"the text is not JSON: {error}")
        return ParsedJson(None, tuple(faults), is_json=False)
    if depth(value) > MAX_DEPTH:
        fault("TW-OVR-006", f"arrays and objects are nested {depth(value)} deep")
        if depth(value) > MAX_READ_DEPTH:
            return ParsedJson(None, tuple(faults), is_json=True)
    elif _SURROGATE_ESCAPE.search(decoded) and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        fault("TW-OVR-005", "a string contains a lone surrogate")
    return ParsedJson(value, tuple(faults), is_json=True)


def depth(value: Any) -> int:
    """Return the nesting depth of arrays and objects: 0 for a scalar, 1 for `[]`."""
    deepest = 0
    level = [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        deepest += 1
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
    return deepest


def compact(value: Any) -> bytes:
    """Serialize a value as compact JSON, for use in request bodies."""
    # A value that the server sent, such as an example, may contain a lone surrogate.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
