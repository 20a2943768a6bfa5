"""Linear layers whose weights are stored in the block layout of oneDNN (`PackedLinear`).

torch multiplies float32 matrices on a CPU with MKL. MKL reads unpacked weights, and does not use AVX-512 on AMD processors.
oneDNN generates its kernels at run time for any x86 processor, and reads weights that were packed once. The table shows the
time of all matrix products in one step of a Llama model of 100 million parameters, on one core with AVX-512:

| rows | `functional.linear` | `x @ w`, w as [in, out] | packed |
|---|---|---|---|
| 1 | 25 ms | 18 ms | 13 ms |
| 8 | 45 ms | 44 ms | 18 ms |
| 64 | 196 ms | 171 ms | 75 ms |

The two operators of torch that call oneDNN are private. `torch.compile` calls them for frozen weights. If they are missing,
or for another device or type, `pack` returns a plain layer.

oneDNN generates and keeps a kernel for each number of rows. A kernel takes 1 ms and 0.1 to 0.3 MB per weight shape. Prompts of
many different lengths would fill gigabytes with kernels. `kernel_rows` therefore rounds the number of rows up.
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
"""Number of rows for which oneDNN chooses the layout of a packed weight. Layouts for 16 to 2,048 rows are equally fast for
any actual number of rows. The layout for 1 row is slower."""

SINGLE_ROW_WEIGHTS = 1 << 19
"""Maximum number of weights for which a layer also keeps an unpacked copy. A call of oneDNN takes about 10 µs in addition to
the product. MKL is therefore faster for a single row if the weight fits into the cache."""


class PackedLinear(nn.Module):
    """Linear layer for float32 on a CPU.

    Args:
        weight: Weight, [out, in]. The layer keeps a packed copy. If the weight is small, it also keeps an unpacked copy.
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
        # Do not use -1 for the last dimension: a step that only reads a part of a prompt computes 0 rows.
        return cast("torch.Tensor", y[: len(rows)].view(*x.shape[:-1], y.shape[-1]))


def kernel_rows(rows: int) -> int:
    """Round a number of rows up to one for which a kernel is generated. The result is at most an eighth larger."""
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
    """Create a linear layer without a bias. It is packed if possible. The weight has the shape [out, in]."""
    return PackedLinear(weight) if can_pack(weight) else partial(functional.linear, weight=weight.detach())


def pack_linear_layers(model: nn.Module) -> None:
    """Replace each `nn.Linear` within a model by a packed layer, if its weight can be packed."""
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if type(layer) is nn.Linear and can_pack(layer.weight):
                setattr(parent, name, PackedLinear(layer.weight, layer.bias))
