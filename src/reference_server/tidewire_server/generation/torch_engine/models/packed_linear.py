"""Linear layers whose weights are stored in the block layout of oneDNN (`PackedLinear`).

torch multiplies float32 matrices on a CPU with MKL, which reads an unpacked weight, and on AMD processors does not use
AVX-512. oneDNN generates its kernels at run time for any x86 processor, and reads a weight that was packed once.
Measured on one core with AVX-512, all products of a Llama model of 100 million parameters in one step:

| rows | `functional.linear` | `x @ w`, w as [in, out] | packed |
|---|---|---|---|
| 1 | 25 ms | 18 ms | 13 ms |
| 8 | 45 ms | 44 ms | 18 ms |
| 64 | 196 ms | 171 ms | 75 ms |

The two operators are private members of torch. They are the ones that `torch.compile` calls for frozen weights. Without
them, or on other devices and for other types, `pack` returns a plain layer.

oneDNN generates and keeps a kernel for each number of rows, which takes 1 ms and 0.1 to 0.3 MB per weight shape. `kernel_rows`
therefore rounds the number of rows up. Otherwise prompts of many different lengths fill gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import nn
from torch.nn import functional

Linear = Callable[[torch.Tensor], torch.Tensor]

ROWS_HINT = 64
"""Number of rows for which oneDNN chooses the layout of a packed weight. Layouts for 16 to 2,048 rows are equally fast at
any number of rows. The layout for 1 row is slower."""

SINGLE_ROW_WEIGHTS = 1 << 19
"""Maximum number of weights of a layer that also keeps an unpacked copy. A call of oneDNN takes about 10 µs in addition to
the product, so that MKL is faster for a single row and a weight that fits into the cache."""


class PackedLinear(nn.Module):
    """Linear layer for float32 on a CPU.

    Args:
        weight: Weight, [out, in]. The layer keeps a packed copy, and an unpacked copy if the weight is small.
        bias: Bias, [out], or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS_HINT)
        self._bias = None if bias is None else bias.detach()
        self._inputs = weight.shape[1]
        self._transposed = weight.detach().t().contiguous() if weight.numel() <= SINGLE_ROW_WEIGHTS else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the product for rows x, [..., in]. The result has the shape [..., out]."""
        if self._transposed is not None and x.numel() == self._inputs:
            y = x @ self._transposed
            return y if self._bias is None else y.add_(self._bias)
        rows = x.reshape(-1, self._inputs)
        more = kernel_rows(len(rows)) - len(rows)
        padded = functional.pad(rows, (0, 0, 0, more)) if more else rows
        y = torch.ops.mkldnn._linear_pointwise(padded, self._packed, self._bias, "none", [], "")
        # Not -1: a step that only reads a part of a prompt needs the logits of 0 rows.
        return cast("torch.Tensor", y[: len(rows)].view(*x.shape[:-1], y.shape[-1]))


def kernel_rows(rows: int) -> int:
    """Return the number of rows for which a kernel is generated: at most an eighth more than `rows`."""
    step = 1 << max(0, (rows - 1).bit_length() - 4)
    return -(-rows // step) * step


def can_pack(weight: torch.Tensor) -> bool:
    """Return whether this build of torch has oneDNN's operators for the weight's device and type."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def pack(weight: torch.Tensor) -> Linear:
    """Return a linear layer without a bias, packed if possible. The weight has the shape [out, in]."""
    return PackedLinear(weight) if can_pack(weight) else partial(functional.linear, weight=weight.detach())


def pack_linear_layers(model: nn.Module) -> None:
    """Replace each `nn.Linear` within a model by a packed layer, if its weight can be packed."""
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if type(layer) is nn.Linear and can_pack(layer.weight):
                setattr(parent, name, PackedLinear(layer.weight, layer.bias))
