"""The key-value cache of the engine (`KVCache`), in which each running request has one slot of fixed size."""

from __future__ import annotations

import torch


class KVCache:
    """Cache of the attention keys and values of all running requests. Each request occupies one slot while it runs.

    The keys and the values are two tensors with the shape [layer, slot, key-value head, position, head size].

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
        # Each slot has one extra position, `scratch`. If a slot does not decode, the forward pass writes there.
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
        """Store the keys and values of T tokens in one layer.

        Args:
            layer: Index of the layer.
            slots: Slot of each token, [T].
            positions: Position of each token in its slot, [T].
            key: Keys, [Hkv, T, D].
            value: Values, [Hkv, T, D].
        """
        self._k[layer][slots, :, positions] = key.transpose(0, 1)
        self._v[layer][slots, :, positions] = value.transpose(0, 1)

    def read(self, layer: int, slots: slice, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of the keys and values at the first `length` positions of some slots.

        Returns:
            The keys and the values. Each has the shape [B, Hkv, length, D], where B is the number of slots.
        """
        return self._k[layer, slots, :, :length], self._v[layer, slots, :, :length]
