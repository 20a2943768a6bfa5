"""Small model checkpoints for engine tests: a random model, and crafted models with known logits."""

import asyncio
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from tidewire.protocol.document.logprob_columns import COLUMNS
from tidewire_server.generation.engine_interface import Delta, LoggedTokens
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import TorchEngine

logging.disable_progress_bar()

END = "<|end|>"
CONTEXT = 128


def byte_alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level_tokenizer(tokens: list[str], merges: list[tuple[str, str]] = []) -> Tokenizer:  # noqa: B006
    """Return a byte-level tokenizer with the end token (id 0), followed by the given tokens."""
    vocabulary = {END: 0} | {token: i for i, token in enumerate(tokens, start=1)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    return tokenizer


def save(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    *,
    end: str | None = None,
    chat_template: str | None = None,
) -> Path:
    model.save_pretrained(folder)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end)
    if chat_template is not None:
        fast.chat_template = chat_template
    fast.save_pretrained(folder)
    return folder


def random_tokenizer() -> Tokenizer:
    merges = [
        ("d", "e"),
        ("de", "f"),
        ("r", "e"),
        ("t", "u"),
        ("tu", "r"),
        ("Ġ", "Ġ"),
        ("ĠĠ", "ĠĠ"),
        ("s", "e"),
    ]
    return byte_level_tokenizer(byte_alphabet() + [a + b for a, b in merges], merges)


def random_llama(folder: Path, *, seed: int = 0, chat_template: str | None = None) -> Path:
    """Save a random model: two layers, grouped heads, vocabulary of 265, uneven distributions, and no end token."""
    tokenizer = random_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.25,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return save(folder, LlamaForCausalLM(config), tokenizer, chat_template=chat_template)


def crafted_checkpoint(
    folder: Path, tokens: list[str], logits: dict[str, dict[str, float]], *, rest: float = 0.0
) -> Path:
    """Save a model whose next-token logits depend only on the last token and have exactly the given values.

    Args:
        folder: Folder of the checkpoint.
        tokens: Tokens after the end token; at most 15, because the width must be a power of two for exact logits.
        logits: Map of the last token to the logits of next tokens; all other tokens have the logit `rest`.
        rest: Logit of all other tokens.
    """
    tokenizer = byte_level_tokenizer(tokens)
    size = tokenizer.get_vocab_size()
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=size,
        intermediate_size=1,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=2,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=0.0,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config)
    scale = size**0.5  # the norm of a one-hot row
    with torch.no_grad():
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size) * scale)
        model.lm_head.weight.fill_(rest / scale)
        for last, following in logits.items():
            for token, logit in following.items():
                model.lm_head.weight[tokenizer.token_to_id(token), tokenizer.token_to_id(last)] = (
                    logit / scale
                )
    return save(folder, model, tokenizer, end=END)


def byte_level_tokens(data: bytes) -> list[str]:
    """Return bytes as tokens of the byte-level alphabet, one token per byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}
    return [names[byte] for byte in data]


class Output:
    """Complete output of a generation. Each column is an attribute: a list, empty if it was not requested."""

    text: list[str]

    def __init__(self, request: Generate, whole: Delta) -> None:
        self.finish_reason, self.prompt_tokens = whole.finish_reason, whole.prompt_tokens
        for column in COLUMNS:
            setattr(self, column.name, [])
        for names, rows in ((request.columns, whole.rows), (request.prompt_columns, whole.prompt_rows)):
            for name, elements in zip(names, zip(*rows, strict=True), strict=bool(rows)):
                setattr(self, name, [json.loads(x) if type(x) is bytes else x for x in elements])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Output) and vars(self) == vars(other)


async def collect(engine: TorchEngine, request: Generate, logged: LoggedTokens | None = None) -> Output:
    """Return the complete output of a generation."""
    whole = Delta()
    async for delta in engine.generate(request, logged):
        whole.extend(delta)
    return Output(request, whole)


def generate(engine: TorchEngine, *requests: Generate) -> list[Output]:
    """Run requests concurrently, and return their complete outputs."""

    async def all_of_them() -> list[Output]:
        return await asyncio.gather(*(collect(engine, request) for request in requests))

    return asyncio.run(all_of_them())


def generate_one(engine: TorchEngine, **members: object) -> Output:
    return generate(engine, Generate(**members))[0]
