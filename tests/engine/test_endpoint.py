"""The `generate` endpoint with an engine."""

import asyncio
import base64
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from support.model_checkpoints import collect, generate, random_llama
from tidewire import Client
from tidewire.errors import SeveralItemsError
from tidewire_server import ItemError, Server
from tidewire_server.errors import ProblemError
from tidewire_server.generation import add_generate
from tidewire_server.generation.engine_interface import (
    CORE_MEMBERS,
    EngineClosedError,
    EngineFullError,
    InputError,
    check_members,
)
from tidewire_server.generation.generate_endpoint import add_engine
from tidewire_server.generation.generate_input_and_value import Generate, served_value
from tidewire_server.generation.torch_engine import LoadError, TorchEngine
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint

Start = Callable[..., TorchEngine]


@pytest.fixture
def server(engine: TorchEngine) -> Server:
    server = Server()
    add_engine(server, engine)
    return server


def test_value_has_the_output_of_the_engine(server: Server, engine: TorchEngine):
    members = {
        "prompt": "def f",
        "max_tokens": 9,
        "seed": 3,
        "top_logprobs": 4,
        "ranks": True,
        "token_text": True,
    }
    value = server.call("generate", **members)
    delta = generate(engine, Generate(**members))[0]
    assert value == {
        "text": "".join(delta.text),
        "token_ids": delta.token_ids,
        "logprobs": delta.logprobs,
        "top_ids": delta.top_ids,
        "top_logprobs": delta.top_logprobs,
        "ranks": delta.ranks,
        "token_text": delta.token_text,
        "top_text": delta.top_text,
        "logprobs_mode": "raw",
        "finish_reason": "length",
    }
    served_value(Generate.model_fields).model_validate(value, strict=True)


def test_value_has_only_text_by_default(server: Server):
    value = server.call("generate")
    assert value.keys() == {"text", "finish_reason"}
    assert value["text"]


def test_a_loop_and_the_result_of_several_samples_raise_the_same_error(server: Server):
    with server.running() as url, Client(url) as client:
        job = client.submit("generate", n=3, max_tokens=9)
        with pytest.raises(SeveralItemsError) as from_loop:
            print("".join(update.text for update in job))
        with pytest.raises(SeveralItemsError) as from_result:
            job.result()
        assert from_loop.value.what == from_result.value.what
        assert len(client.batch_job(job.id).results()) == 3


def test_tokens_are_complete_after_the_loop_of_the_readme(server: Server):
    with server.running() as url, Client(url) as client:
        job = client.submit("generate", prompt="def fibonacci(n):", max_tokens=12, top_logprobs=5)
        for update in job:
            print(update.text, end="", flush=True)
        ids = job.result()["token_ids"]
        assert [token.id for token in job.tokens()] == ids
        assert all(len(token.alternatives) == 5 for token in job.tokens())


def test_echo_prepends_the_prompt(server: Server):
    members = {"prompt": "def f", "max_tokens": 9, "seed": 3}
    plain, echoed = server.call("generate", **members), server.call("generate", **members, echo=True)
    assert echoed["text"] == "def f" + plain["text"]


@pytest.mark.parametrize(
    ("members", "code", "pointer"),
    [
        ({"top_logprobs": 21}, "top_logprobs_too_large", "/input/top_logprobs"),
        ({"prompt": "x" * 500}, "input_too_long", "/input/prompt"),
        ({"prompt": ""}, "invalid_input", "/input/prompt"),
        ({"max_tokens": 127}, "input_too_long", "/input/max_tokens"),
        ({"max_tokens": 2**53}, "input_too_long", "/input/max_tokens"),
        ({"top_logprobs": 65}, "top_logprobs_too_large", "/input/top_logprobs"),
        ({"prompt_logprobs": 21}, "top_logprobs_too_large", "/input/prompt_logprobs"),
        ({"logit_bias": {"265": 1.0}}, "invalid_input", "/input/logit_bias"),
        ({"logprob_token_ids": [265]}, "invalid_input", "/input/logprob_token_ids"),
        ({"num_beams": 9}, "invalid_input", "/input/num_beams"),
        ({"num_beams": 2, "top_p": 0.5}, "invalid_input", "/input/top_p"),
        ({"max_token": 5}, "invalid_input", "/input/max_token"),
        ({"temperature": -1}, "invalid_input", "/input/temperature"),
    ],
)
def test_invalid_input_is_refused_before_the_engine_is_called(
    server: Server, engine: TorchEngine, members: dict[str, object], code: str, pointer: str
):
    with pytest.raises(ProblemError) as refusal:
        server.call("generate", **members)
    assert (refusal.value.problem.code, refusal.value.problem.pointer) == (code, pointer)
    assert asyncio.run(engine.stats()).started == 0


