"""The OpenAI surface in front of a scripted engine, with the Python package `openai`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from openai import OpenAI

from support.openai_surface import openai_client
from support.reference_server import QUICK
from support.scripted_engine import ScriptedEngine, scripted_engine, until_ready
from tidewire_server import Server
from tidewire_server.generation.upstream import add_upstream

MODEL = "scripted"
MESSAGES = [{"role": "user", "content": "?"}]


@pytest.fixture(scope="module")
def shared_engine() -> Iterator[ScriptedEngine]:
    with scripted_engine() as engine:
        yield engine


@pytest.fixture
def engine(shared_engine: ScriptedEngine) -> ScriptedEngine:
    shared_engine.script()
    return shared_engine


@contextmanager
def front(url: str, settings: dict[str, Any] = {}, **options: Any) -> Iterator[OpenAI]:  # noqa: B006
    """Serve the surface in front of an engine, and yield a client of it."""
    server = Server(**QUICK | settings)
    add_upstream(server, url, **options)
    with server.running() as address:
        until_ready(address)
        with openai_client(address) as client:
            yield client


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
