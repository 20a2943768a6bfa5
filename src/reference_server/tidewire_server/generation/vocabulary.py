"""The vocabulary of a model (`Vocabulary`), an immutable table that maps token ids to bytes."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

from pydantic import JsonValue


class Vocabulary:
    """Immutable table that maps token ids to bytes.

    Args:
        tokens: Bytes of each token, indexed by id. An id that the tokenizer does not use has empty bytes.
        special: Ids of special tokens, such as end-of-text, which add nothing to a text. The bytes of a special token are
            its name, for display.
    """

    def __init__(self, tokens: Sequence[bytes], special: Collection[int] = ()) -> None:
        self._tokens = tuple(tokens)
        self.special = frozenset(special)

    def __len__(self) -> int:
        return len(self._tokens)

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token, which may begin or end within a UTF-8 character."""
        return self._tokens[token_id]

    def text_of(self, token_id: int) -> str:
        """Return the text of a single token for display. Incomplete UTF-8 characters are replaced by U+FFFD."""
        return self._tokens[token_id].decode("utf-8", "replace")

    def text_of_all(self, token_ids: Iterable[int]) -> str:
        """Return the text of consecutive tokens without special tokens. Incomplete UTF-8 characters are replaced by U+FFFD."""
        known = (each for each in token_ids if each < len(self._tokens) and each not in self.special)
        return b"".join([self._tokens[each] for each in known]).decode("utf-8", "replace")

    @cached_property
    def longest(self) -> int:
        """Length of the longest token in bytes, at least 1."""
        return max(1, *map(len, self._tokens)) if self._tokens else 1

    def body(self) -> dict[str, JsonValue]:
        """Return the vocabulary as a JSON object with the members `hash`, `tokens` and `special`.

        `tokens` contains the base64 of each token's bytes, and `special` the ids of the special tokens. `hash` is the SHA-256 of
        both, as 64 hex digits.
        """
        tokens: list[JsonValue] = [base64.b64encode(token).decode() for token in self._tokens]
        special: list[JsonValue] = [*sorted(self.special)]
        digest = hashlib.sha256(json.dumps([tokens, special]).encode()).hexdigest()
        return {"hash": digest, "tokens": tokens, "special": special}
