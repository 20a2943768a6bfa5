"""Vocabulary of a model: an immutable table from token ids to bytes (`Vocabulary`)."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Sequence
from functools import cached_property

from pydantic import JsonValue


class Vocabulary:
    """Immutable table from token ids to bytes.

    Args:
        tokens: Bytes of each token, indexed by id. Empty for ids that the tokenizer does not use.
        special: Ids of special tokens, which add nothing to a text. Their bytes are their names, for display.
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
        """Return the text of a single token, for display. Incomplete characters become U+FFFD."""
        return self._texts[token_id]

    @cached_property
    def longest(self) -> int:
        """Length of the longest token in bytes, at least 1."""
        return max(1, *map(len, self._tokens)) if self._tokens else 1

    @cached_property
    def hash(self) -> str:
        """Content hash: SHA-256 over the tokens and special ids, as 64 hex digits."""
        tokens = [base64.b64encode(token).decode() for token in self._tokens]
        return hashlib.sha256(json.dumps([tokens, sorted(self.special)]).encode()).hexdigest()

    def body(self) -> dict[str, JsonValue]:
        """Return the vocabulary as JSON: its `hash`, the base64 of each token's bytes (`tokens`), and the `special` ids."""
        tokens: list[JsonValue] = [base64.b64encode(token).decode() for token in self._tokens]
        special: list[JsonValue] = [*sorted(self.special)]
        return {"hash": self.hash, "tokens": tokens, "special": special}

    @cached_property
    def _texts(self) -> list[str]:
        return [token.decode("utf-8", "replace") for token in self._tokens]
