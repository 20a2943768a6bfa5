"""CPU time per token of the torch engine on one thread, compared with two peers in the same process and run.

The peers are continuous batching of transformers (`ContinuousBatchingManager`) and llama.cpp (its server, called through
xllamacpp without HTTP). All three run the same weights in float32: the default model, and a Llama model of 100 million
random parameters, which is built from a seed. llama.cpp reads them from a GGUF file that this script writes.

1, 8 or 64 requests arrive at the same time. Each has a prompt of about 16 tokens and generates 32 tokens greedily. The
time is the CPU time of the process, from the arrival of the requests to the last token, divided by the number of
generated tokens, so that it includes the prompts. The three engines take turns, and each number is a median of the
rounds. The ratios are medians of the ratios within one round. Each engine returns token ids, which are compared.

The script also writes a profile: the share of each group of operators in the CPU time of the engine's thread. The rest
of the engine's CPU time is Python between the operators.

    python bench/engine_cpu.py            about five minutes, on a machine that does nothing else
    python bench/engine_cpu.py --quick    default model only, one round: half a minute
"""

import argparse
import asyncio
import json
import logging
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import gguf
import torch
import transformers
import xllamacpp
from measured import save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import TorchEngine
from tidewire_server.model import default_model

RESULTS = Path(__file__).parent / "results/engine_cpu.json"
TOKENS = 32
REQUESTS = (1, 8, 64)
SLOTS = max(REQUESTS)
OURS, BATCHING, LLAMA_CPP = "tidewire", "transformers, continuous batching", "llama.cpp"
TARGETS = {
    ("default", BATCHING): (1.3, 1.5, 2.0),
    ("default", LLAMA_CPP): (0.25, 0.6, 1.3),
    ("100 M", BATCHING): (1.3, 1.5, 2.0),
    ("100 M", LLAMA_CPP): (0.8, 1.5, 2.5),
}
"""Minimum of the peer's time divided by ours, for each number of requests."""

Run = Callable[[int], list[list[int]]]
"""Generates TOKENS tokens for the first n prompts, and returns their ids."""


# --- models


def build_llama(folder: Path) -> Path:
    """Save a Llama model with 100 million random parameters: 12 layers of 768, vocabulary of 32,000."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [a + b for a in alphabet for b in alphabet][: 32_000 - len(alphabet)]
    vocabulary = {token: i for i, token in enumerate([*alphabet, *pairs])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def prompts_of(name: str) -> list[str]:
    text = "def f_{:03d}(value, count):\n" if name == "default" else "request {:08d}"
    return [text.format(i) for i in range(SLOTS)]


def write_gguf(path: Path, model: LlamaForCausalLM, tokens: list[str]) -> None:
    """Write a Llama model as float32 GGUF file. GGUF rotates adjacent pairs, so the rows of q and k are interleaved."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(["a b"])

    def interleave(weight: torch.Tensor, heads: int) -> torch.Tensor:
        return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)

    def add(name: str, weight: torch.Tensor) -> None:
        writer.add_tensor(f"{name}.weight", weight.detach().contiguous().numpy())

    add("token_embd", model.model.embed_tokens.weight)
    add("output_norm", model.model.norm.weight)
    for i, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        add(f"blk.{i}.attn_norm", layer.input_layernorm.weight)
        add(f"blk.{i}.attn_q", interleave(attention.q_proj.weight, config.num_attention_heads))
        add(f"blk.{i}.attn_k", interleave(attention.k_proj.weight, config.num_key_value_heads))
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


# --- engines


def ours(folder: Path, prompts: list[str], loop: asyncio.AbstractEventLoop) -> tuple[Run, TorchEngine]:
    engine = TorchEngine.load(folder, device="cpu", dtype="float32", threads=1, slots=SLOTS)

    async def one(prompt: str) -> list[int]:
        request = Generate(prompt=prompt, max_tokens=TOKENS, temperature=0.0, logprobs=True)
        return [token async for delta in engine.generate(request) for token in delta.token_ids]

    async def several(n: int) -> list[list[int]]:
        return await asyncio.gather(*(one(prompt) for prompt in prompts[:n]))

    return lambda n: loop.run_until_complete(several(n)), engine


def continuous_batching(model: LlamaForCausalLM, prompts: list[list[int]]) -> Run:
    config = GenerationConfig(max_new_tokens=TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0)
    manager = model.init_continuous_batching(config, ContinuousBatchingConfig())
    manager.start()

    def run(n: int) -> list[list[int]]:
        # The manager shares the common prefix of prompts, so that all requests run as they were sent.
        order = manager.add_requests(prompts[:n], max_new_tokens=TOKENS)
        done = {}
        while len(done) < n:
            result = manager.get_result(timeout=60)
            if result is not None and result.is_finished():
                done[result.request_id] = result.generated_tokens
        return [done[request] for request in order]

    return run


def llama_cpp(path: Path, prompts: list[list[int]]) -> Run:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * 64
    params.n_batch = params.n_ubatch = 2048
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cpuparams.poll = params.cpuparams_batch.poll = 0
    params.kv_unified = False
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.warmup = False
    params.verbosity = -1
    server = xllamacpp.Server(params)

    def one(ids: list[int], into: list[int]) -> None:
        request = {
            "prompt": ids,
            "n_predict": TOKENS,
            "temperature": 0.0,
            "top_k": 1,
            "samplers": ["top_k"],
            "cache_prompt": False,
            "ignore_eos": True,
            "return_tokens": True,
            "verbose": True,  # the response contains the token ids
        }
        into.extend(server.handle_completions(request)["__verbose"]["tokens"])

    def run(n: int) -> list[list[int]]:
        results: list[list[int]] = [[] for _ in range(n)]
        threads = [
            threading.Thread(target=one, args=(ids, into))
            for ids, into in zip(prompts, results, strict=False)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    return run
