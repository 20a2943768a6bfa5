"""Attention over dense slots, under a name of our own in transformers' attention interface.

A forward pass reads one packed row of tokens: first one token for each slot that decodes (row i is slot i),
then the chunks of prompts. The model calls `attention` in each layer and hands on the context of the pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface

from tidewire_server.generation.torch_engine.kv_cache import KVCache

NAME = "tidewire_dense_slots"

# What some models ask of attention beyond plain softmax(q·k)·v: served by leaving it out, it would be wrong in silence.
UNSERVED = ("sliding_window", "softcap", "s_aux", "position_bias", "cu_seq_lens_q")


class UnsupportedAttentionError(Exception):
    """The model asks for another attention than the full causal one."""


class AttentionContext(Protocol):
    """What one forward pass knows about its tokens."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Attention of one layer.

        Args:
            layer: index of the layer.
            query: [H, T, D].
            key: [Hkv, T, D].
            value: [Hkv, T, D].
            scale: of the dot products; None is 1/sqrt(D).

        Returns:
            [T, H, D].
        """
        ...


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - the interface hands it over; it is None (see `register`)
    *,
    scaling: float | None = None,
    attention_context: AttentionContext | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Called by the model; the shapes are those of transformers: query [1, H, T, D], key and value [1, Hkv, T, D]."""
    if attention_context is None:
        raise UnsupportedAttentionError("the model does not hand its keyword arguments on to attention")
    asked = [name for name in UNSERVED if others.get(name) is not None]
    if asked:
        raise UnsupportedAttentionError(f"the model asks for attention with {', '.join(asked)}")
    if not getattr(module, "is_causal", True):
        raise UnsupportedAttentionError("the model attends to later tokens (it is no decoder)")
    layer = module.layer_idx
    if not isinstance(layer, int):
        raise UnsupportedAttentionError("the model does not number its attention layers")
    return attention_context.attend(layer, query[0], key[0], value[0], scaling)[None], None


def register() -> None:
    """Make the name known to transformers. No mask is registered under it, so that models build none."""
    AttentionInterface.register(NAME, attention)


@dataclass
class Probe:
    """A pass over one token that finds out the shape of the cache: `heads[layer] = (Hkv, D)`."""

    heads: dict[int, tuple[int, int]] = field(default_factory=dict)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        if key.shape != value.shape:
            raise UnsupportedAttentionError("the model's keys and values differ in size")
        self.heads[layer] = (key.shape[0], key.shape[2])
        return value.repeat_interleave(query.shape[0] // key.shape[0], dim=0).transpose(0, 1)


@dataclass(frozen=True)
class PrefillChunk:
    """Tokens of one prompt within the packed row."""

    slot: int
    row: int
    """Of the packed row where the chunk begins."""
    start: int
    """Position of its first token."""
    end: int
    """Position after its last token."""


class Step:
    """The context of a forward pass over decoding slots and prompt chunks.

    Args:
        cache: keys and values of all slots; this pass adds its own.
        decode_positions: the position of the token of slot 0, 1, …; None for an idle slot.
        chunks: the prompt chunks, in the order of the packed row.
    """

    LENGTH_BUCKET = 64
    """Decoding reads a multiple of this many positions, so that few shapes occur."""

    def __init__(
        self, cache: KVCache, decode_positions: list[int | None], chunks: list[PrefillChunk]
    ) -> None:
        device = cache.device
        self._cache = cache
        self._chunks = chunks
        self._decoding = len(decode_positions)
        # The row of an idle slot writes where nobody reads: the slot may hold half a prompt.
        writes = [cache.scratch if position is None else position for position in decode_positions]
        slots = list(range(self._decoding))
        for chunk in chunks:
            writes.extend(range(chunk.start, chunk.end))
            slots.extend([chunk.slot] * (chunk.end - chunk.start))
        self._writes = torch.tensor(writes, device=device)
        self._slots = torch.tensor(slots, device=device)

        reads = torch.tensor(
            [0 if position is None else position for position in decode_positions], device=device
        )
        longest = max((position + 1 for position in decode_positions if position is not None), default=0)
        bucket = self.LENGTH_BUCKET
        self._length = min(-(-longest // bucket) * bucket, cache.context)
        self._mask = (torch.arange(self._length, device=device) <= reads[:, None])[
            :, None, None
        ]  # [B, 1, 1, S]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        self._cache.write(layer, self._slots, self._writes, key, value)
        parts = [self._decode(layer, query[:, : self._decoding], scale)] if self._decoding else []
        parts.extend(self._prefill(layer, query, chunk, scale) for chunk in self._chunks)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, layer: int, query: torch.Tensor, scale: float | None) -> torch.Tensor:
        """One token per slot: the heads that share a key-value head are the query axis, so that it is read once."""
        heads, batch, size = query.shape
        keys, values = self._cache.read(layer, slice(0, batch), self._length)  # [B, Hkv, S, D]
        grouped = query.transpose(0, 1).reshape(batch, keys.shape[1], -1, size)  # [B, Hkv, G, D]
        out = functional.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=self._mask, scale=scale
        )
        return out.reshape(batch, heads, size)

    def _prefill(
        self, layer: int, query: torch.Tensor, chunk: PrefillChunk, scale: float | None
    ) -> torch.Tensor:
        heads, _, size = query.shape
        length = chunk.end - chunk.start
        keys, values = self._cache.read(layer, slice(chunk.slot, chunk.slot + 1), chunk.end)  # [1, Hkv, S, D]
        grouped = query[:, chunk.row : chunk.row + length].reshape(
            keys.shape[1], -1, length, size
        )  # [Hkv, G, L, D]
        groups = grouped.shape[1]
        keys = keys[0, :, None].expand(-1, groups, -1, -1)
        values = values[0, :, None].expand(-1, groups, -1, -1)
        first = chunk.start == 0
        positions = torch.arange(chunk.end, device=query.device)
        mask = None if first else positions <= positions[chunk.start :, None]  # [L, S]
        out = functional.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=mask, is_causal=first, scale=scale
        )
        return out.reshape(heads, length, size).transpose(0, 1)
