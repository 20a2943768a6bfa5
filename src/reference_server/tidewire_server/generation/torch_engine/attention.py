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

    What is equal in all layers is computed here: the rows to write, the masks, and the views of the cache.

    Args:
        cache: Keys and values of all slots. The forward pass adds the keys and values of its tokens.
        decode_positions: Position of the current token of each slot. None for a slot that does not decode.
        chunks: The prompt chunks, in the order of the packed row.
    """

    def __init__(
        self, cache: KVCache, decode_positions: list[int | None], chunks: list[PrefillChunk]
    ) -> None:
        self._cache = cache
        # A slot that does not decode may contain the first chunks of a prompt, which must not be overwritten. A step
        # computes keys and values for these slots as well, and writes them to a scratch position that is never read.
        rows = [
            cache.row(slot, cache.scratch if position is None else position)
            for slot, position in enumerate(decode_positions)
        ]
        for chunk in chunks:
            rows.extend(range(cache.row(chunk.slot, chunk.start), cache.row(chunk.slot, chunk.end)))
        self._rows = torch.tensor(rows, device=cache.device)
        self._parts: list[tuple[slice, _Part]] = []
        if decode_positions:
            self._parts.append((slice(0, len(decode_positions)), _Decode(cache, decode_positions)))
        for chunk in chunks:
            span = slice(chunk.row, chunk.row + chunk.end - chunk.start)
            self._parts.append((span, _Chunk(cache, chunk)))

    def attend(
        self, layer: int, query: torch.Tensor, key_value: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        self._cache.write(layer, self._rows, key_value)
        outputs = [part.attend(layer, query[span], scale) for span, part in self._parts]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


class _Part(Protocol):
    """Attention for adjacent tokens of the packed row, whose keys and values are already in the cache."""

    def attend(self, layer: int, query: torch.Tensor, scale: float | None) -> torch.Tensor: ...


class _Decode:
    """Attention for one token of each slot.

    Query heads that share a key-value head are placed on the query axis, so that the cache is read only once for all of
    them. The reads end at the longest text.
    """

    def __init__(self, cache: KVCache, positions: list[int | None]) -> None:
        last = [0 if position is None else position for position in positions]
        length = max(last) + 1
        self._views = cache.read(slice(0, len(last)), length)
        self._mask = None
        if min(last) < length - 1:
            ends = torch.tensor(last, device=cache.device)
            # scaled_dot_product_attention would convert a mask of booleans in each layer.
            self._mask = _additive(torch.arange(length, device=cache.device) > ends[:, None], cache.dtype)[
                :, None, None
            ]  # [B, 1, 1, S]

    def attend(self, layer: int, query: torch.Tensor, scale: float | None) -> torch.Tensor:
        keys, values = self._views[layer]  # [B, Hkv, S, D]
        out = functional.scaled_dot_product_attention(
            query.transpose(1, 2), keys, values, attn_mask=self._mask, scale=scale
        )  # [B, Hkv, G, D]
        return out.transpose(1, 2).reshape(len(query), -1)


class _Chunk:
    """Attention for one chunk of a prompt."""

    def __init__(self, cache: KVCache, chunk: PrefillChunk) -> None:
        self._views = cache.read(slice(chunk.slot, chunk.slot + 1), chunk.end)
        self._first = chunk.start == 0
        self._mask = None
        if not self._first:
            positions = torch.arange(chunk.end, device=cache.device)
            self._mask = _additive(positions > positions[chunk.start :, None], cache.dtype)  # [L, S]

    def attend(self, layer: int, query: torch.Tensor, scale: float | None) -> torch.Tensor:
        length, groups = query.shape[:2]
        keys, values = self._views[layer]  # [1, Hkv, S, D]
        out = functional.scaled_dot_product_attention(
            query.permute(1, 2, 0, 3),
            keys.expand(groups, -1, -1, -1),
            values.expand(groups, -1, -1, -1),
            attn_mask=self._mask,
            is_causal=self._first,
            scale=scale,
        )  # [G, Hkv, L, D]
        return out.permute(2, 0, 1, 3).reshape(length, -1)


def _additive(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask that is added to the dot products: -inf where `hidden` is true, otherwise 0."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
