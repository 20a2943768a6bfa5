"""Forward pass of models of the Llama family (`LlamaModel`), with few operators.

The engine uses this class instead of the implementation in transformers if the checkpoint is a Llama or Mistral model
without biases.

Time of each part of a decoding step, in µs, on one thread with AVX-512. The first three columns are for the default model with
1, 8 and 64 requests. The last is for a model of 100 million parameters with 1 request. `bench/engine_cpu.py` measures the times.

| part of the step | 1 | 8 | 64 | 100 M |
|---|---|---|---|---|
| products: 4 in each layer, 1 for the logits | 642 | 1,095 | 2,652 | 13,925 |
| attention: 1 kernel in each layer | 104 | 495 | 6,090 | 328 |
| norms: 2 in each layer | 148 | 212 | 384 | 449 |
| rotation of query and key: 3 kernels in each layer | 81 | 116 | 293 | 240 |
| activation and residual: 4 kernels in each layer | 37 | 67 | 206 | 137 |
| writes to the cache: 1 kernel in each layer | 21 | 47 | 227 | 56 |
| views, without a kernel | 155 | 189 | 246 | 363 |
| embedding, sampling, conversions | 176 | 220 | 405 | 370 |
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedConfig

from tidewire_server.generation.torch_engine.models.attention import AttentionContext, AttentionKind
from tidewire_server.generation.torch_engine.models.packed_linear import Linear, pack

FAMILY = frozenset({"llama", "mistral"})


class Layer(NamedTuple):
    """Weights of one decoder layer. The linear layers have no biases."""

    input_norm: torch.Tensor
    query_key_value: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """A Llama model that uses the weights of a model loaded by transformers.

    Args:
        module: `LlamaForCausalLM` or `MistralForCausalLM`. Its layers are removed while their weights are packed, so that
            at most one layer is in memory twice.
    """

    def __init__(self, module: Any) -> None:
        config, body = module.config, module.model
        self._kv_heads = config.num_key_value_heads
        self._groups = config.num_attention_heads // config.num_key_value_heads
        self._size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        # Ignore the window of a Llama configuration, as transformers does.
        self._kind = AttentionKind(window=config.sliding_window if config.model_type == "mistral" else None)
        self._width = (config.hidden_size,)
        self._epsilon = config.rms_norm_eps
        self._embedding = body.embed_tokens.weight.detach()
        self._norm = body.norm.weight.detach()
        self._cos, self._sin = self._rotations(module)
        self._layers = []
        for i, layer in enumerate(body.layers):
            self._layers.append(self._pack(layer))
            body.layers[i] = nn.Identity()
        self._head = pack(module.lm_head.weight)

    @staticmethod
    def supports(config: PreTrainedConfig) -> bool:
        """Return whether this class computes the same results as transformers for a model with this configuration."""
        return (
            config.model_type in FAMILY
            and config.hidden_act == "silu"
            and not getattr(config, "attention_bias", False)
            and not getattr(config, "mlp_bias", False)
        )

    def __call__(
        self,
        *,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        context: AttentionContext,
    ) -> torch.Tensor:
        """Compute the logits; see `transformers_model.Model`."""
        norm, width, epsilon = functional.rms_norm, self._width, self._epsilon
        rotated = (self._groups + 1) * self._kv_heads  # number of heads of query and key
        queries = self._groups * self._kv_heads
        shift = self._size // 2
        cos, sin = self._cos[positions], self._sin[positions]  # [T, 1, D]
        x = functional.embedding(tokens, self._embedding)  # [T, W]
        for i, layer in enumerate(self._layers):
            heads = layer.query_key_value(norm(x, width, layer.input_norm, epsilon))
            heads = heads.view(-1, rotated + self._kv_heads, self._size)
            turning = heads[:, :rotated]
            # The products are already in temporary tensors, so the result may overwrite `turning`.
            torch.addcmul(turning * cos, turning.roll(shift, -1), sin, out=turning)
            query = heads[:, :queries].view(-1, self._groups, self._kv_heads, self._size)
            x += layer.output(context.attend(i, query, heads[:, queries:], self._kind))
            gate, up = layer.gate_up(norm(x, width, layer.mlp_norm, epsilon)).chunk(2, -1)
            x += layer.down(functional.silu(gate).mul_(up))
        logits: torch.Tensor = self._head(norm(x[wanted], width, self._norm, epsilon))
        return logits

    def _rotations(self, module: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the rotation at each position from the rotary embedding of a loaded model.

        A head x is rotated to x * cos + roll(x, D / 2) * sin. The first half of the returned sines is negated.

        Returns:
            The cosines and sines, [context, 1, D].
        """
        positions = torch.arange(module.config.max_position_embeddings, device=self._norm.device)
        cos, sin = module.model.rotary_emb(self._norm, positions[None])
        sin[..., : self._size // 2].neg_()
        return cos[0, :, None], sin[0, :, None]

    def _pack(self, layer: Any) -> Layer:
        """Pack the weights of one decoder layer of a loaded model.

        The query heads, and the inputs of the output projection, are reordered from [Hkv, G] to [G, Hkv]. The output of the
        attention then needs no copy.
        """
        attention, mlp = layer.self_attn, layer.mlp
        heads = (self._kv_heads, self._groups, self._size)
        query = attention.q_proj.weight.unflatten(0, heads).transpose(0, 1).flatten(0, 2)
        output = attention.o_proj.weight.unflatten(1, heads).transpose(1, 2).flatten(1, 3)
        return Layer(
            input_norm=layer.input_layernorm.weight.detach(),
            query_key_value=pack(torch.cat([query, attention.k_proj.weight, attention.v_proj.weight])),
            output=pack(output),
            mlp_norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=pack(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])),
            down=pack(mlp.down_proj.weight),
        )
