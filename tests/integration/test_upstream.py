"""The endpoint `generate` in front of a scripted engine: what is sent, where it is sent, and what happens to its answers."""

import asyncio
import json
import logging
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme
from tokenizers import Tokenizer, decoders, models
from typer.testing import CliRunner

from support import scripted_server
from support.reference_server import eventually
from support.scripted_engine import MARK, ScriptedEngine, expected, is_ready, scripted_engine, until_ready
from support.upstream_front import running_front
from tidewire import Client
from tidewire.errors import InvalidInputError, JobFailedError
from tidewire_server import Server
from tidewire_server.commands.serve_command import serve
from tidewire_server.default_model import default_model
from tidewire_server.generation.engine_interface import EngineError, InputError
from tidewire_server.generation.upstream import add_upstream
from tidewire_server.generation.upstream.engine_requests import EngineRequests
from tidewire_server.generation.upstream.url_pool import UrlError

pytest_plugins = ["support.engine_fixtures"]
pytestmark = pytest.mark.usefixtures("short_pauses")

LIMIT = 20.0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    made = Tokenizer(models.BPE(vocab={chr(97 + i % 26) * (1 + i // 26): i for i in range(50)}, merges=[]))
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    return folder


def values(client: Client, n: int, **members: Any) -> list[Any]:
    jobs = [client.submit("generate", prompt=MARK, **members) for _ in range(n)]
    return [job.result(timeout=LIMIT) for job in jobs]


# ---- start ------------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_server_answers_503_until_the_engine_answers():
    with ScriptedEngine() as engine:
        engine.kill()
        with running_front(engine.url, wait=False) as client:
            url = client.url
            eventually(lambda: "cannot be reached" in httpx2.get(f"{url}/readyz").text, LIMIT)
            answer = httpx2.post(f"{url}/v1/endpoints/generate/jobs", json={"input": {"top_k": 3}})
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
            assert "engine 1 cannot be reached" in answer.json()["detail"]
            assert str(engine.port) not in answer.text  # Callers need not know where the engine is.
            assert httpx2.get(f"{url}/readyz").status_code == 503
            assert httpx2.get(f"{url}/v1/endpoints/generate").status_code == 200
            # The name of the model is not known yet, so no name is wrong.
            completion = httpx2.post(
                f"{url}/openai/v1/completions", json={"model": "scripted", "prompt": "x"}
            )
            assert (completion.status_code, httpx2.get(f"{url}/openai/v1/models").status_code) == (503, 503)
            assert "engine 1 cannot be reached" in completion.json()["error"]["message"]
            engine.start()
            # A client waits for the server without an error.
            assert client.run("generate", prompt=MARK, max_tokens=3)["text"] == expected(3)
            assert is_ready(url)


def test_description_is_that_of_the_engines_kind(engine: ScriptedEngine):
    engine.script(context=512)
    with running_front(engine.url) as client:
        model = client.describe("generate").capabilities.model
        assert (model.name, model.context) == ("scripted", 512)
        assert {"top_k", "min_p", "messages", "json_schema"} <= set(model.features)
        assert {"num_beams", "typical_p", "logprobs"}.isdisjoint(model.features)
        with pytest.raises(InvalidInputError, match="num_beams"):
            client.submit("generate", num_beams=2)
        with pytest.raises(InvalidInputError, match="512") as error:
            client.submit("generate", max_tokens=513)
        assert error.value.code == "input_too_long"
    assert engine.journal() == []


def test_unknown_kind_gets_only_the_members_of_openai(engine: ScriptedEngine):
    engine.script(kind="somebody")
    with running_front(engine.url) as client:
        client.run("generate", prompt=MARK, max_tokens=2, stop=["1", "2", "3", "4", "5"])
        with pytest.raises(InvalidInputError, match="top_k"):
            client.submit("generate", top_k=3)
    body = engine.journal()[0]["body"]
    assert body == {
        "model": "scripted",
        "stream": True,
        "stream_options": {"include_usage": True},
        "prompt": MARK,
        "max_tokens": 2,
        "temperature": 1.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": ["1", "2", "3", "4"],
    }


def test_kind_option_takes_precedence_over_the_engine(engine: ScriptedEngine):
    engine.script(kind="somebody")
    with running_front(engine.url, kind="vllm") as client:
        client.run("generate", prompt=MARK, max_tokens=2, top_k=3)
    assert engine.journal()[0]["body"]["top_k"] == 3


@pytest.mark.heavy
@pytest.mark.parametrize("models", [[], 500, ["a", "b"]])
def test_engine_without_exactly_one_model_needs_the_option_model(engine: ScriptedEngine, models: Any):
    transformers = {"/openapi.json": {"paths": {"/load_model": {}, "/v1/completions": {}}}}
    engine.script(models=models, pages=transformers)
    with running_front(engine.url, wait=False) as client:
        eventually(lambda: "--model" in httpx2.get(f"{client.url}/readyz").text)
    with running_front(engine.url, model="a") as client:
        client.run("generate", prompt=MARK, max_tokens=2)
    assert engine.journal()[0]["body"]["model"] == "a"


@pytest.mark.parametrize("path", ["", "/v1/chat/completions", "/page"])
def test_url_without_a_list_of_models_is_one_clear_error(
    engine: ScriptedEngine, path: str, caplog: pytest.LogCaptureFixture
):
    engine.script(pages={"/page/models": "<html>"})
    wrong = engine.url.removesuffix("/v1") + path
    with caplog.at_level(logging.WARNING), running_front(wrong, wait=False, model="scripted") as client:
        eventually(lambda: "usually ends with /v1" in httpx2.get(f"{client.url}/readyz").text)
        assert not is_ready(client.url)
    status = 200 if path == "/page" else 404
    assert f"upstream {wrong} answers GET …/models with the status {status}" in caplog.text


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("trusted", "reason"),
    [(False, "unable to get local issuer"), (True, "mismatch")],
    ids=["unknown", "other"],
)
async def test_certificate_that_is_not_accepted_is_the_reason_without_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool, reason: str
):
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("other.invalid").configure_cert(context)
    if trusted:
        authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    requests = EngineRequests(None, 5.0)
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(UrlError) as error:
            await requests.describe(f"https://127.0.0.1:{port}/v1", None)
    await requests.close()
    found = str(error.value)
    assert reason in found
    assert "127.0.0.1" not in found


def test_context_is_that_of_the_chosen_model(engine: ScriptedEngine):
    cards = [
        {"id": "small", "max_model_len": 10},
        {"id": "base", "max_model_len": 100},
        {"id": "adapter", "max_model_len": None, "parent": "base"},
        {"id": "other"},
    ]
    engine.script(models=[{"owned_by": "vllm", **card} for card in cards])
    for model, context in [("small", 10), ("base", 100), ("adapter", 100), ("other", None)]:
        with running_front(engine.url, model=model) as client:
            assert client.describe("generate").capabilities.model.context == context


def test_wrong_model_is_one_clear_error(engine: ScriptedEngine):
    with running_front(engine.url, wait=False, model="other") as client:
        eventually(lambda: "other" in httpx2.get(f"{client.url}/readyz").text)
        assert "scripted" in httpx2.get(f"{client.url}/readyz").text


@pytest.mark.heavy
def test_wrong_key_is_one_clear_error_without_the_key(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
):
    engine.script(key="right-key")
    with caplog.at_level(logging.DEBUG), running_front(engine.url, wait=False, key="wrong-key") as client:
        eventually(lambda: "TIDEWIRE_UPSTREAM_KEY" in httpx2.get(f"{client.url}/readyz").text)
        answer = httpx2.post(f"{client.url}/v1/endpoints/generate/jobs", json={"input": {}})
        assert answer.status_code == 503
        shown = answer.text + caplog.text + client.describe("generate").__repr__()
    assert "wrong-key" not in shown
    assert sum("rejects the key" in record.message for record in caplog.records) == 1
    with running_front(engine.url, key="right-key") as client:
        client.run("generate", prompt=MARK, max_tokens=2)
    assert engine.journal()[0]["headers"]["authorization"] == "Bearer right-key"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/v1",
        "http://",
        "http://u:p@h/v1",
        "http://h/v1?key=p",
        "h:80/v1",
        "http://h:99999/v1",
        "http://h:0/v1",
    ],
)
def test_url_of_an_upstream_is_checked(url: str):
    with pytest.raises(ValueError) as error:
        add_upstream(Server(), url)
    assert "p@" not in str(error.value)
    assert ":p" not in str(error.value)


