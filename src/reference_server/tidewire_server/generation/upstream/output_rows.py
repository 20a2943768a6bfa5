"""Blocks of the endpoint from the chunks of an engine (`OutputRows`): rows with the requested columns, without stop strings."""

from __future__ import annotations

import math
from typing import Any, Final

import orjson

from tidewire_server.generation.engine_interface import Delta, FinishReason, TokenUsage
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.stop_strings import StopStrings
from tidewire_server.generation.upstream.stream_chunks import (
    Chunk,
    InvalidAnswerError,
    LostAnswerError,
    ScoredToken,
)
from tidewire_server.generation.vocabulary import Vocabulary

FINISH_REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
}
"""Reasons of engines, and the reasons of the endpoint."""
LOST_REASONS: Final = frozenset({"abort", "error", "cancelled"})
"""Reasons that mean that the engine has failed."""
NO_PROBABILITY: Final = -9999.0
"""Number that vLLM sends instead of minus infinity."""
ROUNDING: Final = 1e-3
"""Number by which a log-probability may exceed 0 or the last alternative because of rounding."""


class OutputRows:
    """Converts the chunks of one answer.

    Args:
        request: The input.
        vocabulary: Bytes of each token, or None if they are not known. Columns with token ids require it.
        base: Numbers of tokens of the text after which this answer continues, or None.
    """

    def __init__(
        self, request: Generate, vocabulary: Vocabulary | None, base: TokenUsage | None = None
    ) -> None:
        self._request = request
        self._columns = request.columns
        self._vocabulary = vocabulary
        self._base = base
        self._stops = StopStrings(request.stops)
        self._rows = 0
        self._usage: TokenUsage | None = None
        self.finish_reason: FinishReason | None = None
        """Reason why the answer has ended. Afterwards, only the numbers of tokens are read."""

    def feed(self, chunk: Chunk) -> Delta:
        """Convert a chunk.

        Raises:
            InvalidAnswerError: The chunk has contents that must not be passed on.
            LostAnswerError: The engine reports that it has failed.
        """
        if chunk.usage is not None:
            self._usage = chunk.usage
        delta = Delta(usage=self._total() if chunk.usage is not None else None)
        if self.finish_reason is not None:
            return delta
        text = self._stops.feed(chunk.text)
        if self._stops.stopped:
            self.finish_reason = "stop"
        elif chunk.finish_reason is not None:
            self.finish_reason = self._finish(chunk.finish_reason)
            text += self._stops.flush()
        delta.reasoning = chunk.reasoning
        if len(self._columns) == 1:
            delta.rows = [(text,)] if text else []
        else:
            self._add_rows(delta, chunk, text)
        return delta

    def end(self, *, done: bool) -> Delta:
        """Return the last block.

        Args:
            done: Whether the engine has sent `[DONE]`.

        Raises:
            InvalidAnswerError: Requested log-probabilities are missing.
            LostAnswerError: The answer is not complete.
        """
        delta = Delta(usage=self._total())
        if self.finish_reason is None:
            if not done:
                raise LostAnswerError("the answer ended without a finish reason")
            delta.text_after = self._stops.flush()
            used = 0 if delta.usage is None else delta.usage.completion_tokens
            most = self._request.max_tokens
            self.finish_reason = "length" if most is not None and used >= most else "stop"
        delta.finish_reason = self.finish_reason
        # An end-of-text token may have no log-probability.
        missing = (0 if self._usage is None else self._usage.completion_tokens) - self._rows
        if len(self._columns) > 1 and missing > 1 and not self._stops.stopped:
            raise InvalidAnswerError(
                f"the engine left out the log-probabilities of {missing} of its tokens; request the text without them"
            )
        return delta

    def _total(self) -> TokenUsage | None:
        if self._usage is None or self._base is None:
            return self._usage
        generated = self._base.completion_tokens + self._usage.completion_tokens
        return TokenUsage(self._base.prompt_tokens, generated)

    def _finish(self, reason: str) -> FinishReason:
        if reason in LOST_REASONS:
            raise LostAnswerError(f"the engine ended the answer with the reason {reason}")
        if reason not in FINISH_REASONS:
            raise InvalidAnswerError(f"the engine ended the answer with the reason {reason[:80]!r}")
        return FINISH_REASONS[reason]

    def _add_rows(self, delta: Delta, chunk: Chunk, text: str) -> None:
        scored = chunk.scored or []
        if chunk.text and not scored and chunk.finish_reason is None:
            raise InvalidAnswerError(
                "the engine sent no log-probabilities, although they were requested; request the text without them"
            )
        self._rows += len(scored)
        # The text of a chunk belongs to all of its tokens, and is complete after the last one.
        delta.rows = [self._row("", each) for each in scored[:-1]]
        if scored:
            delta.rows.append(self._row(text, scored[-1]))
        else:
            delta.text_after = text

    def _row(self, text: str, scored: ScoredToken) -> tuple[Any, ...]:
        values: dict[str, Any] = {"token_ids": scored.id, "logprobs": self._rounded(scored.logprob)}
        if "top_ids" in self._columns:
            top = self._top(scored)
            values |= {"top_ids": [key for key, _ in top]}
            values["top_logprobs"] = [self._rounded(value) for _, value in top]
        if "token_text" in self._columns:
            values |= {"token_text": self._text_of(scored.id)}
            values["top_text"] = [self._text_of(key) for key in values.get("top_ids", ())]
        return (text, *(orjson.dumps(values[name]) for name in self._columns[1:]))

    def _text_of(self, token_id: int) -> str:
        if self._vocabulary is None or token_id >= len(self._vocabulary):
            raise InvalidAnswerError(
                f"the engine sent the token id {token_id}, which is not in the tokenizer's vocabulary"
            )
        return self._vocabulary.text_of(token_id)

    def _rounded(self, value: float | None) -> float | None:
        if value is None or value <= NO_PROBABILITY:
            return None
        if not value <= ROUNDING or math.isinf(value):
            raise InvalidAnswerError(f"the engine sent the log-probability {value}, which is not below 0")
        return min(0.0, round(value, self._request.logprob_decimals)) + 0.0

    def _top(self, scored: ScoredToken) -> list[tuple[int, float | None]]:
        """Return the requested number of alternatives in the order of the specification."""
        wanted = self._request.top_logprobs
        if self._vocabulary is not None:
            wanted = min(wanted, len(self._vocabulary))
        known = {
            key: -math.inf if value is None or value <= NO_PROBABILITY else value for key, value in scored.top
        }
        if len(known) < len(scored.top) or len(known) < wanted:
            raise InvalidAnswerError(
                f"the engine sent {len(known)} alternatives, although top_logprobs is {self._request.top_logprobs}"
            )
        ordered = sorted(known.items(), key=lambda each: (-each[1], each[0]))[:wanted]
        chosen = -math.inf if scored.logprob is None else scored.logprob
        # Some versions of engines repeat the alternatives of another position.
        if scored.id not in dict(ordered) and chosen > ordered[-1][1] + ROUNDING:
            raise InvalidAnswerError(
                "the engine sent alternatives that do not belong to the chosen token, which is more probable than the last "
                "of them; request the text without them"
            )
        return [(key, None if value == -math.inf else value) for key, value in ordered]


class CatchUp:
    """Holds back the answer of a request that runs again, until it goes beyond the text of the lost answer or differs.

    Readers therefore see no change as long as the two are equal. The first block that is returned replaces everything.

    Args:
        text: Text of the lost answer that is generated again.
        reasoning: Its reasoning.
        kept: Text before it, after which the engine continues.
    """

    def __init__(self, text: str, reasoning: str, kept: str = "") -> None:
        self._old = (reasoning, text)
        self._found: Delta | None = Delta([(kept,)] if kept else [], replaces=True)
        self._new = ["", ""]

    def feed(self, delta: Delta) -> Delta | None:
        """Add a block, and return the block that the endpoint writes, or None if it is held back."""
        if self._found is None:
            return delta
        self._found.extend(delta)
        self._new[0] += delta.reasoning
        self._new[1] += "".join([row[0] for row in delta.rows]) + delta.text_after
        pairs = [*zip(self._old, self._new, strict=True)]
        held = all(old.startswith(new) for old, new in pairs) and any(old != new for old, new in pairs)
        if held and delta.finish_reason is None:
            return None
        found, self._found = self._found, None
        return found