def test_schema_above_a_limit_is_refused_with_the_place_and_the_limit():
    server = Server()
    add_generate(server, max_schema_bytes=300, slots=1, context=128)
    schema = {"type": "object", "properties": {"a/b": {"type": "string", "pattern": "(a{100}){10}"}}}
    with pytest.raises(ProblemError) as refusal:
        server.call("generate", json_schema=schema)
    problem = refusal.value.problem
    assert (problem.code, problem.status) == ("invalid_input", 422)
    assert problem.pointer == "/input/json_schema/properties/a~1b/pattern"
    assert "max_pattern_size: the number of" in problem.detail
    assert "is 1010, and may be at most 512" in problem.detail
    with pytest.raises(ProblemError, match="max_schema_bytes: .* may be at most 300"):
        server.call("generate", json_schema={"description": "x" * 300})


def test_caller_with_too_many_requests_to_validate_may_retry(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
):
    async def check(request: Generate) -> None:
        raise EngineFullError("1024 requests of this caller wait")

    monkeypatch.setattr(engine, "check", check)
    server = Server()
    add_engine(server, engine)
    with pytest.raises(ProblemError, match="1024 requests") as refusal:
        server.call("generate")
    assert (refusal.value.problem.code, refusal.value.problem.status) == ("queue_full", 429)
    assert refusal.value.problem.retryable


def test_schemas_have_only_what_the_engine_supports(engine: TorchEngine):
    """A column disappears together with the input member that asks for it."""
    members = frozenset({"logprobs", "top_logprobs"})
    engine.caps = replace(engine.caps, members=members)
    server = Server()
    add_engine(server, engine)
    served = server.endpoints["generate"]
    assert set(served.input.schema["properties"]) == CORE_MEMBERS | members
    assert set(served.value.schema["properties"]) == {
        *("text", "token_ids", "logprobs", "top_ids", "top_logprobs", "logprobs_mode", "finish_reason")
    }
    with pytest.raises(ProblemError, match=r"/input/ranks: unknown member 'ranks'"):
        server.call("generate", ranks=True)


async def test_invalid_requests_do_not_affect_a_running_generation(server: Server, engine: TorchEngine):
    bad = [
        {"top_logprobs": 21},
        {"logit_bias": {"265": 1.0}},
        {"logprob_token_ids": [265]},
        {"prompt": ""},
        {"prompt": "x" * 500},
    ]
    good = {"prompt": "def f", "max_tokens": 60, "seed": 3}
    jobs = "/v1/endpoints/generate/jobs"
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(server.app), base_url="http://test"
    ) as client:
        job = (await client.post(jobs, json={"input": good})).headers["location"]
        refused = [await client.post(jobs, json={"input": members}) for members in bad]
        assert [response.status_code for response in refused] == [422] * len(bad)
        async with asyncio.timeout(10):
            while (ended := (await client.get(job)).json())["status"] == "running":
                await asyncio.sleep(0.001)
    assert ended["status"] == "succeeded"
    alone = await collect(engine, Generate(**good))
    assert ended["state"]["items"][0]["value"]["text"] == "".join(alone.text)


def test_closed_engine_fails_the_item_with_its_reason(server: Server, engine: TorchEngine):
    asyncio.run(engine.close())
    with pytest.raises(ItemError, match="the engine was closed"):
        server.call("generate")


async def test_samples_of_one_input_are_the_items_of_a_batch(server: Server):
    jobs, prompt = "/v1/endpoints/generate/jobs", {"prompt": "x", "max_tokens": 8}
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(server.app), base_url="http://test"
    ) as client:
        several = {"inputs": [{**prompt, "n": 2}, prompt]}
        refused = (await client.post(jobs, json=several)).json()
        assert (refused["code"], refused["pointer"]) == ("invalid_input", "/inputs/0/n")
        found = []
        for members in ({"n": 3, "seed": 5}, {"n": 3}, {"n": 1, "seed": 6}):
            job = (await client.post(jobs, json={"input": prompt | members})).headers["location"]
            async with asyncio.timeout(10):
                while (ended := (await client.get(job)).json())["status"] != "succeeded":
                    await asyncio.sleep(0.001)
            assert ended["batch"] is (members["n"] > 1)
            found.append([item["value"]["text"] for item in ended["state"]["items"]])
    seeded, unseeded, one = found
    assert len(set(seeded)) == len(set(unseeded)) == 3
    assert one == [seeded[1]], "the seeds of the samples follow each other"


