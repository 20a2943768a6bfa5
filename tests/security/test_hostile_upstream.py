"""Engines that send arbitrary bytes: every answer ends as a typed error, within limits, and nothing leaks."""

import asyncio
import itertools
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.reference_server import eventually
from support.scripted_engine import MARK, ScriptedEngine, expected, scripted_engine, until_ready
from support.scripted_server import CLOSE, ScriptedServer
from support.serve_command import run, served
from support.upstream_front import running_front
from tidewire import Client
from tidewire.errors import JobFailedError
from tidewire_server.generation.upstream import engine_requests
from tidewire_server.generation.upstream.url_pool import UrlError

pytest_plugins = ["support.engine_fixtures"]
pytestmark = pytest.mark.usefixtures("short_pauses")

KEY = "sk-a-secret-of-the-upstream"


@pytest.fixture(scope="module")
def client(shared_engine: ScriptedEngine) -> Iterator[Client]:
    with running_front(shared_engine.url, key=KEY, timeout=5.0) as client:
        yield client


def failure(client: Client, engine: ScriptedEngine, *send: Any, **answer: Any) -> JobFailedError:
    engine.script(answers=[{"send": list(send), **answer}])
    with pytest.raises(JobFailedError) as error:
        client.run("generate", prompt=MARK, max_tokens=8)
    assert KEY not in str(error.value)
    return error.value


def event(text: str) -> str:
    return f"data: {text}\n\n"


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[]",
        "3",
        '"text"',
        "null",
        '{"choices": 5}',
        '{"choices": [5]}',
        '{"choices": [{"text": 5}]}',
        '{"choices": [{"text": ["a"]}]}',
        '{"choices": [{"index": "0"}]}',
        '{"choices": [{"index": 1, "text": "a"}]}',
        '{"choices": [{"delta": "a"}]}',
        '{"choices": [{"delta": {"content": {"a": 1}}}]}',
        '{"choices": [{"text": "a", "finish_reason": 3}]}',
        '{"choices": [{"text": "a", "finish_reason": "content_filter"}]}',
        '{"choices": [{"text": "a", "logprobs": 7}]}',
        '{"usage": {"completion_tokens": -1}}',
        '{"usage": {"completion_tokens": 1e400}}',
        '{"usage": {"completion_tokens": ' + "9" * 400 + "}}",
        '{"usage": {"completion_tokens": 99999999999999999}}',
        '{"usage": {"completion_tokens": true}}',
        "[" * 100_000,
        '{"choices":' * 50_000,
        '{"choices": [{"text": "\\ud800' + "\\udfff" * 3 + '" }',
    ],
)  # fmt: skip
def test_wrong_types_are_one_typed_error(client: Client, shared_engine: ScriptedEngine, text: str):
    assert failure(client, shared_engine, event(text)).code == "internal"
    assert len(shared_engine.journal()) == 1


def test_endless_line_is_bounded(client: Client, shared_engine: ScriptedEngine):
    error = failure(client, shared_engine, "data: ", {"repeat": "x" * 60_000, "times": 100_000})
    assert "1048576 bytes" in str(error)


def test_endless_comments_are_bounded(client: Client, shared_engine: ScriptedEngine):
    error = failure(client, shared_engine, {"repeat": ": ping\n\n" * 8000, "times": 100_000})
    assert "more bytes" in str(error)


@pytest.mark.heavy
def test_a_million_chunks_are_bounded(client: Client, shared_engine: ScriptedEngine):
    error = failure(client, shared_engine, {"repeat": event('{"choices":[]}') * 100, "times": 10_000})
    assert "more bytes" in str(error)


def test_endless_text_is_bounded(client: Client, shared_engine: ScriptedEngine):
    chunk = event(json.dumps({"choices": [{"text": "y" * 30_000}]}))
    error = failure(client, shared_engine, {"repeat": chunk, "times": 100_000})
    assert "more bytes" in str(error)


def test_answer_that_goes_on_after_its_end_is_cut(client: Client, shared_engine: ScriptedEngine):
    end = event('{"choices":[{"text":"ab","finish_reason":"stop"}]}')
    shared_engine.script(answers=[{"send": [end, "hang"]}])
    assert client.run("generate", prompt=MARK, max_tokens=8) == {"text": "ab", "finish_reason": "stop"}
    shared_engine.script(answers=[{"send": [end, event("[DONE]"), {"repeat": "z" * 1000, "times": 100_000}]}])
    assert client.run("generate", prompt=MARK, max_tokens=8) == {"text": "ab", "finish_reason": "stop"}


