"""The OpenAI surface in front of a scripted engine, with the Python package `openai`."""

import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI
from tokenizers import Tokenizer, decoders, models

from support.openai_surface import openai_client, read_until_error
from support.reference_server import eventually
from support.scripted_engine import ScriptedEngine
from support.upstream_front import running_front
from tidewire_server.generation.upstream import url_pool

pytest_plugins = ["support.engine_fixtures"]

MODEL = "scripted"
MESSAGES = [{"role": "user", "content": "?"}]
STREAMED = {"model": MODEL, "prompt": "?", "stream": True}
BUSY = {"status": 429, "headers": {"retry-after": "30"}}


@contextmanager
def front(url: str, settings: dict[str, Any] = {}, **options: Any) -> Iterator[OpenAI]:  # noqa: B006
    """Serve the surface in front of an engine, and yield a client of it."""
    with running_front(url, settings=settings, **options) as client, openai_client(client.url) as surface:
        yield surface


def chunk(**choice: Any) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, **choice}]})}\n\n"


REASONED = [
    chunk(delta={"role": "assistant", "reasoning_content": "Hm"}),
    chunk(delta={"reasoning": "m."}),
    chunk(delta={"content": "Yes."}, finish_reason="stop"),
]


def test_conversation_with_a_model_that_reasons_is_continued_with_its_answers(engine: ScriptedEngine):
    engine.script(answers=[{"send": REASONED}])
    with front(engine.url) as client:

        def answer(messages: list[Any]) -> Any:
            return client.chat.completions.create(model=MODEL, messages=messages).choices[0].message

        def again(message: Any) -> Any:
            return answer([*MESSAGES, message, {"role": "user", "content": "more"}])

        first = answer(MESSAGES)
        again(first)
        again(first.model_dump())
        again({"role": "assistant", "content": "Yes.", "reasoning": "Hmm."})
    assert first.reasoning_content == "Hmm."
    more = [*MESSAGES, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "more"}]
    assert [entry["body"]["messages"] for entry in engine.journal()] == [MESSAGES, more, more, more]


# ---- parameters ---------------------------------------------------------------------------------------------------------

UNSUPPORTED: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("llamacpp", "chat", {"frequency_penalty": 0.5}, "frequency_penalty", "remove it"),
    ("x", "chat", {"response_format": {"type": "json_object"}}, "response_format", "remove it"),
    ("vllm", "completions", {"logprobs": 2}, "logprobs", "--tokenizer"),
    ("vllm", "chat", {"logprobs": True, "top_logprobs": 2}, "logprobs", "--tokenizer"),
    ("vllm", "responses", {"top_logprobs": 2}, "top_logprobs", "--tokenizer"),
    ("vllm", "responses", {"include": ["message.output_text.logprobs"]}, "include", "--tokenizer"),
]
PAGES = {
    "/props": {"chat_template": "x"},
    "/openapi.json": {"paths": {"/load_model": {}, "/v1/completions": {}}},
}


@pytest.mark.parametrize("kind", sorted({case[0] for case in UNSUPPORTED}))
def test_parameter_that_the_engine_lacks_is_refused_in_the_words_of_the_request(
    engine: ScriptedEngine, kind: str
):
    """The engine of the kind `x` is recognized as `transformers serve` by its pages."""
    engine.script(kind=kind, pages=PAGES)
    with front(engine.url) as client:
        calls: dict[str, Callable[..., Any]] = {
            "completions": partial(client.completions.create, prompt="?"),
            "chat": partial(client.chat.completions.create, messages=MESSAGES),
            "responses": partial(client.responses.create, input="?"),
        }
        for _, api, members, param, message in [case for case in UNSUPPORTED if case[0] == kind]:
            with pytest.raises(openai.BadRequestError, match=f" {param}[: ].*{message}") as error:
                calls[api](model=MODEL, **members)
            assert (error.value.param, error.value.code) == (param, "unsupported_parameter")
            assert "Also" not in str(error.value)
        calls["completions"](
            model=MODEL, max_tokens=2, frequency_penalty=0, presence_penalty=0.0, logit_bias={}
        )


