"""Failures of single requests: a prompt that is too long, exhausted memory, and invalid logits. Others continue."""

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from support.model_checkpoints import CONTEXT, collect, generate, generate_one, random_llama
from tidewire_server.generation.engine_interface import Delta, EngineError, InputError
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import TorchEngine
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint

Start = Callable[..., TorchEngine]


class LimitedMemory:
    """A model that allocates more memory than any machine has, if its input contains too many tokens of one kind."""

    def __init__(self, model: Any, token: int, most: int) -> None:
        self._model, self._token, self._most = model, token, most

    def __call__(self, *, tokens: torch.Tensor, **inputs: Any) -> torch.Tensor:
        if (tokens == self._token).sum() > self._most:
            torch.empty(1 << 60, dtype=torch.uint8)
        return self._model(tokens=tokens, **inputs)


def limited(checkpoint: Checkpoint, text: str, most: int) -> Checkpoint:
    (token,) = checkpoint.tokenizer(text)["input_ids"]
    return dataclasses.replace(checkpoint, model=LimitedMemory(checkpoint.model, token, most))


def outcomes(engine: TorchEngine, *requests: Generate) -> list[Delta | EngineError]:
    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(collect(engine, one) for one in requests), return_exceptions=True)

    return asyncio.run(all_of_them())


def request(prompt: str, seed: int) -> Generate:
    return Generate(prompt=prompt, seed=seed, max_tokens=10, logprobs=True)


def test_prompt_that_exhausts_the_memory_fails_alone(start: Start, random_checkpoint: Checkpoint):
    requests = [request("ab" * (i + 1), i) for i in range(6)]
    expected = [delta.token_ids for delta in generate(start(random_checkpoint), *requests)]
    engine = start(limited(random_checkpoint, "#", 15))
    requests[3:3] = [request("#" * 16, 9)]
    results = outcomes(engine, *requests)
    error = results.pop(3)
    assert isinstance(error, EngineError)
    assert str(error) == (
        "the engine's memory does not suffice for 16 tokens of the prompt of this request (RuntimeError); shorten the "
        "prompt, or start the server with fewer slots (now 16) or a shorter context"
    )
    assert [delta.token_ids for delta in results] == expected
    assert asyncio.run(engine.stats()).running == 0


def test_error_names_one_token_of_a_prompt_in_the_singular(start: Start, random_checkpoint: Checkpoint):
    [error] = outcomes(start(limited(random_checkpoint, "#", 0)), request("#", 0))
    assert "memory does not suffice for 1 token of the prompt of this request" in str(error)


def test_step_that_needs_too_much_memory_is_divided(start: Start, random_checkpoint: Checkpoint):
    """No request fails, if each has enough memory in a step of its own."""
    requests = [request("#" * 10 + "ab" * i, i) for i in range(5)]
    expected = [delta.token_ids for delta in generate(start(random_checkpoint), *requests)]
    engine = start(limited(random_checkpoint, "#", 15))
    assert [delta.token_ids for delta in outcomes(engine, *requests)] == expected


def test_invalid_numbers_do_not_remain_in_a_slot(start: Start, tmp_path: Path):
    """A token with an invalid embedding spoils the keys and values of its request, but not those of the next request."""
    folder = random_llama(tmp_path)
    weights = load_file(folder / "model.safetensors")
    (bad,) = AutoTokenizer.from_pretrained(folder)("#")["input_ids"]
    good = [request("ab", 1), request("x" * 90, 2)]
    expected = [delta.token_ids for delta in generate(start(folder), *good)]
    weights["model.embed_tokens.weight"][bad] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    engine = start(folder, slots=2)
    for error in outcomes(engine, request("a" * 50 + "#" * 20, 1), request("#" * 20, 2)):
        assert isinstance(error, EngineError)
        assert "logits for the next token are invalid" in str(error)
    assert [delta.token_ids for delta in outcomes(engine, *good)] == expected


def test_prompt_longer_than_the_context_is_rejected_and_others_continue(
    start: Start, random_checkpoint: Checkpoint
):
    engine = start(random_checkpoint)
    long, good = outcomes(engine, request("x" * (CONTEXT + 1), 1), request("ab", 2))
    assert isinstance(long, InputError)
    assert (long.member, long.code) == ("prompt", "input_too_long")
    assert f"prompt has {CONTEXT + 1} tokens, but the model's context is limited to {CONTEXT} tokens" in str(
        long
    )
    assert good.token_ids == generate_one(engine, prompt="ab", seed=2, max_tokens=10, logprobs=True).token_ids
