"""Chunks as every server writes them (RFC 9112 §7.1): a size in hexadecimal digits, and the bytes. No I/O.

An event of fifty bytes comes in a chunk of its own, and a parser of all of HTTP spends more on the chunk than is spent
on the event. This one knows nothing but sizes of up to `SIZE_DIGITS` digits. At the first chunk that is anything else,
an extension, the last chunk with its trailers, a breach, it stops, and who knows all of HTTP goes on from there.
"""

import re
from functools import lru_cache
from typing import Final

SIZE_DIGITS: Final = 8
"""Digits of a chunk's size: up to 4 GiB."""

_PLAIN: Final = re.compile(rb"[0-9A-Fa-f]{1,%d}" % SIZE_DIGITS)


class ChunkedDecoder:
    """See the top of this file.

    Attributes:
        rest: From the first chunk on that is not plain, what has come; None as long as all were.
        broken: Whether a chunk did not end where its size says; the body ends there.
    """

    def __init__(self) -> None:
        self.rest: bytes | None = None
        self.broken: bool = False
        self._missing = 0
        """Bytes of a chunk that was begun, those of its end of line among them."""
        self._begun = b""
        """The beginning of a line that is not complete."""

    @property
    def between(self) -> bool:
        """Whether all that came was whole chunks."""
        return not self._missing and not self._begun and not self.broken

    def feed(self, data: bytes) -> bytes:
        """Take what has come, and give what it holds of the body. Nothing is to be fed once there is a `rest`."""
        parts: list[bytes] = []
        at = 0
        if self._missing:
            at = self._go_on(data, parts)
            if self._missing or self.broken:
                return b"".join(parts)
        elif self._begun:
            data = self._begun + data
        self._begun = b""
        end = len(data)
        find, append = data.find, parts.append
        while at < end:
            line = find(b"\r\n", at, at + SIZE_DIGITS + 2)
            size = _size(data[at:line]) if line >= 0 else 0
            if size == 0:
                self._stop(data[at:])
                break
            begin = line + 2
            at = begin + size + 2
            append(data[begin : at - 2])
            if data[at - 2 : at] != b"\r\n":
                self._missing = at - end
                self.broken = self._missing <= 0 or not b"\r".startswith(data[at - 2 : at])
                break
        return b"".join(parts)

    def _go_on(self, data: bytes, parts: list[bytes]) -> int:
        """Take what belongs to the chunk that was begun, and give where that ends."""
        missing = self._missing
        if missing > 2:
            parts.append(data[: missing - 2])
        # What must be the end of the line, and how much of it has come.
        line = data[max(missing - 2, 0) : missing]
        self.broken = not b"\r\n"[max(2 - missing, 0) :].startswith(line)
        self._missing = max(missing - len(data), 0)
        return min(missing, len(data))

    def _stop(self, rest: bytes) -> None:
        """Keep the beginning of a line that may be plain; leave all else to who knows more."""
        digits = rest[:-1] if rest[-1:] == b"\r" else rest
        if len(digits) <= SIZE_DIGITS and _PLAIN.fullmatch(digits) and b"\n" not in rest:
            self._begun = rest
        else:
            self.rest = rest


@lru_cache(maxsize=256)
def _size(line: bytes) -> int:
    """The size of a plain chunk that is not the last; 0 for any other line."""
    return int(line, 16) if _PLAIN.fullmatch(line) else 0