# ---- failures -----------------------------------------------------------------------------------------------------------


def test_request_that_the_engine_answers_with_500_is_sent_three_times_and_holds_up_no_other(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(url_pool.PAUSES, "failed", 1000.0)
    reason = "Conversation roles must alternate"
    engine.script(
        answers=[{"status": 500, "body": {"error": {"message": reason}}}] * 3 + [{"send": REASONED}]
    )
    with front(engine.url) as client, caplog.at_level(logging.WARNING):
        with pytest.raises(openai.InternalServerError, match=f"status 500: {reason}") as error:
            client.with_options(max_retries=2).chat.completions.create(model=MODEL, messages=MESSAGES)
        assert error.value.code == "worker_lost"
        assert reason in caplog.text
        client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert len(engine.journal()) == 4


REJECTED = {"status": 400, "body": {"error": {"message": "maximum context length is 8 tokens"}}}


STREAMS: dict[str, Callable[[OpenAI], Any]] = {
    "completions": lambda client: client.completions.create(model=MODEL, prompt="?", stream=True),
    "chat": lambda client: client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2, stream=True),
    "responses": lambda client: client.responses.create(model=MODEL, input="?", stream=True),
}


@pytest.mark.parametrize("call", STREAMS.values(), ids=STREAMS)
def test_stream_whose_input_the_engine_refuses_has_the_status_of_the_error(
    engine: ScriptedEngine, call: Callable[[OpenAI], Any]
):
    engine.script(answers=[REJECTED])
    with front(engine.url, {"heartbeat": 60.0}) as client, pytest.raises(openai.BadRequestError) as error:
        call(client)
    assert error.value.code == "context_length_exceeded"


def test_stream_of_a_response_in_the_background_has_its_failure_as_an_event(engine: ScriptedEngine):
    engine.script(answers=[REJECTED])
    with front(engine.url) as client:
        stream = client.responses.create(model=MODEL, input="?", stream=True, background=True)
        events, error = read_until_error(stream)
    assert (events[0].type, events[-1].type) == ("response.created", "response.failed")
    assert error.code == "context_length_exceeded"


def test_head_of_a_stream_waits_for_a_limited_time(engine: ScriptedEngine):
    engine.script(answers=[{"silent": True}])
    with front(engine.url, {"heartbeat": 0.05}) as client:
        stream = client.completions.create(model=MODEL, prompt="?", stream=True)
        (job,) = httpx2.get(str(client.base_url.join("/v1/jobs"))).json()["jobs"]
        assert job["status"] == "queued"
        stream.close()


# ---- log-probabilities --------------------------------------------------------------------------------------------------

TOKENS = ["Hm", "m.", "</think>", " Yes", ",", " it", " is", "."]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    made = Tokenizer(
        models.BPE(vocab={token.replace(" ", "Ġ"): at for at, token in enumerate(TOKENS)}, merges=[])
    )
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    return folder


def scored(*ids: int, **delta: str) -> str:
    """Return a chunk with several tokens. The log-probability of each one follows from its id."""
    tokens = [{"token": f"token_id:{each}", "logprob": -1.0 - each} for each in ids]
    return chunk(delta=delta, logprobs={"content": [each | {"top_logprobs": [each]} for each in tokens]})


# The engine leaves out the space at the beginning of a text, as engines do for tokenizers of the kind of SentencePiece.
TEXT = [
    scored(3, content="Yes"),
    scored(4, 5, content=", it"),
    scored(6, content=" is"),
    scored(7, content="."),
]
ANSWERS = {
    "space": TEXT,
    "reasoning": [
        scored(0, reasoning_content="Hm"),
        scored(1, reasoning_content="m."),
        scored(2, content=""),
        *TEXT,
    ],
    "both in one chunk": [scored(0, 1, 2, 3, content="Yes", reasoning_content="Hmm."), *TEXT[1:]],
}


