"""The key-value cache of the engine (`KVCache`), in which each running request has one slot of fixed size."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tidewire_server.generation.torch_engine.device_execution import to_device


class KVCache:
    """Cache of the attention keys and values of all running requests. Each request occupies one slot while it runs.

    The cache is one tensor with the shape [layer, slot, position, 2 * Hkv, D]. The heads of the keys precede the heads of the
    values. The keys and values of one token in one layer are adjacent, so that they are written at once.

    Args:
        layers: Number of attention layers.
        slots: Maximum number of requests that run at the same time.
        heads: Number of key-value heads, Hkv.
        context: Number of positions per slot.
        size: Size of a head, D.
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
        self._positions = context + 1
        self._all = torch.zeros((layers, slots, self._positions, 2 * heads, size), dtype=dtype, device=device)
        self._rows = self._all.flatten(1, 2).unbind()  # [slot * position, 2 * Hkv, D] for each layer
        self._heads = heads
        self.slots = slots
        self.context = context
        self.scratch = context
        self.dtype = dtype
        self.device = device

    @property
    def nbytes(self) -> int:
        """Size of the cache, in bytes."""
        return self._all.nbytes

    @staticmethod
    def bytes_per_position(layers: int, heads: int, size: int, dtype: torch.dtype) -> int:
        return 2 * layers * heads * size * dtype.itemsize

    def row(self, slot: int, position: int) -> int:
        """Return the index with which `write` addresses a position in a slot."""
        return slot * self._positions + position

    def write(self, layer: int, rows: torch.Tensor, key_value: torch.Tensor) -> None:
        """Store the keys and values of T tokens in one layer.

        Args:
            layer: Index of the layer.
            rows: Index of each token's position, [T]; see `row`.
            key_value: Keys and values of the tokens, [T, 2 * Hkv, D].
        """
        self._rows[layer].index_copy_(0, rows, key_value)

    def take(self, slots: Sequence[int], positions: slice) -> torch.Tensor:
        """Copy the keys and values of some slots. The method `put` accepts the result."""
        return self._all[:, :, positions].index_select(1, to_device(slots, self.device))

    def put(self, slots: torch.Tensor, positions: slice, key_value: torch.Tensor) -> None:
        """Overwrite the keys and values of some slots with a result of `take` for the same positions. This method allocates no
        memory.

        Args:
            slots: The slots, [B], int64, on the device.
            positions: The positions.
            key_value: Result of `take`.
        """
        self._all[:, :, positions].index_copy_(1, slots, key_value)

    def clear(self, slot: int) -> None:
        """Set all keys and values of a slot to zero."""
        self._all[:, slot].zero_()

    def read(self, slots: slice, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return views of the keys and values of some slots, for all layers.

        Returns:
            The keys and the values of each layer. Each has the shape [B, Hkv, length, D], where B is the number of slots.
        """
        views = self._all[:, slots, :length].transpose(2, 3)
        keys, values = views[:, :, : self._heads], views[:, :, self._heads :]
        return list(zip(keys.unbind(), values.unbind(), strict=True))
