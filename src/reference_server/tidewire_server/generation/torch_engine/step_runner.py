"""Execution of one step on the device (`Runner`). A step consists of a forward pass, sampling, and log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import torch

from tidewire_server.generation.torch_engine.attention import PrefillChunk, Step
from tidewire_server.generation.torch_engine.kv_cache import KVCache
from tidewire_server.generation.torch_engine.load_checkpoint import Checkpoint
from tidewire_server.generation.torch_engine.sampler import Sampling, sample
from tidewire_server.generation.torch_engine.step_scheduler import Sequence, StepPlan
from tidewire_server.generation.torch_engine.top_n import score


@dataclass(eq=False, kw_only=True)
class RunningSequence(Sequence):
    """A scheduled request, with its sampling parameters and the log-probabilities that it asks for."""

    sampling: Sampling
    scored: bool
    """Whether to compute the log-probability and rank of each token."""
    top: int
    """Number of most probable tokens to return for each generated token. 0 if `scored` is false."""


R = TypeVar("R", bound=RunningSequence)


@dataclass(frozen=True)
class Sampled:
    """Token that was sampled for one request. The log-probabilities are in nats and not rounded. They are computed
    before temperature and filters are applied.
    """

    token: int
    logprob: float = 0.0
    rank: int = 0
    top_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)
    is_number: bool = True
    """Whether the logits are valid. False if their maximum is NaN or infinite."""


class Runner:
    """Executes the steps of the engine with one model and one key-value cache."""

    def __init__(self, checkpoint: Checkpoint, cache: KVCache) -> None:
        self._model = checkpoint.model
        self._device = checkpoint.device
        self._cache = cache

    @torch.inference_mode()
    def run(self, step: StepPlan[R]) -> list[Sampled]:
        """Execute one step. Return the sampled tokens in the order of the requests in `step.sampled`."""
        logits = self._forward(step)
        runs = step.sampled
        if not runs:
            return []
        tokens = sample(logits, [r.sampling for r in runs], [r.length for r in runs])
        numbers = logits.amax(-1).isfinite()
        sampled = [Sampled(t, is_number=n) for t, n in zip(tokens.tolist(), numbers.tolist(), strict=True)]
        rows = [i for i, run in enumerate(runs) if run.scored]
        if rows:
            scores = score(logits[rows], tokens[rows], max(runs[i].top for i in rows))
            columns = (
                scores.chosen.tolist(),
                scores.ranks.tolist(),
                scores.top_ids.tolist(),
                scores.top.tolist(),
            )
            for i, logprob, rank, top_ids, top in zip(rows, *columns, strict=True):
                n = runs[i].top
                sampled[i] = Sampled(
                    sampled[i].token, logprob, rank, top_ids[:n], top[:n], sampled[i].is_number
                )
        return sampled

    def clear(self, slot: int) -> None:
        """Set the keys and values of a slot to zero."""
        self._cache.clear(slot)

    def _forward(self, step: StepPlan[R]) -> torch.Tensor:
        """Run the model and return the logits, [len(step.sampled), V], float32.

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
        logits = self._model(
            tokens=torch.tensor(tokens, device=self._device),
            positions=torch.tensor(positions, device=self._device),
            wanted=torch.tensor(wanted, dtype=torch.int64, device=self._device),
            context=Step(self._cache, decode_positions, chunks),
        )
        return logits.float()
