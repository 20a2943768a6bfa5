import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from support.model_checkpoints import generate_one, random_llama
from tidewire_server.generation.engine_interface import InputError, check_members
from tidewire_server.generation.generate_input_and_value import (
    MAX_STOP_LENGTH,
    MAX_STOPS,
    Generate,
    served_value,
)
from tidewire_server.generation.torch_engine import TorchEngine


def check(engine: TorchEngine, request: Generate) -> None:
    asyncio.run(engine.check(request))


def test_every_member_has_a_default_and_a_description():
    Generate()
    for name, member in Generate.model_fields.items():
        assert not member.is_required(), name
        assert member.description, name
    for name, member in served_value(Generate.model_fields, counts_rows=False).model_fields.items():
        assert member.description, name


@pytest.mark.parametrize(
    ("member", "least", "most"),
    [
        ("temperature", 0, 100),
        ("top_k", 0, 2**31 - 1),
        ("min_p", 0, 1),
        ("seed", 0, 2**53 - 1),
        ("n", 1, 64),
        ("num_beams", 1, 64),
        ("logprob_decimals", 0, 9),
        ("presence_penalty", -100, 100),
    ],
)
def test_number_is_accepted_up_to_its_limits_and_refused_beyond(member: str, least: int, most: int):
    Generate(**{member: least})
    Generate(**{member: most})
    for beyond in (least - 1, most + 1):
        with pytest.raises(ValidationError, match=member):
            Generate(**{member: beyond})


@pytest.mark.parametrize(
    ("member", "least"), [("max_tokens", 1), ("top_logprobs", 0), ("prompt_logprobs", 0)]
)
def test_members_limited_by_the_engine_have_no_maximum_in_the_model(member: str, least: int):
    Generate(**{member: 2**53})
    with pytest.raises(ValidationError, match=member):
        Generate(**{member: least - 1})


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("top_p", 0),
        ("top_p", 1.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("max_tokens", "64"),
        ("max_tokens", True),
        ("max_tokens", 1.5),
        ("prompt", 5),
        ("stop", ""),
        ("stop", [""]),
        ("stop", ["x"] * (MAX_STOPS + 1)),
        ("stop", "x" * (MAX_STOP_LENGTH + 1)),
        ("ties", "some"),
        ("messages", []),
        ("messages", [{"role": "user"}]),
        ("logprobs", 5),
        ("max_token", 5),
    ],
)
def test_invalid_member_is_refused_by_name(member: str, value: object):
    with pytest.raises(ValidationError, match=member):
        Generate(**{member: value})


def test_stop_strings_are_accepted_up_to_their_limits():
    assert Generate(stop="x" * MAX_STOP_LENGTH).stops == ["x" * MAX_STOP_LENGTH]
    assert len(Generate(stop=["x"] * MAX_STOPS).stops) == MAX_STOPS


def test_prompt_and_messages_exclude_each_other():
    turn = {"role": "user", "content": "hi"}
    assert Generate(messages=[turn]).messages is not None
    with pytest.raises(ValidationError, match="cannot be used together"):
        Generate(prompt="x", messages=[turn])
    with pytest.raises(ValidationError, match="echo requires prompt"):
        Generate(messages=[turn], echo=True)


@pytest.mark.parametrize(
    ("members", "columns"),
    [
        ({}, ["text"]),
        ({"logprobs": True}, ["text", "token_ids", "logprobs"]),
        ({"ranks": True}, ["text", "token_ids", "ranks"]),
        ({"token_text": True}, ["text", "token_ids", "token_text"]),
        ({"top_logprobs": 1}, ["text", "token_ids", "logprobs", "top_ids", "top_logprobs"]),
        (
            {"top_logprobs": 1, "ranks": True, "token_text": True},
            ["text", "token_ids", "logprobs", "top_ids", "top_logprobs", "ranks", "token_text", "top_text"],
        ),
    ],
)
def test_only_requested_columns_exist(members: dict[str, object], columns: list[str]):
    assert Generate(**members).columns == columns


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("messages", [{"role": "user", "content": "hi"}]),
        ("json_schema", {}),
    ],
)
def test_unserved_member_is_refused_and_never_ignored(engine: TorchEngine, member: str, value: object):
    request = Generate(**{member: value})
    with pytest.raises(InputError, match=member) as refusal:
        check(engine, request)
    assert (refusal.value.member, refusal.value.code) == (member, "invalid_input")
    with pytest.raises(InputError, match=member):
        generate_one(engine, **{member: value})


@pytest.mark.parametrize(
    ("member", "value", "named"),
    [
        ("logit_bias", {"3": 1.0, "265": 1.0}, 265),
        ("logprob_token_ids", [0, 264, 265], 265),
        ("logprob_token_ids", [-1], -1),
    ],
)
def test_token_id_that_is_not_in_the_vocabulary_is_refused(
    engine: TorchEngine, member: str, value: object, named: int
):
    with pytest.raises(InputError, match=rf"{member}.* {named}, .*has the ids 0 to 264") as refusal:
        check(engine, Generate(**{member: value}))
    assert refusal.value.member == member


@pytest.mark.parametrize("token", ["", "01", "+1", "1.0", "x", "99999999999"])
def test_key_of_a_bias_is_a_token_id(token: str):
    with pytest.raises(ValidationError, match="logit_bias"):
        Generate(logit_bias={token: 1.0})


