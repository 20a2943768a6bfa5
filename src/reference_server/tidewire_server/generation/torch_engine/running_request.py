"""State of a request in the engine (`RunningRequest`), which converts its sampled tokens to rows of the job's value."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from tidewire_server.generation.engine_interface import Delta, EngineError, InputTooExpensiveError
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine.beam_search import Searched
from tidewire_server.generation.torch_engine.delta_queue import DeltaQueue
from tidewire_server.generation.torch_engine.detokenizer import OutputText
from tidewire_server.generation.torch_engine.sampling.postprocess import Sampled
from tidewire_server.generation.torch_engine.sampling.score_columns import Values
from tidewire_server.generation.torch_engine.sampling.structured_output import Grammar
from tidewire_server.generation.torch_engine.step_runner import RunningSequence

logger = logging.getLogger(__name__)

INVALID_LOGITS = "the model's logits for the next token are invalid (NaN or infinity)"


@dataclass(eq=False, kw_only=True)
class RunningRequest(RunningSequence):
    """A request in the engine, with its text, and with the queue for delivering generated tokens to its reader."""

    input: Generate
    columns: list[str]
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
        names = self.input.prompt_columns
        rows: list[Sequence[Any]] = [[one[name] for name in names] for one in values]
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