@pytest.mark.heavy
def test_command_with_an_upstream_imports_no_torch(engine: ScriptedEngine, tmp_path: Path):
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "tidewire_server",
        "--upstream",
        engine.url,
        "--port",
        "0",
    ]
    port_file = tmp_path / "port"
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            [*command, "--port-file", str(port_file), "--tokenizer", str(default_model())],
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        eventually(port_file.exists, within=50)
        url = f"http://127.0.0.1:{int(port_file.read_text())}"
        until_ready(url)
        with Client(url) as client:
            assert client.run("generate", prompt=MARK, max_tokens=3, logprobs=True)["text"] == expected(3)
    finally:
        process.kill()
        process.wait()
    imported = {line.rpartition("|")[2].strip() for line in (tmp_path / "errors").read_text().splitlines()}
    assert {"httpx2", "tokenizers"} <= imported
    assert imported.isdisjoint({"torch", "transformers", "numpy"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--slots", "3", "--upstream", "http://127.0.0.1:1/v1"], "--slots: slots has no effect together with upstream"),
        (["--upstream-kind", "vllm"], "--upstream-kind: upstream_kind needs the URL of an engine"),
        (["--upstream-key-file", "key"], "--upstream-key-file: upstream_key_file needs the URL of an engine"),
        (["mine.py", "--upstream-key-file", "key"], "in the target's code, as in add_upstream(server, key=…)"),
        (["--upstream", "http://127.0.0.1:1"[:5]], "must be the URL of an engine"),
        (["--upstream", "http://127.0.0.1:1/v1", "--tokenizer", "nowhere"], "--tokenizer: cannot read the tokenizer"),
        (["--upstream", "http://127.0.0.1:1/v1", "--tokenizer", "x" * 300], "--tokenizer: cannot read the tokenizer x"),
        (["--upstream-concurrency", "0", "--upstream", "http://127.0.0.1:1/v1"], "from 1 to 4096"),
        (["mine.py", "--upstream", "http://127.0.0.1:1/v1"], "applies only to the default server"),
    ],
)  # fmt: skip
def test_wrong_options_of_the_command_are_one_clear_error(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_text("secret")
    answer = CliRunner().invoke(serve, arguments)
    assert answer.exit_code in {1, 2}
    assert message in answer.stderr


# ---- what is sent -------------------------------------------------------------------------------------------------------


def test_all_sampling_members_are_sent_with_neutral_values_translated(engine: ScriptedEngine):
    with running_front(engine.url) as client:
        client.run("generate", prompt=MARK, max_tokens=2)
        client.run("generate", messages=[{"role": "user", "content": "a"}], max_tokens=2, top_k=5, seed=7)
    prompt, chat = engine.journal()
    assert (prompt["path"], chat["path"]) == ("/v1/completions", "/v1/chat/completions")
    sent = {
        name: prompt["body"][name]
        for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    }
    assert sent == {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert "messages" not in prompt["body"]
    assert "prompt" not in chat["body"]
    assert chat["body"]["messages"] == [{"role": "user", "content": "a"}]
    assert (chat["body"]["top_k"], chat["body"]["seed"]) == (5, 7)


def test_prefix_caches_of_callers_are_separate(engine: ScriptedEngine):
    tokens = {"settings": {"tokens": ("ann:a-token-of-ann", "bob:a-token-of-bob")}}
    with running_front(engine.url, **tokens) as client:
        for token in ("a-token-of-ann", "a-token-of-bob", "a-token-of-ann"):
            with Client(client.url, token=token) as caller:
                caller.run("generate", prompt=MARK, max_tokens=1)
    ann, bob, again = [entry["body"]["cache_salt"] for entry in engine.journal()]
    assert ann == again != bob
    assert "ann" not in ann


def test_trace_of_the_caller_reaches_the_engine(engine: ScriptedEngine):
    trace = "0af7651916cd43dd8448eb211c80319c"
    with running_front(engine.url) as client:
        httpx2.post(
            f"{client.url}/v1/endpoints/generate/jobs",
            json={"input": {"prompt": MARK, "max_tokens": 2}},
            headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"},
        )
        eventually(engine.journal)
    assert trace in engine.journal()[0]["headers"]["traceparent"]


def test_cancel_reaches_the_engine(engine: ScriptedEngine):
    engine.script(pause=0.01)
    with running_front(engine.url) as client:
        job = client.submit("generate", prompt=MARK, max_tokens=5000)
        for update in job:
            if update.text:
                break
        job.cancel()
        job.wait()
        assert job.status() == "cancelled"
        eventually(lambda: engine.journal()[0]["closed"])
        value = httpx2.get(f"{client.url}/v1/jobs/{job.id}").json()["state"]["items"][0]["value"]
        assert value["finish_reason"] == "cancelled"


# ---- load ---------------------------------------------------------------------------------------------------------------


def test_requests_go_to_the_url_with_the_fewest_and_the_others_wait(engine: ScriptedEngine):
    with scripted_engine(pause=0.01) as other:
        engine.script(pause=0.01)
        with running_front(engine.url, other.url, concurrency=2) as client:
            jobs = [client.submit("generate", prompt=MARK, max_tokens=10_000) for _ in range(6)]
            eventually(lambda: (len(engine.journal()), len(other.journal())) == (2, 2))
            positions = [httpx2.get(f"{client.url}/v1/jobs/{job.id}").json()["status"] for job in jobs]
            assert positions.count("queued") == 2  # in the server's queue, with a position
            for job in jobs:
                job.cancel()


def test_url_that_is_gone_is_left_out_and_comes_back(engine: ScriptedEngine):
    with scripted_engine() as other, running_front(engine.url, other.url) as client:
        assert {each["text"] for each in values(client, 4, max_tokens=3)} == {expected(3)}
        other.kill()
        assert {each["text"] for each in values(client, 6, max_tokens=3)} == {expected(3)}
        other.start()

        def comes_back() -> bool:
            values(client, 4, max_tokens=3)
            return len(other.journal()) > 0

        eventually(comes_back)


@pytest.mark.heavy
def test_engine_that_was_restarted_with_another_model_gets_no_further_jobs(engine: ScriptedEngine):
    """It refuses requests faster than the others answer them, so it would get and fail most jobs."""
    gone = {"status": 404, "body": {"error": {"message": "The model `scripted` does not exist."}}}
    engine.script(pause=0.02)
    with scripted_engine() as other, running_front(engine.url, other.url, concurrency=2) as client:
        values(client, 4, max_tokens=1)
        other.script(models=["another"], answers=[gone])
        assert [each["text"] for each in values(client, 12, max_tokens=3)] == [expected(3)] * 12
        assert 1 <= len(other.journal()) <= 2
        assert is_ready(client.url)
        engine.script(models=["another"], answers=[gone])
        job = client.submit("generate", prompt=MARK, max_tokens=3)
        eventually(lambda: "does not serve the model" in httpx2.get(f"{client.url}/readyz").text)
        assert job.status() == "queued"
        job.cancel()


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (400, {"error": {"message": "top_p must be small"}}, "invalid_input"),
        (422, {"detail": "Unexpected fields"}, "invalid_input"),
        (400, {"message": "This model's maximum context length is 10 tokens"}, "input_too_long"),
        (400, {"error": {"type": "exceed_context_size_error", "message": "exceeds the available context size"}}, "input_too_long"),
        (413, {"error": "too many"}, "input_too_long"),
    ],
)  # fmt: skip
def test_rejected_input_fails_the_item_and_says_nothing_about_the_url(
    engine: ScriptedEngine, status: int, body: Any, code: str
):
    engine.script(answers=[{"status": status, "body": body}] * 5 + [{}])
    with running_front(engine.url) as client:
        for _ in range(5):
            with pytest.raises(JobFailedError) as error:
                client.run("generate", prompt=MARK, max_tokens=3)
            assert error.value.code == code
        assert values(client, 1, max_tokens=3)[0]["text"] == expected(3)
    assert len(engine.journal()) == 6


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (413, b"<html><h1>Request Entity Too Large</h1></html>", "Request Entity Too Large"),
        (400, b"no prompt of the key", "rejected the input: no prompt of the ***"),
        (404, b"", "status 404: it sent no reason"),
        (400, b"null", "it sent no reason"),
    ],
)
def test_rejection_of_a_proxy_shows_its_text(status: int, body: bytes, reason: str):
    async def ask(url: str) -> str:
        requests = EngineRequests("key", 5.0)
        with pytest.raises((EngineError, InputError)) as error:
            await anext(requests.stream(url, "completions", {}))
        await requests.close()
        return str(error.value)

    sent = scripted_server.answer(status, body, media="text/html")
    with scripted_server.ScriptedServer(lambda _: [sent]) as proxy:
        assert reason in asyncio.run(ask(proxy.url))


