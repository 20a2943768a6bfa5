"""Execution of one step on the device (`Runner`): a forward pass and its postprocessing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch

from tidewire_server.generation.torch_engine.beam_search import BeamSearch, Searched, SearchStep
from tidewire_server.generation.torch_engine.models.attention import PrefillChunk, Step
from tidewire_server.generation.torch_engine.models.kv_cache import KVCache
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint
from tidewire_server.generation.torch_engine.sampling.logits_processors import LogitsProcessor
from tidewire_server.generation.torch_engine.sampling.postprocess import (
    Sampled,
    Scoring,
    Values,
    sample_and_score,
    score_prompt,
)
from tidewire_server.generation.torch_engine.sampling.sampler import Sampling
from tidewire_server.generation.torch_engine.step_scheduler import Sequence, StepPlan


@dataclass(eq=False, kw_only=True)
class RunningSequence(Sequence):
    """A scheduled request, with its sampling parameters and the log-probabilities that it asks for."""

    sampling: Sampling
    scoring: Scoring | None = None
    """Log-probabilities to compute, or None if the request asks for none."""
    processor: LogitsProcessor | None = None
    """Bias, penalties and grammar, or None if the request has none."""
    search: BeamSearch | None = None
    """State of the beam search, or None if the request samples its tokens."""

    @property
    def last_tokens(self) -> dict[int, int]:
        if self.search is None:
            return {self.slot: self.last}
        return {self.slots[hypothesis.slot]: hypothesis.last.id for hypothesis in self.search.live}


R = TypeVar("R", bound=RunningSequence)


class StepResult(NamedTuple, Generic[R]):
    """Output of one step."""

    sampled: list[Sampled | Searched]
    """Sampled tokens, or the progress of beam searches, in the order of the requests in `StepPlan.sampled`."""
    prompts: list[tuple[R, list[Values] | None]]
    """Requests of whose prompts the step scored a part, with the columns of its tokens. None if the logits are invalid."""


class Runner:
    """Executes the steps of the engine with one model and one key-value cache."""

    def __init__(self, checkpoint: Checkpoint, cache: KVCache) -> None:
        self._model = checkpoint.model
        self._device = checkpoint.device
        self._cache = cache

    @torch.inference_mode()
    def run(self, step: StepPlan[R]) -> StepResult[R]:
        """Execute one step: the forward pass, and the postprocessing of its logits."""
        logits = self._forward(step)
        requests = step.sampled
        counts = [len(request.last_tokens) if request.decodes else 1 for request in requests]
        prompts, row = [], sum(counts)
        sampling = logits[:row]
        for part in step.prefill:
            if part.sequence.scores_prompt:
                rows = logits[row : row + part.scored]
                prompts.append((part.sequence, score_prompt(rows, part.sequence, part.start)))
                row += part.scored
        # This is last, because it changes the state of requests. A step that fails before it can be repeated.
        sampled = self._postprocess(sampling, requests, counts)
        return StepResult(sampled, prompts)

    def clear(self, slot: int) -> None:
        """Set the keys and values of a slot to zero."""
        self._cache.clear(slot)

    def _postprocess(
        self, logits: torch.Tensor, requests: list[R], counts: list[int]
    ) -> list[Sampled | Searched]:
        """Sample the tokens, and advance the beam searches.

        Args:
            logits: Logits of all hypotheses of the requests, [sum of `counts`, V].
            requests: The requests.
            counts: Number of hypotheses of each request.
        """
        if all(request.search is None for request in requests):
            return [*sample_and_score(logits, requests)] if requests else []
        rows = list(zip(requests, torch.split(logits, counts), strict=True))
        step = SearchStep(
            [(request, part) for request, part in rows if request.search is not None], self._cache
        )
        plain = [request for request in requests if request.search is None]
        sampled: list[Sampled] = []
        if plain:
            parts = torch.cat([part for request, part in rows if request.search is None])
            sampled = sample_and_score(parts, plain)
        # From here on, nothing fails. A step that fails is repeated, so it must not have changed a search.
        tokens, searched = iter(sampled), iter(step.commit())
        return [next(tokens) if request.search is None else next(searched) for request in requests]

    def _forward(self, step: StepPlan[R]) -> torch.Tensor:
        """Run the model and return the logits, float32.

        The logits of the requests in `step.sampled` are followed by those of the prompt chunks that are scored.

        A request has the logits of each of its hypotheses. The model's input is a packed row of tokens. It begins with one
        token for each slot, up to the highest slot that decodes, followed by the prompt chunks.
        """
        last_tokens, ends = dict[int, int](), dict[int, int]()
        for run in step.decode:
            last_tokens |= run.last_tokens
            ends |= dict.fromkeys(run.last_tokens, run.length - 1)
        wanted = [*last_tokens]
        slots = range(1 + max(last_tokens, default=-1))
        tokens = [last_tokens.get(slot, 0) for slot in slots]
        decode_positions = [ends.get(slot) for slot in slots]
        positions = [position or 0 for position in decode_positions]
        chunks = []
        for part in step.prefill:
            chunks.append(PrefillChunk(part.sequence.slot, len(tokens), part.start, part.end))
            tokens.extend(part.sequence.prompt[part.start : part.end])
            positions.extend(range(part.start, part.end))
            if part.completes:
                wanted.append(len(tokens) - 1)
        for part, chunk in zip(step.prefill, chunks, strict=True):
            wanted.extend(range(chunk.row, chunk.row + part.scored))
        logits = self._model(
            tokens=torch.tensor(tokens, device=self._device),
            positions=torch.tensor(positions, device=self._device),
            wanted=torch.tensor(wanted, dtype=torch.int64, device=self._device),
            context=Step(self._cache, decode_positions, chunks),
        )
        return logits.float()
