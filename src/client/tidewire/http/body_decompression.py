"""Decompression of response bodies, with a limit for their size. A gateway may have compressed a body with gzip. This
module does no I/O.

A small compressed body can expand to any size, especially if it was compressed several times. The decompressor
therefore stops at a limit. It refuses bodies with more than one content coding, and content codings that the client did
not request.
"""

import zlib
from typing import Final

CODING: Final = "gzip"
"""Value of the Accept-Encoding header in requests that do not ask for an event stream."""

_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


class DecompressionError(ValueError):
    """A response body cannot be decompressed."""


class BoundedDecompressor:
    """Decompresses a response body piece by piece, up to a maximum size.

    Args:
        coding: Content-Encoding of the response.
        limit: Maximum size of the decompressed body in bytes.

    Attributes:
        body: The bytes that were decompressed so far, at most `limit` + 1.

    Raises:
        DecompressionError: The client did not request this content coding.
    """

    def __init__(self, coding: str, limit: int) -> None:
        coding = coding.strip().lower()
        if coding not in {"", "identity", "gzip", "x-gzip", "deflate"}:
            raise DecompressionError(
                f"the response has the content coding {coding[:80]!r}, which the client did not request"
            )
        self.body: bytearray = bytearray()
        self._limit = limit
        self._fed = False
        self._decompressor = None if coding in {"", "identity"} else zlib.decompressobj(_GZIP_OR_ZLIB)

    @property
    def too_large(self) -> bool:
        """Whether the decompressed body exceeds the maximum size."""
        return len(self.body) > self._limit

    def feed(self, data: bytes) -> None:
        """Decompress the next bytes of the body.

        Raises:
            DecompressionError: The bytes do not match the content coding.
        """
        self._fed = True
        if self._decompressor is None:
            self.body += data
            return
        try:
            self.body += self._decompressor.decompress(data, self._limit + 1 - len(self.body))
        except zlib.error as error:
            raise DecompressionError(f"the body does not match its content coding: {error}") from None
        # Refuse bytes after the end of the compressed data, because `unused_data` would keep them without any limit.
        if self._decompressor.unused_data:
            raise DecompressionError(
                "the body does not match its content coding: there are bytes after the end of the data"
            )

    def end(self) -> bytes:
        """Return the complete body.

        Raises:
            DecompressionError: The compressed data is truncated.
        """
        # Accept an empty body, because a response without a body may still have a Content-Encoding header.
        if self._decompressor is not None and self._fed and not self._decompressor.eof:
            raise DecompressionError("the body does not match its content coding: the data is truncated")
        return bytes(self.body)