@pytest.mark.parametrize("media", ["Text/Event-Stream", "text/event-stream; charset=utf-8"])
def test_media_type_is_compared_without_its_case(engine: ScriptedEngine, media: str):
    engine.script(answers=[{"media_type": media}])
    with running_front(engine.url) as client:
        assert values(client, 1, max_tokens=3)[0]["text"] == expected(3)


LONG = "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4090 and 8"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        # TGI, which begins each stream with the status 200
        ({"error": LONG, "error_type": "validation"}, "input_too_long"),
        ({"error": {"message": LONG, "http_status_code": 422}}, "input_too_long"),
        ({"error": "Input validation error: `seed` is wrong", "error_type": "validation"}, "invalid_input"),
        # SGLang, vLLM, and proxies
        ({"error": {"code": 400, "message": "The input is longer than the model's context length"}}, "input_too_long"),
        ({"error": {"code": 400, "message": "longer than the maximum model length of 10"}}, "input_too_long"),
        ({"error": {"code": "400", "message": "no"}}, "invalid_input"),
        ({"error": {"code": 400, "message": ["a"]}}, "invalid_input"),
        ({"error": {"code": 404, "message": "no"}}, "internal"),
        # OpenAI's API, and a server of Tidewire
        ({"error": {"type": "invalid_request_error", "code": "invalid_value", "message": "no"}}, "invalid_input"),
        ({"error": {"type": "invalid_request_error", "code": None, "message": "context length"}}, "input_too_long"),
    ],
)  # fmt: skip
def test_input_that_is_rejected_in_the_stream_is_sent_once(engine: ScriptedEngine, error: Any, code: str):
    engine.script(answers=[{"send": [f"data: {json.dumps(error)}\n\n"]}, {}])
    with running_front(engine.url) as client:
        with pytest.raises(JobFailedError) as failed:
            client.run("generate", prompt=MARK, max_tokens=3)
        assert failed.value.code == code
        assert values(client, 1, max_tokens=3)[0]["text"] == expected(3)
    assert len(engine.journal()) == 2


