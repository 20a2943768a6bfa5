"""Incremental detokenizer (`OutputText`), which converts tokens to text and detects the end of the generation.

The detokenizer uses the vocabulary that `tokenizer_bytes` read when the model was loaded. It does not call the
tokenizer during a generation.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection
from copy import copy

from tidewire_server.generation.engine_interface import ContinuationError, FinishReason, LoggedTokens
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.stop_strings import StopStrings
from tidewire_server.generation.vocabulary import Vocabulary


class OutputText:
    """Text of one generation, and the reason why it ends.

    Args:
        request: The input.
        vocabulary: The bytes of each token.
        end_ids: Ids of the tokens that end a text.
    """

    def __init__(self, request: Generate, vocabulary: Vocabulary, end_ids: Collection[int]) -> None:
        self.vocabulary = vocabulary
        self._incomplete = b""
        self._stops = StopStrings(request.stops)
        self._end_ids = end_ids
        self._max_tokens = request.max_tokens
        self._count = 0

    def feed(self, token: int) -> tuple[str, FinishReason | None]:
        """Add a token.

        Returns:
            The text that the token adds, and the reason why the generation ends, or None if it continues. Text that may be a
            part of a stop string, and the bytes of an incomplete character, are held back until a later token completes them.
            At the end, the text that was held back is returned, without an incomplete character.
        """
        self._count += 1
        text = ""
        if token not in self.vocabulary.special:
            data = self._incomplete + self.vocabulary.bytes_of(token)
            decoded, size = codecs.utf_8_decode(data, "replace", False)
            self._incomplete = data[size:]
            text = self._stops.feed(decoded)
        finish: FinishReason | None = None
        if token in self._end_ids or self._stops.stopped:
            finish = "stop"
        elif self._count == self._max_tokens:
            finish = "length"
        return text if finish is None else text + self._stops.flush(), finish

    def feed_again(self, logged: LoggedTokens, model: str) -> FinishReason | None:
        """Add the tokens of an earlier attempt, so that this object is in the same state as at the end of that attempt.

        Returns:
            The reason why the generation had already ended, or None if it had not.

        Raises:
            ContinuationError: This model cannot have generated the tokens.
        """
        finish, found = None, ""
        for token in logged.token_ids:
            if finish is not None or not 0 <= token < len(self.vocabulary):
                break
            text, finish = self.feed(token)
            found += text
        else:
            if found == logged.text:
                return finish
        raise ContinuationError(
            f"the text cannot be continued after the restart of the server, because its {len(logged.token_ids)} logged "
            f"token ids do not match its logged text; it was probably generated with another model than {model}"
        )

    def fork(self) -> OutputText:
        """Return an independent copy, for a second text that begins with the text so far."""
        fork = copy(self)
        fork._stops = copy(self._stops)
        return fork


def can_continue(
    request: Generate, logged: LoggedTokens, vocabulary: Vocabulary, end_ids: Collection[int]
) -> bool:
    """Return whether the logged tokens of an earlier attempt match its logged text; see `Engine.continues`."""
    try:
        OutputText(request, vocabulary, end_ids).feed_again(logged, "")
    except ContinuationError:
        return False
    return True
