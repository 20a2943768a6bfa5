"""The body of an answer that is no stream, unpacked: a gateway may have packed it with gzip. No I/O.

A few bytes may stand for any number, and all the more where they were packed several times over. So no more is
unpacked than is allowed, and what was packed twice, or in a way that was not asked for, is refused.
"""

import zlib
from typing import Final

CODING: Final = "gzip"
"""What is asked for."""

_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


class DecompressionError(ValueError):
    """What came cannot be unpacked."""


class BoundedDecompressor:
    """See the top of this file.

    Args:
        coding: The answer's Content-Encoding.
        most: Bytes of the body, at most; when there are more, it is given up.

    Attributes:
        body: What was unpacked, up to one byte more than `most`.

    Raises:
        DecompressionError: It is no coding that was asked for.
    """

    def __init__(self, coding: str, most: int) -> None:
        coding = coding.strip().lower()
        if coding not in {"", "identity", "gzip", "x-gzip", "deflate"}:
            raise DecompressionError(
                f"a body with the content coding {coding[:80]!r}, which was not asked for"
            )
        self.body: bytearray = bytearray()
        self._most = most
        self._came = False
        self._packed = None if coding in {"", "identity"} else zlib.decompressobj(_GZIP_OR_ZLIB)

    @property
    def too_long(self) -> bool:
        """Whether there are more bytes than are allowed."""
        return len(self.body) > self._most

    def feed(self, data: bytes) -> None:
        """Take what has come.

        Raises:
            DecompressionError: It is not what its coding says.
        """
        self._came = True
        if self._packed is None:
            self.body += data
            return
        try:
            self.body += self._packed.decompress(data, self._most + 1 - len(self.body))
        except zlib.error as error:
            raise DecompressionError(f"a body that is not what its content coding says: {error}") from None
        # What comes behind its end is kept there, and is counted by nobody.
        if self._packed.unused_data:
            raise DecompressionError(
                "a body that is not what its content coding says: it goes on behind its end"
            )

    def end(self) -> bytes:
        """The whole body.

        Raises:
            DecompressionError: Its end is missing.
        """
        # An answer without a body may name a coding all the same.
        if self._packed is not None and self._came and not self._packed.eof:
            raise DecompressionError("a body that is not what its content coding says: its end is missing")
        return bytes(self.body)
