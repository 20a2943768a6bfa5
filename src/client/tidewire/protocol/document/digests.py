"""Integrity checks that compare the client's state with the server's: checks of single texts and arrays, and the digest.

A check of a text is `[path, n, crc]`, with its length n in code points and the CRC-32 of its UTF-8 as an integer. A check
of an array is `[path, n]` and covers only the length. The digest covers all of a job's final items completely.
"""

import hashlib
import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final, Protocol
from zlib import crc32

from pydantic import JsonValue

from tidewire.protocol import strict_json
from tidewire.protocol.document.diff_shapes import DiffError, is_count
from tidewire.protocol.document.json_pointer import PointerError, parse
from tidewire.protocol.document.json_values import is_text
from tidewire.protocol.document.versioned_text_and_arrays import Rope

DIGEST_LENGTH = 16
"""Number of hex digits of a digest in a `done` event."""

MAX_CRC = 2**32 - 1

PART: Final = 2**16
"""Number of code points of a long text that are serialized at a time."""


class IntegrityError(ValueError):
    """The local state does not match a check or the digest that the sender computed."""


class Measured(Protocol):
    """Document with measurable texts and arrays. Each method raises LookupError if the pointer has no such node."""

    def text_length(self, pointer: str, /) -> int: ...
    def text_crc(self, pointer: str, /) -> int: ...
    def array_length(self, pointer: str, /) -> int: ...


def text_check(pointer: str, text: str) -> list[JsonValue]:
    """Create the check of a text: `[pointer, length in code points, crc]`."""
    return [pointer, len(text), crc32(text.encode())]


def array_check(pointer: str, length: int) -> list[JsonValue]:
    """Create the check of an array's length: `[pointer, length]`."""
    return [pointer, length]


def verify(document: Measured, checks: JsonValue) -> None:
    """Compare a document with the checks of a diff or of a `done` event.

    Raises:
        DiffError: The checks are malformed.
        IntegrityError: A check failed. The message names its pointer, the expected value and the actual value.
    """
    if not isinstance(checks, list):
        raise DiffError("'check' is not an array")
    for check in checks:
        path, length, *crc = _parse_check(check)
        try:
            if crc:
                found = [document.text_length(path)]
                # The length is cheap to get, so compute the CRC only if the length matches.
                if found[0] == length:
                    found.append(document.text_crc(path))
                expected = [length, *crc][: len(found)]
            else:
                found, expected = [document.array_length(path)], [length]
        except LookupError as error:
            raise IntegrityError(f"check of {path[:200]!r}: {error}") from None
        if found != expected:
            what = ("length in code points", "CRC-32")[len(found) - 1] if crc else "number of elements"
            raise IntegrityError(
                f"check of {path[:200]!r} failed: the {what} is {found[-1]}, expected {expected[-1]}"
            )


def digest(items: Any) -> str:
    """Return the first 16 hex digits of SHA-256 over the canonical JSON (RFC 8785) of a job's final items.

    Canonical JSON writes a number the same way whatever its type, so `1` and `1.0` have the same digest.

    Args:
        items: JSON, in which long texts may be `Rope` nodes (see `versioned_text_and_arrays.in_pieces`).

    Raises:
        StrictJsonError: The items are not valid I-JSON.
    """
    # Most items are small and have no unusual numbers. Those are serialized by Python's `json`, in one pass.
    form = _canonical_by_json_module(items)
    found = hashlib.sha256(form or b"")
    for part in () if form else _parts(items):
        found.update(part)
    return found.hexdigest()[:DIGEST_LENGTH]


def _parts(value: Any) -> Iterator[bytes]:
    """Yield the canonical JSON of a value. Long texts are yielded in parts, so they are never copied as a whole."""
    kind = type(value)
    if not _holds_long_text(value, strict_json.MAX_DEPTH):
        yield canonical(value)
    elif kind is str or kind is Rope:
        yield b'"'
        for piece in (value,) if kind is str else value.pieces():
            for start in range(0, len(piece), PART):
                yield json.dumps(piece[start : start + PART], ensure_ascii=False)[1:-1].encode()
        yield b'"'
    elif kind is dict:
        before = b"{"
        for name in sorted(value, key=lambda name: name.encode("utf-16-be")):
            yield before + json.dumps(name, ensure_ascii=False).encode() + b":"
            yield from _parts(value[name])
            before = b","
        yield b"}"
    else:
        before = b"["
        for long, elements in groupby(
            value, lambda element: _holds_long_text(element, strict_json.MAX_DEPTH)
        ):
            for part in (
                (_parts(element) for element in elements) if long else [(canonical([*elements])[1:-1],)]
            ):
                yield before
                yield from part
                before = b","
        yield b"]"


