"""Continuing a text after logged tokens: the engine generates the same further tokens as without an interruption."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from support.model_checkpoints import collect, crafted_checkpoint, generate
from support.reference_server import QUICK, eventually, serving
from support.stream_harness import StreamHarness
from tidewire_server import Server
from tidewire_server.endpoints.endpoint import Endpoint, OnRestart, Options
from tidewire_server.generation.engine_interface import (
    ContinuationError,
    Delta,
    EngineCapabilities,
    LoggedTokens,
)
from tidewire_server.generation.generate_endpoint import (
    _UsageMarks,
    _write,
    add_engine,
    columns_of,
    initial_of,
)
from tidewire_server.generation.generate_input_and_value import Generate, served_input
from tidewire_server.generation.torch_engine import TorchEngine
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint, load

TOKENS = 24
LONG: dict[str, Any] = {"prompt": "def f", "max_tokens": 110, "seed": 5, "echo": True}
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"seed": 5, "temperature": 0.9, "top_p": 0.95},
    "penalized": {
        "seed": 8,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.8,
        "frequency_penalty": 0.5,
    },
    "scored": {"seed": 6, "top_logprobs": 3, "ranks": True, "token_text": True, "echo": True},
}
ContinuedGenerate = served_input(Generate.model_fields, {}, logs_ids=lambda: True)
OnRestartOrAuto = OnRestart | Literal["auto"]
Start = Callable[..., TorchEngine]


def rest(engine: TorchEngine, request: Generate, token_ids: list[int], text: str) -> Any:
    """Return the output of a generation after the tokens of an earlier attempt."""
    return asyncio.run(collect(engine, request, LoggedTokens(token_ids, text)))


def compare(engine: TorchEngine, request: Generate, places: Iterable[int]) -> Any:
    """Continue a generation after some of its tokens, and compare each column with the generation as a whole."""
    whole = generate(engine, request)[0]
    for at in {1, *places, len(whole.token_ids) - 1, len(whole.token_ids)}:
        found = rest(engine, request, whole.token_ids[:at], "".join(whole.text[:at]))
        assert found.text == whole.text[at:]
        assert found.token_ids == whole.token_ids[at:]
        assert (found.finish_reason, found.prompt_tokens) == (whole.finish_reason, whole.prompt_tokens)
        assert (found.ranks, found.top_ids) == (whole.ranks[at:], whole.top_ids[at:])
        assert found.logprobs == pytest.approx(whole.logprobs[at:], abs=2e-4)
        assert found.token_text == whole.token_text[at:]
    return whole


@pytest.mark.parametrize("members", REQUESTS.values(), ids=REQUESTS)
def test_a_text_continues_with_the_same_tokens(engine: TorchEngine, members: dict[str, Any]):
    whole = compare(engine, ContinuedGenerate(prompt="def f", max_tokens=TOKENS, **members), (2, 9, 17))
    assert (len(whole.token_ids), whole.finish_reason) == (TOKENS, "length")


def test_a_stop_string_that_began_before_the_interruption_still_ends_the_text(engine: TorchEngine):
    request = ContinuedGenerate(prompt="def f", max_tokens=TOKENS, seed=7)
    tokens = generate(engine, request)[0].text
    text = "".join(tokens)
    stop = text[len(text) // 2 : len(text) // 2 + 4]
    stopping = request.model_copy(update={"stop": [stop, "no such text"]})
    whole = compare(engine, stopping, range(TOKENS // 2 - 5, TOKENS // 2))
    assert (whole.finish_reason, "".join(whole.text)) == ("stop", text[: text.index(stop)])


@pytest.mark.parametrize(
    ("token_ids", "text"), [([5, 6], "another text"), ([10**6], ""), ([-1], "x"), ([5] * (TOKENS + 1), "x")]
)
def test_tokens_that_do_not_belong_to_the_model_are_refused(
    engine: TorchEngine, token_ids: list[int], text: str
):
    request = ContinuedGenerate(prompt="def f", max_tokens=TOKENS)
    with pytest.raises(ContinuationError, match="do not match its logged text"):
        rest(engine, request, token_ids, text)
    assert generate(engine, request)[0].token_ids  # the engine still runs other requests


def test_an_endpoint_that_continues_logs_the_ids_of_each_text(engine: TorchEngine):
    server = Server()
    add_engine(server, engine, on_restart="continue")
    value: Any = server.call("generate", prompt="def f", max_tokens=TOKENS, seed=5)
    delta = generate(engine, ContinuedGenerate(prompt="def f", max_tokens=TOKENS, seed=5))[0]
    assert value == {"text": "".join(delta.text), "token_ids": delta.token_ids, "finish_reason": "length"}
    schema = server.endpoints["generate"].input.schema
    assert schema["title"] == "Generate"
    assert {"prompt", "seed"} <= schema["properties"].keys() <= Generate.model_fields.keys()


def continued(
    folder: Path,
    first: TorchEngine,
    second: TorchEngine,
    on_restart: OnRestartOrAuto,
    request: dict[str, Any],
) -> dict[str, Any]:
    """Stop a server while it generates, and return the job after a second server, with the default, has ended it."""
    settings: dict[str, Any] = QUICK | {"log": f"sqlite:///{folder}/log.db", "shutdown_timeout": 0.0}
    server = Server(**settings)
    add_engine(server, first, on_restart=on_restart)
    with serving(server) as peer:
        job = peer.start("generate", request)
        waiting = peer.start("generate", {"max_tokens": 3})
        eventually(lambda: len(peer.job(job)["state"]["items"][0]["value"]["text"]) > len(request["prompt"]))
    server = Server(**settings)
    add_engine(server, second)
    with serving(server) as peer:
        waited = peer.ended(waiting)
        assert waited["status"] == "succeeded", waited
        return peer.ended(job)


def slowed(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint whose model waits in each step, so that the server can be stopped during a generation."""

    def model(**arguments: Any) -> Any:
        time.sleep(0.005)
        return checkpoint.model(**arguments)

    return replace(checkpoint, model=model)


