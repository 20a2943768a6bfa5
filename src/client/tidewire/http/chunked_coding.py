"""Fast decoder for simple HTTP chunks (RFC 9112 §7.1): a hexadecimal size and the data, without extensions. No I/O.

Servers send small events as one chunk each, and a complete HTTP parser spends more time on the chunk than the client
spends on the event. This decoder accepts only sizes of up to `SIZE_DIGITS` digits. At anything else (an extension, the
last chunk with its trailers, an error) it stops, and a complete parser continues from there.
"""

import re
from functools import lru_cache
from typing import Final

SIZE_DIGITS: Final = 8
"""Maximum number of hexadecimal digits of a chunk's size: up to 4 GiB."""

_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,%d}" % SIZE_DIGITS)


class ChunkedDecoder:
    """Decodes simple chunks of a chunked body, and stops at the first chunk that needs a complete HTTP parser.

    Attributes:
        rest: The undecoded bytes from the first chunk that is not simple; None while all were.
        broken: Whether the line end after a chunk's data is missing. The decoder stops there.
    """

    def __init__(self) -> None:
        self.rest: bytes | None = None
        self.broken: bool = False
        self._missing = 0
        """Number of missing bytes of an incomplete chunk, including its line end."""
        self._partial_header = b""
        """Start of an incomplete chunk header."""

    @property
    def between(self) -> bool:
        """Whether the bytes so far end at a chunk boundary."""
        return not self._missing and not self._partial_header and not self.broken

    def feed(self, data: bytes) -> bytes:
        """Decode the next bytes and return their chunk data. Must not be called once `rest` is set."""
        parts: list[bytes] = []
        at = 0
        if self._missing:
            at = self._finish_chunk(data, parts)
            if self._missing or self.broken:
                return b"".join(parts)
        elif self._partial_header:
            data = self._partial_header + data
        self._partial_header = b""
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

    def _finish_chunk(self, data: bytes, parts: list[bytes]) -> int:
        """Decode the remainder of an incomplete chunk and return the index of its end in `data`."""
        missing = self._missing
        if missing > 2:
            parts.append(data[: missing - 2])
        # The received part of the line end after the chunk's data.
        line = data[max(missing - 2, 0) : missing]
        self.broken = not b"\r\n"[max(2 - missing, 0) :].startswith(line)
        self._missing = max(missing - len(data), 0)
        return min(missing, len(data))

    def _stop(self, rest: bytes) -> None:
        """Keep an incomplete chunk header for the next `feed`, and leave anything else to a complete parser."""
        digits = rest[:-1] if rest[-1:] == b"\r" else rest
        if len(digits) <= SIZE_DIGITS and _SIZE.fullmatch(digits) and b"\n" not in rest:
            self._partial_header = rest
        else:
            self.rest = rest


@lru_cache(maxsize=256)
def _size(line: bytes) -> int:
    """Parse the header of a simple chunk and return its size; 0 for the last chunk and for any other line."""
    return int(line, 16) if _SIZE.fullmatch(line) else 0
