"""Token ids to text, one incremental decoder per stream: whole characters only, held back before stop strings.

The tokenizer is not called while tokens are generated; `tokenizer_bytes` read its table when the model was loaded.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tidewire_server.generation.vocabulary import Vocabulary


class TextStream:
    """The text of one stream: whole characters only, and no part of a stop string.

    Args:
        vocabulary: what each token stands for.
        stops: strings that end the text; the one that is complete first wins.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str] = ()) -> None:
        self._vocabulary = vocabulary
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        """Text that could be the beginning of a stop string."""
        self.stopped = False

    def feed(self, token_id: int) -> str:
        """The text that this token makes certain; sets `stopped` where a stop string is complete."""
        if token_id in self._vocabulary.special:
            return ""
        text = self._decoder.decode(self._vocabulary.bytes_of(token_id))
        if not self._stops:
            return text
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        held = self._overlap(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """The held text, once no stop string can follow. Bytes of an unfinished character are left out."""
        text, self._held = self._held, ""
        return text

    def _overlap(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
