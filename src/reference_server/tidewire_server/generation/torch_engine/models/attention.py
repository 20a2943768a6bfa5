"""Attention over a key-value cache with dense slots.

A slot is the part of the cache that one request occupies. A forward pass processes one packed row of T tokens. The row begins
with one token for each slot, up to the highest slot that decodes, so that the token at index i belongs to slot i. The prompt
chunks follow these tokens. In each layer, the model calls `attend` of the attention context that the engine has passed.

H is the number of query heads, Hkv the number of key-value heads, G = H / Hkv, and D the size of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch.nn import functional

from tidewire_server.generation.torch_engine.device_execution import to_device
from tidewire_server.generation.torch_engine.models.kv_cache import KVCache


class AttentionKind(NamedTuple):
    """Kind of attention that a layer computes."""

    scale: float | None = None
    """Factor for the dot products of queries and keys. None means 1/sqrt(D)."""
    window: int | None = None
    """Number of positions that a token attends to, including its own. None means all positions up to its own."""
    softcap: float | None = None
    """Soft cap c. Each scaled dot product x is replaced by c * tanh(x / c). None means no cap."""


class AttentionContext(Protocol):
    """Computes the attention for the tokens of one forward pass."""

    def attend(
        self, layer: int, query: torch.Tensor, key_value: torch.Tensor, kind: AttentionKind
    ) -> torch.Tensor:
        """Compute the attention of one layer for T tokens.

        Args:
            layer: Index of the layer.
            query: Queries, [T, G, Hkv, D]. Query head [g, h] attends with the key-value head h.
            key_value: Keys and values, [T, 2 * Hkv, D]. The heads of the keys precede those of the values.
            kind: Scale, window and soft cap of the layer.

        Returns:
            Attention output, [T, H * D], with the heads in the order of the query.
        """
        ...


@dataclass
class Probe:
    """Attention context that computes nothing. It records the properties of each layer on which the key-value cache depends.

    `heads` maps the index of a layer to (Hkv, D), the number and the size of its key-value heads. `windows` maps the index of a
    layer to the length of its sliding window, or to None if the layer has no window. `calls` lists the layer of each call.
    """

    calls: list[int] = field(default_factory=list)
    heads: dict[int, tuple[int, int]] = field(default_factory=dict)
    windows: dict[int, int | None] = field(default_factory=dict)

    def attend(
        self, layer: int, query: torch.Tensor, key_value: torch.Tensor, kind: AttentionKind
    ) -> torch.Tensor:
        self.calls.append(layer)
        self.windows[layer] = kind.window
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

    The constructor computes everything that all layers share: the rows to write, the masks and the views of the cache.

    Args:
        cache: Keys and values of all slots. The forward pass adds the keys and values of its tokens.
        decode_positions: Position of the current token of each slot. None for a slot that does not decode.
        chunks: The prompt chunks, in the order of the packed row.
    """

    def __init__(
        self, cache: KVCache, decode_positions: list[int | None], chunks: list[PrefillChunk]
    ) -> None:
        self._cache = cache
        # A step also computes keys and values for slots that do not decode. Write these to a scratch position that is never
        # read, because such a slot may contain the first chunks of a prompt.
        rows = [
            cache.row(slot, cache.scratch if position is None else position)
            for slot, position in enumerate(decode_positions)
        ]
        for chunk in chunks:
            rows.extend(range(cache.row(chunk.slot, chunk.start), cache.row(chunk.slot, chunk.end)))
        self._rows = to_device(rows, cache.device)
        self._parts: list[tuple[slice, _Decode | _Chunk]] = []
        if decode_positions:
            decode = _decode_of_texts(cache, decode_positions)
            self._parts.append((slice(0, len(decode_positions)), decode))
        for chunk in chunks:
            span = slice(chunk.row, chunk.row + chunk.end - chunk.start)
            self._parts.append((span, _Chunk(cache, chunk)))

    def attend(
        self, layer: int, query: torch.Tensor, key_value: torch.Tensor, kind: AttentionKind
    ) -> torch.Tensor:
        self._cache.write(layer, self._rows, key_value)
        outputs = [part.attend(layer, query[span], kind) for span, part in self._parts]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


class StaticDecode:
    """Attention context of a forward pass that decodes one token in each of the first slots. Its shapes do not depend on the
    lengths of the texts, so that the pass can be captured as a CUDA graph.

    Args:
        cache: Keys and values of all slots. The forward pass adds the keys and values of its tokens.
        rows: Row of the cache for each slot's current token, [B], int64; see `KVCache.row`. For a slot that does not
            decode, this is the row of the scratch position.
        ends: Position of the current token of each slot, [B], int64. For a slot that does not decode, any position.
        length: Number of positions to read in each slot, greater than all positions.
    """

    def __init__(self, cache: KVCache, rows: torch.Tensor, ends: torch.Tensor, length: int) -> None:
        self._cache = cache
        self._rows = rows
        self._decode = _Decode(cache, ends, length, lowest=0)

    def attend(
        self, layer: int, query: torch.Tensor, key_value: torch.Tensor, kind: AttentionKind
    ) -> torch.Tensor:
        self._cache.write(layer, self._rows, key_value)
        return self._decode.attend(layer, query, kind)


