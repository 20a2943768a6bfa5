"""Structured output: restrict the tokens of a generation so that its text matches a JSON Schema.

The library llguidance compiles the schema to a grammar. At each position, it computes which tokens may follow. It runs in the
process of the server, so `SchemaLimits` and `LIBRARY_LIMITS` limit its work.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

from tidewire_server.generation.check_schema_limits import check_schema
from tidewire_server.generation.engine_interface import InputError
from tidewire_server.generation.schema_limits import DEFAULT_LIMITS, LimitCounts, SchemaLimits
from tidewire_server.generation.torch_engine.device_execution import to_device
from tidewire_server.generation.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

LIBRARY_LIMITS: Final = LLParserLimits(
    initial_lexer_fuel=100_000,
    step_lexer_fuel=15_000,
    step_max_items=1_000,
    max_items_in_row=2_000,
    max_lexer_states=10_000,
    max_grammar_size=20_000,
    precompute_large_lexemes=True,
    verbose_errors=False,
)
"""Limits that the library enforces on the work of compiling, on the work of one mask, and on the states that a generation
keeps. They are at most a tenth of the library's defaults. Without `precompute_large_lexemes`, the search for the first bytes
of a text would have no limit."""

MIN_SHARED_STEPS: Final = 16
"""`max_mask_share` applies to a request after it has shared this number of steps with other requests. The first masks take
longest, and must not make the request fail by themselves."""

LAYOUT: Final[JsonCompileOptions] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""Layout of the JSON document: one line, as `json.dumps` writes it. If any whitespace were allowed, small models would often
continue with whitespace until `max_tokens`."""

CONTROL_CHARACTER: Final = re.compile(r"\\u00[01]|\\u007f|\\x[01]|\\x7f|\\[vac]|\x7f", re.IGNORECASE)
"""Matches a control character, or an escaped one, in the JSON of a schema. Such a schema may require other escapes than
`PLAIN_ESCAPES` in the text."""

PLAIN_ESCAPES: Final = 'bfnrt"\\'
"""Characters that may follow a backslash in the text, unless the schema needs others. If `\\u0061` were allowed, the model
could write the property name `a` in this form. The library would treat it as an additional property with another schema."""

_EXPLANATIONS: Final = {
    "NoExtensionBias": "no JSON text satisfies the schema, for example because a `$ref` refers to itself",
}
"""Name of an error of the library → explanation that replaces the library's message."""


def _one_line(error: str) -> str:
    """Return the first line of the library's error message. If it is only a heading, also return the last line."""
    first, *others = [line.strip() for line in error.strip().split("\n")]
    return f"{first} {others[-1]}" if first.endswith(":") and others else first


class Grammars:
    """Compiles JSON Schemas for one vocabulary.

    Args:
        vocabulary: The bytes of each token.
        size: Number of logits at each position.
        end_ids: Ids of the tokens that end a text. There must be at least one.
        tokenizer: Tokenizer of the model. At some positions, the schema allows only one text, which the tokenizer then splits
            into tokens.
        limits: Limits on the schemas.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        size: int,
        end_ids: Collection[int],
        tokenizer: Tokenizer,
        limits: SchemaLimits = DEFAULT_LIMITS,
    ) -> None:
        self._size = size
        self._limits = limits
        self._tokens = LLTokenizer(
            TokenizerWrapper(_TokenBytes(vocabulary, size, end_ids, tokenizer)),
            n_vocab=size,
            eos_token=sorted(end_ids),
        )

    def compile(self, schema: Mapping[str, Any]) -> Grammar:
        """Compile a JSON Schema. Use the result for one generation only.

        Raises:
            InputError: The schema is not valid, or contains keywords that are not supported, or exceeds a limit.
        """
        text = check_schema(schema, LimitCounts(self._limits))
        options: JsonCompileOptions = {**LAYOUT}
        if not CONTROL_CHARACTER.search(text):
            options["json_allowed_escapes"] = PLAIN_ESCAPES
        matcher = LLMatcher(
            self._tokens,
            LLMatcher.grammar_from_json_schema(text, overrides=options),
            log_level=0,
            limits=LIBRARY_LIMITS,
        )
        grammar = Grammar(matcher, self._size)
        if (reason := grammar.error) is not None:
            reason = _EXPLANATIONS.get(reason, reason)
            raise InputError(f"json_schema cannot be used: {reason}", member="json_schema")
        return grammar


class Grammar:
    """Position of one generation in its grammar, which determines the tokens that may follow.

    The constructor computes the mask of the first token, which takes longer than most others.
    """

    def __init__(self, matcher: LLMatcher, size: int) -> None:
        self._matcher = matcher
        self._size = size
        # Remaining tokens of a text that the grammar requires. The text is tokenized once, and its tokens need no masks.
        self._forced: deque[int] = deque()
        # CPU time of the last mask, and of recording the token after it.
        self._seconds = 0.0
        self._shared_steps = 0
        self._shared_seconds = self._mask_seconds = 0.0
        self._refusal: str | None = None
        self._allowed = None if matcher.is_error() else self._compute()

    @property
    def error(self) -> str | None:
        """Reason why the generation cannot continue, for example because a step exceeds the limits of the library."""
        if self._matcher.is_error():
            return _one_line(self._matcher.get_error())
        return self._refusal

    def mask(self, logits: torch.Tensor) -> None:
        """Set the logits of all tokens that cannot follow to minus infinity, [V], in place."""
        allowed = self.allowed()
        if not self._matcher.is_error():
            logits.masked_fill_(to_device(torch.from_numpy(~allowed), logits.device), -torch.inf)

    def allowed(self) -> np.ndarray:
        """Return which tokens can follow, [V]. If this call sets `error`, the result has no meaning."""
        begun = time.thread_time()
        if self._allowed is None:
            self._allowed = self._compute()
        self._seconds = time.thread_time() - begun
        return self._allowed

    def _compute(self) -> np.ndarray:
        if not self._forced:
            self._forced.extend(self._matcher.compute_ff_tokens())
        if self._forced:
            allowed = np.zeros(self._size, dtype=bool)
            allowed[self._forced[0]] = True
            return allowed
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, count=self._size, bitorder="little").astype(bool)

    def advance(self, token: int) -> None:
        """Record a generated token."""
        begun = time.thread_time()
        self._allowed = None
        if self._forced and self._forced.popleft() != token:
            self._forced.clear()
        self._matcher.consume_token(token)
        self._seconds += time.thread_time() - begun

    def charge(self, seconds: float, max_share: float) -> None:
        """Record the duration of a step that the request shared with other requests. Set `error` if the masks of this request
        took more than the fraction `max_share` of the time of all such steps.

        The time of masks is measured as CPU time, so that no request fails because the machine is busy.
        """
        self._shared_steps += 1
        self._shared_seconds += seconds
        self._mask_seconds += self._seconds
        if self._shared_steps >= MIN_SHARED_STEPS and self._mask_seconds > max_share * self._shared_seconds:
            self._refusal = (
                f"its masks took {self._mask_seconds / self._shared_seconds:.0%} of the {self._shared_steps} steps that "
                f"it shared with other requests, but at most {max_share:.0%} is allowed (max_mask_share); use a simpler schema"
            )


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
        # Some tokenizers normalize a text, or add a space in front of it. In this case, choose the longest matching tokens.
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
