"""Asynchronous copies to a device (`to_device`), and one combined copy of several tensors back to the host (`HostCopy`).

A GPU stays busy only if the host prepares the next work while the GPU computes. The host therefore copies to the device from
pinned memory, without waiting. In each step, it waits only once, for a single copy of the results into pinned memory. If the
device is the CPU itself, no copies are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

BLOCKING_DEVICES = frozenset({"cpu", "mps"})
"""Types of devices that do not use pinned memory."""


def to_device(
    values: torch.Tensor | Sequence[Any], device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Copy numbers to a device. The host does not wait for the copy.

    Args:
        values: Numbers, or a tensor on the CPU.
        device: The device.
        dtype: Type of the new tensor. None if `values` is a tensor.
    """
    host = values if isinstance(values, torch.Tensor) else torch.tensor(values, dtype=dtype)
    if device.type in BLOCKING_DEVICES:
        return host.to(device)
    # torch does not reuse the pinned memory before the copy is complete.
    return host.pin_memory().to(device, non_blocking=True)


class HostCopy:
    """Copy of several tensors to the host in one transfer. Integers and booleans become int32.

    The constructor starts the copy and does not wait for it.

    Args:
        tensors: Tensors on one device. float32, integers or booleans.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._layout = [(one.shape, one.numel(), one.dtype == torch.float32) for one in tensors]
        bits = [
            (one if one.dtype == torch.float32 else one.int()).contiguous().view(torch.int32).view(-1)
            for one in tensors
        ]
        self._whole = torch.cat(bits)
        self._copied: torch.cuda.Event | None = None
        device = self._whole.device
        if device.type not in BLOCKING_DEVICES:
            self._whole = self._whole.to("cpu", non_blocking=True)  # into pinned memory
        if device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(device))

    def arrays(self) -> list[np.ndarray]:
        """Wait for the copy, and return the arrays in the order of the tensors."""
        if self._copied is not None:
            self._copied.synchronize()
        whole = self._whole.cpu().numpy()
        arrays, start = [], 0
        for shape, size, is_float in self._layout:
            part = whole[start : start + size]
            start += size
            arrays.append((part.view(np.float32) if is_float else part).reshape(shape))
        return arrays