@pytest.mark.parametrize(
    "error",
    [
        {"error": "Model is overloaded", "error_type": "overloaded"},
        {"error": {"message": "Model is overloaded", "http_status_code": 422}},
        {"error": {"code": 503, "message": "no"}},
        {"error": {"type": "invalid_request_error", "code": "rate_limit_exceeded", "message": "no"}},
    ],
)
def test_engine_that_is_busy_at_the_begin_of_the_stream_has_lost_no_answer(
    engine: ScriptedEngine, error: Any
):
    engine.script(answers=[{"send": [f"data: {json.dumps(error)}\n\n"]}] * 5 + [{}])
    with running_front(engine.url, on_restart="fail") as client:
        assert values(client, 1, max_tokens=3)[0]["text"] == expected(3)
    assert len(engine.journal()) == 6


def test_engine_that_fails_three_times_is_worker_lost(engine: ScriptedEngine):
    engine.script(answers=[{"status": 500, "body": {"error": "boom"}}])
    with running_front(engine.url) as client, pytest.raises(JobFailedError) as error:
        client.run("generate", prompt=MARK, max_tokens=3)
    assert error.value.code == "worker_lost"
    assert len(engine.journal()) == 3


def test_silent_engine_is_left_out(engine: ScriptedEngine):
    with scripted_engine() as other:
        engine.script(answers=[{"send": ["hang"]}])
        with running_front(engine.url, other.url, timeout=0.3) as client:
            assert {each["text"] for each in values(client, 4, max_tokens=3)} == {expected(3)}


# ---- answers ------------------------------------------------------------------------------------------------------------


def chunk(**choice: Any) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, **choice}]})}\n\n"


def raw(data: bytes) -> dict[str, str]:
    return {"hex": (b"data: %b\n\n" % data).hex()}


def usage_of(client: Client, job: str) -> Any:
    return httpx2.get(f"{client.url}/v1/jobs/{job}").json()["done"]["usage"]


def one(client: Client, engine: ScriptedEngine, *send: Any, **members: Any) -> Any:
    engine.script(**engine.settings, answers=[{"send": list(send)}])
    return client.run("generate", **({"prompt": MARK, "max_tokens": 8} | members))


def test_usage_is_that_of_the_engine_and_never_counted(engine: ScriptedEngine):
    with running_front(engine.url) as client:
        job = client.submit("generate", prompt=MARK, max_tokens=6)
        job.result()
        assert usage_of(client, job.id) == {"prompt_tokens": 7, "completion_tokens": 6}
        engine.script(
            answers=[{"send": [chunk(text="a"), chunk(text="b"), chunk(text="", finish_reason="stop")]}]
        )
        job = client.submit("generate", prompt=MARK, max_tokens=6)
        assert job.result() == {"text": "ab", "finish_reason": "stop"}
        assert usage_of(client, job.id) == {}


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ([chunk(text="", finish_reason="length")], "length"),
        ([chunk(text="", finish_reason="length"), "cut"], "length"),
        (["data: [DONE]\n\n"], "stop"),
    ],
)
def test_answer_is_complete_with_a_finish_reason_or_done(engine: ScriptedEngine, end: list[Any], reason: str):
    with running_front(engine.url) as client:
        assert one(client, engine, chunk(text="ab"), *end) == {"text": "ab", "finish_reason": reason}


