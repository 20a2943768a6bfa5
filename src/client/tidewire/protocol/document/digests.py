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

from msgspec.json import encode

from tidewire.protocol import strict_json
from tidewire.protocol.document.array_tree import ArrayTree
from tidewire.protocol.document.diff_shapes import DiffError, is_count
from tidewire.protocol.document.json_pointer import PointerError, parse
from tidewire.protocol.document.json_values import holds_only_numbers, is_text
from tidewire.protocol.document.object_tree import ObjectTree
from tidewire.protocol.document.versioned_text_and_arrays import LATEST, EncodedArray, Rope, RopeArray
from tidewire.protocol.strict_json import JsonValue, is_number_array

DIGEST_LENGTH = 16
"""Number of hex digits of a digest in a `done` event."""

MAX_CRC = 2**32 - 1

PART: Final = 2**16
"""Number of code points of a long text that are serialized at a time."""

MANY_NUMBERS: Final = 16
"""Number of elements up to which an array of numbers is serialized together with the values around it."""


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
        items: The items as JSON, or as the nodes of a document (see `versioned_text_and_arrays`).

    Raises:
        StrictJsonError: The items are not valid I-JSON.
    """
    found = hashlib.sha256()
    for part in _parts(items, strict_json.MAX_DEPTH):
        found.update(part)
    return found.hexdigest()[:DIGEST_LENGTH]


class ItemsDigest:
    """The digest of a job's items, which is computed while the items end.

    Attributes:
        count: Number of items that were added.
    """

    __slots__ = ("_hash", "count")

    def __init__(self) -> None:
        self.count: int = 0
        self._hash = hashlib.sha256(b"[")

    def add_number_array(self, item: dict[str, Any], written: bytes) -> bool:
        """Add the next item, whose value is an array of numbers.

        Args:
            item: The item in its final state.
            written: The item's value as compact JSON, with the shortest digits for each number.

        Returns:
            False if the item was not added, because its value contains anything but numbers.
        """
        numbers = item["value"]
        if type(numbers) is not list or not _are_numbers(written) or max(item) != "value":
            return False
        others = canonical({name: member for name, member in item.items() if name != "value"})
        before = others[:-1] + (b"," if len(item) > 1 else b"")
        text = _canonical_numbers(written, has_integers=_may_hold_integers(numbers))
        self._hash.update(b'%b%b"value":%b}' % (b"," if self.count else b"", before, text))
        self.count += 1
        return True

    def finish(self, items: list[Any]) -> str:
        """Return the digest after the last item.

        Args:
            items: The items that were not added.

        Raises:
            StrictJsonError: The items are not valid I-JSON.
        """
        found = self._hash.copy()
        for index, item in enumerate(items, self.count):
            if index:
                found.update(b",")
            for part in _parts(item, strict_json.MAX_DEPTH - 1):
                found.update(part)
        found.update(b"]")
        return found.hexdigest()[:DIGEST_LENGTH]


def _are_numbers(written: bytes) -> bool:
    """Whether the compact JSON of a value is certainly an array of numbers."""
    return (
        written.startswith(b"[")
        and written.find(b"]") == len(written) - 1 >= 2
        and written.find(b"[", 1) < 0
        # Each of the words `null`, `true` and `false` contains one of these letters.
        and not any(letter in written for letter in (b'"', b"{", b"u", b"l"))
    )


def canonical(value: JsonValue) -> bytes:
    """Serialize a value as canonical JSON (RFC 8785).

    Raises:
        StrictJsonError: The value is not valid I-JSON.
    """
    return b"".join(_parts(value, strict_json.MAX_DEPTH))


def _parts(value: Any, max_depth: int) -> Iterator[bytes]:
    """Yield the canonical JSON of a value in parts, so that a long text is never copied as a whole.

    Each part is serialized by the fastest library whose output is canonical. The first row that applies counts:

      value                                                     | serialized by
      ----------------------------------------------------------+-------------------------------------------------------
      a value for which `_is_canonical_in_python` is true       | Python's module `json`, in one call
      an array of numbers                                       | msgspec, in one call (`_number_array`)
      an array that is kept as JSON (`EncodedArray`)            | not again (`_encoded_array`)
      any other array or object                                 | this table, for each member or run of elements
      a text of more than `PART` code points                    | Python's module `json`, slice by slice
      a number                                                  | the library `rfc8785`
    """
    kind = type(value)
    if kind is EncodedArray and max_depth > 1:
        encoded = _encoded_array(value.json_at(LATEST))
        if encoded is not None:
            yield encoded
            return
    if kind is RopeArray or kind is ArrayTree or kind is EncodedArray:
        value, kind = value.items_at(LATEST), list
    elif kind is ObjectTree:
        value, kind = value.members(), dict
    if _is_canonical_in_python(value, max_depth):
        yield _write(value).encode()
    elif kind is list and max_depth > 0:
        numbers = _number_array(value) if _WRITES_EXPONENTS else None
        if numbers is not None:
            yield numbers
            return
        before = b"["
        for plain, run in groupby(value, lambda element: _is_canonical_in_python(element, max_depth - 1)):
            for parts in (
                [(_write([*run])[1:-1].encode(),)] if plain else (_parts(one, max_depth - 1) for one in run)
            ):
                yield before
                yield from parts
                before = b","
        yield b"]"
    elif kind is dict and max_depth > 0 and all(type(name) is str and is_text(name) for name in value):
        before = b"{"
        for name in sorted(value, key=lambda name: name.encode("utf-16-be")):
            yield before + _write(name).encode() + b":"
            yield from _parts(value[name], max_depth - 1)
            before = b","
        yield b"}"
    elif kind is Rope or (kind is str and is_text(value)):
        yield b'"'
        is_short = kind is Rope and value.length <= PART
        for piece in (value,) if kind is str else (value.text_at(LATEST),) if is_short else value.pieces():
            for start in range(0, len(piece), PART):
                yield _write(piece[start : start + PART])[1:-1].encode()
        yield b'"'
    else:
        strict_json.check(value, max_depth=max_depth)
        import rfc8785  # noqa: PLC0415 - seldom needed

        yield rfc8785.dumps(value)


_write = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
"""Function that serializes a value. The encoder is created only once, because `json.dumps` with options would create a new
encoder for each call."""


def _is_canonical_in_python(value: Any, max_depth: int) -> bool:
    """Whether `_write` certainly serializes a value as canonical JSON, and quickly.

    The value must be valid I-JSON without long texts and without long arrays of numbers. Each number must be written in the
    same way by Python and ECMAScript. This is true for integers, and for fractions that both of them write without an
    exponent. RFC 8785 sorts members by UTF-16 code units, and Python sorts them by code points. The two orders can differ
    only if a name contains a character above U+FFFF.
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
                or not (name.isascii() or (max(name) < "\U00010000" and is_text(name)))
                or not _is_canonical_in_python(member, max_depth - 1)
            ):
                return False
        return True
    if kind is list:
        if len(value) > MANY_NUMBERS and type(value[0]) in {int, float}:
            return False
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


