"""The parts of the upstream without I/O: states of URLs, bodies by kind, chunks, rows, and answers that run again."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any

import pytest

from tidewire_server.generation.engine_interface import (
    Delta,
    EngineBusyError,
    EngineError,
    InputError,
    LoggedTokens,
    TokenUsage,
)
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.repeated_text import without_repetition
from tidewire_server.generation.split_characters import CharacterJoiner
from tidewire_server.generation.upstream.answer_reader import (
    BYTES_PER_TOKEN,
    MAX_EVENT_BYTES,
    MAX_REASON,
    SPARE_TOKENS,
    AnswerReader,
    reason_of,
)
from tidewire_server.generation.upstream.engine_kinds import (
    ENGINE_KINDS,
    OMIT,
    can_continue_text,
    check_kind,
    members_of_kinds,
    request_body,
)
from tidewire_server.generation.upstream.url_pool import (
    MAX_PAUSE,
    MIN_PAUSE,
    PAUSES,
    UrlError,
    UrlPool,
    UrlState,
)

USAGE = TokenUsage(3, 5)


# ---- states of URLs ---------------------------------------------------------------------------------------------------


def ready(url: str, running: int = 0) -> UrlState:
    return UrlState(url, usable=True, trouble="", running=running)


async def test_url_with_the_fewest_requests_is_chosen_up_to_the_limit():
    async def answers(_: str) -> None: ...

    calls: list[int] = []
    pool = UrlPool(["a", "b"], 2, answers, calls.append)
    while not calls or calls[-1] < 4:
        await asyncio.sleep(0.01)
    with ExitStack() as running:
        chosen = [running.enter_context(pool.request()) for _ in range(2)]
        with pool.request() as third:
            chosen.append(third)
        chosen += [running.enter_context(pool.request()) for _ in range(2)]
        with pytest.raises(EngineBusyError), pool.request():
            pass
    await pool.close()
    assert chosen == ["a", "b", "a", "a", "b"]


def test_url_that_takes_no_requests_counts_only_those_that_run():
    assert ready("a", running=2).calls(0.0, 64) == 64
    assert UrlState("b", running=2).calls(0.0, 64) == 2


@pytest.mark.parametrize(
    ("event", "wait", "pause"),
    [
        ("busy", None, PAUSES["busy"]),
        ("busy", 0.0, MIN_PAUSE),
        ("busy", 5.0, 5.0),
        ("busy", MAX_PAUSE, MAX_PAUSE),
        ("busy", 1e9, MAX_PAUSE),
        ("failed", None, PAUSES["failed"]),
        ("rejected", None, PAUSES["rejected"]),
    ],
)
def test_url_is_left_out_as_long_as_it_asks_within_limits(event: Any, wait: float | None, pause: float):
    url = ready("a")
    url.apply(UrlError("x", event, wait=wait), 100.0)
    assert url.until == pytest.approx(100.0 + pause)
    assert (url.usable, bool(url.trouble)) == (event != "rejected", event != "busy")


def test_trouble_is_reported_once():
    url = ready("a")
    assert not url.apply(UrlError("is busy", "busy"), 0.0)
    assert url.apply(UrlError("is silent"), 0.0)
    assert not url.apply(UrlError("is silent"), 1.0)
    assert url.apply(UrlError("has a wrong key", "rejected"), 2.0)


async def test_calls_follow_the_urls_and_their_trouble_is_readable_without_them():
    calls: list[int] = []
    seen: list[str | None] = []
    errors = {"http://a": UrlError("cannot be reached"), "http://b": UrlError("rejects the key", "rejected")}

    async def probe(url: str) -> None:
        if url in errors:
            raise errors[url]

    pool = UrlPool(["http://a", "http://b"], 3, probe, calls.append)
    seen.append(pool.unavailable)
    with pytest.raises(EngineBusyError), pool.request():
        pass
    while "reached" not in str(pool.unavailable) or "key" not in str(pool.unavailable):
        await asyncio.sleep(0)
    seen.append(pool.unavailable)
    errors.clear()
    while pool.unavailable is not None:
        await asyncio.sleep(0.01)
    with pytest.raises(UrlError), pool.request() as url:
        raise UrlError("is busy", "busy")
    assert url == "http://a"
    await pool.close()
    assert seen == [
        "engine 1 has not answered yet; engine 2 has not answered yet",
        "engine 1 cannot be reached; engine 2 rejects the key",
    ]
    assert (calls[0], max(calls), calls[-1]) == (0, 3, 0)


@pytest.mark.parametrize(
    ("urls", "of_request", "pauses"),
    [("a", True, [MIN_PAUSE]), ("a", False, [PAUSES["failed"]]), ("ab", True, [PAUSES["failed"], MIN_PAUSE])],
)
async def test_only_the_last_url_is_asked_at_once_after_a_failure_of_a_request(
    urls: str, of_request: bool, pauses: list[float]
):
    async def answers(_: str) -> None: ...

    loop = asyncio.get_running_loop()
    pool = UrlPool([*urls], 2, answers, lambda _: None)
    while any(each.trouble for each in pool._states):
        await asyncio.sleep(0)
    for url, pause in zip(pool._states, pauses, strict=True):
        before = loop.time()
        with pytest.raises(UrlError), pool.request() as chosen:
            raise UrlError("answers with the status 500: bad", began=True, of_request=of_request)
        assert chosen == url.url
        assert before + pause <= url.until <= loop.time() + pause
    await pool.close()


# ---- bodies -----------------------------------------------------------------------------------------------------------


def body(kind: str, **members: Any) -> dict[str, Any]:
    return request_body(Generate(**members), ENGINE_KINDS[kind], "m")[1]


@pytest.mark.parametrize("kind", ENGINE_KINDS)
def test_each_served_member_changes_the_body_and_its_neutral_value_does_not(kind: str):
    changed = {
        "max_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.5,
        "typical_p": 0.5,
        "repetition_penalty": 2.0,
        "presence_penalty": 1.0,
        "frequency_penalty": 1.0,
        "logit_bias": {"4": 1.0},
        "seed": 9,
        "stop": ["x"],
        "json_schema": {"type": "object"},
    }
    for name, sent in ENGINE_KINDS[kind].members.items():
        plain, other = body(kind), body(kind, **{name: changed[name]})
        assert plain != other, name
        default = Generate.model_fields[name].get_default(call_default_factory=True)
        assert body(kind, **{name: default}) == plain
        if sent.neutral is OMIT and "." not in sent.name:
            assert sent.name not in plain


MISSING = object()


@pytest.mark.parametrize(
    ("kind", "prompt", "messages"),
    [
        ("vllm", None, MISSING),
        ("llama.cpp", -1, -1),
        ("openai", "refused", MISSING),
        ("tgi", "refused", MISSING),
        ("transformers", "refused", 1024),
    ],
)
def test_text_without_a_limit_is_asked_for_as_the_engine_understands_it(
    kind: str, prompt: Any, messages: Any
):
    for expected, source in ((prompt, {}), (messages, {"messages": [{"role": "user", "content": "a"}]})):
        request = Generate(max_tokens=None, **source)
        if expected == "refused":
            with pytest.raises(InputError) as error:
                check_kind(request, ENGINE_KINDS[kind])
            assert error.value.member == "max_tokens"
        else:
            check_kind(request, ENGINE_KINDS[kind])
            assert request_body(request, ENGINE_KINDS[kind], "m")[1].get("max_tokens", MISSING) == expected


def test_parameters_of_transformers_are_one_text():
    sent = json.loads(body("transformers", top_k=5, logit_bias={"7": -1.0})["generation_config"])
    assert sent == {
        "do_sample": True,
        "top_k": 5,
        "typical_p": 1.0,
        "repetition_penalty": 1.0,
        "sequence_bias": [[[7], -1.0]],
    }


def test_prompt_and_messages_have_their_own_paths():
    messages = [{"role": "user", "content": "a"}]
    assert request_body(Generate(prompt="a"), ENGINE_KINDS["vllm"], "m")[0] == "completions"
    path, sent = request_body(
        Generate(messages=messages), ENGINE_KINDS["llama.cpp"], "m", text="so far", generated=4
    )
    assert path == "chat/completions"
    assert sent["messages"] == [*messages, {"role": "assistant", "content": "so far"}]
    assert sent["max_tokens"] == 60


@pytest.mark.parametrize(
    ("kind", "members", "usage", "reasoning", "continues"),
    [
        ("vllm", {}, USAGE, "", True),
        ("vllm", {}, None, "", False),
        ("vllm", {}, USAGE, "hm", False),
        ("vllm", {"json_schema": {}}, USAGE, "", False),
        ("vllm", {"messages": [{"role": "user", "content": "a"}]}, USAGE, "", True),
        ("llama.cpp", {"messages": [{"role": "assistant", "content": "a"}]}, USAGE, "", False),
        ("sglang", {"messages": [{"role": "user", "content": "a"}]}, USAGE, "", True),
        ("tgi", {}, USAGE, "", False),
        ("transformers", {}, USAGE, "", False),
        ("openai", {}, USAGE, "", False),
    ],
)
def test_text_is_continued_only_where_that_is_possible(
    kind: str, members: Any, usage: TokenUsage | None, reasoning: str, continues: bool
):
    assert can_continue_text(Generate(**members), ENGINE_KINDS[kind], usage, reasoning) is continues


def test_schema_needs_messages_where_completions_have_none():
    with pytest.raises(InputError) as error:
        check_kind(Generate(json_schema={}), ENGINE_KINDS["openai"])
    assert error.value.member == "json_schema"
    check_kind(Generate(json_schema={}, messages=[{"role": "user", "content": "a"}]), ENGINE_KINDS["openai"])
    check_kind(Generate(json_schema={}), ENGINE_KINDS["vllm"])


def test_mode_of_log_probabilities_must_be_that_of_the_engine():
    check_kind(Generate(logprobs=True), ENGINE_KINDS["vllm"])
    check_kind(Generate(logprobs=True, logprobs_mode="processed"), ENGINE_KINDS["sglang"])
    with pytest.raises(InputError) as error:
        check_kind(Generate(logprobs=True), ENGINE_KINDS["sglang"])
    assert error.value.member == "logprobs_mode"


def test_members_of_a_kind_depend_on_the_tokenizer_and_the_template():
    kinds = [ENGINE_KINDS["llama.cpp"]]
    assert "logprobs" in members_of_kinds(kinds, vocabulary=True, chat=True)
    assert "logprobs" not in members_of_kinds(kinds, vocabulary=False, chat=True)
    assert "messages" not in members_of_kinds(kinds, vocabulary=True, chat=False)
    # llama.cpp also counts the tokens of the prompt, so its penalties are others than those of the specification.
    assert "presence_penalty" not in members_of_kinds(kinds, vocabulary=True, chat=True)


# ---- answers ----------------------------------------------------------------------------------------------------------


def reader(max_tokens: int = 8, base: TokenUsage | None = None) -> AnswerReader:
    return AnswerReader(Generate(max_tokens=max_tokens), None, max_tokens, base)


def texts(deltas: list[Delta]) -> list[str]:
    return ["".join(row[0] for row in delta.rows) for delta in deltas if delta.rows]


def event(**members: Any) -> bytes:
    return f"data: {json.dumps(members)}\n\n".encode()


def test_answer_is_read_in_pieces_of_any_size():
    data = 'data: {"choices":[{"text":"né😀"}]}\n\n: ping\n\ndata: [DONE]\n\n'.encode()
    for size in (1, 2, 3, 5, len(data)):
        answer = reader()
        deltas = [answer.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert texts(deltas) == ["né😀"]
        assert answer.done


@pytest.mark.parametrize("size", [1, 2, 100])
def test_byte_order_mark_does_not_hide_the_first_event(size):
    data = 'data: {"choices":[{"text":"\ufeffab"}]}\n\n'.encode("utf-8-sig")
    answer = reader()
    assert texts([answer.feed(data[at : at + size]) for at in range(0, len(data), size)]) == ["\ufeffab"]


def test_event_at_the_limit_is_read_and_one_above_is_not():
    def large(size: int) -> bytes:
        empty = len('data: {"choices":[{"text":""}]}')
        return b'data: {"choices":[{"text":"%b"}]}\n\n' % (b"x" * (size - empty))

    [text] = texts([reader(100).feed(large(MAX_EVENT_BYTES))])
    assert len(text) > 10**6
    with pytest.raises(EngineError, match=str(MAX_EVENT_BYTES)):
        reader(100).feed(large(MAX_EVENT_BYTES + 1))
    with pytest.raises(EngineError, match=str(MAX_EVENT_BYTES)):
        reader(1000).feed(b"data: " + b"x" * (2 * MAX_EVENT_BYTES + 1))


def test_bytes_at_the_limit_are_read_and_one_above_is_not():
    most = BYTES_PER_TOKEN * (1 + SPARE_TOKENS)
    answer = reader(1)
    for _ in range(most // 1024):
        answer.feed(b": " + b"x" * 1020 + b"\n\n")
    with pytest.raises(EngineError, match="more bytes"):
        answer.feed(b":")


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["a", "é", "😀"], "aé😀"),
        (["\udcf0\udc9f", "\udc98\udc80"], "😀"),
        (["x\ud83d", "\ude00y"], "x😀y"),
        (["\ud83d", "y"], "\ufffdy"),
        (["\ude00"], "\ufffd"),
    ],
)
def test_parts_of_characters_are_joined(pieces: list[str], text: str):
    joiner = CharacterJoiner()
    assert "".join(joiner.feed(each) for each in pieces) == text


def test_reason_of_an_engine_is_one_short_line():
    assert reason_of({"error": {"message": "a\n b"}}) == "a b"
    assert reason_of({"detail": "x" * MAX_REASON}) == "x" * MAX_REASON
    assert len(reason_of("y" * (MAX_REASON + 1))) == MAX_REASON + 1
    assert reason_of({"detail": [{"loc": 1}]}) == '[{"loc": 1}]'


def test_numbers_of_tokens_are_added_to_those_before_the_seam():
    answer = reader(9, TokenUsage(7, 4))
    answer.feed(event(choices=[{"text": "ab"}], usage={"prompt_tokens": 11, "completion_tokens": 2}))
    answer.feed(event(choices=[{"finish_reason": "stop"}]))
    assert answer.end().usage == TokenUsage(7, 6)


def test_numbers_of_tokens_may_be_those_of_llama_cpp():
    answer = reader()
    delta = answer.feed(event(choices=[], timings={"cache_n": 1, "prompt_n": 2, "predicted_n": 3}))
    assert delta.usage == TokenUsage(3, 3)


def test_answer_that_ends_with_done_alone_is_complete():
    answer = reader(2)
    answer.feed(event(choices=[{"text": "ab"}], usage={"prompt_tokens": 1, "completion_tokens": 2}))
    answer.feed(b"data: [DONE]\n\n")
    assert answer.end().finish_reason == "length"
    with pytest.raises(UrlError):
        reader().end()


# ---- text that is generated again ---------------------------------------------------------------------------------------


def repeated(logged: LoggedTokens, *deltas: Delta) -> list[Delta]:
    async def blocks() -> AsyncGenerator[Delta]:
        for delta in deltas:
            yield delta

    async def collect() -> list[Delta]:
        return [delta async for delta in without_repetition(blocks(), logged)]

    return asyncio.run(collect())


def caught_up(old: str, *pieces: str) -> list[tuple[str, bool]]:
    blocks = [Delta(replaces=True), *(Delta([(piece,)]) for piece in pieces)]
    return [
        ("".join(row[0] for row in each.rows), each.replaces)
        for each in repeated(LoggedTokens([], old), *blocks)
    ]


def test_equal_text_is_held_back_until_it_goes_beyond():
    assert caught_up("abcd", "ab", "c", "de", "f") == [("abcde", True), ("f", False)]
    assert caught_up("abcd", "abcd", "e") == [("abcd", True), ("e", False)]


def test_text_that_differs_is_shown_at_once():
    assert caught_up("abcd", "ab", "X") == [("abX", True)]


def test_text_that_is_continued_passes_unchanged():
    assert repeated(LoggedTokens([], "abcd"), Delta([("e",)])) == [Delta([("e",)])]


def test_shorter_text_is_shown_at_its_end():
    blocks = [Delta([("ab",)], replaces=True), Delta(finish_reason="stop", usage=USAGE)]
    last = Delta([("ab",)], finish_reason="stop", usage=USAGE, replaces=True)
    assert repeated(LoggedTokens([], "abcd"), *blocks) == [last]


def test_text_before_the_part_that_runs_again_is_kept():
    blocks = [Delta([("ab",)], replaces=True), Delta([("c",)]), Delta([("de",)])]
    assert repeated(LoggedTokens([], "abcd"), *blocks) == [Delta([("ab",), ("c",), ("de",)], replaces=True)]


def test_reasoning_counts_for_the_comparison():
    blocks = [Delta(replaces=True), Delta(reasoning="h"), Delta(reasoning="X")]
    [last] = repeated(LoggedTokens([], "", "hm"), *blocks)
    assert (last.reasoning, last.replaces) == ("hX", True)