def _holds_long_text(value: Any, max_depth: int) -> bool:
    """Whether a value contains a text of more than `PART` code points.

    Returns False for a value that is nested too deep or not JSON. `canonical` rejects such a value.
    """
    kind = type(value)
    if kind is str:
        return len(value) > PART and is_text(value)
    if kind is Rope:
        return True
    if kind is list:
        return max_depth > 0 and any(_holds_long_text(element, max_depth - 1) for element in value)
    if kind is dict:
        return (
            max_depth > 0
            and any(_holds_long_text(member, max_depth - 1) for member in value.values())
            and all(type(name) is str and is_text(name) for name in value)
        )
    return False


def canonical(value: JsonValue) -> bytes:
    """Serialize a value as canonical JSON (RFC 8785).

    Python's `json` module is used for values that it writes in canonical form, and the library `rfc8785` for all others.

    Raises:
        StrictJsonError: The value is not valid I-JSON.
    """
    form = _canonical_by_json_module(value)
    if form is not None:
        return form
    import rfc8785  # noqa: PLC0415 - needed at most once per job

    strict_json.check(value)
    return rfc8785.dumps(_within_library(value))


def _canonical_by_json_module(value: Any) -> bytes | None:
    """Serialize a value with Python's `json` if the output is known to be canonical JSON, otherwise return None."""
    if _is_canonical_in_python(value, strict_json.MAX_DEPTH):
        text = _write(value)
        # RFC 8785 sorts members by UTF-16 units. Python sorts by code points, which differs above U+FFFF.
        if text.isascii() or max(text) < "\U00010000":
            return text.encode()
    return None


_write = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
"""Defined at module level, because `json.dumps` with options creates an encoder per call."""


def _is_canonical_in_python(value: Any, max_depth: int) -> bool:
    """Whether Python's `json` certainly writes a value in canonical form.

    That requires valid I-JSON without long texts, in which Python and ECMAScript spell each number the same way: integers,
    and fractions that neither of them writes with an exponent.
    """
    kind = type(value)
    if kind is str:
        return len(value) <= PART and is_text(value)
    if (kind is dict or kind is list) and max_depth <= 0:
        return False
    if kind is dict:
        for name, member in value.items():
            if (
                type(name) is not str
                or not is_text(name)
                or not _is_canonical_in_python(member, max_depth - 1)
            ):
                return False
        return True
    if kind is list:
        for element in value:  # noqa: SIM110 - `all` with a generator takes twice as long
            if not _is_canonical_in_python(element, max_depth - 1):
                return False
        return True
    if kind is int:
        return bool(-strict_json.MAX_INTEGER <= value <= strict_json.MAX_INTEGER)
    if kind is float:
        # These comparisons are also False for NaN and infinities, which JSON cannot represent.
        return bool(1e-4 <= abs(value) < 1e15 and not value.is_integer())
    return value is None or kind is bool


def _parse_check(check: object) -> list[Any]:
    if not isinstance(check, list) or len(check) not in {2, 3} or not isinstance(check[0], str):
        raise DiffError("a check must be [path, length, crc] for a text or [path, length] for an array")
    try:
        parse(check[0])
    except PointerError as error:
        raise DiffError(f"check of {check[0][:200]!r}: {error}") from None
    if not is_count(check[1]):
        raise DiffError(f"check of {check[0][:200]!r}: its length is not an integer ≥ 0")
    if len(check) == 3 and not (is_count(check[2]) and check[2] <= MAX_CRC):
        raise DiffError(f"check of {check[0][:200]!r}: its CRC-32 is not an integer from 0 to 2^32 - 1")
    return check


def _within_library(value: Any) -> Any:
    """Convert the integers ±2^53 to floats, which are written the same. `rfc8785` rejects them as integers."""
    if type(value) is int:
        return float(value) if abs(value) == strict_json.MAX_INTEGER else value
    if type(value) is list:
        return [_within_library(element) for element in value]
    if type(value) is dict:
        return {name: _within_library(member) for name, member in value.items()}
    return value
