"""JSON by section 1.4, read with what is wrong about it: a suite has to go on where a client would stop."""

import json
import math
import re
from collections import Counter
from typing import Any, Final, NamedTuple

MAX_INTEGER: Final = 2**53
MAX_DEPTH: Final = 64

_SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST_INTEGER = 20
"""Digits past which an integer is too large without being converted."""


class Fault(NamedTuple):
    """What a text breaks, and the sentence that says so."""

    sentence: str
    what: str


class Reading(NamedTuple):
    """What a text says, as far as it can be read, and what is wrong with it."""

    value: Any
    faults: tuple[Fault, ...]
    is_json: bool


def read(text: bytes) -> Reading:
    """Read a JSON text; nothing is raised, whatever it is."""
    faults: list[Fault] = []

    def fault(sentence: str, what: str) -> None:
        faults.append(Fault(sentence, what))

    def constant(word: str) -> float:
        fault("TW-OVR-002", f"{word} is no number of JSON")
        return math.nan

    def real(digits: str) -> float:
        if not math.isfinite(float(digits)):
            fault("TW-OVR-002", f"{digits[:40]} is not finite")
        return float(digits)

    def integer(digits: str) -> int:
        if len(digits) > _LONGEST_INTEGER or abs(int(digits)) > MAX_INTEGER:
            fault("TW-OVR-003", f"{digits[:40]} is beyond 2^53")
            return 0
        return int(digits)

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            fault("TW-OVR-004", f"{twice!r} stands twice")
        return found

    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        fault("TW-OVR-001", f"no UTF-8: {error}")
        decoded = text.decode("utf-8", "replace")
    if decoded.startswith("\ufeff"):
        fault("TW-OVR-001", "a byte order mark")
        decoded = decoded[1:]
    try:
        value = json.loads(
            decoded, parse_constant=constant, parse_float=real, parse_int=integer, object_pairs_hook=members
        )
    except (ValueError, RecursionError) as error:
        fault("TW-OVR-001", f"no JSON: {error}")
        return Reading(None, tuple(faults), is_json=False)
    if depth(value) > MAX_DEPTH:
        fault("TW-OVR-006", f"nested {depth(value)} deep")
    if _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        fault("TW-OVR-005", "a lone surrogate")
    return Reading(value, tuple(faults), is_json=True)


def depth(value: Any) -> int:
    """How deep arrays and objects nest: 0 for a scalar, 1 for `[]`."""
    deepest = 0
    level = [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        deepest += 1
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
    return deepest


def compact(value: Any) -> bytes:
    """A JSON text of a value, as a request carries it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
