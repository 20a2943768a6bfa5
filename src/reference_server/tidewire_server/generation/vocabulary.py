"""Which bytes each token stands for: read once from the tokenizer, then only looked up."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Sequence
from functools import cached_property

from pydantic import JsonValue


class Vocabulary:
    """An immutable table id → bytes.

    Args:
        tokens: the bytes of each id; empty for an id that the tokenizer does not know.
        special: ids that add nothing to a text. Their bytes are their name, for display.
    """

    def __init__(self, tokens: Sequence[bytes], special: Collection[int] = ()) -> None:
        self._tokens = tuple(tokens)
        self.special = frozenset(special)

    def __len__(self) -> int:
        return len(self._tokens)

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of a token. They need not be whole characters."""
        return self._tokens[token_id]

    def text_of(self, token_id: int) -> str:
        """A token by itself, for display: bytes that are no whole character show as U+FFFD."""
        return self._texts[token_id]

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token; at least 1."""
        return max(1, *map(len, self._tokens)) if self._tokens else 1

    @cached_property
    def hash(self) -> str:
        """Names the content: SHA-256 over tokens and special ids, 64 hex digits."""
        tokens = [base64.b64encode(token).decode() for token in self._tokens]
        return hashlib.sha256(json.dumps([tokens, sorted(self.special)]).encode()).hexdigest()

    def body(self) -> dict[str, JsonValue]:
        """The vocabulary as JSON: `hash`; `tokens`, base64 of the bytes of each id in order; `special`, ids."""
        tokens: list[JsonValue] = [base64.b64encode(token).decode() for token in self._tokens]
        special: list[JsonValue] = [*sorted(self.special)]
        return {"hash": self.hash, "tokens": tokens, "special": special}

    @cached_property
    def _texts(self) -> list[str]:
        return [token.decode("utf-8", "replace") for token in self._tokens]
