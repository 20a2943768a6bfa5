"""Forward pass of models of the transformers library, with the engine's attention (`TransformersModel`)."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from tidewire_server.generation.torch_engine.models.attention import AttentionContext, AttentionKind
from tidewire_server.generation.torch_engine.models.packed_linear import pack_linear_layers

NAME = "tidewire_dense_slots"

# Options of attention functions that this module does not implement. A model that uses one of them is rejected, because it
# would compute wrong results if the option were ignored.
UNSUPPORTED = ("s_aux", "position_bias", "cu_seq_lens_q")


class UnsupportedAttentionError(Exception):
    """The model requires a kind of attention that the engine does not compute."""


class Model(Protocol):
    """A model that computes logits for a packed row of tokens."""

    def __call__(
        self,
        *,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        context: AttentionContext,
    ) -> torch.Tensor:
        """Compute logits.

        Args:
            tokens: Token ids, [T], int64.
            positions: Position of each token in its text, [T], int64.
            wanted: Indexes of the tokens whose logits are computed, [R], int64.
            context: Computes the attention in each layer.

        Returns:
            Logits, [R, V], in the model's type.
        """
        ...


class TransformersModel:
    """A model of any architecture that uses the attention interface of transformers."""

    def __init__(self, module: PreTrainedModel) -> None:
        pack_linear_layers(module)
        self._module: Any = module

    def __call__(
        self,
        *,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        context: AttentionContext,
    ) -> torch.Tensor:
        output = self._module(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=wanted,
            attention_context=context,
        )
        logits: torch.Tensor = output.logits[0]
        return logits


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    attention_context: AttentionContext | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute the attention of one layer. The model calls this function.

    The query has the shape [1, H, T, D]. The key and the value have the shape [1, Hkv, T, D].
    """
    if attention_context is None:
        raise UnsupportedAttentionError(
            "the model does not pass its keyword arguments on to the attention function"
        )
    if attention_mask is not None:
        # Do not ignore the mask, because the generated texts would then differ from those of transformers.
        raise UnsupportedAttentionError("the model's attention has a mask that depends on the text")
    requested = [name for name in UNSUPPORTED if others.get(name) is not None]
    if requested:
        raise UnsupportedAttentionError(f"the model requires attention with {', '.join(requested)}")
    if not getattr(module, "is_causal", True):
        raise UnsupportedAttentionError("the model attends to later tokens, so it is not a decoder")
    layer = module.layer_idx
    if not isinstance(layer, int):
        raise UnsupportedAttentionError("the model's attention layers have no index (layer_idx)")
    if key.shape != value.shape:
        raise UnsupportedAttentionError("the model's keys and values have different sizes")
    _, heads, length, size = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    key_value = torch.cat([key[0], value[0]]).transpose(0, 1)
    grouped = query[0].view(kv_heads, groups, length, size).permute(2, 1, 0, 3)  # [T, G, Hkv, D]
    out = attention_context.attend(layer, grouped, key_value, AttentionKind(scaling, sliding_window, softcap))
    return out.view(length, groups, kv_heads, size).transpose(1, 2).reshape(1, length, heads, size), None


def register() -> None:
    """Register the attention function with transformers.

    No mask function is registered, so transformers passes None as the mask. Any other mask comes from the model's own code.
    """
    AttentionInterface.register(NAME, attention)
