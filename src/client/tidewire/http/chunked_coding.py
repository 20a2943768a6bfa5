"""Fast decoder for simple HTTP chunks (RFC 9112 §7.1), which consist of a hexadecimal size and the data, without
extensions. This module does no I/O.

Servers send each small event as one chunk, and a complete HTTP parser spends more time on the chunk than the client
spends on the event. This decoder accepts only chunks without extensions whose size is written with at most
`SIZE_DIGITS` digits. It stops at any other bytes, such as an extension, the last chunk with its trailers, or an error.
A complete parser then continues with the undecoded bytes.
"""

import re
from typing import Final

SIZE_DIGITS: Final = 8
"""Maximum number of hexadecimal digits in the size of a simple chunk. A chunk is therefore smaller than 4 GiB."""

_HEADER: Final = re.compile(rb"([0-9A-Fa-f]{1,%d})\r\n" % SIZE_DIGITS)
_PARTIAL_HEADER: Final = re.compile(rb"[0-9A-Fa-f]{1,%d}\r?" % SIZE_DIGITS)


class ChunkedDecoder:
    """Decodes simple chunks of a body, and stops at the first chunk that needs a complete HTTP parser.

    Attributes:
        rest: The undecoded bytes, from the first chunk that is not simple. None while all chunks were simple.
        broken: Whether the decoder has stopped because the line end after a chunk's data is missing.
    """

    def __init__(self) -> None:
        self.rest: bytes | None = None
        self.broken: bool = False
        self._missing = 0
        """Number of bytes that are missing from an incomplete chunk, including the line end."""
        self._partial_header = b""
        """Start of an incomplete chunk header."""

    @property
    def between(self) -> bool:
        """Whether the bytes that were decoded so far end at the boundary between two chunks."""
        return not self._missing and not self._partial_header and not self.broken

    def feed(self, data: bytes) -> bytes:
        """Decode the next bytes and return the data of their chunks. This method must not be called after `rest` was
        set.
        """
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
        while at < end:
            header = _HEADER.match(data, at)
            size = int(header[1], 16) if header is not None else 0
            if header is None or size == 0:
                self._stop(data[at:])
                break
            begin = header.end()
            at = begin + size + 2
            parts.append(data[begin : at - 2])
            if data[at - 2 : at] != b"\r\n":
                self._missing = at - end
                self.broken = self._missing <= 0 or not b"\r".startswith(data[at - 2 : at])
                break
        return b"".join(parts)

    def _finish_chunk(self, data: bytes, parts: list[bytes]) -> int:
        """Decode the remaining bytes of an incomplete chunk and return the index of the chunk's end in `data`."""
        missing = self._missing
        if missing > 2:
            parts.append(data[: missing - 2])
        # The data of a chunk is followed by CRLF. `line` contains the part of this CRLF that has arrived.
        line = data[max(missing - 2, 0) : missing]
        self.broken = not b"\r\n"[max(2 - missing, 0) :].startswith(line)
        self._missing = max(missing - len(data), 0)
        return min(missing, len(data))

    def _stop(self, rest: bytes) -> None:
        """Stop decoding. An incomplete chunk header is kept for the next `feed`. All other bytes are left to a complete
        parser.
        """
        if _PARTIAL_HEADER.fullmatch(rest):
            self._partial_header = rest
        else:
            self.rest = rest
