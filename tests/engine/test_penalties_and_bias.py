"""Bias and penalties, compared with the logits processors of transformers, and on a model with known logits."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, RepetitionPenaltyLogitsProcessor

from support.model_checkpoints import crafted_checkpoint, generate, generate_one, random_llama
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import TorchEngine

Start = Callable[..., TorchEngine]
LETTERS = list("abcdefghijklmno")
A, B, C, D = range(1, 5)


@pytest.fixture
def cycle(start: Start, tmp_path: Path) -> TorchEngine:
    """After each letter, b has the logit 4, c has 3 and d has -1. All others have 0."""
    following = {"b": 4.0, "c": 3.0, "d": -1.0}
    return start(crafted_checkpoint(tmp_path, LETTERS, dict.fromkeys("abcd", following)))


def greedy(engine: TorchEngine, prompt: str = "a", tokens: int = 6, **members: object) -> str:
    return "".join(generate_one(engine, prompt=prompt, max_tokens=tokens, temperature=0.0, **members).text)


def test_bias_is_added_to_the_logits(cycle: TorchEngine):
    assert greedy(cycle, logit_bias={str(C): 1.5}) == "cccccc"
    assert greedy(cycle, logit_bias={str(D): 6.0, str(C): 1.5}) == "dddddd"


def test_presence_penalty_counts_generated_tokens_once_and_ignores_the_prompt(cycle: TorchEngine):
    assert greedy(cycle, prompt="b", presence_penalty=1.5) == "bcbbbb"
    assert greedy(cycle, presence_penalty=-1.0) == "bbbbbb"


def test_frequency_penalty_counts_each_time_that_a_token_was_generated(cycle: TorchEngine):
    assert greedy(cycle, prompt="bbbb", frequency_penalty=0.75) == "bbcbcb"


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits(cycle: TorchEngine):
    delta = generate_one(
        cycle,
        prompt="dba",
        max_tokens=1,
        temperature=0.0,
        repetition_penalty=2.0,
        logprobs_mode="processed",
        logprob_token_ids=[B, C, D],
    )
    assert delta.token_ids == [C]  # b has 4 / 2
    raw, found = (
        generate_one(
            cycle,
            prompt="dba",
            max_tokens=1,
            repetition_penalty=2.0,
            logprobs_mode=mode,
            logprob_token_ids=[B, C, D],
        ).scored_logprobs[0]
        for mode in ("raw", "processed")
    )
    assert raw[0] - raw[2] == pytest.approx(5.0, abs=2e-4)
    assert found[0] - found[2] == pytest.approx(4 / 2 - -1 * 2, abs=2e-4)
    assert found[1] - found[0] == pytest.approx(3 - 2, abs=2e-4)


@pytest.mark.parametrize("penalty", [1e-4, 1e-40, 1e-300])
def test_tiny_repetition_penalty_does_not_overflow(cycle: TorchEngine, penalty: float):
    for seed in range(3):
        found = generate_one(
            cycle,
            prompt="ab",
            max_tokens=3,
            seed=seed,
            repetition_penalty=penalty,
            logprobs_mode="processed",
            logprobs=True,
        )
        assert ("".join(found.text), found.logprobs) == ("bbb", [0.0, 0.0, 0.0])


def test_repetition_penalty_gives_the_tokens_and_log_probabilities_of_transformers(
    start: Start, tmp_path: Path
):
    folder = random_llama(tmp_path)
    engine = start(folder)
    delta = generate_one(
        engine,
        prompt="def return",
        max_tokens=24,
        temperature=0.0,
        repetition_penalty=1.4,
        prompt_logprobs=0,
        logprob_token_ids=[7, 70],
        logprob_decimals=6,
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    penalty = RepetitionPenaltyLogitsProcessor(1.4)
    ids = torch.tensor([delta.prompt_token_ids])
    for token, scored in zip(delta.token_ids, delta.scored_logprobs, strict=True):
        logits = model(ids).logits[:, -1].detach()
        assert logits.log_softmax(-1)[0, [7, 70]].tolist() == pytest.approx(scored, abs=2e-5)
        assert penalty(ids, logits).argmax().item() == token
        ids = torch.cat([ids, torch.tensor([[token]])], -1)


def test_penalties_of_one_request_do_not_affect_others(cycle: TorchEngine):
    plain = {"prompt": "a", "max_tokens": 6, "temperature": 0.0}
    found = generate(
        cycle,
        Generate(**plain),
        Generate(**plain, logit_bias={"4": 9.0}),
        Generate(**plain, presence_penalty=1.5),
        Generate(**plain),
    )
    assert ["".join(one.text) for one in found] == ["bbbbbb", "dddddd", "bcbbbb", "bbbbbb"]