@pytest.mark.parametrize(
    "end",
    [
        [],
        ["cut"],
        [chunk(text="", finish_reason="abort")],
        ['data: {"error":{"code":500}}\n\n'],
        ['data: {"object":"error","message":"out of memory","code":50001}\n\n', "data: [DONE]\n\n"],
        ['event: error\ndata: {"message":"out of memory"}\n\n', "data: [DONE]\n\n"],
    ],
)
def test_answer_without_an_end_is_not_passed_on(engine: ScriptedEngine, end: list[Any]):
    with running_front(engine.url) as client, pytest.raises(JobFailedError) as error:
        one(client, engine, chunk(text="ab"), *end)
    assert error.value.code == "worker_lost"


def test_answer_that_consists_only_of_its_end_is_not_passed_on(engine: ScriptedEngine):
    with running_front(engine.url) as client, pytest.raises(JobFailedError, match="finish reason") as error:
        one(client, engine, "data: [DONE]\n\n")
    assert error.value.code == "worker_lost"


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([raw(b'{"choices":[{"text":"n\xc3"}]}'), raw(b'{"choices":[{"text":"\xa9!"}]}')], "né!"),
        ([raw(b'{"choices":[{"text":"\xf0\x9f"}]}'), raw(b'{"choices":[{"text":"\x98\x80!"}]}')], "😀!"),
        (
            ['data: {"choices":[{"text":"\\ud83d"}]}\n\n', 'data: {"choices":[{"text":"\\ude00!"}]}\n\n'],
            "😀!",
        ),
        (['data: {"choices":[{"text":"né', '😀"}]}\n\n'], "né😀"),
        (['data: {"choices":[{"text":"a\\ud83d"}]}\n\n', 'data: {"choices":[{"text":"b"}]}\n\n'], "a\ufffdb"),
    ],
)
def test_character_that_is_split_between_chunks_is_joined(
    engine: ScriptedEngine, pieces: list[str], text: str
):
    with running_front(engine.url) as client:
        assert one(client, engine, *pieces, "data: [DONE]\n\n")["text"] == text


REASONED = [
    chunk(delta={"role": "assistant", "reasoning_content": "Hm"}),
    chunk(delta={"reasoning": "m."}),
    chunk(delta={"content": "Yes."}, finish_reason="stop"),
]


def test_reasoning_is_a_separate_text(engine: ScriptedEngine):
    with running_front(engine.url) as client:
        engine.script(answers=[{"send": REASONED}])
        value = client.run("generate", messages=[{"role": "user", "content": "?"}])
    assert value == {"text": "Yes.", "reasoning": "Hmm.", "finish_reason": "stop"}


@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions_have_the_reasoning_of_the_engine(engine: ScriptedEngine, stream: bool):
    body = {"model": "scripted", "messages": [{"role": "user", "content": "?"}], "stream": stream}
    with running_front(engine.url) as client:
        engine.script(answers=[{"send": REASONED}])
        answer = httpx2.post(f"{client.url}/openai/v1/chat/completions", json=body)
        engine.script(answers=[{"send": REASONED}])
        texts = httpx2.post(
            f"{client.url}/openai/v1/responses", json={"model": "scripted", "input": "?"}
        ).json()["output"][0]["content"]
    assert [each["text"] for each in texts] == ["Yes."]
    if not stream:
        message = answer.json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hmm.", "Yes.")
        return
    *chunks, end = [
        line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")
    ]
    deltas = [json.loads(each)["choices"][0]["delta"] for each in chunks]
    assert end == "[DONE]"
    assert "".join(each.get("reasoning_content", "") for each in deltas) == "Hmm."
    assert "".join(each.get("content", "") for each in deltas) == "Yes."
    names = [name for each in deltas for name in ("reasoning_content", "content") if each.get(name)]
    assert names == sorted(names, reverse=True), "the reasoning comes first"


@pytest.mark.parametrize(
    ("first", "last", "finish_reason", "message"),
    [
        ({"tool_calls": [{"id": "x"}]}, {}, "tool_calls", "tool"),
        ({"refusal": "I cannot"}, {"refusal": None}, "stop", "refused to answer"),
    ],
)
def test_answer_that_is_not_a_text_fails_the_item(
    engine: ScriptedEngine, first: Any, last: Any, finish_reason: str, message: str
):
    engine.script(answers=[{"send": [chunk(delta=first), chunk(delta=last, finish_reason=finish_reason)]}])
    with running_front(engine.url) as client, pytest.raises(JobFailedError, match=message):
        client.run("generate", messages=[{"role": "user", "content": "?"}])
    assert len(engine.journal()) == 1


@pytest.mark.heavy
def test_text_never_contains_a_stop_string_that_the_engine_sends(engine: ScriptedEngine):
    with running_front(engine.url) as client:
        value = one(client, engine, *[chunk(text=each) for each in ("abS", "TO", "Pcd")], "hang", stop="STOP")
        assert value == {"text": "ab", "finish_reason": "stop"}
        value = one(client, engine, chunk(text="abSTO"), chunk(text="", finish_reason="length"), stop="STOP")
        assert value == {"text": "abSTO", "finish_reason": "length"}


# ---- log-probabilities ----------------------------------------------------------------------------------------------------


