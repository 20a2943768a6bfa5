"""State of a request in the engine (`RunningRequest`), which converts its sampled tokens to rows of the job's value."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import orjson

from tidewire_server.generation.engine_interface import (
    ContinuationError,
    Delta,
    EngineError,
    FinishReason,
    InputTooExpensiveError,
    LoggedTokens,
)
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine.beam_search import Searched
from tidewire_server.generation.torch_engine.delta_queue import DeltaQueue
from tidewire_server.generation.torch_engine.detokenizer import TextStream
from tidewire_server.generation.torch_engine.sampling.postprocess import Sampled
from tidewire_server.generation.torch_engine.sampling.score_columns import Values
from tidewire_server.generation.torch_engine.sampling.structured_output import Grammar
from tidewire_server.generation.torch_engine.step_runner import RunningSequence
from tidewire_server.generation.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

INVALID_LOGITS = "the model's logits for the next token are invalid (NaN or infinity)"


class OutputText:
    """Text of one generation, and the reason why it ends.

    Args:
        request: The input.
        vocabulary: The bytes of each token.
        end_ids: Ids of the tokens that end a text.
    """

    def __init__(self, request: Generate, vocabulary: Vocabulary, end_ids: Collection[int]) -> None:
        self._stream = TextStream(vocabulary, request.stops)
        self.vocabulary = vocabulary
        self._end_ids = end_ids
        self._max_tokens = request.max_tokens
        self._count = 0

    def feed(self, token: int) -> tuple[str, FinishReason | None]:
        """Add a token. Return the text that it adds, and the reason why the generation ends, or None if it continues."""
        self._count += 1
        text = self._stream.feed(token)
        finish: FinishReason | None = None
        if token in self._end_ids or self._stream.stopped:
            finish = "stop"
        elif self._count == self._max_tokens:
            finish = "length"
        return text if finish is None else text + self._stream.flush(), finish

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
        fork._stream = self._stream.fork()
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


@dataclass(eq=False, kw_only=True)
class RunningRequest(RunningSequence):
    """A request in the engine, with its text, and with the queue for delivering generated tokens to its reader."""

    input: Generate
    columns: list[str]
    prompt_columns: list[str]
    text: OutputText
    grammar: Grammar | None = None
    continued: int = 0
    """Number of tokens at the end of `prompt` that an earlier attempt of the request had generated."""
    loop: asyncio.AbstractEventLoop
    deltas: DeltaQueue = field(default_factory=DeltaQueue)

    def delta(self, result: Sampled | Searched) -> Delta | EngineError:
        """Build the rows for the result of a step. If this fails, return the error that ends the request."""
        try:
            return self._delta(result) if isinstance(result, Sampled) else self._search_delta(result)
        except Exception as error:
            logger.exception("the result of a request cannot be built")
            return EngineError(f"the engine failed after a step of this request ({type(error).__name__})")

    def prompt_delta(self, values: list[Values] | None) -> Delta | EngineError:
        """Build the rows for a part of the prompt. `values` is None if the logits are invalid."""
        if values is None:
            return EngineError(INVALID_LOGITS)
        rows: list[Sequence[Any]] = [[one[name] for name in self.prompt_columns] for one in values]
        return Delta(prompt_rows=rows, prompt_tokens=len(self.prompt) - self.continued)

    def _delta(self, sampled: Sampled) -> Delta | EngineError:
        if not sampled.is_number:
            return EngineError(INVALID_LOGITS)
        token = sampled.token
        text, finish = self.text.feed(token)
        if self.grammar is not None:
            self.grammar.advance(token)
            if (reason := self.grammar.error) is not None:
                return InputTooExpensiveError(
                    f"the text cannot be continued so that it matches json_schema: {reason}"
                )
        row = self._row(token, text, sampled.values)
        return Delta([row], [], finish, len(self.prompt) - self.continued)

    def _search_delta(self, searched: Searched) -> Delta | EngineError:
        if (progress := searched.progress) is None:
            return EngineError(INVALID_LOGITS)
        rows = [self._row(token.id, token.text, token.values) for token in progress.added]
        return Delta(rows, [], progress.reason, len(self.prompt), progress.retracted, progress.stable)

    def _row(self, token: int, text: str, values: Values) -> Sequence[Any]:
        """Build the row of a token. All elements except the text are JSON.

        Args:
            token: Id of the token.
            text: Text that the token adds.
            values: Elements of the columns that depend on the logits.
        """
        names = self.columns
        if len(names) == 1:
            return (text,)
        values = {**values, "text": text, "token_ids": b"%d" % token}
        if self.input.token_text:
            text_of = self.text.vocabulary.text_of
            values["token_text"] = orjson.dumps(text_of(token))
            values["top_text"] = orjson.dumps([*map(text_of, orjson.loads(values.get("top_ids", b"[]")))])
        return [values[name] for name in names]