async def test_cancelling_a_job_frees_its_slot(start: Start, random_checkpoint: Checkpoint):
    engine = start(random_checkpoint, slots=1)
    server = Server()
    add_engine(server, engine)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(server.app), base_url="http://test"
    ) as client:
        body = {"input": {"prompt": "x", "max_tokens": 127}}
        jobs = []
        for _ in range(3):
            response = await client.post("/v1/endpoints/generate/jobs", json=body)
            assert response.status_code == 201, response.text
            jobs.append(response.headers["location"])
        for job in jobs:
            await client.post(f"{job}/cancel")
        async with asyncio.timeout(10):
            while (await engine.stats()).running or (await engine.stats()).waiting:
                await asyncio.sleep(0.001)
            while (await client.get(jobs[-1])).json()["status"] not in {"cancelled", "succeeded"}:
                await asyncio.sleep(0.001)
    stats = await engine.stats()
    assert stats.generated_tokens < 3 * 127


async def test_description_has_the_logprobs_limit_the_schemas_and_the_vocabulary(
    server: Server, engine: TorchEngine
):
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(server.app), base_url="http://test"
    ) as client:
        described = (await client.get("/v1/endpoints/generate")).json()
        linked = (await client.get(described["links"]["vocabulary"])).json()
        plain = (await client.get("/v1/endpoints/generate/vocabulary")).json()
    assert described["capabilities"]["logprobs"] == {"max_top": 20}
    assert described["capabilities"]["rollback"] is True
    members, columns = described["input_schema"]["properties"], described["value_schema"]["properties"]
    assert set(members) == engine.caps.served < set(Generate.model_fields)
    assert "messages" not in members, "the model has no chat template"
    assert members["top_logprobs"]["maximum"] == 20
    assert {"top_logprobs", "prompt_top_ids", "tie_counts"} < set(columns)
    vocabulary = engine.caps.vocabulary
    assert linked == plain == vocabulary.body()
    assert base64.b64decode(linked["tokens"][5]) == vocabulary.bytes_of(5)


def test_messages_without_a_chat_template_are_refused_with_advice(server: Server, engine: TorchEngine):
    members = {"messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(ProblemError) as refusal:
        server.call("generate", **members)
    assert refusal.value.problem.pointer == "/input/messages"
    assert "this model has none; use `prompt`" in str(refusal.value.problem.detail)
    with pytest.raises(InputError, match="this model has none; use `prompt`"):
        check_members(Generate(**members), engine.caps)


async def test_engine_is_closed_with_the_server(server: Server, engine: TorchEngine):
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(server.app), base_url="http://test"
    ) as client:
        assert (await client.get("/v1")).status_code == 200
    await server.app.close()
    with pytest.raises(EngineClosedError):
        await anext(engine.generate(Generate()))


def test_bundled_model_is_served_by_default():
    server = Server()
    add_generate(server, device="cpu", slots=2)
    assert (
        server.call("generate", prompt="import", max_tokens=3, temperature=0.0)["finish_reason"] == "length"
    )
    assert server.endpoints["generate"].concurrency_limit == 2


def test_checkpoint_that_cannot_be_served_raises_an_error_with_the_reason(tmp_path: Path):
    with pytest.raises(LoadError, match="has no config"):
        add_generate(Server(), model=tmp_path)


def test_a_model_may_be_text_with_a_tilde_and_its_loading_is_logged(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HOME", str(tmp_path))
    random_llama(tmp_path / "tiny")
    caplog.set_level("INFO", "tidewire_server")
    server = Server()
    add_generate(server, model="~/tiny", device="cpu")
    assert server.call("generate", prompt="a", max_tokens=1)["finish_reason"] == "length"
    (line,) = [each.getMessage() for each in caplog.records if "model" in each.getMessage()]
    assert re.match(rf"loaded the model {tmp_path}/tiny in [\d.]+ s \(cpu, float32\), memory: ", line)
    with pytest.raises(LoadError, match="hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B"):
        add_generate(Server(), model="Qwen/Qwen3-0.6B")


def test_without_max_tokens_a_text_may_fill_the_context(server: Server, engine: TorchEngine):
    prompt = "def f("
    value = server.call(
        "generate", prompt=prompt, max_tokens=None, logprobs=True, seed=1, logit_bias={"0": -100}
    )
    assert value["finish_reason"] == "length"
    tokens = len(value["token_ids"])
    assert (
        server.call("generate", prompt=prompt, max_tokens=tokens, seed=1, logit_bias={"0": -100})["text"]
        == value["text"]
    )
    with pytest.raises(ProblemError, match=f"room for only {tokens} more"):
        server.call("generate", prompt=prompt, max_tokens=tokens + 1)
