"""Join characters that were split between two successive pieces of a text (`CharacterJoiner`)."""

from __future__ import annotations

import codecs
import re
from typing import Final

_HIGH_SURROGATE: Final = re.compile("[\ud800-\udbff]$")
_SURROGATES: Final = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""All surrogates except U+DC80 to U+DCFF, which the error handler `surrogateescape` uses for bytes."""


class CharacterJoiner:
    """Joins characters that were split into UTF-16 surrogates, or into bytes in the form of `surrogateescape`."""

    def __init__(self) -> None:
        self._pending = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def holds(self) -> bool:
        """Whether an incomplete character is held back."""
        return bool(self._pending or self._decoder.getstate()[0])

    def feed(self, text: str) -> str:
        """Add text, and return all complete characters."""
        data = (self._pending + text).encode("utf-16-le", "surrogatepass")
        # `surrogatepass` leaves a surrogate without its other half, which may be in the next piece.
        text = data.decode("utf-16-le", "surrogatepass")
        self._pending = text[-1:] if _HIGH_SURROGATE.search(text) else ""
        text = _SURROGATES.sub("\ufffd", text[: len(text) - len(self._pending)])
        return self._decoder.decode(text.encode("utf-8", "surrogateescape"))