def test_log_probabilities_need_a_tokenizer(engine: ScriptedEngine):
    with running_front(engine.url) as client:
        for members in ({"logprobs": True}, {"top_logprobs": 2}, {"token_text": True}):
            with pytest.raises(
                InvalidInputError, match="require an engine that sends token ids.*--tokenizer"
            ):
                client.submit("generate", **members)
    assert engine.journal() == []


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("chat", [False, True])
def test_log_probabilities_are_columns(engine: ScriptedEngine, tokenizer: Path, tokens: int, chat: bool):
    engine.script(tokens=tokens)
    source = {"messages": [{"role": "user", "content": "?"}]} if chat else {"prompt": MARK}
    with running_front(engine.url, tokenizer=tokenizer) as client:
        value = client.run("generate", **source, max_tokens=4, top_logprobs=2, token_text=True)
        vocabulary = client.vocabulary("generate") if hasattr(client, "vocabulary") else None
    assert value == {
        "text": expected(4),
        "token_ids": [0, 1, 2, 3],
        "logprobs": [-0.5] * 4,
        "top_ids": [[0, 1], [1, 2], [2, 3], [3, 4]],
        "top_logprobs": [[-0.5, -1.5]] * 4,
        "token_text": ["a", "b", "c", "d"],
        "top_text": [["a", "b"], ["b", "c"], ["c", "d"], ["d", "e"]],
        "logprobs_mode": "raw",
        "finish_reason": "length",
        "usage": {"prompt_tokens": 7, "completion_tokens": 4},
    }
    assert vocabulary is None or vocabulary
    body = engine.journal()[0]["body"]
    assert body["return_tokens_as_token_ids"] is True
    assert body["logprobs"] == (True if chat else 2)


def scored(tokens: list[str], values: list[Any], tops: list[Any] | None = None, **choice: Any) -> str:
    tops = tops or [{token: value} for token, value in zip(tokens, values, strict=True)]
    return chunk(
        text="x", logprobs={"tokens": tokens, "token_logprobs": values, "top_logprobs": tops}, **choice
    )


A, B, C = "token_id:0", "token_id:1", "token_id:2"


def test_impossible_values_become_null(engine: ScriptedEngine, tokenizer: Path):
    steps = [scored([A], [-9999.0], [{A: -9999.0, B: -0.1, C: -9999}]), chunk(text="", finish_reason="stop")]
    with running_front(engine.url, tokenizer=tokenizer) as client:
        value = one(client, engine, *steps, top_logprobs=3)
    assert value["logprobs"] == [None]
    assert (value["top_ids"], value["top_logprobs"]) == ([[1, 0, 2]], [[-0.1, None, None]])


def test_chosen_token_is_an_alternative_only_if_it_belongs_to_the_most_probable(
    engine: ScriptedEngine, tokenizer: Path
):
    steps = [scored([C], [-3.0], [{C: -3.0, B: -0.5, A: -0.5}]), chunk(text="", finish_reason="stop")]
    with running_front(engine.url, tokenizer=tokenizer) as client:
        value = one(client, engine, *steps, top_logprobs=2)
    assert (value["top_ids"], value["logprobs"]) == ([[0, 1]], [-3.0])


# llama.cpp counts a token that ends within a character, and streams only the next one.
WITHIN_A_CHARACTER = {
    "choices": [
        {"text": "é", "logprobs": {"content": [{"id": 1, "logprob": -1.0, "top_logprobs": [{"id": n, "logprob": -1.0} for n in (1, 2)]}]}}
    ],
    "timings": {"predicted_n": 2},
}  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([f"data: {json.dumps(WITHIN_A_CHARACTER)}\n\n", "hang"], "1 tokens.*within a character"),
        ([chunk(text="ab")], "no log-probabilities"),
        ([scored([A], [-1.0], [{B: -2.0, C: -3.0}])], "do not belong"),
        ([scored([A], [-1.0], [{A: -1.5, B: -2.0}])], "do not belong"),
        ([scored([A], [-1.0], [{A: -1.0}])], "1 alternatives"),
        ([scored(["a"], [-1.0])], "without token ids"),
        ([scored([A], [0.5], [{A: 0.5, B: -1}])], "not below 0"),
        ([chunk(text="x", logprobs={"tokens": [A], "token_logprobs": []})], "different lengths"),
        ([scored([A], [-1.0], [{A: -1.0, "token_id:77": -2.0}])], "77"),
        (
            [chunk(text="x", finish_reason="stop", usage=1), 'data: {"usage":{"completion_tokens":9}}\n\n'],
            "left out",
        ),
    ],
)
def test_wrong_log_probabilities_are_not_passed_on(
    engine: ScriptedEngine, tokenizer: Path, steps: list[str], message: str
):
    with (
        running_front(engine.url, tokenizer=tokenizer) as client,
        pytest.raises(JobFailedError, match=message) as error,
    ):
        one(client, engine, *steps, "data: [DONE]\n\n", top_logprobs=2, token_text=True)
    assert error.value.code == "internal"
    assert len(engine.journal()) == 1


def test_only_the_mode_that_the_engine_computes_is_offered(engine: ScriptedEngine, tokenizer: Path):
    with running_front(engine.url, tokenizer=tokenizer) as client:
        with pytest.raises(InvalidInputError, match="logprobs_mode"):
            client.submit("generate", logprobs=True, logprobs_mode="processed")


def test_prompt_that_does_not_fit_is_refused_before_the_job(engine: ScriptedEngine, tokenizer: Path):
    engine.script(context=20)
    with running_front(engine.url, tokenizer=tokenizer) as client:
        with pytest.raises(InvalidInputError) as error:
            client.submit("generate", prompt="a" * 15, max_tokens=8)
        assert error.value.code == "input_too_long"
    assert engine.journal() == []