def check_pieces(found: list[tuple[str, list[Any]]]) -> None:
    """Check the parts of a text and their log-probabilities."""
    for text, tokens in found:
        assert "".join(each.token for each in tokens).removeprefix(" ") == text.removeprefix(" ")
        assert all(each.logprob == -1.0 - TOKENS.index(each.token) for each in tokens)
    assert "".join(text for text, _ in found) == "Yes, it is."
    assert [each.token for _, tokens in found for each in tokens] == TOKENS[3:]


@pytest.mark.parametrize("steps", ANSWERS.values(), ids=ANSWERS)
def test_log_probabilities_belong_to_the_text_that_they_come_with(
    engine: ScriptedEngine, tokenizer: Path, steps: list[str]
):
    engine.script(answers=[{"send": [*steps, chunk(delta={}, finish_reason="stop")]}], kind="vllm")
    chat = {"model": MODEL, "messages": MESSAGES, "logprobs": True, "top_logprobs": 1}
    response = {"model": MODEL, "input": "?", "include": ["message.output_text.logprobs"]}
    with front(engine.url, tokenizer=tokenizer) as client:
        whole = client.chat.completions.create(**chat).choices[0]
        check_pieces([(whole.message.content, whole.logprobs.content)])
        chunks = [each.choices[0] for each in client.chat.completions.create(**chat, stream=True)]
        check_pieces(
            [
                (each.delta.content, each.logprobs.content if each.logprobs else [])
                for each in chunks
                if each.delta.content
            ]
        )
        assert not any(each.logprobs for each in chunks if not each.delta.content)
        (part,) = client.responses.create(**response).output[0].content
        check_pieces([(part.text, part.logprobs)])
        events = list(client.responses.create(**response, stream=True, background=True))
        name = events[0].response.id
        for at, event in enumerate(events):
            rest = client.responses.retrieve(name, stream=True, starting_after=event.sequence_number)
            deltas = [e for e in [*events[: at + 1], *rest] if e.type == "response.output_text.delta"]
            check_pieces([(each.delta, each.logprobs) for each in deltas])


def test_offsets_of_tokens_are_those_in_a_text_without_its_first_space(
    engine: ScriptedEngine, tokenizer: Path
):
    logprobs = {"tokens": ["token_id:3", "token_id:4"], "token_logprobs": [-1.0, -1.0]}
    engine.script(answers=[{"send": [chunk(text="Yes,", logprobs=logprobs, finish_reason="stop")]}])
    with front(engine.url, tokenizer=tokenizer) as client:
        found = client.completions.create(model=MODEL, prompt="?", logprobs=0).choices[0]
    assert (found.text, found.logprobs.text_offset) == ("Yes,", [0, 3])


def test_a_stream_that_waits_for_its_start_gets_503_when_the_server_stops(
    engine: ScriptedEngine, tmp_path: Path
):
    engine.script(answers=[BUSY])
    with ThreadPoolExecutor() as pool:
        with front(engine.url, {"log": f"sqlite:///{tmp_path}/log.db", "heartbeat": 60.0}) as client:
            asked = pool.submit(httpx2.post, f"{client.base_url}completions", json=STREAMED, timeout=30)
            eventually(engine.journal, 20)
        answer = asked.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


def test_a_stream_that_waits_for_its_start_ends_with_its_client(engine: ScriptedEngine):
    engine.script(answers=[BUSY])
    settings = {"heartbeat": 60.0, "max_streams_per_principal": 1, "single_user": False}
    with front(engine.url, settings) as client:
        url = f"{client.base_url}completions"

        def status() -> int:
            try:
                return httpx2.post(url, json=STREAMED, timeout=0.5).status_code
            except httpx2.ReadTimeout:
                return 0

        assert status() == 0
        eventually(lambda: status() == 0, 20)