def interrupted(
    folder: Path,
    start: Start,
    first: Checkpoint,
    second: Checkpoint,
    on_restart: OnRestartOrAuto = "auto",
    request: dict[str, Any] = LONG,
) -> dict[str, Any]:
    """Repeat `continued` until the first server was stopped before the generation ended."""
    for attempt in range(20):
        (folder / str(attempt)).mkdir()
        engines = start(slowed(first), slots=request.get("num_beams", 1)), start(second)
        job = continued(folder / str(attempt), *engines, on_restart, request)
        if job["attempt"] == 2:
            return job
    raise AssertionError("each generation ended before its server stopped")


@pytest.mark.heavy
def test_a_text_of_another_model_or_without_token_ids_runs_again(
    tmp_path: Path, start: Start, random_checkpoint: Checkpoint
):
    other = load(crafted_checkpoint(tmp_path / "other", ["d", "e", "f", "Ġ"], {}), device="cpu")
    policies: list[tuple[OnRestartOrAuto, Checkpoint]] = [("auto", other), ("rerun", random_checkpoint)]
    for on_restart, second in policies:
        (tmp_path / on_restart).mkdir()
        job = interrupted(tmp_path / on_restart, start, random_checkpoint, second, on_restart)
        expected = generate(start(second), ContinuedGenerate(**LONG))[0]
        item = job["state"]["items"][0]
        assert item["status"] == "succeeded"
        # The new attempt begins with the value with which the job was accepted, which has ids only if they were logged.
        assert item["value"].get("token_ids") == (expected.token_ids if on_restart == "auto" else None)
        assert item["value"]["text"] == "def f" + "".join(expected.text)


