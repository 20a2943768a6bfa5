"""CUDA graphs of decoding steps (`DecodeGraphs`), which replace the launches of hundreds of operators by one launch.

Without graphs, the host launches the operators of a forward pass one by one. For 8 billion parameters and one request on an
NVIDIA H200, this takes twice as long as their computation. A graph records the operators once, but always uses the same shapes
and the same memory. The number of slots and the number of positions that attention reads are therefore rounded up. Each
combination has its own graph, captured at its first step. The graphs share temporary memory, because only one runs at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import torch

from tidewire_server.generation.torch_engine.device_execution import to_device
from tidewire_server.generation.torch_engine.models.attention import StaticDecode
from tidewire_server.generation.torch_engine.models.kv_cache import KVCache
from tidewire_server.generation.torch_engine.models.transformers_model import Model

logger = logging.getLogger(__name__)

MIN_LENGTH: Final = 256
"""Minimum number of positions that a graph reads in each slot. Larger numbers are multiples of this one."""

_WARM_UP: Final = 2
"""Number of runs before the capture. Libraries allocate memory in their first run, and allocation fails during a capture."""


class DecodeGraphs:
    """Forward passes over one token of each slot, as CUDA graphs.

    Args:
        model: The model. The shapes of its tensors must not depend on values.
        cache: Keys and values of all slots.
        tokens: The last token of each slot, on the device. Each step reads it.
    """

    def __init__(self, model: Model, cache: KVCache, tokens: torch.Tensor) -> None:
        self._model = model
        self._cache = cache
        self._tokens = tokens
        self._inputs = torch.zeros((2, cache.slots), dtype=torch.int64, device=cache.device)
        """For each slot, the position of its current token, and the row of this token in the cache."""
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        """(number of slots, number of positions) → graph, and the tensor to which it writes the logits."""
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(cache.device)  # type: ignore[no-untyped-call]
        self._failed = False

    def logits(self, positions: Sequence[int | None]) -> torch.Tensor | None:
        """Compute the logits of the next tokens.

        Args:
            positions: For each slot, up to the highest that decodes, the position of its current token. None for a slot that
                does not decode.

        Returns:
            Logits, [slots, V], valid until the next call. The rows of slots that do not decode have no meaning. None if a graph
            could not be captured in this call or in an earlier call.
        """
        if self._failed:
            return None
        cache = self._cache
        slots = padded_slots(len(positions), cache.slots)
        length = padded_length(1 + max(p for p in positions if p is not None), cache.context)
        given = [*positions, *[None] * (slots - len(positions))]
        rows = [cache.row(slot, cache.scratch if p is None else p) for slot, p in enumerate(given)]
        inputs = to_device([[p or 0 for p in given], rows], cache.device)
        self._inputs[:, :slots].copy_(inputs)
        if (slots, length) not in self._graphs:
            try:
                self._graphs[slots, length] = self._capture(slots, length)
            except RuntimeError as error:
                self._failed = True
                logger.warning(
                    "decoding continues without CUDA graphs, because one cannot be captured: %s", error
                )
                return None
        graph, logits = self._graphs[slots, length]
        graph.replay()
        return logits

    def _capture(self, slots: int, length: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        current = torch.cuda.current_stream(self._cache.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UP):
                self._forward(slots, length)
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile, for example the functions of other endpoints.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            logits = self._forward(slots, length)
        return graph, logits

    def _forward(self, slots: int, length: int) -> torch.Tensor:
        positions, rows = self._inputs[:, :slots]
        return self._model(
            tokens=self._tokens[:slots],
            positions=positions,
            wanted=torch.arange(slots, device=self._cache.device),
            context=StaticDecode(self._cache, rows, positions, length),
        )


def padded_slots(slots: int, most: int) -> int:
    """Return the number of slots of the graph for a step: the next power of two, or all slots."""
    return min(1 << (slots - 1).bit_length(), most)


def padded_length(length: int, most: int) -> int:
    """Return the number of positions that the graph for a step reads in each slot: `length`, the length of the longest text,
    rounded up to a multiple of `MIN_LENGTH`. Long texts are rounded up further, by at most a quarter.
    """
    unit = max(MIN_LENGTH, (1 << length.bit_length()) >> 3)
    return min(-(-length // unit) * unit, most)
