"""The endpoint `generate` in front of the servers of other projects, with the default model on a CPU.

`transformers serve` takes 15 s of processor time to start, so its tests are slow.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.model_checkpoints import generate_one
from support.real_engines import chat_model, llama_cpp_server, transformers_serve
from support.reference_server import QUICK, eventually
from support.server_process import ServerProcess
from support.upstream_front import running_front
from tidewire import Client
from tidewire.errors import InvalidInputError, JobFailedError
from tidewire_server import Server
from tidewire_server.generation import add_generate
from tidewire_server.generation.torch_engine import TorchEngine

pytestmark = pytest.mark.timeout(300)
PROMPT = "def read(path, mode):\n"
MESSAGES = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llama_cpp(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_cpp_server(model, tmp_path_factory.mktemp("llama")) as url:
        yield url


@pytest.fixture(scope="module")
def transformers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with transformers_serve(model, tmp_path_factory.mktemp("transformers")) as url:
        yield url


@pytest.fixture(params=["llama_cpp", pytest.param("transformers", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(request.param)


def model_name(url: str, model: Path) -> dict[str, str]:
    """`transformers serve` does not list the model that it serves."""
    models = httpx2.get(f"{url}/models")
    return {} if models.status_code == 200 else {"model": str(model)}


@pytest.fixture(scope="module")
def reference(model: Path) -> TorchEngine:
    return TorchEngine.load(model, device="cpu", dtype="float32")


@pytest.mark.heavy
@pytest.mark.parametrize("source", [{"prompt": PROMPT}, {"messages": MESSAGES}])
def test_greedy_text_is_that_of_the_torch_engine(
    engine: str, model: Path, reference: TorchEngine, source: dict[str, Any]
):
    with running_front(engine, **model_name(engine, model)) as client:
        job = client.submit("generate", **source, max_tokens=40, temperature=0)
        text = "".join(job.iter_text())
        value = job.result()
    members = source if "prompt" in source else {"messages": MESSAGES}
    assert (
        text
        == value["text"]
        == "".join(generate_one(reference, **members, max_tokens=40, temperature=0.0).text)
    )
    assert value["usage"]["completion_tokens"] == 40


def test_sampling_members_have_their_effect(engine: str, model: Path):
    with running_front(engine, **model_name(engine, model)) as client:

        def text(**members: Any) -> str:
            return client.run("generate", prompt=PROMPT, max_tokens=12, **members)["text"]

        greedy = text(temperature=0)
        assert text(top_k=1) == greedy
        assert text(top_p=0.001) == greedy
        assert text(min_p=1.0) == greedy
        assert text(seed=1) == text(seed=1)
        assert len({text(seed=seed, temperature=2.0) for seed in range(4)}) > 1
        assert text(temperature=0, repetition_penalty=50.0) != greedy
        assert text(temperature=0, stop=[greedy[4:7]]) == greedy[: greedy.index(greedy[4:7])]
        with pytest.raises(InvalidInputError, match="presence_penalty"):
            text(presence_penalty=1.0)


def test_logit_bias_has_its_effect(engine: str, model: Path, reference: TorchEngine):
    first = generate_one(reference, prompt=PROMPT, max_tokens=1, temperature=0.0, logprobs=True).token_ids[0]
    with running_front(engine, **model_name(engine, model)) as client:
        plain = client.run("generate", prompt=PROMPT, max_tokens=1, temperature=0)
        other = client.run(
            "generate", prompt=PROMPT, max_tokens=1, temperature=0, logit_bias={str(first): -100}
        )
    assert plain["text"] != other["text"]


def test_cancel_reaches_the_engine(llama_cpp: str):
    with running_front(llama_cpp) as client:
        job = client.submit("generate", prompt=PROMPT, max_tokens=1000)
        for update in job:
            if update.text:
                break
        job.cancel()
        job.wait()
        root = llama_cpp.removesuffix("/v1")
        eventually(
            lambda: not any(slot["is_processing"] for slot in httpx2.get(f"{root}/slots").json()), within=20
        )


@pytest.mark.parametrize("source", [{"prompt": PROMPT}, {"messages": MESSAGES}])
def test_log_probabilities_are_those_of_the_torch_engine(
    llama_cpp: str, model: Path, reference: TorchEngine, source: dict[str, Any]
):
    with running_front(llama_cpp, tokenizer=model) as client:
        value = client.run(
            "generate", **source, max_tokens=12, temperature=0, top_logprobs=3, token_text=True
        )
    own = generate_one(reference, **source, max_tokens=12, temperature=0.0, top_logprobs=3, token_text=True)
    for name in ("token_ids", "top_ids", "token_text", "top_text"):
        assert value[name] == getattr(own, name)
    # llama.cpp keeps keys and values in float16.
    assert value["logprobs"] == pytest.approx(own.logprobs, abs=2e-2)
    assert value["text"] == "".join(own.text)


def test_log_probabilities_are_those_of_the_unstreamed_answer(llama_cpp: str, model: Path):
    members = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    with running_front(llama_cpp, tokenizer=model) as client:
        value = client.run("generate", **members, top_logprobs=3)
    direct = httpx2.post(f"{llama_cpp}/completions", json={**members, "logprobs": 3}, timeout=60).json()[
        "choices"
    ][0]
    positions = direct["logprobs"]["content"]
    assert value["text"] == direct["text"]
    assert value["token_ids"] == [each["id"] for each in positions]
    assert value["top_ids"] == [[top["id"] for top in each["top_logprobs"]] for each in positions]
    assert value["logprobs"] == pytest.approx([each["logprob"] for each in positions], abs=1e-3)


@pytest.mark.parametrize("source", [{"prompt": PROMPT}, {"messages": MESSAGES}])
def test_json_schema_shapes_the_text(llama_cpp: str, source: dict[str, Any]):
    schema = {"type": "object", "properties": {"a": {"enum": ["xyz"]}}, "required": ["a"]}
    with running_front(llama_cpp) as client:
        value = client.run("generate", **source, max_tokens=40, temperature=0, json_schema=schema)
    assert value["text"].replace(" ", "").replace("\n", "").startswith('{"a":"xyz"')


def test_prompt_that_is_too_long_is_input_too_long(llama_cpp: str):
    with running_front(llama_cpp) as client, pytest.raises(JobFailedError) as error:
        client.run("generate", prompt="a b " * 2000, max_tokens=5)
    assert error.value.code == "input_too_long"


@pytest.mark.heavy
def test_text_fills_the_rest_of_the_context(llama_cpp: str):
    with running_front(llama_cpp) as client:
        value = client.run("generate", prompt="a b " * 240, max_tokens=None, temperature=0)
    assert value["finish_reason"] == "length"
    assert value["usage"]["prompt_tokens"] + value["usage"]["completion_tokens"] in range(1020, 1026)


def test_openai_surface_works_in_front_of_an_engine(engine: str, model: Path):
    with running_front(engine, **model_name(engine, model)) as client:
        sent = {"model": "generate", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
        names = httpx2.get(f"{client.url}/openai/v1/models").json()["data"]
        answer = httpx2.post(
            f"{client.url}/openai/v1/completions", json={**sent, "model": names[0]["id"]}, timeout=60
        )
        direct = client.run("generate", prompt=PROMPT, max_tokens=12, temperature=0)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == direct["text"]


def test_own_openai_surface_is_an_upstream(model: Path):
    own = Server(**QUICK)
    add_generate(own, model=model, device="cpu", dtype="float32", threads=1)
    with own.running() as address, running_front(f"{address}/openai/v1") as client, Client(address) as direct:
        for source in ({"prompt": PROMPT}, {"messages": MESSAGES}):
            members = {**source, "max_tokens": 12, "temperature": 0}
            job = client.submit("generate", **members)
            assert "".join(job.iter_text()) == direct.run("generate", **members)["text"]
            assert (
                httpx2.get(f"{client.url}/v1/jobs/{job.id}").json()["done"]["usage"]["completion_tokens"]
                == 12
            )


def test_characters_of_several_tokens_are_complete(engine: str, model: Path):
    with running_front(engine, **model_name(engine, model)) as client:
        text = client.run("generate", prompt='x = "日本日本日', max_tokens=60, temperature=1.5, seed=5)[
            "text"
        ]
    assert text.encode()


# ---- the front is killed --------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("source", [{"prompt": PROMPT}, {"messages": MESSAGES}])
def test_killed_front_delivers_every_character_once(
    engine: str, model: Path, tmp_path: Path, source: dict[str, Any], reference: TorchEngine
):
    """llama.cpp continues after the text so far. `transformers serve` reports no counts, so the request runs again."""
    settings = {
        "log": f"sqlite:///{tmp_path / 'log.db'}",
        "retry": 0.01,
        "urls": [engine],
        "upstream": model_name(engine, model),
        # llama.cpp rounds otherwise after a longer prompt, and may then generate other text after an old mark.
        "mark_interval": 0.0,
    }
    with ServerProcess(tmp_path, "support.upstream_front:upstream_front", **settings) as server:
        eventually(lambda: httpx2.get(f"{server.url}/readyz").status_code == 200, within=20)
        with Client(server.url) as client:
            job = client.submit("generate", **source, max_tokens=400, temperature=0)
            text, kills = "", 0
            for piece in job.iter_text():
                text += piece
                if len(text) > 100 * (kills + 1) and kills < 2:
                    kills += 1
                    server.again()
            value = job.result()
        assert kills == 2
        state = httpx2.get(f"{server.url}/v1/jobs/{job.id}").json()
    assert text == value["text"]
    assert value["usage"]["completion_tokens"] == 400
    assert state["state"]["notes"], "the note says that the engine was lost"
    if "transformers" in str(model_name(engine, model)):
        own = generate_one(reference, **source, max_tokens=400, temperature=0.0)
        assert text == "".join(own.text)
