"""Parse and build JSON Pointers (RFC 6901) by strict rules, so that each location in a document has exactly one pointer.

A `~` must be followed by `0` or `1`. If a token refers to an element of an array, it must be an index, that is ASCII
digits without a sign or a leading zero. This excludes `-` and `٣`. If a token refers to a member of an object, it may be
any name, including `-` and `__proto__`.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

MAX_CACHED_POINTERS = 1024
"""Maximum number of parsed pointers in the cache. A stream uses the same few pointers in nearly all of its diffs."""

MAX_CACHED_LENGTH = 256
"""Maximum length of a pointer in the cache. Without this limit, a hostile server could fill the memory with pointers."""

_STRAY_TILDE = re.compile(r"~(?![01])")
# Sixteen digits are enough for 2^53. Without a limit, `int` would raise a different ValueError for thousands of digits.
_INDEX = re.compile(r"0|[1-9][0-9]{0,15}")
_SMALL_INDEXES = {str(index): index for index in range(100)}


class PointerError(ValueError):
    """A text is not a valid JSON Pointer, or a token is not a valid array index."""


def parse(pointer: str) -> tuple[str, ...]:
    """Split a pointer into its unescaped tokens. The pointer to the root, `""`, has no tokens.

    Raises:
        PointerError: The pointer is not empty and does not begin with `/`, or it contains a lone surrogate, or a `~` that
            is not followed by `0` or `1`.
    """
    return _cached_split(pointer) if len(pointer) <= MAX_CACHED_LENGTH else _split(pointer)


def build(tokens: Iterable[str | int]) -> str:
    """Join unescaped tokens into a pointer. This is the inverse of `parse`."""
    return "".join(f"/{escape(str(token))}" for token in tokens)


def escape(token: str) -> str:
    """Escape one token for use in a pointer: `~` becomes `~0`, and `/` becomes `~1`."""
    return token.replace("~", "~0").replace("/", "~1")


def array_index(token: str) -> int:
    """Parse a token as an array index.

    Raises:
        PointerError: The token does not consist of 1 to 16 ASCII digits without a leading zero.
    """
    small = _SMALL_INDEXES.get(token)
    if small is not None:
        return small
    if _INDEX.fullmatch(token) is None:
        raise PointerError(
            f"{token[:40]!r} is not an array index; use digits without a sign or a leading zero"
        )
    return int(token)


def _split(pointer: str) -> tuple[str, ...]:
    if not pointer:
        return ()
    if pointer[0] != "/":
        raise PointerError("a JSON Pointer must be empty or begin with '/'")
    try:
        pointer.encode()
    except UnicodeEncodeError as error:
        raise PointerError(f"lone surrogate at character {error.start} of a JSON Pointer") from None
    tokens = pointer[1:].split("/")
    if "~" not in pointer:
        return tuple(tokens)
    if stray := _STRAY_TILDE.search(pointer):
        raise PointerError(f"'~' at character {stray.start()} of a JSON Pointer must be followed by 0 or 1")
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in tokens)


_cached_split = lru_cache(maxsize=MAX_CACHED_POINTERS)(_split)
