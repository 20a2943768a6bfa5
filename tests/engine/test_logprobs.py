"""Log-probabilities of the engine, on models with known logits, including cases that other engines got wrong."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.model_checkpoints import byte_level_tokens, crafted_checkpoint, generate, generate_one
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import TorchEngine
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint, load

Start = Callable[..., TorchEngine]
LETTERS = list(
    "abcdefghijklmno"
)  # 16 tokens with the end token: widths are powers of two, so the logits are exact
A, B, C, D, E = range(1, 6)


@pytest.fixture
def tied(start: Start, tmp_path: Path) -> TorchEngine:
    """After "a", tokens b and c tie at 2, d has 1, e has 0.5, and the other twelve tie at 0. After others, all tie."""
    return start(crafted_checkpoint(tmp_path, LETTERS, {"a": {"b": 2.0, "c": 2.0, "d": 1.0, "e": 0.5}}))


def expected_log_probability(logit: float) -> float:
    total = 2 * math.exp(2) + math.exp(1) + math.exp(0.5) + 12
    return logit - math.log(total)


def test_top_n_has_exact_log_probabilities_in_a_total_order(tied: TorchEngine):
    delta = generate_one(
        tied, prompt="a", max_tokens=1, temperature=0.0, top_logprobs=7, logprob_decimals=6, ranks=True
    )
    assert delta.top_ids == [[B, C, D, E, 0, A, 6]]
    expected = [expected_log_probability(x) for x in (2, 2, 1, 0.5, 0, 0, 0)]
    assert delta.top_logprobs[0] == pytest.approx(expected, abs=1e-6)
    assert delta.logprobs == [delta.top_logprobs[0][0]]
    assert delta.top_logprobs[0][0] == delta.top_logprobs[0][1]


@pytest.mark.parametrize(("n", "ids"), [(1, [B]), (2, [B, C]), (3, [B, C, D]), (5, [B, C, D, E, 0])])
def test_tie_at_the_cut_keeps_the_lowest_ids_and_exactly_n_tokens(tied: TorchEngine, n: int, ids: list[int]):
    assert generate_one(tied, prompt="a", max_tokens=1, top_logprobs=n).top_ids == [ids]


def test_each_token_of_a_tie_for_the_maximum_has_rank_one(tied: TorchEngine):
    requests = [Generate(prompt="a", max_tokens=1, ranks=True, seed=s) for s in range(60)]
    ranks = {d.token_ids[0]: d.ranks[0] for d in generate(tied, *requests)}
    assert {token: ranks[token] for token in (B, C)} == {B: 1, C: 1}
    assert all(rank == 5 for token, rank in ranks.items() if token not in {B, C, D, E})


def test_probabilities_of_the_whole_vocabulary_sum_to_one(tied: TorchEngine):
    delta = generate_one(tied, prompt="a", max_tokens=1, top_logprobs=16, logprob_decimals=9)
    assert sum(math.exp(x) for x in delta.top_logprobs[0]) == pytest.approx(1, abs=1e-6)
    assert all(x < 0 for x in delta.top_logprobs[0])


def test_temperature_and_filters_do_not_change_log_probabilities(tied: TorchEngine):
    hot, cold = (
        generate_one(tied, prompt="a", max_tokens=1, temperature=t, top_k=k, top_p=0.9, top_logprobs=6)
        for t, k in ((5.0, 3), (0.0, 0))
    )
    assert (hot.top_ids, hot.top_logprobs) == (cold.top_ids, cold.top_logprobs)


def test_masked_token_has_null_and_the_output_is_valid_json(start: Start, tmp_path: Path):
    engine = start(
        crafted_checkpoint(tmp_path, LETTERS, {"a": {"b": 2.0, "c": 1.0}}, rest=-1e39)
    )  # overflows to -inf
    delta = generate_one(engine, prompt="a", max_tokens=1, top_logprobs=4)
    assert delta.top_ids == [[B, C, 0, A]]
    assert delta.top_logprobs[0][2:] == [None, None]
    assert None not in delta.logprobs
    json.dumps(vars(delta), allow_nan=False)


def test_log_probabilities_are_rounded_and_never_minus_zero(start: Start, tmp_path: Path):
    engine = start(crafted_checkpoint(tmp_path, LETTERS, {"a": {"b": 40.0}, "b": {"c": 0.3}}))
    delta = generate_one(engine, prompt="a", max_tokens=2, temperature=0.0, logprobs=True, logprob_decimals=2)
    assert delta.logprobs == [0.0, round(delta.logprobs[1], 2)]
    assert math.copysign(1, delta.logprobs[0]) == 1


def test_each_alternative_has_its_text(tied: TorchEngine):
    delta = generate_one(tied, prompt="a", max_tokens=2, temperature=0.0, top_logprobs=5, token_text=True)
    assert delta.top_text[0] == ["b", "c", "d", "e", "<|end|>"]
    assert delta.token_text[0] == "b"


def test_token_text_is_decoded_from_the_byte_level_alphabet(start: Start, tmp_path: Path):
    tokens = ["a", *byte_level_tokens(b" \n\xc3")]
    engine = start(
        crafted_checkpoint(tmp_path, tokens, {"a": dict(zip(tokens[1:], (3.0, 2.0, 1.0), strict=True))})
    )
    delta = generate_one(engine, prompt="a", max_tokens=1, temperature=0.0, top_logprobs=3, token_text=True)
    assert delta.top_text == [[" ", "\n", "\ufffd"]]


def test_requests_with_different_top_logprobs_share_a_batch(engine: TorchEngine):
    requests = [
        Generate(prompt="x", max_tokens=5, seed=n, top_logprobs=n, ranks=n % 2 == 0) for n in range(21)
    ]
    for n, delta in enumerate(generate(engine, *requests)):
        assert [len(row) for row in delta.top_ids] == ([n] * 5 if n else [])
        assert [len(row) for row in delta.top_logprobs] == ([n] * 5 if n else [])
        assert len(delta.ranks) == (5 if n % 2 == 0 else 0)
        assert len(delta.logprobs) == (5 if n else 0)


def test_flat_distribution_does_not_widen_any_row_of_the_batch(tied: TorchEngine):
    flat, sharp = generate(
        tied,
        Generate(prompt="b", max_tokens=1, top_logprobs=3),
        Generate(prompt="a", max_tokens=1, top_logprobs=2),
    )
    assert flat.top_ids == [[0, A, B]]
    assert sharp.top_ids == [[B, C]]


def test_columns_that_were_not_requested_are_empty(engine: TorchEngine):
    delta = generate_one(engine, max_tokens=4)
    assert len(delta.text) == 4
    for column in ("token_ids", "logprobs", "top_ids", "top_logprobs", "ranks", "token_text", "top_text"):
        assert getattr(delta, column) == []


async def test_deltas_do_not_overlap(engine: TorchEngine):
    blocks = [len(d.rows) async for d in engine.generate(Generate(max_tokens=40, top_logprobs=3))]
    assert sum(blocks) == 40


class CountingTokenizer:
    """A tokenizer that counts the calls of its decoding methods."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.decoded = 0

    def __getattr__(self, name: str) -> Any:
        if "decode" in name or name.startswith("convert"):
            self.decoded += 1
        return getattr(self._tokenizer, name)


def test_tokenizer_is_not_called_for_generated_tokens(start: Start, random_checkpoint: Checkpoint):
    tokenizer = CountingTokenizer(random_checkpoint.tokenizer)
    engine = start(dataclasses.replace(random_checkpoint, tokenizer=tokenizer))
    generate_one(engine, max_tokens=20, top_logprobs=20, token_text=True)
    assert tokenizer.decoded == 0


def test_ties_in_half_precision_are_ordered(start: Start, tmp_path: Path):
    crafted_checkpoint(tmp_path, LETTERS, {"a": {"b": 2.0, "c": 2.0, "d": 2.0009765625}})
    engine = start(load(tmp_path, device="cpu", dtype="bfloat16"))
    delta = generate_one(engine, prompt="a", max_tokens=1, temperature=0.0, top_logprobs=3, ranks=True)
    assert (delta.token_ids, delta.top_ids, delta.ranks) == ([B], [[B, C, D]], [1])
