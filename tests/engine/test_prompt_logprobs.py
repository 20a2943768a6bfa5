"""Log-probabilities of the prompt, compared with a float64 model."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from support.model_checkpoints import collect, crafted_checkpoint, generate, generate_one, random_llama
from tidewire_server import Server
from tidewire_server.generation.engine_interface import EngineError
from tidewire_server.generation.generate_endpoint import add_engine
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import TorchEngine, step_runner, step_scheduler
from tidewire_server.generation.torch_engine.choose_reusable_slot import REUSED_TOKENS
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint

Start = Callable[..., TorchEngine]
PROMPT = "import re\ndef turn(re): return re"


def test_prompt_has_the_log_probabilities_of_a_float64_model(start: Start, tmp_path: Path):
    folder = random_llama(tmp_path)
    found = generate_one(
        start(folder), prompt=PROMPT, max_tokens=2, seed=1, prompt_logprobs=4, logprob_decimals=7
    )
    ids = found.prompt_token_ids
    assert len(ids) == found.prompt_tokens > 10
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    exact = model(torch.tensor([ids])).logits[0].detach().log_softmax(-1)
    assert (found.prompt_logprobs[0], found.prompt_top_ids[0], found.prompt_top_logprobs[0]) == (None, [], [])
    for at, token in enumerate(ids[1:], start=1):
        assert found.prompt_logprobs[at] == pytest.approx(exact[at - 1, token].item(), abs=2e-5)
        top = exact[at - 1].topk(4)
        assert found.prompt_top_ids[at] == top.indices.tolist()
        assert found.prompt_top_logprobs[at] == pytest.approx(top.values.tolist(), abs=2e-5)


def test_prompt_is_scored_in_parts_of_bounded_size_that_are_streamed(
    start: Start, random_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
):
    requests = [
        Generate(prompt=PROMPT * n, max_tokens=3, seed=n, prompt_logprobs=2, top_logprobs=1)
        for n in (1, 2, 3)
    ]
    whole = generate(start(random_checkpoint), *requests)
    monkeypatch.setattr(step_scheduler, "SCORED_TOKENS", 7)
    sizes: list[int] = []
    score = step_runner.PromptScores

    def counted(logits: torch.Tensor, *arguments: Any) -> Any:
        sizes.append(len(logits))
        return score(logits, *arguments)

    monkeypatch.setattr(step_runner, "PromptScores", counted)
    parts = generate(start(random_checkpoint), *requests)
    assert max(sizes) <= 7
    assert len(sizes) > 20
    for one, other in zip(whole, parts, strict=True):
        assert one.prompt_token_ids == other.prompt_token_ids
        assert one.prompt_logprobs[1:] == pytest.approx(other.prompt_logprobs[1:], abs=1.01e-4)
        assert one.token_ids == other.token_ids


def test_value_has_the_columns_of_the_prompt(start: Start, random_checkpoint: Checkpoint):
    server = Server()
    add_engine(server, start(random_checkpoint))
    members = {"prompt": PROMPT, "max_tokens": 2, "logprobs_mode": "processed", "seed": 1}
    value = server.call("generate", **members, prompt_logprobs=0)
    assert value.keys() == {"text", "prompt_token_ids", "prompt_logprobs", "logprobs_mode", "finish_reason"}
    assert len(value["prompt_logprobs"]) == len(value["prompt_token_ids"]) > 10
    raw = server.call("generate", **members | {"logprobs_mode": "raw"}, prompt_logprobs=0)
    assert raw["prompt_logprobs"] == value["prompt_logprobs"]
    assert server.call("generate", **members, prompt_logprobs=1)["prompt_top_ids"][0] == []


def test_prompt_with_invalid_logits_fails_only_its_own_request(start: Start, tmp_path: Path):
    engine = start(crafted_checkpoint(tmp_path, list("abcdefghijklmno"), {"c": {"d": 5.0}}))
    engine._checkpoint.model._embedding[1] = torch.nan  # the embedding of "a"

    async def both() -> list[Any]:
        return await asyncio.gather(
            collect(engine, Generate(prompt="ac", max_tokens=2, prompt_logprobs=1)),
            collect(engine, Generate(prompt="cc", max_tokens=2, prompt_logprobs=1, temperature=0.0)),
            return_exceptions=True,
        )

    bad, good = asyncio.run(both())
    assert isinstance(bad, EngineError)
    assert "invalid (NaN or infinity)" in str(bad)
    assert good.text[0] == "d"
    assert asyncio.run(engine.stats()).running == 0


def test_prompt_is_scored_completely_although_an_earlier_text_has_the_same_beginning(
    start: Start, random_checkpoint: Checkpoint
):
    request = Generate(prompt=PROMPT * 3, max_tokens=2, seed=1, prompt_logprobs=1)
    engine = start(random_checkpoint)
    first = generate(engine, request)[0]
    assert first.prompt_tokens > 2 * REUSED_TOKENS
    assert generate(engine, request)[0].prompt_logprobs == first.prompt_logprobs
