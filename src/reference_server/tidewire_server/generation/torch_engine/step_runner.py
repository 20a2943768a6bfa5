"""Execution of one step on the device (`Runner`): a forward pass and its postprocessing."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch

from tidewire_server.generation.torch_engine.beam_search import BeamSearch, Searched, SearchStep
from tidewire_server.generation.torch_engine.decode_graphs import DecodeGraphs
from tidewire_server.generation.torch_engine.device_execution import to_device, to_host
from tidewire_server.generation.torch_engine.models.attention import PrefillChunk, Step
from tidewire_server.generation.torch_engine.models.kv_cache import KVCache
from tidewire_server.generation.torch_engine.models.llama_model import LlamaModel
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint
from tidewire_server.generation.torch_engine.sampling.postprocess import PromptScores, Sampled, SampledTokens
from tidewire_server.generation.torch_engine.sampling.score_columns import Values
from tidewire_server.generation.torch_engine.sampling.sequence_parameters import Parameters
from tidewire_server.generation.torch_engine.step_scheduler import Sequence, StepPlan


@dataclass(eq=False, kw_only=True)
class RunningSequence(Sequence):
    """A scheduled request, with the parameters for sampling and for log-probabilities."""

    parameters: Parameters
    search: BeamSearch | None = None
    """State of the beam search, or None if the request samples its tokens."""

    def __post_init__(self) -> None:
        self.scores_prompt = self.parameters.prompt_scoring is not None

    @property
    def decoding_slots(self) -> list[int]:
        """Slots in which the next step decodes a token. The prompt must have been processed completely."""
        if self.search is None:
            return [self.slot]
        return [self.slots[hypothesis.slot] for hypothesis in self.search.live]


R = TypeVar("R", bound=RunningSequence)


class StepResult(NamedTuple, Generic[R]):
    """Output of one step."""

    sampled: list[Sampled | Searched]
    """Sampled tokens, or the progress of beam searches, in the order of the requests in `StepPlan.sampled`."""
    prompts: list[tuple[R, list[Values] | None]]
    """Each request that asks for log-probabilities of its prompt, with the columns of the tokens that were processed. The
    columns are None if the logits are invalid."""


class Runner:
    """Executes the steps of the engine with one model and one key-value cache.

    The last token of each slot stays on the device, because it is the input of the slot's next step.

    Args:
        checkpoint: The loaded model.
        cache: The cache. It must have as many slots as the scheduler.
    """

    def __init__(self, checkpoint: Checkpoint, cache: KVCache) -> None:
        self._model = checkpoint.model
        self._device = checkpoint.device
        self._cache = cache
        self._last = torch.zeros(cache.slots, dtype=torch.int64, device=checkpoint.device)
        # Models of transformers may copy values to the host, which is impossible in a CUDA graph.
        has_graphs = checkpoint.device.type == "cuda" and isinstance(checkpoint.model, LlamaModel)
        self._graphs = DecodeGraphs(checkpoint.model, cache, self._last) if has_graphs else None

    @torch.inference_mode()
    def run(self, step: StepPlan[R]) -> StepResult[R]:
        """Execute one step: the forward pass, and the postprocessing of its logits. The host waits for the device once,
        when it reads the copy of all results.

        After an exception, the step can be repeated, because it has changed nothing that the repetition reads.
        """
        logits = self._forward(step)
        requests = step.sampled
        counts = [len(request.decoding_slots) if request.decodes else 1 for request in requests]
        row = sum(counts)
        plain, parts, searches = requests, logits[:row], list[tuple[R, BeamSearch, torch.Tensor]]()
        if any(request.search is not None for request in requests):
            split = [*zip(requests, torch.split(parts, counts), strict=True)]
            searches = [(one, one.search, part) for one, part in split if one.search is not None]
            plain = [request for request in requests if request.search is None]
            parts = torch.cat([part for request, part in split if request.search is None] or [parts[:0]])
        sampled = None
        if plain:
            sampled = SampledTokens(parts, [one.parameters for one in plain], [one.length for one in plain])
        prompts: list[tuple[R, PromptScores]] = []
        for part in step.prefill:
            one, rows = part.sequence, logits[row : row + part.scored]
            if (scoring := one.parameters.prompt_scoring) is not None:
                prompts.append((one, PromptScores(rows, one.prompt, scoring, part.start)))
                row += part.scored
        search = SearchStep(searches, self._cache) if searches else None

        results = [one for one in (sampled, *(scores for _, scores in prompts), search) if one is not None]
        tensors = [tensor for one in results for tensor in one.tensors]
        arrays = iter(to_host(tensors) if tensors else [])

        def arrays_of(one: SampledTokens | PromptScores | SearchStep) -> list[np.ndarray]:
            return [*islice(arrays, len(one.tensors))]

        tokens = iter([] if sampled is None else sampled.on_host(arrays_of(sampled)))
        scored = [(request, scores.on_host(arrays_of(scores))) for request, scores in prompts]
        if search is not None:
            search.choose(arrays_of(search))
        # A failed step is repeated, so it must not have changed `_last`, the penalties, the cache or a search. Therefore do
        # not allocate memory after the first of these changes.
        if sampled is not None:
            slots = to_device([request.slot for request in plain], self._device)
            self._last.index_copy_(0, slots, sampled.tokens)
            for i, request in enumerate(plain):
                if (processor := request.parameters.processor) is not None:
                    processor.add(sampled.tokens[i : i + 1])
        if search is not None:
            search.commit(self._last)
        searched = iter([] if search is None else search.results)
        return StepResult(
            [next(tokens) if request.search is None else next(searched) for request in requests], scored
        )

    def _forward(self, step: StepPlan[R]) -> torch.Tensor:
        """Run the model and return the logits, float32.

        The result begins with the logits of the requests in `step.sampled`. A beam search has one row of logits for each of its
        hypotheses. The logits of prompt chunks with requested log-probabilities follow.

        The model's input is a packed row of tokens. It begins with one token for each slot, up to the highest slot that
        decodes. The prompt chunks follow.
        """
        positions_of = {slot: run.length - 1 for run in step.decode for slot in run.decoding_slots}
        decoding = 1 + max(positions_of, default=-1)
        decode_positions = [positions_of.get(slot) for slot in range(decoding)]
        positions = [position or 0 for position in decode_positions]
        wanted = [*positions_of]
        if self._graphs is not None and not step.prefill:
            logits = self._graphs.logits(decode_positions)
            if logits is not None:
                return logits[to_device(wanted, self._device, torch.int64)].float()
        prompts: list[int] = []
        chunks = []
        for part in step.prefill:
            chunks.append(PrefillChunk(part.sequence.slot, len(positions), part.start, part.end))
            prompts.extend(part.sequence.prompt[part.start : part.end])
            positions.extend(range(part.start, part.end))
            if part.completes:
                wanted.append(len(positions) - 1)
        for part, chunk in zip(step.prefill, chunks, strict=True):
            wanted.extend(range(chunk.row, chunk.row + part.scored))
        tokens = self._last[:decoding]
        if prompts:
            read = to_device(prompts, self._device)
            tokens = torch.cat([tokens, read]) if decoding else read
        logits = self._model(
            tokens=tokens,
            positions=to_device(positions, self._device),
            wanted=to_device(wanted, self._device, torch.int64),
            context=Step(self._cache, decode_positions, chunks),
        )
        return logits.float()
