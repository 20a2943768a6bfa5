"""The parts of the upstream without I/O: states of URLs, bodies by kind, chunks, rows, and answers that run again."""

import json
from typing import Any

import pytest
from tidewire_server.generation.upstream.output_rows import CatchUp, OutputRows
from tidewire_server.generation.upstream.request_body import can_continue_text, check_kind, request_body
from tidewire_server.generation.upstream.stream_chunks import (
    BYTES_PER_TOKEN,
    MAX_EVENT_BYTES,
    MAX_REASON,
    SPARE_TOKENS,
    CharacterJoiner,
    Chunk,
    ChunkReader,
    InvalidAnswerError,
    LostAnswerError,
    reason_of,
)
from tidewire_server.generation.upstream.url_states import (
    MAX_PAUSE,
    TRANSITIONS,
    UrlState,
    choose,
    unavailable_reason,
)

from tidewire_server.generation.engine_interface import Delta, InputError, TokenUsage
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.upstream.engine_kinds import ENGINE_KINDS, OMIT, members_of_kinds

STATES = ("starting", "ready", "out", "misconfigured")
USAGE = TokenUsage(3, 5)


# ---- states of URLs ---------------------------------------------------------------------------------------------------


def test_every_state_has_a_transition_for_every_event():
    for event, row in TRANSITIONS.items():
        assert set(row) == set(STATES), event
        assert set(row.values()) <= set(STATES), event


def test_url_with_the_fewest_requests_is_chosen():
    urls = [UrlState("a", "ready", running=2), UrlState("b", "ready", running=1), UrlState("c", "out")]
    assert choose(urls, 0.0, 64) is urls[1]
    assert choose(urls, 0.0, 1) is None
    urls[1].until = 5.0
    assert choose(urls, 0.0, 64) is urls[0]
    assert choose(urls, 5.0, 64) is urls[1]


def test_pause_doubles_up_to_its_maximum_and_ends_with_an_answer():
    url = UrlState("a", "ready")
    pauses = []
    for _ in range(20):
        url.apply("failed", 100.0)
        pauses.append(url.until - 100.0)
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == MAX_PAUSE
    url.apply("answered", 200.0)
    url.apply("failed", 300.0)
    assert url.until == 301.0


@pytest.mark.parametrize(("wait", "pause"), [(None, 1.0), (0.0, 0.1), (5.0, 5.0), (1e9, MAX_PAUSE)])
def test_busy_url_waits_as_it_asks_within_limits(wait: float | None, pause: float):
    url = UrlState("a", "ready")
    url.apply("busy", 100.0, wait=wait)
    assert url.state == "ready"
    assert url.until == pytest.approx(100.0 + pause)


def test_upstream_is_unavailable_only_until_the_first_answer():
    url = UrlState("u")
    assert unavailable_reason([url]) == "engine 1 has not answered yet"
    url.apply("failed", 0.0, reason="cannot be reached")
    assert unavailable_reason([url]) == "engine 1 cannot be reached"
    url.apply("answered", 0.0)
    assert unavailable_reason([url]) is None
    url.apply("failed", 0.0, reason="cannot be reached")
    assert unavailable_reason([url, UrlState("v")]) is None
    url.apply("rejected", 0.0, reason="rejects the key")
    assert unavailable_reason([url]) == "engine 1 rejects the key"


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
    [("vllm", None, MISSING), ("llama.cpp", -1, -1), ("openai", "refused", MISSING), ("transformers", "refused", "refused")],
)  # fmt: skip
def test_rest_of_the_context_is_asked_for_as_the_engine_understands_it(kind: str, prompt: Any, messages: Any):
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


# ---- chunks -----------------------------------------------------------------------------------------------------------