@pytest.mark.parametrize("bias", [1.1e6, -1.1e6, float("nan"), float("inf")])
def test_a_bias_is_bounded(bias: float):
    with pytest.raises(ValidationError, match="logit_bias"):
        Generate(logit_bias={"1": bias})


def test_unserved_member_with_its_default_is_accepted(engine: TorchEngine):
    check(
        engine,
        Generate(n=1, num_beams=1, ties="cut", logprobs_mode="raw", logit_bias={}, prompt_logprobs=None),
    )


def test_too_many_alternatives_are_refused_with_the_limit(engine: TorchEngine):
    check_members(Generate(top_logprobs=20), engine.caps)
    with pytest.raises(
        InputError, match="top_logprobs is 21, but the maximum on this server is 20"
    ) as refusal:
        check(engine, Generate(top_logprobs=21))
    assert (refusal.value.member, refusal.value.code) == ("top_logprobs", "top_logprobs_too_large")


def test_empty_prompt_is_refused(engine: TorchEngine):
    with pytest.raises(InputError, match="prompt is empty") as refusal:
        check(engine, Generate(prompt=""))
    assert refusal.value.member == "prompt"


def test_prompt_may_fill_the_context_except_for_one_token(engine: TorchEngine):
    context = engine.caps.context
    check(engine, Generate(prompt="x" * (context - 1), max_tokens=1))
    with pytest.raises(InputError, match=f"prompt has {context} tokens.*limited to {context}") as refusal:
        check(engine, Generate(prompt="x" * context, max_tokens=1))
    assert (refusal.value.member, refusal.value.code) == ("prompt", "input_too_long")


def test_max_tokens_beyond_the_context_is_refused_with_the_remaining_number(engine: TorchEngine):
    check(engine, Generate(prompt="x" * 100, max_tokens=28))
    with pytest.raises(
        InputError, match=r"max_tokens is 29, but prompt has 100 tokens.*room for only 28"
    ) as refusal:
        check(engine, Generate(prompt="x" * 100, max_tokens=29))
    assert refusal.value.member == "max_tokens"


def test_prompt_of_one_token_is_counted_in_the_singular(engine: TorchEngine):
    with pytest.raises(InputError, match="prompt has 1 token, "):
        check(engine, Generate(prompt="x", max_tokens=engine.caps.context))


def test_huge_prompt_is_refused_by_its_size(engine: TorchEngine):
    with pytest.raises(InputError, match="2000000 bytes") as refusal:
        check(engine, Generate(prompt="x" * 2_000_000))
    assert refusal.value.code == "input_too_long"


@pytest.fixture
def chat_engine(start: Callable[..., TorchEngine], tmp_path: Path) -> TorchEngine:
    template = "{% for m in messages %}{{ m.content if m.role == 'user' }}{% endfor %}"
    return start(random_llama(tmp_path, chat_template=template))


def chat(**contents: str) -> Generate:
    return Generate(messages=[{"role": role, "content": content} for role, content in contents.items()])


def test_huge_messages_are_refused_by_their_size_without_tokenizing_them(chat_engine: TorchEngine):
    reader = chat_engine._reader
    only_template = SimpleNamespace(apply_chat_template=reader._checkpoint.tokenizer.apply_chat_template)
    reader._checkpoint = replace(reader._checkpoint, tokenizer=only_template)
    with pytest.raises(
        InputError, match=r"messages has 2000000 bytes, which is at least \d+ tokens"
    ) as refusal:
        check(chat_engine, chat(user="x" * 2_000_000))
    assert (refusal.value.member, refusal.value.code) == ("messages", "input_too_long")


def test_size_of_messages_is_that_after_rendering(chat_engine: TorchEngine):
    check(chat_engine, chat(system="x" * 2_000_000, user="hi"))


async def test_event_loop_runs_while_a_prompt_is_tokenized(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
):
    """The tokenizer releases the GIL, so the event loop runs many times meanwhile."""
    monkeypatch.setattr(engine._reader, "_check_size", lambda *_: None)
    checking = asyncio.ensure_future(engine.check(Generate(prompt="ab" * 500_000)))
    turns = 0
    while not checking.done():
        await asyncio.sleep(0.001)
        turns += 1
    with pytest.raises(InputError):
        await checking
    assert turns > 20


async def test_event_loop_runs_while_a_template_is_rendered(
    start: Callable[..., TorchEngine], tmp_path: Path
):
    loops = "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}"
    engine = start(random_llama(tmp_path, chat_template=loops + "{{ messages[0].content }}"))
    checking = asyncio.ensure_future(engine.check(chat(user="hi")))
    turns = 0
    while not checking.done():
        await asyncio.sleep(0)
        turns += 1
    await checking
    assert turns > 5


@pytest.mark.parametrize("template", ["{{ 1 // 0 }}", "{{ messages + 1 }}", "{{ raise_exception('no') }}"])
def test_template_that_fails_rejects_the_messages(
    start: Callable[..., TorchEngine], tmp_path: Path, template: str
):
    engine = start(random_llama(tmp_path, chat_template=template))
    with pytest.raises(InputError, match="chat template cannot render these messages: ") as refusal:
        check(engine, chat(user="hi"))
    assert refusal.value.member == "messages"
