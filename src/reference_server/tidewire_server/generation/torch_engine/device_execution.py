"""Asynchronous copies to a device (`to_device`), and one combined copy of several tensors back to the host (`to_host`).

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


def to_host(tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Copy several tensors to the host in one transfer, and wait for it. Integers and booleans become int32.

    Args:
        tensors: Tensors on one device. float32, integers or booleans.

    Returns:
        The arrays, in the order of the tensors.
    """
    layout = [(one.shape, one.numel(), one.dtype == torch.float32) for one in tensors]
    bits = [
        (one if one.dtype == torch.float32 else one.int()).contiguous().view(torch.int32).view(-1)
        for one in tensors
    ]
    whole = torch.cat(bits)
    device = whole.device
    if device.type not in BLOCKING_DEVICES:
        whole = whole.to("cpu", non_blocking=True)  # into pinned memory
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(torch.cuda.current_stream(device))
        copied.synchronize()
    on_host = whole.cpu().numpy()
    arrays, start = [], 0
    for shape, size, is_float in layout:
        part = on_host[start : start + size]
        start += size
        arrays.append((part.view(np.float32) if is_float else part).reshape(shape))
    return arrays
