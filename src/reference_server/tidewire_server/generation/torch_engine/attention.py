"""Attention over a key-value cache with dense slots.

A forward pass processes one packed row of T tokens. The row begins with one token for each slot, up to the highest slot
that decodes, so that the token at index i belongs to slot i. The prompt chunks follow after these tokens. In each layer,
the model calls `attend` of the attention context that it received from the engine.

H is the number of query heads, Hkv the number of key-value heads, G = H / Hkv, and D the size of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch.nn import functional

from tidewire_server.generation.torch_engine.kv_cache import KVCache


class AttentionContext(Protocol):
    """Computes the attention for the tokens of one forward pass."""

    def attend(
        self, layer: int, query: torch.Tensor, key_value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Compute the attention of one layer for T tokens.

        Args:
            layer: Index of the layer.
            query: Queries, [T, G, Hkv, D]. Query head [g, h] attends with the key-value head h.
            key_value: Keys and values, [T, 2 * Hkv, D]. The heads of the keys precede those of the values.
            scale: Factor for the dot products of queries and keys. None means 1/sqrt(D).

        Returns:
            Attention output, [T, H * D], with the heads in the order of the query.
        """
        ...


@dataclass
class Probe:
    """Attention context that computes nothing. It only records how many key-value heads each layer has, and their size.

    `heads` maps the index of a layer to (Hkv, D). The key-value cache needs these numbers.
    """

    heads: dict[int, tuple[int, int]] = field(default_factory=dict)

    def attend(
        self, layer: int, query: torch.Tensor, key_value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        self.heads[layer] = (key_value.shape[1] // 2, key_value.shape[2])
        return query.flatten(1)


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

    What is equal in all layers is computed here: the rows to write, the mask, and the views of the cache.

    Args:
        cache: Keys and values of all slots. The forward pass adds the keys and values of its tokens.
        decode_positions: Position of the current token of each slot. None for a slot that does not decode.
        chunks: The prompt chunks, in the order of the packed row.
    """

    def __init__(
        self, cache: KVCache, decode_positions: list[int | None], chunks: list[PrefillChunk]
    ) -> None:
        self._cache = cache
        self._decoding = len(decode_positions)
        # A slot that does not decode may contain the first chunks of a prompt, which must not be overwritten. A step
        # computes keys and values for these slots as well, and writes them to a scratch position that is never read.
        rows = [
            cache.row(slot, cache.scratch if position is None else position)
            for slot, position in enumerate(decode_positions)
        ]
        for chunk in chunks:
            rows.extend(range(cache.row(chunk.slot, chunk.start), cache.row(chunk.slot, chunk.end)))
        self._rows = torch.tensor(rows, device=cache.device)
        last = [0 if position is None else position for position in decode_positions]
        length = max(last, default=0) + 1
        self._mask = None if min(last, default=0) == length - 1 else self._additive_mask(last, length)
        self._decode_views = cache.read(slice(0, self._decoding), length) if self._decoding else []
        self._chunks = [
            (chunk, cache.read(slice(chunk.slot, chunk.slot + 1), chunk.end)) for chunk in chunks
        ]

    def _additive_mask(self, last: list[int], length: int) -> torch.Tensor:
        """Return the mask for slots that attend up to the positions `last`, [B, 1, 1, length]. scaled_dot_product_attention
        would convert a mask of booleans in each layer.
        """
        ends = torch.tensor(last, device=self._cache.device)
        later = torch.arange(length, device=self._cache.device) > ends[:, None]
        mask = torch.zeros(later.shape, dtype=self._cache.dtype, device=self._cache.device)
        return mask.masked_fill_(later, -torch.inf)[:, None, None]

    def attend(
        self, layer: int, query: torch.Tensor, key_value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        self._cache.write(layer, self._rows, key_value)
        parts = [self._decode(layer, query[: self._decoding], scale)] if self._decoding else []
        parts.extend(
            self._prefill(query[chunk.row : chunk.row + chunk.end - chunk.start], chunk.start, *views[layer], scale)
            for chunk, views in self._chunks
        )
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, layer: int, query: torch.Tensor, scale: float | None) -> torch.Tensor:
        """Compute the attention for one token of each slot.

        Query heads that share a key-value head are placed on the query axis, so that the cache is read only once for
        all of them.
        """
        keys, values = self._decode_views[layer]
        out = functional.scaled_dot_product_attention(
            query.transpose(1, 2), keys, values, attn_mask=self._mask, scale=scale
        )  # [B, Hkv, G, D]
        return out.transpose(1, 2).reshape(len(query), -1)

    @staticmethod
    def _prefill(
        query: torch.Tensor, start: int, keys: torch.Tensor, values: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Compute the attention for a chunk of a prompt. Keys and values have the shape [1, Hkv, S, D]."""
        length, groups = query.shape[:2]
        mask = None
        if start > 0:
            positions = torch.arange(start + length, device=query.device)
            mask = positions <= positions[start:, None]  # [L, S]
        out = functional.scaled_dot_product_attention(
            query.permute(1, 2, 0, 3),
            keys.expand(groups, -1, -1, -1),
            values.expand(groups, -1, -1, -1),
            attn_mask=mask,
            is_causal=start == 0,
            scale=scale,
        )  # [G, Hkv, L, D]
        return out.permute(2, 0, 1, 3).reshape(length, -1)