# ---- lost answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chat", [False, True])
def test_lost_answer_is_continued_after_the_text_so_far(engine: ScriptedEngine, chat: bool):
    engine.script(answers=[{"send": [{"tokens": 5}, "cut"]}, {"send": [{"tokens": 4}]}, {}])
    source = {"messages": [{"role": "user", "content": "?"}]} if chat else {"prompt": MARK}
    with running_front(engine.url) as client:
        job = client.submit("generate", **source, max_tokens=12)
        deleted = 0
        for delta in job.iter_text_deltas():
            deleted += delta.deleted
        assert deleted == 0
        assert job.result()["text"] == expected(12)
        assert usage_of(client, job.id) == {"prompt_tokens": 7, "completion_tokens": 12}
        notes = httpx2.get(f"{client.url}/v1/jobs/{job.id}").json()["state"]["notes"]
        assert ["seam" in note["text"] for note in notes] == [True]
    sent = [entry["body"] for entry in engine.journal()]
    assert [body["max_tokens"] for body in sent] == [12, 7, 3]
    if chat:
        assert sent[1]["messages"][-1] == {"role": "assistant", "content": expected(5)}
        assert sent[1]["continue_final_message"] is True
        assert sent[1]["add_generation_prompt"] is False
    else:
        assert [body["prompt"] for body in sent] == [MARK, MARK + expected(5), MARK + expected(9)]


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(
    ("sent", "left"),
    [([{"tokens": 5}], 7), ([{"tokens": 4}, chunk(text=expected(5).removeprefix(expected(4)))], 8)],
    ids=["at its end", "within it"],
)
def test_text_that_the_engine_refuses_to_continue_is_generated_again(
    engine: ScriptedEngine, sent: list[Any], left: int, chat: bool
):
    """For example, the text has more tokens than before, or a chat template shows it in another form."""
    refused = {"status": 400, "body": {"error": {"message": "the final message does not appear in the chat"}}}
    engine.script(answers=[{"send": [*sent, "cut"]}, refused, {}])
    source = {"messages": [{"role": "user", "content": "?"}]} if chat else {"prompt": MARK}
    with running_front(engine.url) as client:
        job = client.submit("generate", **source, max_tokens=12)
        assert sum(delta.deleted for delta in job.iter_text_deltas()) == 0
        assert job.result()["text"] == expected(12)
    assert [entry["body"]["max_tokens"] for entry in engine.journal()] == [12, left, 12]
    engine.script(answers=[{"send": [*sent, "cut"]}, refused])
    with running_front(engine.url) as client, pytest.raises(JobFailedError) as error:
        client.run("generate", **source, max_tokens=12)
    assert error.value.code == "invalid_input"
    assert len(engine.journal()) == 3


STOP = expected(6).removeprefix(expected(4)) + "X"


@pytest.mark.parametrize(
    ("members", "sent", "again"),
    [
        ({"stop": [STOP]}, [{"tokens": 6}], (MARK + expected(4), 8)),
        ({}, [{"tokens": 4}, chunk(text="\ud83d", usage=6)], (MARK + expected(4), 8)),
        # Columns cannot be cut, so the request runs again.
        ({"stop": [STOP], "logprobs": True}, [{"tokens": 6}], (MARK, 12)),
    ],
    ids=["stop string", "part of a character", "columns"],
)
def test_text_that_was_held_back_when_the_answer_broke_off_is_generated_again(
    engine: ScriptedEngine, tokenizer: Path, members: dict[str, Any], sent: list[Any], again: Any
):
    """The engine has sent six tokens or a part of them, of which four are shown."""
    engine.script(answers=[{"send": [*sent, "cut"]}, {}])
    with running_front(engine.url, tokenizer=tokenizer) as client:
        value = client.run("generate", prompt=MARK, max_tokens=12, **members)
    assert value["text"] == expected(12)
    assert value["usage"] == {"prompt_tokens": 7, "completion_tokens": 12}
    assert len(value.get("token_ids", range(12))) == 12
    body = engine.journal()[1]["body"]
    assert (body["prompt"], body["max_tokens"]) == again


@pytest.mark.parametrize(
    "after",
    [
        "data: {oops\n\n",
        'data: {"usage":{"completion_tokens":null}}\n\n',
        'data: {"choices":null}\n\n',
        'data: {"error":{"code":400,"message":"late"}}\n\n',
        "data:\n\n",
    ],
)
@pytest.mark.parametrize("together", [False, True], ids=["later", "in one block"])
def test_what_follows_the_finish_reason_does_not_fail_a_complete_text(
    engine: ScriptedEngine, after: str, together: bool
):
    end = chunk(text="b", finish_reason="stop")
    steps = [chunk(text="a"), end + after] if together else [chunk(text="a"), end, after]
    with running_front(engine.url) as client:
        value = one(client, engine, *steps, "data: [DONE]\n\n")
    assert (value["text"], value["finish_reason"]) == ("ab", "stop")


@pytest.mark.parametrize(
    "odd", ["data:\n\n", 'data: {"choices":null,"usage":null}\n\n', chunk(text="", finish_reason="")]
)
def test_events_without_content_are_ignored(engine: ScriptedEngine, odd: str):
    with running_front(engine.url) as client:
        value = one(client, engine, chunk(text="a"), odd, chunk(text="b", finish_reason="stop"))
    assert value["text"] == "ab"