# ---- arrays of numbers -----------------------------------------------------------------------------------------


def _number_array(elements: list[Any]) -> bytes | None:
    """Serialize an array of numbers as canonical JSON. Return None if the elements are anything else.

    msgspec writes the same shortest digits as ECMAScript, eight times as fast as Python. Only two forms can differ: integral
    floats, which end in `.0`, and numbers with an exponent.
    """
    if not holds_only_numbers(elements):
        return None
    has_integers = _may_hold_integers(elements)
    # `holds_only_numbers` accepts booleans and integers beyond ±2^53.
    if has_integers and not is_number_array(elements):
        return None
    return _canonical_numbers(encode(elements), has_integers=has_integers)


def _may_hold_integers(numbers: list[Any]) -> bool:
    """Whether an array contains integers or integral floats. The result is also true if it contains anything but floats."""
    try:
        return any(map(float.is_integer, numbers))
    except TypeError:
        return True


def _canonical_numbers(text: bytes, *, has_integers: bool) -> bytes:
    """Convert the compact JSON of an array of numbers to canonical JSON. It must have the shortest digits."""
    if has_integers:
        text = text.replace(b".0,", b",")
        if text.endswith(b".0]"):
            text = text[:-3] + b"]"
        if b"-0" in text:
            text = b"[%b]" % b",".join(
                [b"0" if number == b"-0" else number for number in text[1:-1].split(b",")]
            )
    return _with_exponents_of_ecmascript(text) if b"e" in text else text


def _encoded_array(text: bytes) -> bytes | None:
    """Convert compact JSON of numbers, and of arrays of numbers, to canonical JSON.

    Return None if the text contains a string, an object, `true`, `false` or a number with an exponent, and therefore has to
    be parsed.
    """
    if b'"' in text or b"e" in text or b"{" in text or not _WRITES_EXPONENTS:
        return None
    if b".0" in text:
        text = text.replace(b".0,", b",").replace(b".0]", b"]")
    if b"-0" in text:
        text = text.replace(b"-0,", b"0,").replace(b"-0]", b"0]")
    return text


def _with_exponents_of_ecmascript(text: bytes) -> bytes:
    parts = []
    at = 0
    while (found := text.find(b"e", at)) >= 0:
        start = max(text.rfind(b",", at, found), text.rfind(b"[", at, found)) + 1
        end = text.find(b",", found)
        end = len(text) - 1 if end < 0 else end
        mantissa, exponent = text[start:found], int(text[found + 1 : end])
        parts.append(text[at:start])
        if exponent <= -7:
            parts.append(b"%be%d" % (mantissa.removesuffix(b".0"), exponent))
        else:
            import rfc8785  # noqa: PLC0415 - seldom needed

            parts.append(rfc8785.dumps(float(text[start:end])))
        at = end
    return b"".join([*parts, text[at:]])


_WRITES_EXPONENTS: Final = encode(9.5e-7) == b"9.5e-7"
"""Whether msgspec writes numbers below 10^-6 with an exponent, as ECMAScript does. This is so in all known versions."""


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
