"""Execution of steps by kind of device (`Execution`): early launches, static shapes, and copies that do not block.

A GPU computes while the host prepares the next step, as long as the host does not wait for it. The host therefore copies
to the device from pinned memory without waiting (`to_device`), reads the results of a step with a single copy into pinned
memory (`HostCopy`), and launches the next step before this copy is complete (`Execution.early_launch`). A CPU computes in
the host's own thread, so none of this applies to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

BLOCKING_DEVICES = frozenset({"cpu", "mps"})
"""Types of devices without copies to and from pinned memory."""


@dataclass(frozen=True)
class Execution:
    """Execution of steps on one device. In float32, the tokens do not depend on it, except where two tokens are equally
    probable up to rounding error: the shapes of a step change the last digits of the logits.
    """

    early_launch: bool = False
    """Whether a step may be launched before the tokens of the step before it are on the host. Each text then ends one step
    late: the token that such a step samples for it is discarded."""
    buckets: bool = False
    """Whether the shapes of a step without prompts come from a small set, so that kernels can be recorded in CUDA graphs."""

    @classmethod
    def of(cls, device: torch.device) -> Execution:
        """Return the execution that suits a device."""
        is_async = device.type not in BLOCKING_DEVICES
        return cls(early_launch=is_async, buckets=is_async)


def row_bucket(rows: int, limit: int) -> int:
    """Return the smallest bucket for a number of rows: 1, 2, 4, or a multiple of 8, but at most `limit`."""
    power = 1 << (rows - 1).bit_length()
    return min(limit, power if rows <= 8 else -(-rows // 8) * 8)


def length_bucket(length: int, limit: int) -> int:
    """Return the smallest bucket for a number of positions, but at most `limit`.

    The buckets are the multiples of 64 up to 512, and four numbers between each power of two and the next one. A context of
    8,192 positions has 24 buckets, and a bucket is at most a quarter longer than necessary, or 63 positions.
    """
    step = max(64, (1 << (length - 1).bit_length()) // 8)
    return min(limit, -(-length // step) * step)


def to_device(
    values: torch.Tensor | Sequence[Any], device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Copy numbers to a device. The host does not wait for the copy.

    Args:
        values: Numbers, or a tensor on the CPU.
        device: The device.
        dtype: Type of the tensor, if the values are not a tensor.
    """
    host = values if isinstance(values, torch.Tensor) else torch.tensor(values, dtype=dtype)
    if device.type == "cpu":
        return host
    if device.type in BLOCKING_DEVICES:
        return host.to(device)
    # torch does not reuse the pinned memory before the copy is complete.
    return host.pin_memory().to(device, non_blocking=True)


class HostCopy:
    """Copy of tensors to the host, in one piece. Integers and booleans become int32.

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
