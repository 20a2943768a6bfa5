"""Incremental detokenizer (`TextStream`), which converts tokens to text and detects stop strings.

The detokenizer uses the vocabulary that `tokenizer_bytes` read when the model was loaded. It does not call the
tokenizer during a generation.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tidewire_server.generation.stop_strings import StopStrings
from tidewire_server.generation.vocabulary import Vocabulary


class TextStream:
    """Converts the tokens of one generation to text. It returns only complete characters, and no part of a stop string.

    Args:
        vocabulary: The bytes of each token.
        stops: Stop strings. The text ends before the first stop string that is complete.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str] = ()) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopStrings(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self._stops.stopped

    def feed(self, token_id: int) -> str:
        """Add a token, and return the text that later tokens can no longer change."""
        if token_id in self._vocabulary.special:
            return ""
        return self._stops.feed(self._decoder.decode(self._vocabulary.bytes_of(token_id)))

    def flush(self) -> str:
        """End the generation, and return the text that was held back. An incomplete character is dropped."""
        return self._stops.flush()

    def fork(self) -> TextStream:
        """Return an independent copy, for a second text that begins with the text so far."""
        copy = TextStream(self._vocabulary)
        copy._decoder.setstate(self._decoder.getstate())
        copy._stops = self._stops.fork()
        return copy
