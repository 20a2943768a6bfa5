"""Incremental detokenizer (`TextStream`), which converts tokens to text and detects stop strings.

The detokenizer uses the vocabulary that `tokenizer_bytes` read when the model was loaded. It does not call the
tokenizer during a generation.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tidewire_server.generation.vocabulary import Vocabulary


class TextStream:
    """Incremental detokenizer for one generation. It returns only complete characters, and no part of a stop string.

    Args:
        vocabulary: The bytes of each token.
        stops: Stop strings. The text ends before the first stop string that is complete.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str] = ()) -> None:
        self._vocabulary = vocabulary
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        """Text that is held back because it may be the beginning of a stop string."""
        self.stopped = False

    def feed(self, token_id: int) -> str:
        """Add a token, and return the text that later tokens can no longer change. If a stop string is complete, set
        `stopped`.
        """
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
        """End the generation, and return the text that was held back. An incomplete character is dropped."""
        text, self._held = self._held, ""
        return text

    def fork(self) -> TextStream:
        """Return a copy, so that two texts continue this one."""
        copy = TextStream(self._vocabulary, self._stops)
        copy._decoder.setstate(self._decoder.getstate())
        copy._held, copy.stopped = self._held, self.stopped
        return copy

    def _overlap(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that is a prefix of a stop string."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
