"""Keys and values of all running requests, in dense slots."""

from __future__ import annotations

import torch


class KVCache:
    """`k[layer, slot, key-value head, position, size]`, and `v` beside it. A request owns one slot while it runs.

    Args:
        layers: attention layers.
        slots: requests that run at a time.
        heads: key-value heads.
        context: positions per slot.
        size: of a head.
        dtype: of keys and values.
        device: where they lie.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        heads: int,
        context: int,
        size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # One position more than a request can have: rows of idle slots write there (`scratch`).
        shape = (layers, slots, heads, context + 1, size)
        self._k = torch.zeros(shape, dtype=dtype, device=device)
        self._v = torch.zeros(shape, dtype=dtype, device=device)
        self.slots = slots
        self.context = context
        self.scratch = context
        self.device = device

    @staticmethod
    def bytes_per_position(layers: int, heads: int, size: int, dtype: torch.dtype) -> int:
        return 2 * layers * heads * size * dtype.itemsize

    def write(
        self, layer: int, slots: torch.Tensor, positions: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Store one key and value for each token: `slots` and `positions` [T], `key` and `value` [Hkv, T, D]."""
        self._k[layer][slots, :, positions] = key.transpose(0, 1)
        self._v[layer][slots, :, positions] = value.transpose(0, 1)

    def read(self, layer: int, slots: slice, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the first `length` positions: [B, Hkv, length, D] each."""
        return self._k[layer, slots, :, :length], self._v[layer, slots, :, :length]