POLICIES: dict[tuple[str, OnRestartOrAuto], OnRestart] = {
    ("memory", "auto"): "rerun",
    ("memory", "continue"): "continue",
    ("file", "auto"): "continue",
    ("file", "rerun"): "rerun",
    ("file", "fail"): "fail",
}


@pytest.mark.parametrize(("log", "option"), POLICIES)
def test_the_default_continues_only_where_the_log_is_in_a_file(
    tmp_path: Path, engine: TorchEngine, log: str, option: OnRestartOrAuto
):
    server = Server()
    add_engine(server, engine, on_restart=option)
    # A target is loaded before the settings of the command line apply.
    server.configure(log="memory" if log == "memory" else f"sqlite:///{tmp_path}/log.db")
    found = POLICIES[log, option]
    with serving(server) as peer:
        assert peer.http.get("/v1/endpoints/generate").json()["on_restart"] == found
        value = peer.ended(peer.start("generate", {"max_tokens": 3}))["state"]["items"][0]["value"]
        scored = peer.ended(peer.start("generate", {"max_tokens": 3, "logprobs": True}))
    assert ("token_ids" in value) == (found == "continue")
    assert len(scored["state"]["items"][0]["value"]["token_ids"]) == 3


def test_an_unknown_option_is_refused(engine: TorchEngine):
    with pytest.raises(ValueError, match="on_restart must be 'rerun', 'fail' or 'continue', not 'again'"):
        add_engine(Server(), engine, on_restart="again")  # type: ignore[arg-type]


def test_a_beam_search_runs_again_from_the_start(tmp_path: Path, start: Start, random_checkpoint: Checkpoint):
    """Its other hypotheses are not logged, so the logged text is discarded, also if it was declared as stable."""
    request = LONG | {"num_beams": 3, "max_tokens": 60}
    job = interrupted(tmp_path, start, random_checkpoint, random_checkpoint, request=request)
    expected = generate(start(random_checkpoint), ContinuedGenerate(**request))[0]
    item = job["state"]["items"][0]
    assert job["status"] == "succeeded"
    assert item["value"]["token_ids"] == expected.token_ids
    assert item["value"]["text"] == "def f" + "".join(expected.text)
    assert job["done"]["usage"] == {"prompt_tokens": 3, "completion_tokens": 60}


@pytest.mark.parametrize("logged_rows", [0, 2, 3])
def test_parts_of_the_scored_text_after_the_prompt_add_no_rows(logged_rows: int):
    """A new attempt scores the logged tokens like a prompt, in parts. Only the rows of the prompt belong to the value."""
    request = ContinuedGenerate(prompt="def", prompt_logprobs=0, max_tokens=20)
    rows = [(at, -float(at)) for at in range(14)]
    value = initial_of(request) | {"text": "x" * 11, "token_ids": [7] * 11}
    value |= {"prompt_token_ids": [0, 1, 2][:logged_rows], "prompt_logprobs": [0.0, -1.0, -2.0][:logged_rows]}

    async def deltas() -> AsyncIterator[Delta]:
        for start in range(0, len(rows), 5):
            yield Delta(prompt_rows=rows[start : start + 5], prompt_tokens=3)
        yield Delta([("y", 8)], finish_reason="stop", prompt_tokens=3)

    async def written() -> Any:
        harness = StreamHarness(value, tuple(columns_of(request)))
        await _write(
            deltas(),
            request,
            harness.stream,
            LoggedTokens([7] * 11, "x" * 11),
            _UsageMarks(harness.stream, "x" * 11),
            caps=EngineCapabilities("m", 128, 5, 1, frozenset(), None),
            endpoint=Endpoint(written, Options(name="generate")),
        )
        return await harness.read()

    found = asyncio.run(written())
    assert found["prompt_token_ids"] == [0, 1, 2]
    assert found["prompt_logprobs"] == [0.0, -1.0, -2.0]
    assert found["text"] == "x" * 11 + "y"
