"""Integrity checks with which a client verifies that its copy of a job's state equals the server's state.

A check of a text is `[path, n, crc]`, where n is the length in code points, and crc is the CRC-32 of the text in UTF-8. A
check of an array is `[path, n]`, where n is the number of elements. The digest is a hash over all final items of a job.
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
    """The client's state does not match a check or a digest that the server has sent."""


class Measured(Protocol):
    """A document that can measure its texts and arrays.

    Each method raises LookupError if there is no text or array at the pointer.
    """

    def text_length(self, pointer: str, /) -> int: ...
    def text_crc(self, pointer: str, /) -> int: ...
    def array_length(self, pointer: str, /) -> int: ...


def text_check(pointer: str, text: str) -> list[JsonValue]:
    """Create the member of `check` for a text: `[pointer, length in code points, crc]`."""
    return [pointer, len(text), crc32(text.encode())]


def array_check(pointer: str, length: int) -> list[JsonValue]:
    """Create the check of an array, `[pointer, length]`."""
    return [pointer, length]


def verify(document: Measured, checks: JsonValue) -> None:
    """Verify a document with the checks in a diff or in a `done` event.

    Raises:
        DiffError: The checks are malformed.
        IntegrityError: A check failed. The message contains the check's pointer, the expected value and the actual value.
    """
    if not isinstance(checks, list):
        raise DiffError("'check' is not an array")
    for check in checks:
        path, length, *crc = _parse_check(check)
        try:
            if crc:
                found = [document.text_length(path)]
                # Compute the CRC only if the length matches, because the length is much cheaper to compute.
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
                f"check of {path[:200]!r} failed: the {what} is {found[-1]}, but {expected[-1]} was expected"
            )


def digest(items: Any) -> str:
    """Return the digest of a job's final items: the first 16 hex digits of the SHA-256 of their canonical JSON (RFC 8785).

    `1` and `1.0` have the same digest, because canonical JSON does not distinguish integers from other numbers.

    Args:
        items: The items as JSON. Long texts may be `Rope` nodes (see `versioned_text_and_arrays.in_pieces`).

    Raises:
        StrictJsonError: The items are not valid I-JSON.
    """
    # Most items are small and contain no unusual numbers. Python's `json` can serialize such items in one call.
    form = _canonical_by_json_module(items)
    found = hashlib.sha256(form or b"")
    for part in () if form else _parts(items):
        found.update(part)
    return found.hexdigest()[:DIGEST_LENGTH]


def _parts(value: Any) -> Iterator[bytes]:
    """Yield the canonical JSON of a value in parts, so that a long text is never copied as a whole."""
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

    If a value is nested too deep or is not JSON, the result is False. `canonical` then rejects the value.
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

    Python's module `json` is used if its output for the value is canonical. Otherwise the library `rfc8785` is used, which
    is slower.

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
    """Serialize a value with Python's module `json`. Return None if the output might not be canonical JSON."""
    if _is_canonical_in_python(value, strict_json.MAX_DEPTH):
        text = _write(value)
        # RFC 8785 sorts members by UTF-16 code units, and Python sorts them by code points. The two orders can differ only
        # if a name contains a character above U+FFFF.
        if text.isascii() or max(text) < "\U00010000":
            return text.encode()
    return None


_write = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
"""Function that serializes a value. The encoder is created only once, because `json.dumps` with options would create a new
encoder for each call."""


def _is_canonical_in_python(value: Any, max_depth: int) -> bool:
    """Whether the output of Python's module `json` for a value is certainly canonical, except for the order of members.

    The value must be valid I-JSON without long texts. Each number must be written in the same way by Python and ECMAScript.
    This is true for integers, and for fractions that both of them write without an exponent.
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
        # The comparisons are also False for NaN and infinities, which must be rejected because they are not JSON.
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
        raise DiffError(f"check of the text or array {check[0][:200]!r}: the length is not an integer ≥ 0")
    if len(check) == 3 and not (is_count(check[2]) and check[2] <= MAX_CRC):
        raise DiffError(
            f"check of the text {check[0][:200]!r}: the CRC-32 is not an integer from 0 to 2^32 - 1"
        )
    return check


def _within_library(value: Any) -> Any:
    """Convert the integers ±2^53 to floats.

    The library `rfc8785` rejects these integers, but writes the equal floats in the required form.
    """
    if type(value) is int:
        return float(value) if abs(value) == strict_json.MAX_INTEGER else value
    if type(value) is list:
        return [_within_library(element) for element in value]
    if type(value) is dict:
        return {name: _within_library(member) for name, member in value.items()}
    return value
