"""Proofs that two ends hold the same: checks of single places, and the digest of a job's final items.

A check is `[path, n, crc]` for a text: n code points, CRC-32 of its UTF-8 as an integer; or `[path, n]` for the
length of an array. It proves no more than that. The digest proves the items whole.
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
"""Hex digits of a digest that travel."""

MAX_CRC = 2**32 - 1

PART: Final = 2**16
"""Code points of a long text that are written at a time."""


class IntegrityError(ValueError):
    """What this end holds is not what the other end says it is."""


class Measured(Protocol):
    """A document whose texts and arrays can be measured without reading the whole. Each raises LookupError where
    there is no such text or array.
    """

    def text_length(self, pointer: str, /) -> int: ...
    def text_crc(self, pointer: str, /) -> int: ...
    def array_length(self, pointer: str, /) -> int: ...


def text_check(pointer: str, text: str) -> list[JsonValue]:
    """The check that proves a text: `[pointer, code points, crc]`."""
    return [pointer, len(text), crc32(text.encode())]


def array_check(pointer: str, length: int) -> list[JsonValue]:
    """The check that proves the length of an array: `[pointer, length]`."""
    return [pointer, length]


def verify(document: Measured, checks: JsonValue) -> None:
    """Hold a document against the checks of a diff or of `done`.

    Raises:
        DiffError: The checks are malformed.
        IntegrityError: A place is not what its check says; names the place, what was expected and what is there.
    """
    if not isinstance(checks, list):
        raise DiffError("'check' is not an array")
    for check in checks:
        path, length, *crc = _judge(check)
        try:
            if crc:
                found = [document.text_length(path)]
                # The length is cheap and wrong first.
                if found[0] == length:
                    found.append(document.text_crc(path))
                expected = [length, *crc][: len(found)]
            else:
                found, expected = [document.array_length(path)], [length]
        except LookupError as error:
            raise IntegrityError(f"check of {path[:200]!r}: {error}") from None
        if found != expected:
            what = ("code points", "CRC-32")[len(found) - 1] if crc else "elements"
            raise IntegrityError(f"check of {path[:200]!r}: {what} expected {expected[-1]}, here {found[-1]}")


def digest(items: Any) -> str:
    """The first 16 hex digits of SHA-256 over the RFC 8785 form of a job's final items: JSON, long texts in it perhaps
    in pieces (`versioned_text_and_arrays.in_pieces`).

    In that form a number has one spelling whatever its type, so `1` and `1.0` have one digest.

    Raises:
        StrictJsonError: The items are not JSON as the protocol takes it.
    """
    # Most items are small and plain: then one look at them is enough.
    form = _as_python_writes(items)
    found = hashlib.sha256(form or b"")
    for part in () if form else _parts(items):
        found.update(part)
    return found.hexdigest()[:DIGEST_LENGTH]


def _parts(value: Any) -> Iterator[bytes]:
    """The RFC 8785 form, part by part where it holds long texts: those are then never held a second time as a whole."""
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


def _holds_long_text(value: Any, room: int) -> bool:
    """Whether a value holds a text of more than `PART` code points. What is no JSON, or too deep, is said to hold none:
    as a whole it will be refused.
    """
    kind = type(value)
    if kind is str:
        return len(value) > PART and is_text(value)
    if kind is Rope:
        return True
    if kind is list:
        return room > 0 and any(_holds_long_text(element, room - 1) for element in value)
    if kind is dict:
        return (
            room > 0
            and any(_holds_long_text(member, room - 1) for member in value.values())
            and all(type(name) is str and is_text(name) for name in value)
        )
    return False


def canonical(value: JsonValue) -> bytes:
    """The RFC 8785 form of a value. A library makes it, but where Python's own JSON is known to be the same.

    Raises:
        StrictJsonError: The value is not JSON as the protocol takes it.
    """
    form = _as_python_writes(value)
    if form is not None:
        return form
    import rfc8785  # noqa: PLC0415 - needed once per job, at its end

    strict_json.check(value)
    return rfc8785.dumps(_within_library(value))


def _as_python_writes(value: Any) -> bytes | None:
    """The RFC 8785 form of a value without long texts, where Python's own JSON is known to be the same."""
    if _is_written_alike(value, strict_json.MAX_DEPTH):
        text = _write(value)
        # Members are sorted by UTF-16 units, which is another order than that of code points beyond the basic plane.
        if text.isascii() or max(text) < "\U00010000":
            return text.encode()
    return None


_write = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
"""Made once: `json.dumps` with options makes an encoder for each value."""


def _is_written_alike(value: Any, room: int) -> bool:
    """Whether a value is surely JSON as the protocol takes it, holds no long text, and each number in it is spelt alike
    in Python and ECMAScript: a whole number is, and what has a fraction and no exponent in either.
    """
    kind = type(value)
    if kind is str:
        return len(value) <= PART and is_text(value)
    if (kind is dict or kind is list) and room <= 0:
        return False
    if kind is dict:
        for name, member in value.items():
            if type(name) is not str or not is_text(name) or not _is_written_alike(member, room - 1):
                return False
        return True
    if kind is list:
        for element in value:  # noqa: SIM110 - `all` of a generator costs twice as much
            if not _is_written_alike(element, room - 1):
                return False
        return True
    if kind is int:
        return bool(-strict_json.MAX_INTEGER <= value <= strict_json.MAX_INTEGER)
    if kind is float:
        # NaN is not within these bounds, and an infinity neither.
        return bool(1e-4 <= abs(value) < 1e15 and not value.is_integer())
    return value is None or kind is bool


def _judge(check: object) -> list[Any]:
    if not isinstance(check, list) or len(check) not in {2, 3} or not isinstance(check[0], str):
        raise DiffError("a check is [path, length, crc] for a text or [path, length] for an array")
    try:
        parse(check[0])
    except PointerError as error:
        raise DiffError(f"check of {check[0][:200]!r}: {error}") from None
    if not is_count(check[1]):
        raise DiffError(f"check of {check[0][:200]!r}: its length is not a whole number ≥ 0")
    if len(check) == 3 and not (is_count(check[2]) and check[2] <= MAX_CRC):
        raise DiffError(f"check of {check[0][:200]!r}: its CRC-32 is not a whole number below 2^32")
    return check


def _within_library(value: Any) -> Any:
    """±2^53 itself is an integer of the protocol, but beyond what rfc8785 takes as one; as a double it spells the same."""
    if type(value) is int:
        return float(value) if abs(value) == strict_json.MAX_INTEGER else value
    if type(value) is list:
        return [_within_library(element) for element in value]
    if type(value) is dict:
        return {name: _within_library(member) for name, member in value.items()}
    return value
