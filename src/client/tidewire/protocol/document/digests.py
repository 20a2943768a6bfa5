"""Integrity checks with which a client verifies that its copy of a job's state equals the server's state.

A check of a text is `[path, n, crc]`, where n is the length in code points, and crc is the CRC-32 of the text in UTF-8. A
check of an array is `[path, n]`, where n is the number of elements. The digest is a hash over all final items of a job.
"""

import hashlib
import re
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any, Final, Protocol
from zlib import crc32

from msgspec.json import encode

from tidewire.protocol import strict_json
from tidewire.protocol.document.diff_shapes import DiffError, is_count
from tidewire.protocol.document.json_pointer import PointerError, parse
from tidewire.protocol.document.json_values import is_text
from tidewire.protocol.document.versioned_text_and_arrays import LATEST, Rope, RopeArray
from tidewire.protocol.strict_json import JsonValue, is_number_array

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
        items: The items as JSON, or as the nodes of a document (see `versioned_text_and_arrays`).

    Raises:
        StrictJsonError: The items are not valid I-JSON.
    """
    found = hashlib.sha256()
    _write(items, strict_json.MAX_DEPTH, found.update)
    return found.hexdigest()[:DIGEST_LENGTH]


def canonical(value: JsonValue) -> bytes:
    """Serialize a value as canonical JSON (RFC 8785).

    Raises:
        StrictJsonError: The value is not valid I-JSON.
    """
    parts: list[bytes] = []
    _write(value, strict_json.MAX_DEPTH, parts.append)
    return b"".join(parts)


def _write(value: Any, max_depth: int, put: Callable[[bytes], None]) -> None:
    """Call `put` with each part of the canonical JSON of a value, so that a long text is never copied as a whole."""
    kind = type(value)
    if kind is RopeArray:
        value, kind = value.items_at(LATEST), list
    if kind is str or kind is Rope:
        _write_text(value, put)
    elif kind is int and -strict_json.MAX_INTEGER <= value <= strict_json.MAX_INTEGER:
        put(b"%d" % value)
    elif kind is list and max_depth > 0:
        if is_number_array(value):
            put(_number_array(value))
            return
        before = b"["
        for element in value:
            put(before)
            _write(element, max_depth - 1, put)
            before = b","
        put(b"]" if value else b"[]")
    elif kind is dict and max_depth > 0 and all(type(name) is str and is_text(name) for name in value):
        before = b"{"
        # RFC 8785 sorts members by UTF-16 code units.
        for name in sorted(value, key=lambda name: name.encode("utf-16-be")):
            put(before + encode_basestring(name).encode() + b":")
            _write(value[name], max_depth - 1, put)
            before = b","
        put(b"}" if value else b"{}")
    elif value is None or kind is bool:
        put(_WORDS[value])
    else:
        strict_json.check(value, max_depth=max_depth)
        put(_number(value))


def _write_text(text: Any, put: Callable[[bytes], None]) -> None:
    pieces = (text,) if type(text) is str else text.pieces()
    put(b'"')
    for piece in pieces:
        if not is_text(piece):
            raise strict_json.StrictJsonError("a text contains a lone surrogate")
        for start in range(0, len(piece), PART):
            put(encode_basestring(piece[start : start + PART])[1:-1].encode())
    put(b'"')


_WORDS: Final = {None: b"null", True: b"true", False: b"false"}


def _number(number: float) -> bytes:
    """Serialize a finite float as ECMAScript does. The library `rfc8785` is slow to import, and few numbers need it."""
    if number == 0.0:
        return b"0"
    if 1e-4 <= abs(number) < 1e15:
        # Python and ECMAScript write these numbers without an exponent.
        return b"%d" % number if number.is_integer() else repr(number).encode()
    import rfc8785  # noqa: PLC0415 - seldom needed

    return rfc8785.dumps(number)


# ---- arrays of numbers -----------------------------------------------------------------------------------------


_WITH_EXPONENT: Final = re.compile(rb"(?<=[\[,])[-0-9.]++e[-0-9]++")


def _number_array(numbers: list[Any]) -> bytes:
    """Serialize an array of numbers as canonical JSON.

    msgspec writes the same shortest digits as ECMAScript, eight times as fast as Python. Only two forms can differ: integral
    floats, which end in `.0`, and numbers with an exponent.
    """
    text = encode(numbers)
    if b".0" in text:
        text = text.replace(b".0,", b",").replace(b".0]", b"]")
    if b"-0" in text:
        text = text.replace(b"-0,", b"0,").replace(b"-0]", b"0]")
    return _WITH_EXPONENT.sub(lambda found: _number(float(found[0])), text) if b"e" in text else text


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
