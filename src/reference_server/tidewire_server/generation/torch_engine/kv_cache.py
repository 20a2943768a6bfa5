"""Key-value cache with one dense slot per running request (`KVCache`)."""

from __future__ import annotations

import torch


class KVCache:
    """Keys and values of all running requests. Each request occupies one slot while it runs.

    Keys and values are two tensors of the shape [layer, slot, key-value head, position, head size].

    Args:
        layers: Number of attention layers.
        slots: Maximum number of requests that run at the same time.
        heads: Number of key-value heads.
        context: Number of positions per slot.
        size: Size of a head.
        dtype: Type of the keys and values.
        device: Device of the tensors.
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
        # Each slot has one extra position, `scratch`, to which the rows of idle slots write.
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
        """Store the key and value of each token. Shapes: `slots` and `positions` [T], `key` and `value` [Hkv, T, D]."""
        self._k[layer][slots, :, positions] = key.transpose(0, 1)
        self._v[layer][slots, :, positions] = value.transpose(0, 1)

    def read(self, layer: int, slots: slice, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of the keys and values of the first `length` positions, [B, Hkv, length, D] each."""
        return self._k[layer, slots, :, :length], self._v[layer, slots, :, :length]