def test_engine_that_is_killed_and_started_again_continues():
    with scripted_engine(pause=0.005) as other, running_front(other.url) as client:
        job = client.submit("generate", prompt=MARK, max_tokens=200)
        text, killed = "", False
        for piece in job.iter_text():
            text += piece
            if len(text) > 60 and not killed:
                other.kill()
                other.start()
                killed = True
        assert text == expected(200)
        assert other.journal()[0]["body"]["max_tokens"] < 200


@pytest.mark.parametrize(
    "members",
    [
        {"json_schema": {"type": "string"}},
        # The ids of the engine of the tests do not belong to its text.
        {"logprobs": True},
    ],
)
def test_answer_that_cannot_be_continued_runs_again_and_keeps_equal_text(
    engine: ScriptedEngine, tokenizer: Path, members: Any
):
    """The second answer is equal, so readers see no change of the text that they have."""
    engine.script(answers=[{"send": [{"tokens": 5}, "cut"]}, {}])
    with running_front(engine.url, tokenizer=tokenizer) as client:
        job = client.submit("generate", prompt=MARK, max_tokens=12, **members)
        assert "".join(job.iter_text()) == expected(12)
        job.result()
    assert engine.journal()[1]["body"]["prompt"] == MARK


def test_columns_are_continued_after_the_tokens_so_far(engine: ScriptedEngine, tokenizer: Path):
    choices = [
        {"text": text, "logprobs": {"tokens": [f"token_id:{at}"], "token_logprobs": [-0.5]}}
        for at, text in enumerate("abcde")
    ]
    tokens = [
        {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": number}}
        for number, choice in enumerate(choices, 1)
    ]
    events = [f"data: {json.dumps(token)}\n\n" for token in tokens]
    engine.script(answers=[{"send": [*events, "cut"]}, {}])
    with running_front(engine.url, tokenizer=tokenizer) as client:
        value = client.run("generate", prompt=MARK, max_tokens=12, logprobs=True)
    body = engine.journal()[1]["body"]
    assert (body["prompt"], body["max_tokens"]) == (f"{MARK}abcde", 7)
    assert value["token_ids"] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]
    assert value["text"].startswith("abcde")


def test_text_that_differs_in_the_second_run_is_deleted(engine: ScriptedEngine):
    end = chunk(text="!", finish_reason="stop")
    answers = [
        {"send": [chunk(text="the cat"), chunk(text=" sat"), "cut"]},
        {"send": [chunk(text="the c"), chunk(text="ow"), end]},
    ]
    engine.script(kind="somebody", answers=answers)
    with running_front(engine.url) as client:
        job = client.submit("generate", prompt=MARK, max_tokens=12)
        deltas = list(job.iter_text_deltas())
        assert job.result() == {"text": "the cow!", "finish_reason": "stop"}
        assert sum(delta.deleted for delta in deltas) == len("at sat")
    assert [entry["body"]["max_tokens"] for entry in engine.journal()] == [12, 12]


def test_columns_are_replaced_by_the_second_run(engine: ScriptedEngine, tokenizer: Path):
    first = {"send": [scored([A], [-1.0]), scored([B], [-1.0]), "cut"]}
    second = {"send": [scored([A], [-1.0]), scored([C], [-2.0], finish_reason="stop")]}
    engine.script(answers=[first, second])
    with running_front(engine.url, tokenizer=tokenizer) as client:
        value = client.run("generate", prompt=MARK, max_tokens=12, logprobs=True)
    assert value == {
        "text": "xx",
        "token_ids": [0, 2],
        "logprobs": [-1.0, -2.0],
        "logprobs_mode": "raw",
        "finish_reason": "stop",
    }


def test_on_restart_fail_never_sends_a_request_twice(engine: ScriptedEngine):
    engine.script(answers=[{"send": [{"tokens": 5}, "cut"]}, {}])
    with running_front(engine.url, on_restart="fail") as client, pytest.raises(JobFailedError) as error:
        client.run("generate", prompt=MARK, max_tokens=12)
    assert error.value.code == "worker_lost"
    assert len(engine.journal()) == 1


def test_lost_answer_with_all_tokens_is_complete(engine: ScriptedEngine):
    engine.script(answers=[{"send": [{"tokens": 12}, "cut"]}])
    with running_front(engine.url) as client:
        value = client.run("generate", prompt=MARK, max_tokens=12)
    assert (value["text"], value["finish_reason"]) == (expected(12), "length")
    assert len(engine.journal()) == 1


def test_three_lost_answers_are_worker_lost(engine: ScriptedEngine):
    engine.script(answers=[{"send": [{"tokens": 2}, "cut"]}])
    with running_front(engine.url) as client, pytest.raises(JobFailedError) as error:
        client.run("generate", prompt=MARK, max_tokens=12)
    assert error.value.code == "worker_lost"
    assert [entry["body"]["max_tokens"] for entry in engine.journal()] == [12, 10, 8]


def test_reader_that_reconnects_runs_no_prompt_twice(engine: ScriptedEngine):
    engine.script(pause=0.005)
    with running_front(engine.url) as client:
        job = client.submit("generate", prompt=MARK, max_tokens=60)
        for _ in range(5):
            for _update in client.job(job.id):
                break
        assert job.result()["text"] == expected(60)
        assert "".join(client.job(job.id).iter_text()) == expected(60)
    assert len(engine.journal()) == 1


def test_samples_are_separate_requests(engine: ScriptedEngine):
    with running_front(engine.url) as client:
        job = client.submit("generate", prompt=MARK, max_tokens=3, n=3, seed=5)
        job.wait()
    assert sorted(entry["body"]["seed"] for entry in engine.journal()) == [5, 6, 7]
    assert all("n" not in entry["body"] for entry in engine.journal())