@pytest.mark.parametrize("answer", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 102 Processing\r\n\r\n"])
def test_informational_responses_without_end_count_as_silence(answer: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_requests, "ANSWER_TIMEOUT", 0.2)

    async def ask(url: str) -> None:
        requests = engine_requests.EngineRequests(None, 0.2)
        with pytest.raises(UrlError, match="silent for too long"):
            await anext(requests.stream(url, "completions", {}))
        with pytest.raises(UrlError, match="silent for too long"):
            await requests.describe(url, None)
        await requests.close()

    with ScriptedServer(lambda _: itertools.repeat(answer)) as engine:
        asyncio.run(ask(engine.url))


def test_another_media_type_is_refused(client: Client, shared_engine: ScriptedEngine):
    assert "event stream" in str(failure(client, shared_engine, "<html>", media_type="text/html"))


def test_compressed_answer_is_refused(client: Client, shared_engine: ScriptedEngine):
    error = failure(client, shared_engine, {"hex": "1f8b08"}, headers={"content-encoding": "gzip"})
    assert "compressed" in str(error)


@pytest.mark.parametrize("status", [404, 405, 418, 451])
def test_other_statuses_are_one_error(client: Client, shared_engine: ScriptedEngine, status: int):
    error = failure(
        client, shared_engine, status=status, body={"error": {"message": f"no {KEY} " + "x" * 5000}}
    )
    assert f"status {status}" in str(error)
    assert len(str(error)) < 1000


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirect_does_not_carry_the_key_away(client: Client, shared_engine: ScriptedEngine, status: int):
    with scripted_engine() as thief:
        place = thief.url.replace("127.0.0.1", "localhost") + "/completions"
        error = failure(client, shared_engine, status=status, headers={"location": place})
        assert error.code == "worker_lost"
        assert thief.journal() == []


@pytest.mark.parametrize(("status", "code"), [(400, None), (500, None), (200, 400), (200, 500)])
def test_key_in_a_message_of_the_engine_is_hidden(
    client: Client,
    shared_engine: ScriptedEngine,
    caplog: pytest.LogCaptureFixture,
    status: int,
    code: int | None,
):
    """The engine rejects the request or fails, or reports a fault of the request or of its own in the stream."""
    broken = {"message": f"the key {KEY} is odd", "code": code}
    with caplog.at_level(logging.DEBUG):
        if code is None:
            error = failure(client, shared_engine, status=status, body={"error": broken})
        else:
            error = failure(client, shared_engine, event(json.dumps({"error": broken})))
    assert "the key *** is odd" in str(error)
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    "pages",
    [
        {"/props": {"chat_template": 5}},
        {"/info": {"max_total_tokens": "many"}},
        {"/info": {"max_total_tokens": -5, "router": ["text-generation"]}},
        {"/openapi.json": {"paths": [1, 2]}},
    ],
)
def test_wrong_descriptions_are_survived(shared_engine: ScriptedEngine, pages: Any):
    shared_engine.script(
        kind="llamacpp" if "/props" in pages else "x", models=["m"], pages=pages, context="all"
    )
    with running_front(shared_engine.url) as client:
        assert client.run("generate", prompt=MARK, max_tokens=2)["text"] == expected(2)


def test_compressed_description_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture):
    answer = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 0\r\n\r\n"
    requests: list[object] = []
    with ScriptedServer(lambda request: requests.append(request) or [answer, CLOSE]) as engine:
        with running_front(engine.url, wait=False) as client:
            eventually(lambda: len(requests) > 1)
            reason = httpx2.get(f"{client.url}/readyz").json()["detail"]
    assert "engine 1 compresses its answers" in reason
    (line,) = (each for each in caplog.records if "url_pool" in each.name)
    assert line.exc_info is None


def test_key_of_the_environment_appears_nowhere(shared_engine: ScriptedEngine, tmp_path: Path):
    shared_engine.script(key=KEY)
    arguments = ("--upstream", shared_engine.url, "--log-level", "debug")
    with served(tmp_path, *arguments, TIDEWIRE_UPSTREAM_KEY=KEY) as (process, peer):
        until_ready(peer.url)
        assert peer.value("generate", {"prompt": MARK, "max_tokens": 2})["text"] == expected(2)
        shown = [
            peer.http.get(path).text for path in ("/v1", "/v1/endpoints/generate", "/metrics", "/readyz")
        ]
    out, errors = process.communicate()
    assert KEY not in "".join([*shown, out, errors])
    assert shared_engine.journal()[0]["headers"]["authorization"] == f"Bearer {KEY}"


def tidewire(folder: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run the command, and return its exit code, its output and its errors."""
    with run(folder, *arguments, **environment) as process:
        out, errors = process.communicate()
        return process.wait(), out, errors


def test_key_is_not_shown_by_the_command(tmp_path: Path):
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    url = "http://127.0.0.1:1/v1"
    shown = tidewire(tmp_path, "--upstream", url, "--show-config", TIDEWIRE_UPSTREAM_KEY=KEY)
    assert shown[0] == 0, shown
    assert "upstream_key" in shown[1]
    from_file = tidewire(tmp_path, "--upstream", url, "--show-config", "--upstream-key-file", str(file))
    assert "not shown" in from_file[1]
    both = tidewire(tmp_path, "--upstream", url, "--upstream-key-file", str(file), TIDEWIRE_UPSTREAM_KEY=KEY)
    file.write_text(f"{KEY}\nsecond line\n")
    broken = tidewire(tmp_path, "--upstream", url, "--upstream-key-file", str(file))
    as_flag = tidewire(tmp_path, "--upstream", url, "--upstream-key", KEY)
    assert "is not a flag" in as_flag[2]
    in_url = tidewire(tmp_path, "--upstream", f"http://user:{KEY}@127.0.0.1:1/v1")
    odd = tidewire(tmp_path, "--upstream", url, TIDEWIRE_UPSTREAM_KEY=f"{KEY} ä")
    for _, out, errors in (shown, from_file, both, broken, as_flag, in_url, odd):
        assert KEY not in out + errors
    assert [code for code, _, _ in (both, broken, in_url, odd)] == [2, 2, 2, 2]