def _decode_of_texts(cache: KVCache, positions: list[int | None]) -> _Decode:
    """Return the attention for one token of each slot. In every slot, it reads as many positions as the longest text has.

    The output of slots that do not decode is not used. If all texts are equally long, no mask is necessary.
    """
    running = [position for position in positions if position is not None]
    longest = max(running)
    ends = [longest if position is None else position for position in positions]
    return _Decode(cache, to_device(ends, cache.device), longest + 1, lowest=min(running))


class _Decode:
    """Attention for one token of each slot.

    Query heads that share a key-value head are placed on the query axis, so that the cache is read only once for all of
    them.

    Args:
        cache: Keys and values of all slots.
        ends: Positions of the tokens in the slots 0 to B - 1, [B].
        length: Number of positions to read in each slot.
        lowest: Lower bound of `ends`.
    """

    def __init__(self, cache: KVCache, ends: torch.Tensor, length: int, *, lowest: int) -> None:
        self._views = cache.read(slice(0, len(ends)), length)
        rows = ends[:, None, None, None]
        self._masks = _Masks(rows, lowest, torch.arange(length, device=cache.device), cache.dtype)
        self._same_end = lowest == length - 1

    def attend(self, layer: int, query: torch.Tensor, kind: AttentionKind) -> torch.Tensor:
        keys, values = self._views[layer]  # [B, Hkv, S, D]
        if first := self._masks.first(kind):
            keys, values = keys[:, :, first:], values[:, :, first:]
        mask = None if self._same_end else self._masks.of(kind)
        out = _attend(query.transpose(1, 2), keys, values, mask, kind)  # [B, Hkv, G, D]
        return out.transpose(1, 2).reshape(len(query), -1)


class _Chunk:
    """Attention for one chunk of a prompt."""

    def __init__(self, cache: KVCache, chunk: PrefillChunk) -> None:
        self._views = cache.read(slice(chunk.slot, chunk.slot + 1), chunk.end)
        self._first = chunk.start == 0
        positions = torch.arange(chunk.end, device=cache.device)
        self._masks = _Masks(positions[chunk.start :, None], chunk.start, positions, cache.dtype)

    def attend(self, layer: int, query: torch.Tensor, kind: AttentionKind) -> torch.Tensor:
        length, groups = query.shape[:2]
        keys, values = self._views[layer]  # [1, Hkv, S, D]
        if first := self._masks.first(kind):
            keys, values = keys[:, :, first:], values[:, :, first:]
        causal = self._first and kind.softcap is None and not self._masks.cuts(kind)
        out = _attend(
            query.permute(1, 2, 0, 3),
            keys.expand(groups, -1, -1, -1),
            values.expand(groups, -1, -1, -1),
            None if causal else self._masks.of(kind),
            kind,
            is_causal=causal,
        )  # [G, Hkv, L, D]
        return out.permute(2, 0, 1, 3).reshape(length, -1)


class _Masks:
    """Attention masks of one group of requests in a step. There is one mask for each window length of the model's layers.

    A mask is added to the dot products. It is -inf at hidden positions and 0 elsewhere. Masks of booleans would be slower,
    because `scaled_dot_product_attention` converts them in each layer.

    Args:
        ends: Position of each query, in a shape that broadcasts with the keys on the last axis.
        lowest: The lowest position of a query.
        positions: Position of each key, [S].
        dtype: Type of the masks.
    """

    def __init__(self, ends: torch.Tensor, lowest: int, positions: torch.Tensor, dtype: torch.dtype) -> None:
        self._ends = ends
        self._lowest = lowest
        self._positions = positions
        self._dtype = dtype
        self._by_window: dict[int | None, torch.Tensor] = {}

    def cuts(self, kind: AttentionKind) -> bool:
        """Return whether the window hides some of the positions before a query."""
        return kind.window is not None and kind.window < len(self._positions)

    def first(self, kind: AttentionKind) -> int:
        """Return the first position that is in the window of any query. Earlier positions are not read."""
        return 0 if kind.window is None else max(0, self._lowest - kind.window + 1)

    def of(self, kind: AttentionKind) -> torch.Tensor:
        """Return the mask for a kind of attention. It covers the positions from `first` on."""
        window = kind.window if self.cuts(kind) else None
        if window not in self._by_window:
            positions = self._positions[self.first(kind) :]
            hidden = positions > self._ends
            if window is not None:
                hidden |= positions <= self._ends - window
            zeros = torch.zeros(hidden.shape, dtype=self._dtype, device=hidden.device)
            self._by_window[window] = zeros.masked_fill_(hidden, -torch.inf)
        return self._by_window[window]


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    kind: AttentionKind,
    *,
    is_causal: bool = False,
) -> torch.Tensor:
    """Compute attention for queries of the shape [..., L, D], and keys and values of the shape [..., S, D]."""
    if kind.softcap is None:
        return functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=is_causal, scale=kind.scale
        )
    scale = query.shape[-1] ** -0.5 if kind.scale is None else kind.scale
    weights = (query @ keys.transpose(-1, -2)).mul_(scale / kind.softcap).tanh_().mul_(kind.softcap)
    if mask is not None:
        weights += mask
    return weights.softmax(-1, dtype=torch.float32).to(values.dtype) @ values
