"""Attention over a key-value cache with dense slots, for models of the transformers library.

A forward pass processes one packed row of tokens. The row begins with one token for each slot, up to the highest slot
that decodes, so that the token at index i belongs to slot i. The prompt chunks follow after these tokens. In each
layer, the model calls `attention` and passes the attention context that it received from the engine.
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

# Options of attention functions that this module does not implement. A model that uses one of them is rejected, because it
# would compute wrong results if the option were ignored.
UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias", "cu_seq_lens_q")


class UnsupportedAttentionError(Exception):
    """The model requires a kind of attention other than full causal attention."""


class AttentionContext(Protocol):
    """Computes the attention for the tokens of one forward pass."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Compute the attention of one layer for T tokens.

        Args:
            layer: Index of the layer.
            query: Queries, [H, T, D], where H is the number of query heads, and D the size of a head.
            key: Keys, [Hkv, T, D], where Hkv is the number of key-value heads.
            value: Values, [Hkv, T, D].
            scale: Factor for the dot products of queries and keys. None means 1/sqrt(D).

        Returns:
            Attention output, [T, H, D].
        """
        ...


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - required by the interface; always None (see `register`)
    *,
    scaling: float | None = None,
    attention_context: AttentionContext | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute the attention of one layer. The model calls this function.

    The query has the shape [1, H, T, D]. The key and the value have the shape [1, Hkv, T, D].
    """
    if attention_context is None:
        raise UnsupportedAttentionError(
            "the model does not pass its keyword arguments on to the attention function"
        )
    requested = [name for name in UNSUPPORTED if others.get(name) is not None]
    if requested:
        raise UnsupportedAttentionError(f"the model requires attention with {', '.join(requested)}")
    if not getattr(module, "is_causal", True):
        raise UnsupportedAttentionError("the model attends to later tokens, so it is not a decoder")
    layer = module.layer_idx
    if not isinstance(layer, int):
        raise UnsupportedAttentionError("the model's attention layers have no index (layer_idx)")
    return attention_context.attend(layer, query[0], key[0], value[0], scaling)[None], None


def register() -> None:
    """Register the attention function with transformers.

    No mask function is registered, so models do not create attention masks.
    """
    AttentionInterface.register(NAME, attention)


@dataclass
class Probe:
    """Attention context that computes nothing. It only records how many key-value heads each layer has, and their size.

    `heads` maps the index of a layer to (Hkv, D). The key-value cache needs these numbers.
    """

    heads: dict[int, tuple[int, int]] = field(default_factory=dict)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        if key.shape != value.shape:
            raise UnsupportedAttentionError("the model's keys and values have different sizes")
        self.heads[layer] = (key.shape[0], key.shape[2])
        return value.repeat_interleave(query.shape[0] // key.shape[0], dim=0).transpose(0, 1)


@dataclass(frozen=True)
class PrefillChunk:
    """Location of a prompt chunk in the packed row of tokens and in its prompt."""

    slot: int
    row: int
    """Index of the chunk's first token in the packed row."""
    start: int
    """Position of the chunk's first token in the prompt."""
    end: int
    """Position after the chunk's last token in the prompt."""


class Step:
    """Attention context of a forward pass over decoding slots and prompt chunks.

    Args:
        cache: Keys and values of all slots. The forward pass adds the keys and values of its tokens.
        decode_positions: Position of the current token of each slot. None for a slot that does not decode.
        chunks: The prompt chunks, in the order of the packed row.
    """

    LENGTH_BUCKET = 64
    """Granularity of the number of cache positions that decoding reads. The number is rounded up to a multiple of it, so that
    few different tensor shapes occur."""

    def __init__(
        self, cache: KVCache, decode_positions: list[int | None], chunks: list[PrefillChunk]
    ) -> None:
        device = cache.device
        self._cache = cache
        self._chunks = chunks
        self._decoding = len(decode_positions)
        # A slot that does not decode may contain the first chunks of a prompt, which must not be overwritten. A step
        # computes keys and values for these slots as well, and writes them to a scratch position that is never read.
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
        """Compute the attention for one token of each slot.

        Query heads that share a key-value head are placed on the query axis, so that the cache is read only once for
        all of them.
        """
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
