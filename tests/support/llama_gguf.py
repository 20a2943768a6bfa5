"""Llama model of transformers as a GGUF file, for llama.cpp."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gguf
    import torch


def begin_gguf(path: Path, config: Any) -> "gguf.GGUFWriter":
    """Create the file, with the sizes of a model. The caller adds the vocabulary."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    return writer


def end_gguf(writer: "gguf.GGUFWriter", model: Any, config: Any) -> None:
    """Write the weights in float32, and close the file. GGUF rotates adjacent pairs, so the rows of q and k are interleaved.

    Args:
        writer: The file.
        model: The model without its head, whose weights are those of the embedding.
        config: Its configuration.
    """

    def interleaved(weight: "torch.Tensor", heads: int) -> "torch.Tensor":
        return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)

    def add(name: str, weight: "torch.Tensor") -> None:
        writer.add_tensor(f"{name}.weight", weight.detach().contiguous().numpy())

    add("token_embd", model.embed_tokens.weight)
    add("output_norm", model.norm.weight)
    for i, layer in enumerate(model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        add(f"blk.{i}.attn_norm", layer.input_layernorm.weight)
        add(f"blk.{i}.attn_q", interleaved(attention.q_proj.weight, config.num_attention_heads))
        add(f"blk.{i}.attn_k", interleaved(attention.k_proj.weight, config.num_key_value_heads))
        add(f"blk.{i}.attn_v", attention.v_proj.weight)
        add(f"blk.{i}.attn_output", attention.o_proj.weight)
        add(f"blk.{i}.ffn_norm", layer.post_attention_layernorm.weight)
        add(f"blk.{i}.ffn_gate", mlp.gate_proj.weight)
        add(f"blk.{i}.ffn_up", mlp.up_proj.weight)
        add(f"blk.{i}.ffn_down", mlp.down_proj.weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