def test_answer_is_read_in_pieces_of_any_size():
    data = 'data: {"choices":[{"text":"né😀"}]}\n\n: ping\n\ndata: [DONE]\n\n'.encode()
    for size in (1, 2, 3, 5, len(data)):
        reader = ChunkReader(8)
        chunks = [chunk for at in range(0, len(data), size) for chunk in reader.feed(data[at : at + size])]
        assert [chunk.text for chunk in chunks] == ["né😀"]
        assert reader.done


def test_event_at_the_limit_is_read_and_one_above_is_not():
    def event(size: int) -> bytes:
        empty = len('{"choices":[{"text":""}]}')
        return b'data: {"choices":[{"text":"%b"}]}\n\n' % (b"x" * (size - empty))

    assert len(ChunkReader(100).feed(event(MAX_EVENT_BYTES))[0].text) > 10**6
    with pytest.raises(InvalidAnswerError, match=str(MAX_EVENT_BYTES)):
        ChunkReader(100).feed(event(MAX_EVENT_BYTES + 1))
    with pytest.raises(InvalidAnswerError, match=str(MAX_EVENT_BYTES)):
        ChunkReader(1000).feed(b"data: " + b"x" * (2 * MAX_EVENT_BYTES + 1))


def test_bytes_at_the_limit_are_read_and_one_above_is_not():
    most = BYTES_PER_TOKEN * (1 + SPARE_TOKENS)
    reader = ChunkReader(1)
    for _ in range(most // 1024):
        reader.feed(b": " + b"x" * 1020 + b"\n\n")
    with pytest.raises(InvalidAnswerError, match="more bytes"):
        reader.feed(b":")


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


# ---- rows -------------------------------------------------------------------------------------------------------------


def test_numbers_of_tokens_are_added_to_those_before_the_seam():
    rows = OutputRows(Generate(max_tokens=9), None, TokenUsage(7, 4))
    rows.feed(Chunk("ab", usage=TokenUsage(11, 2)))
    rows.feed(Chunk(finish_reason="stop"))
    assert rows.end(done=True).usage == TokenUsage(7, 6)


def test_answer_that_ends_with_done_alone_is_complete():
    rows = OutputRows(Generate(max_tokens=2), None)
    rows.feed(Chunk("ab", usage=TokenUsage(1, 2)))
    assert rows.end(done=True).finish_reason == "length"
    with pytest.raises(LostAnswerError):
        OutputRows(Generate(), None).end(done=False)


# ---- answers that run again -------------------------------------------------------------------------------------------


def caught_up(old: str, *pieces: str) -> list[tuple[str, bool]]:
    catch_up = CatchUp(old, "")
    found = [catch_up.feed(Delta([(piece,)])) for piece in pieces]
    return [("".join(row[0] for row in each.rows), each.replaces) for each in found if each is not None]


def test_equal_text_is_held_back_until_it_goes_beyond():
    assert caught_up("abcd", "ab", "c", "de", "f") == [("abcde", True), ("f", False)]
    assert caught_up("abcd", "abcd", "e") == [("abcd", True), ("e", False)]


def test_text_that_differs_is_shown_at_once():
    assert caught_up("abcd", "ab", "X") == [("abX", True)]


def test_shorter_text_is_shown_at_its_end():
    catch_up = CatchUp("abcd", "")
    assert catch_up.feed(Delta([("ab",)])) is None
    last = catch_up.feed(Delta(finish_reason="stop", usage=USAGE))
    assert last == Delta([("ab",)], finish_reason="stop", usage=USAGE, replaces=True)


def test_text_before_the_part_that_runs_again_is_kept():
    catch_up = CatchUp("cd", "", "ab")
    assert catch_up.feed(Delta([("c",)])) is None
    assert catch_up.feed(Delta([("de",)])) == Delta([("ab",), ("c",), ("de",)], replaces=True)


def test_reasoning_counts_for_the_comparison():
    catch_up = CatchUp("", "hm")
    assert catch_up.feed(Delta(reasoning="h")) is None
    last = catch_up.feed(Delta(reasoning="X"))
    assert last is not None
    assert (last.reasoning, last.replaces) == ("hX", True)
