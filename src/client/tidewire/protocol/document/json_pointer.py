"""JSON Pointers (RFC 6901), as strict as the protocol is about them.

A `~` stands only before `0` or `1`. Into an array only an index goes: ASCII digits without sign or leading zero, so
neither `-` nor `٣`. In an object each of these is a plain member name, and so is `__proto__`. Each place has exactly
one pointer.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

MAX_CACHED_POINTERS = 1024
"""Parsed pointers that are kept: a stream names the same few places over and over."""

MAX_CACHED_LENGTH = 256
"""Characters of a pointer that is kept, so that hostile pointers cannot fill memory."""

_STRAY_TILDE = re.compile(r"~(?![01])")
# Sixteen digits reach past 2^53. Unbounded digits would hit CPython's own limit on int().
_INDEX = re.compile(r"0|[1-9][0-9]{0,15}")


class PointerError(ValueError):
    """A text is no JSON Pointer, or a token is no array index."""


def parse(pointer: str) -> tuple[str, ...]:
    """Split a pointer into its unescaped tokens; `""`, the root, has none.

    Raises:
        PointerError: The pointer does not begin with `/`, holds a stray `~`, or a lone surrogate.
    """
    return _cached_split(pointer) if len(pointer) <= MAX_CACHED_LENGTH else _split(pointer)


def build(tokens: Iterable[str | int]) -> str:
    """Write the pointer of some tokens: the inverse of `parse`."""
    return "".join(f"/{escape(str(token))}" for token in tokens)


def escape(token: str) -> str:
    """Write one token as it stands inside a pointer."""
    return token.replace("~", "~0").replace("/", "~1")


def array_index(token: str) -> int:
    """Read a token as an array index.

    Raises:
        PointerError: The token is anything but ASCII digits without sign and leading zero.
    """
    if len(token) == 1 and "0" <= token <= "9":
        return ord(token) - 48
    if _INDEX.fullmatch(token) is None:
        raise PointerError(f"{token[:40]!r} is no array index: digits without sign or leading zero")
    return int(token)


def _split(pointer: str) -> tuple[str, ...]:
    if not pointer:
        return ()
    if pointer[0] != "/":
        raise PointerError("a JSON Pointer is empty or begins with '/'")
    try:
        pointer.encode()
    except UnicodeEncodeError as error:
        raise PointerError(f"lone surrogate at character {error.start} of a JSON Pointer") from None
    tokens = pointer[1:].split("/")
    if "~" not in pointer:
        return tuple(tokens)
    if stray := _STRAY_TILDE.search(pointer):
        raise PointerError(
            f"'~' at character {stray.start()} of a JSON Pointer stands before neither 0 nor 1"
        )
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in tokens)


_cached_split = lru_cache(maxsize=MAX_CACHED_POINTERS)(_split)
