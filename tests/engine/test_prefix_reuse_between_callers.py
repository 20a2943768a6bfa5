"""Callers cannot learn from the engine's work that another caller's prompt began with the same tokens."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import callers
from support.model_checkpoints import generate, random_llama
from support.reference_server import QUICK
from tidewire_server import Server
from tidewire_server.commands.configuration import configure
from tidewire_server.commands.configured_server import default_server
from tidewire_server.generation.generate_endpoint import add_engine
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import TorchEngine
from tidewire_server.generation.torch_engine.choose_reusable_slot import REUSED_TOKENS
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint
from tidewire_server.generation.torch_engine.step_scheduler import Sequence, StepScheduler

Start = Callable[..., TorchEngine]

PROMPT = "x, y = f(a)\n" * 4
TOKENS = {"tokens": ["ann:sesame", "ann:second", "bob:open"]}
ANONYMOUS = {"single_user": False}
ANN, ANN_AGAIN, BOB = ({"authorization": f"Bearer {token}"} for token in ("sesame", "second", "open"))
HERE, THERE = ({"address": address} for address in (callers.ANN, callers.BOB))

pytestmark = pytest.mark.skipif(
    not callers.other_addresses_exist(), reason="this system has only one loopback address"
)


def processed(engine: TorchEngine, url: str, caller: dict[str, str], **members: Any) -> int:
    """Generate for a caller, and return the number of prompt tokens that the engine processed for it."""
    before = asyncio.run(engine.stats()).prompt_tokens
    with callers.Caller(url, **caller) as peer:
        job = peer.run("generate", {"prompt": PROMPT, "max_tokens": 1, "temperature": 0.0} | members)
    assert job["status"] == "succeeded", job
    return asyncio.run(engine.stats()).prompt_tokens - before


@pytest.mark.parametrize(
    ("settings", "shares", "first", "second", "reuses"),
    [
        pytest.param(TOKENS, False, ANN, BOB, False, id="two principals"),
        pytest.param(TOKENS, False, ANN, ANN, True, id="one principal"),
        pytest.param(TOKENS, False, ANN, ANN_AGAIN, True, id="two tokens of one principal"),
        pytest.param(TOKENS, True, ANN, BOB, True, id="two principals who share prefixes"),
        pytest.param(ANONYMOUS, False, HERE, THERE, False, id="two anonymous addresses"),
        pytest.param(ANONYMOUS, False, HERE, HERE, True, id="one anonymous address"),
        pytest.param(ANONYMOUS, True, HERE, THERE, True, id="two anonymous addresses that share prefixes"),
        pytest.param({"single_user": True}, False, HERE, THERE, True, id="single user"),
    ],
)
def test_prompt_reuses_the_prompt_of_another_caller_only_if_prefixes_are_shared(
    start: Start, random_checkpoint: Checkpoint, settings, shares, first, second, reuses
):
    engine, server = start(random_checkpoint), Server(**QUICK | settings)
    add_engine(server, engine, share_prefixes=shares)
    with server.running() as url:
        complete = processed(engine, url, first)
        assert complete > 1 + REUSED_TOKENS
        assert processed(engine, url, second) == (1 if reuses else complete)
        assert processed(engine, url, second) == 1  # the second caller's own prompt


@pytest.mark.parametrize("shares", [False, True])
def test_prefixes_are_shared_with_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: bool):
    engines, load = [], TorchEngine.load
    monkeypatch.setattr(TorchEngine, "load", lambda *a, **k: engines.append(load(*a, **k)) or engines[-1])
    flags = {"model": str(random_llama(tmp_path)), "device": "cpu"} | (
        {"share_prefixes": True} if shares else {}
    )
    server = default_server(configure(flags))
    server.configure(**QUICK | TOKENS)
    with server.running() as url:
        complete = processed(engines[0], url, ANN)
        assert processed(engines[0], url, BOB) == (1 if shares else complete)


@pytest.mark.parametrize(
    ("members", "slots"), [({"n": 3}, 1), ({"num_beams": 3}, 3)], ids=["samples", "beam search"]
)
def test_samples_and_beams_of_one_request_share_their_prompt(
    start: Start, random_checkpoint: Checkpoint, members, slots
):
    engine, server = start(random_checkpoint, slots=slots), Server(**QUICK | TOKENS)
    add_engine(server, engine)
    with server.running() as url:
        alone = processed(engine, url, BOB)
        assert processed(engine, url, ANN, **members) == alone + members.get("n", 1) - 1


def test_requests_to_an_engine_without_a_server_share_their_prefixes(
    start: Start, random_checkpoint: Checkpoint
):
    engine = start(random_checkpoint)
    request = Generate(prompt=PROMPT, max_tokens=1, temperature=0.0)
    generate(engine, request)
    before = asyncio.run(engine.stats()).prompt_tokens
    generate(engine, request)
    assert asyncio.run(engine.stats()).prompt_tokens - before == 1


def test_cache_scope_is_not_a_member_of_the_input():
    assert "cache_scope" not in str(Generate.model_json_schema())
    with pytest.raises(ValueError, match="cache_scope"):
        Generate.model_validate({"cache_scope": "ann"})


def test_slot_of_another_scope_is_not_preferred_however_long_its_shared_prefix_is():
    scheduler = StepScheduler[Sequence](slots=3, step_tokens=512)
    texts = [
        Sequence(prompt=[5] * 50, scope="bob"),
        Sequence(prompt=[1] * 60, scope="bob"),
        Sequence(prompt=[1] * 90, scope="ann"),
    ]
    for text in texts:
        scheduler.add(text)
    scheduler.completed(scheduler.schedule(), [7] * len(texts))
    for text in texts:
        scheduler.finish(text)
    follower = Sequence(prompt=[1] * 90, scope="bob")
    scheduler.add(follower)
    scheduler.schedule()
    assert (follower.slot, follower.read) == (1, 60)
