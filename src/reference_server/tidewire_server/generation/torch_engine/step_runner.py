"""Execution of one step on the device (`Runner`): a forward pass and its postprocessing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch

from tidewire_server.generation.torch_engine.models.attention import PrefillChunk, Step
from tidewire_server.generation.torch_engine.models.kv_cache import KVCache
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint
from tidewire_server.generation.torch_engine.sampling.encoded_values import Scoring, Values
from tidewire_server.generation.torch_engine.sampling.logits_processors import LogitsProcessor
from tidewire_server.generation.torch_engine.sampling.postprocess import (
    Sampled,
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


R = TypeVar("R", bound=RunningSequence)


class StepResult(NamedTuple, Generic[R]):
    """Output of one step."""

    sampled: list[Sampled]
    """Sampled tokens, in the order of the requests in `StepPlan.sampled`."""
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
        sampled = sample_and_score(logits[: len(requests)], requests) if requests else []
        prompts, row = [], len(requests)
        for part in step.prefill:
            if part.sequence.scores_prompt:
                rows = logits[row : row + part.scored]
                prompts.append((part.sequence, score_prompt(rows, part.sequence, part.start)))
                row += part.scored
        return StepResult(sampled, prompts)

    def clear(self, slot: int) -> None:
        """Set the keys and values of a slot to zero."""
        self._cache.clear(slot)

    def _forward(self, step: StepPlan[R]) -> torch.Tensor:
        """Run the model and return the logits, float32.

        The logits of the requests in `step.sampled` are followed by those of the prompt chunks that are scored.

        The model's input is a packed row of tokens. It begins with one token for each slot, up to the highest slot that
        decodes, followed by the prompt chunks.
        """
        by_slot = {run.slot: run for run in step.decode}
        decoding = 1 + max(by_slot, default=-1)
        tokens = [by_slot[slot].last if slot in by_slot else 0 for slot in range(decoding)]
        decode_positions = [by_slot[slot].length - 1 if slot in by_slot else None for slot in range(decoding)]
        positions = [position or 0 for position in decode_positions]
        wanted = [run.slot for run in step.decode]
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
