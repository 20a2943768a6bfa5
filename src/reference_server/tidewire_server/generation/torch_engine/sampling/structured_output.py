"""Structured output: restrict the tokens of a generation so that its text matches a JSON Schema.

The library llguidance compiles the schema to a grammar, and computes for each position which tokens may follow.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

from tidewire_server.generation.engine import InputError
from tidewire_server.generation.torch_engine.device_execution import to_device
from tidewire_server.generation.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_SCHEMA_CHARACTERS = 65_536
"""Maximum length of a JSON Schema as compact JSON. The library limits the size of the grammar and the effort of a step."""

LAYOUT: Final[JsonCompileOptions] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""Layout of the JSON document: one line, as `json.dumps` writes it. If any whitespace were allowed, small models would often
continue with whitespace until `max_tokens`."""


class Grammars:
    """Compiles JSON Schemas for one vocabulary.

    Args:
        vocabulary: The bytes of each token.
        size: Number of logits at each position.
        end_ids: Ids of the tokens that end a text. There must be at least one.
        tokenizer: Tokenizer of the model, which determines the tokens where the schema allows only one text.
    """

    def __init__(
        self, vocabulary: Vocabulary, size: int, end_ids: Collection[int], tokenizer: Tokenizer
    ) -> None:
        self._size = size
        self._tokens = LLTokenizer(
            TokenizerWrapper(_TokenBytes(vocabulary, size, end_ids, tokenizer)),
            n_vocab=size,
            eos_token=sorted(end_ids),
        )

    def compile(self, schema: Mapping[str, Any]) -> Grammar:
        """Compile a JSON Schema. The result belongs to one generation.

        Raises:
            InputError: The schema is not valid, or contains keywords that are not supported, or is too large.
        """
        text = json.dumps(schema, separators=(",", ":"))
        if len(text) > MAX_SCHEMA_CHARACTERS:
            raise InputError(
                f"json_schema has {len(text)} characters, but the limit is {MAX_SCHEMA_CHARACTERS}",
                member="json_schema",
            )
        matcher = LLMatcher(
            self._tokens,
            LLMatcher.grammar_from_json_schema(text, overrides=LAYOUT),
            log_level=0,
        )
        if matcher.is_error():
            reason = matcher.get_error().strip().split("\n", 1)[0]
            raise InputError(f"json_schema cannot be used: {reason}", member="json_schema")
        return Grammar(matcher, self._size)


class Grammar:
    """State of one generation within its grammar."""

    def __init__(self, matcher: LLMatcher, size: int) -> None:
        self._matcher = matcher
        self._size = size

    @property
    def error(self) -> str | None:
        """Reason why the generation cannot continue, for example because a step exceeds the limits of the library."""
        return self._matcher.get_error() if self._matcher.is_error() else None

    def mask(self, logits: torch.Tensor) -> None:
        """Set the logits of all tokens that cannot follow to minus infinity, [V], in place."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, count=self._size, bitorder="little").astype(bool)
        if not self._matcher.is_error():
            logits.masked_fill_(to_device(torch.from_numpy(~allowed), logits.device), -torch.inf)

    def advance(self, token: int) -> None:
        """Record a generated token."""
        self._matcher.consume_token(token)


class _TokenBytes:
    """Vocabulary in the form that llguidance expects."""

    bos_token_id = None

    def __init__(
        self, vocabulary: Vocabulary, size: int, end_ids: Collection[int], tokenizer: Tokenizer
    ) -> None:
        self.eos_token_id = min(end_ids)
        self.tokens = [vocabulary.bytes_of(i) if i < len(vocabulary) else b"" for i in range(size)]
        self.special_token_ids = sorted(i for i in vocabulary.special | set(end_ids) if i < size)
        self._tokenizer = tokenizer
        self._ids = {
            token: i for i, token in enumerate(self.tokens) if token and i not in self.special_token_ids
        }
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, data: bytes) -> list[int]:
        """Tokenize a text that the schema requires at this point, such as a property name."""
        text = data.decode("utf-8", "replace")
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        # Some tokenizers normalize a text, or add a space in front of it. Then choose the longest tokens.
        return ids if b"".join(self.tokens[i] for i in ids) == data else self._longest_tokens(data)

    def _longest_tokens(self, data: bytes) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(data):
            ends = range(min(len(data), at + self._longest), at, -1)
            end = next((end for end in ends if data[at:end] in self._ids), None)
            if end is None:
                return ids
            ids.append(self._ids[data[at:end]])
            at = end
        return ids
