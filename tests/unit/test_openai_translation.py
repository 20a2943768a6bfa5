"""Translation between the OpenAI surface and `generate`: members to inputs, states to texts, texts to numbered events."""

import json
import zlib

import pytest

from support.tables import for_each_case
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.problems import problem
from tidewire.protocol.resources import Limits
from tidewire_server.errors import ProblemError
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.openai.api_errors import ApiError, error_of
from tidewire_server.openai.job_inputs import chat_request, completion_request, response_request
from tidewire_server.openai.request_body import MAX_LAX_BYTES, read_request_body
from tidewire_server.openai.request_members import ENDPOINTS
from tidewire_server.openai.response_events import CRC_BITS, ResponseWriter
from tidewire_server.openai.text_progress import RetractedError, TextChange, TextProgress
from tidewire_server.openai.token_logprobs import TokenBytes, TokenRow
from tidewire_server.store.log_interface import StateAt
from tidewire_server.store.records import JobRecord

TURNS = [{"role": "user", "content": "hi"}]
VOCABULARY = json.dumps(
    {
        "hash": "",
        "tokens": ["YQ==", "8J8=", "mIA=", "Ymk=", "PHw+", "IGE="],
        "special": [4],
    }  # a, 2 + 2 bytes of 😀, bi, <|>, " a"
).encode()


def chat(**members):
    return chat_request({"model": "m", "messages": TURNS} | members)


def completion(**members):
    return completion_request({"model": "m", "prompt": "p"} | members, Limits())


def response(**members):
    return response_request({"model": "m", "input": "hi"} | members)


def refused(call, **members):
    with pytest.raises(ApiError) as found:
        call(**members)
    return found.value.body["error"]["param"]


def test_each_member_sets_a_member_of_generate_that_exists():
    names = {member.generate for members in ENDPOINTS.values() for member in members.values()} - {""}
    assert names <= set(Generate.model_fields)


def test_no_member_is_both_served_and_refused():
    for members in ENDPOINTS.values():
        for name, member in members.items():
            assert not (member.generate and member.refused), name
            assert not (member.ignored and (member.refused or member.generate)), name


def read(text):
    return read_request_body(text.encode(), max_values=1000)


def test_a_seed_beyond_2_to_the_53_is_reduced():
    large = 2**62 + 1
    assert chat(**read(f'{{"seed":{large}}}')).inputs[0]["seed"] == 1
    assert chat(seed=2**53).inputs[0]["seed"] == 0
    assert [each["seed"] for each in completion(prompt=["p", "q"], seed=large).inputs] == [1, 1]


def test_integers_beyond_2_to_the_53_are_looked_for_up_to_a_size():
    start = f'{{"seed":{2**60},"prompt":"'
    fits = start + "x" * (MAX_LAX_BYTES - len(start) - 2) + '"}'
    assert read(fits)["seed"] == 2**60
    with pytest.raises(ProblemError, match=f"integer {2**60} is beyond"):
        read(fits + " ")


def test_bounds_of_a_schema_beyond_2_to_the_53_are_left_out():
    schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1, "exclusiveMaximum": 5}
    kept = {"type": "integer", "exclusiveMaximum": 5}
    body = {
        "format": {"type": "json_schema", "schema": {"properties": {"id": schema}}},
        "note": f"{2**63}: né",
    }
    for name in ("response_format", "text"):
        expected = {"format": {"type": "json_schema", "schema": {"properties": {"id": kept}}}}
        assert read(json.dumps({name: body})) == {name: expected | {"note": body["note"]}}


@for_each_case(
    [
        (f'{{"max_tokens": {2**60}}}', "max_tokens"),
        (f'{{"seed": -{2**60}}}', "seed"),
        (f'{{"response_format": {{"schema": {{"enum": [1, {2**60}]}}}}}}', "response_format.schema.enum.1"),
        (f'{{"metadata": {{"maximum": {2**60}}}}}', "metadata.maximum"),
    ]
)
def test_another_integer_beyond_2_to_the_53_is_refused_by_name(text, param):
    with pytest.raises(ApiError) as found:
        read(text)
    assert found.value.body["error"]["param"] == param


@for_each_case(
    [
        ('{"seed": 1%s}' % ("0" * 50),),
        (f'{{"seed": {2**60}, "seed": 1}}',),
        (f'{{"seed": 0{2**60}}}',),
        (f'{{"seed": {2**60}, "prompt": "\\ud800"}}',),
        (f'{{"seed": {2**60}, "prompt": NaN}}',),
        (f"[{2**60}]",),
    ]
)
def test_a_body_with_large_integers_obeys_all_other_rules(text):
    with pytest.raises(ProblemError):
        read(text)


def test_an_absent_limit_is_null_and_16_for_completions():
    assert chat().inputs == [{"messages": TURNS, "max_tokens": None}]
    assert response().inputs == [{"messages": TURNS, "max_tokens": None}]
    assert completion().inputs == [{"prompt": "p", "max_tokens": 16}]
    assert chat(max_completion_tokens=3).inputs[0]["max_tokens"] == 3
    assert chat(max_tokens=3).inputs[0]["max_tokens"] == 3


def test_developer_becomes_system_and_text_parts_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    turns = chat(messages=[{"role": "developer", "content": "x"}, {"role": "user", "content": parts}]).inputs[
        0
    ]["messages"]
    assert turns == [{"role": "system", "content": "x"}, {"role": "user", "content": "ab"}]
    assert response(instructions="x").inputs[0]["messages"] == [{"role": "system", "content": "x"}, *TURNS]


def test_several_prompts_with_samples_are_inputs_with_seeds_of_their_own():
    request = completion(prompt=["p", "q"], n=2, seed=2**53 - 1)
    assert [(each["prompt"], each["seed"]) for each in request.inputs] == [
        *(("p", 2**53 - 1), ("p", 0), ("q", 2**53 - 1), ("q", 0))
    ]
    assert all("n" not in each for each in request.inputs)
    assert request.items == 4
    assert completion(n=3, seed=1).inputs == [{"prompt": "p", "n": 3, "seed": 1, "max_tokens": 16}]
    assert completion(n=3).items == 3


def test_a_job_in_the_foreground_ends_with_its_reader():
    assert json.loads(chat().body())["on_disconnect"] == "cancel"
    assert json.loads(chat().body())["grace_ms"] == 0
    assert "on_disconnect" not in json.loads(response(background=True).body())
    assert chat(seed=1).body() == chat(seed=1).body()


def test_log_probabilities_are_requested_as_the_endpoint_names_them():
    assert chat(logprobs=True).inputs[0].items() >= {"logprobs": True, "top_logprobs": 0}.items()
    assert completion(logprobs=0).inputs[0].items() >= {"logprobs": True, "top_logprobs": 0}.items()
    assert completion(logprobs=5).inputs[0]["top_logprobs"] == 5
    assert response(include=["message.output_text.logprobs"]).inputs[0]["logprobs"] is True
    assert response(top_logprobs=2).inputs[0]["top_logprobs"] == 2
    assert "logprobs" not in chat(logprobs=False).inputs[0]


@pytest.mark.parametrize(
    ("chosen", "schema"),
    [
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}},
            {"type": "array"},
        ),
        ({"type": "json_object"}, {"type": "object"}),
    ],
)
def test_a_response_format_becomes_a_schema(chosen, schema):
    assert chat(response_format=chosen).inputs[0]["json_schema"] == schema
    flat = {"type": chosen["type"], **chosen.get("json_schema", {})}
    assert response(text={"format": flat}).inputs[0]["json_schema"] == schema


def test_refused_members_are_named():
    assert refused(chat, tools=[1]) == "tools"
    assert refused(chat, response_format={"type": "xml"}) == "response_format.type"
    assert (
        refused(chat, messages=[{"role": "user", "content": [{"type": "input_audio"}]}])
        == "messages[0].content[0].type"
    )
    assert refused(response, input=[{"type": "function_call_output"}]) == "input[0].type"
    assert refused(response, background=True, store=False) == "store"
    assert refused(completion, prompt=[[1, 2]]) == "prompt"
    assert refused(completion, n=65) == "n"
    assert refused(completion, echo=1) == "echo"  # 1 is not the neutral value False, and not served


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"response_format": "json"}, "response_format: must be an object"),
        ({"messages": ["hi"]}, "messages[0]: must be an object"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}},
            "response_format.schema: must be an object",
        ),
        (
            {"messages": [{"role": "assistant", "content": None}]},
            "messages[0].content: must be present, and neither null nor an empty list",
        ),
    ],
)
def test_the_message_about_a_wrong_member_says_what_it_must_be(members, message):
    with pytest.raises(ApiError) as found:
        chat(**members)
    assert str(found.value) == message


def test_an_error_of_the_job_names_the_member_of_the_request():
    params = response().params
    found = problem("invalid_input", "/input/max_tokens: must be less", pointer="/input/max_tokens")
    assert error_of(found, params).body["error"] == {
        "message": "max_output_tokens: must be less",
        "type": "invalid_request_error",
        "param": "max_output_tokens",
        "code": "invalid_value",
    }
    several = problem("invalid_input", "bad", pointer="/inputs/3/prompt")
    assert error_of(several, completion().params).body["error"]["param"] == "prompt"
    both = problem("invalid_input", "/input/top_p: bad. Also /input/max_tokens: bad", pointer="/input/top_p")
    message = error_of(both, params).body["error"]["message"]
    assert message == "top_p: bad. Also max_output_tokens: bad"
    union = problem(
        "invalid_input", "/input/stop: not a text. Also /input/stop: not a list", pointer="/input/stop"
    )
    message = error_of(union, completion(stop=5).params).body["error"]["message"]
    assert message == "stop: not a text. Also stop: not a list"
    larger = problem(
        "top_logprobs_too_large", "/input/top_logprobs: top_logprobs is 25", pointer="/input/top_logprobs"
    )
    message = error_of(larger, completion(logprobs=25).params).body["error"]["message"]
    assert message == "logprobs: top_logprobs is 25"
    schema = problem("invalid_input", "bad", pointer="/input/json_schema/type")
    assert error_of(schema, chat().params).body["error"]["param"] == "response_format"
    assert error_of(schema, response().params).body["error"]["param"] == "text"


# ---- texts -------------------------------------------------------------------------------------------------------------

COLUMNS = [f"/items/0/value/{name}" for name in ("text", "token_ids", "logprobs")]


class States:
    """States of a job with one item, after each of some diffs."""

    def __init__(self):
        value = {"text": "", "token_ids": [], "logprobs": [], "finish_reason": None}
        state = {
            "status": "running",
            "items": [{"status": "running", "value": value}],
            "usage": {},
            "notes": [],
        }
        self.document = Document(state, COLUMNS)
        self.seq = 0

    def after(self, *diffs, epoch=1):
        for diff in diffs:
            self.document.apply(diff)
            self.seq += 1
        return StateAt(Cursor(epoch, self.seq), tuple(COLUMNS), self.document.mark())


def row(text, token):
    return [["r", text, token, -1.0]]


def texts(progress, at):
    return [(change.text, [each.token_id for each in change.rows]) for change in progress.changes(at)]


def test_a_state_without_new_text_is_no_change():
    states, progress = States(), TextProgress(1, None)
    assert texts(progress, states.after()) == []
    assert texts(progress, states.after(row("a", 0))) == [("a", [])]
    assert texts(progress, states.after()) == []


def test_the_tokens_of_a_text_do_not_depend_on_the_blocks_in_which_it_is_read():
    rows = [row("a", 0), row("", 1), row("😀", 2), row("", 4), row("bi", 3)]
    one, other = States(), States()
    alone = TextProgress(1, TokenBytes(VOCABULARY))
    singly = [change for each in rows for change in texts(alone, one.after(each))]
    assert singly == [("a", [0]), ("😀", [1, 2]), ("bi", [3])]
    together = texts(TextProgress(1, TokenBytes(VOCABULARY)), other.after(*rows))
    assert together == [("a😀bi", [0, 1, 2, 3])]


def test_a_text_that_lacks_the_space_of_its_first_token_has_the_tokens_of_its_parts():
    states, progress = States(), TextProgress(1, TokenBytes(VOCABULARY))
    singly = [
        change
        for each in (row("a", 5), row("a", 0), row("bi", 3))
        for change in texts(progress, states.after(each))
    ]
    assert singly == [("a", [5]), ("a", [0]), ("bi", [3])]


def test_the_tokens_that_add_no_text_come_with_the_end():
    states, progress = States(), TextProgress(1, TokenBytes(VOCABULARY))
    assert texts(progress, states.after(row("a", 0), row("", 3))) == [("a", [0])]
    ended = [["s", "/items/0/value/finish_reason", "stop"], ["s", "/items/0/status", "succeeded"]]
    (change,) = progress.changes(states.after(ended))
    assert (change.text, [each.token_id for each in change.rows], change.finish_reason) == ("", [3], "stop")


@pytest.mark.parametrize("pieces", [["x"], ["one"], ["one tw"], ["one else", "more"]])
def test_text_that_was_read_and_is_replaced_is_retracted(pieces):
    states, progress = States(), TextProgress(1, None)
    assert texts(progress, states.after(row("one two", 0))) == [("one two", [])]
    at = states.after([["s", "/items/0/value/text", "".join(pieces)]])
    with pytest.raises(RetractedError):
        list(progress.changes(at))


def test_equal_text_of_a_new_attempt_is_not_retracted():
    states, progress = States(), TextProgress(1, None)
    list(progress.changes(states.after(row("one", 0))))
    assert texts(progress, states.after([["s", "/items/0/value/text", "one two"]], epoch=2)) == [(" two", [])]


# ---- events ------------------------------------------------------------------------------------------------------------


def writer(after=-1, tokens=None):
    record = JobRecord("j", "generate", "anonymous", batch=False, created_at=1.5)
    return ResponseWriter(record, "m", tokens, after=after), record


def events_of(*changes, after=-1, tokens=None):
    wrote, record = writer(after, tokens)
    frames = wrote.begin() + b"".join(wrote.change(change) for change in changes)
    if changes and changes[-1].item is not None:
        record.status = "succeeded"
        frames += wrote.end(record)
    return [json.loads(frame.split(b"data: ")[1]) for frame in frames.split(b"\n\n")[:-1]]


END = {"status": "succeeded", "finish_reason": "stop", "error": None}
WHOLE = [TextChange(0, "né ", [], None), TextChange(0, "😀x", [], None), TextChange(0, "", [], END)]


def test_the_numbers_of_events_follow_from_the_text():
    found = events_of(*WHOLE)
    numbers = [event["sequence_number"] for event in found]
    crc = [zlib.crc32(text.encode()) & (1 << CRC_BITS) - 1 for text in ("né ", "né 😀x")]
    assert numbers == [
        0,
        1,
        2,
        3,
        4,
        (3 << CRC_BITS) + crc[0],
        (5 << CRC_BITS) + crc[1],
        *range(6 << CRC_BITS, (6 << CRC_BITS) + 4),
    ]
    assert [event["type"] for event in found][-4:] == [
        *(
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        )
    ]


def test_a_resume_after_each_event_has_the_rest_however_the_text_is_read():
    found = events_of(*WHOLE)
    for at, event in enumerate(found):
        for changes in (
            WHOLE,
            [TextChange(0, "né 😀x", [], END)],
            [TextChange(0, "né 😀", [], None), TextChange(0, "x", [], END)],
        ):
            after = event["sequence_number"]
            if len(changes[0].text) < min(after >> CRC_BITS, 5):
                continue  # A reader of a later state reads at least the text that was sent.
            rest = events_of(*changes, after=after)
            assert all(each["sequence_number"] > after for each in rest)
            text = "".join(each.get("delta", "") for each in [*found[: at + 1], *rest])
            assert text == "né 😀x"
            assert rest == [] or rest[-1] == found[-1]


def test_a_number_below_two_to_the_31_for_a_million_code_points():
    (change,) = [event for event in events_of(TextChange(0, "x" * 2**20, [], None)) if "delta" in event]
    assert change["sequence_number"] < 2**31 + 2**CRC_BITS
    (change,) = [event for event in events_of(TextChange(0, "x" * 10**6, [], None)) if "delta" in event]
    assert change["sequence_number"] < 2**31


@pytest.mark.parametrize("text", ["other text", "né", "", "né 😀y and more"])
def test_another_text_at_the_position_of_a_resume_is_retracted(text):
    after = events_of(*WHOLE)[6]["sequence_number"]
    with pytest.raises(RetractedError):
        events_of(TextChange(0, text, [], None), after=after)


def test_a_resume_has_the_log_probabilities_of_the_rest_and_at_the_end_all():
    tokens = TokenBytes(VOCABULARY)
    rows = [TokenRow(token, -1.0, (), (), at) for token, at in ((0, 0), (1, 1), (2, 1), (3, 2))]
    whole = events_of(TextChange(0, "a", rows[:1], None), TextChange(0, "😀bi", rows[1:], END), tokens=tokens)
    rest = events_of(TextChange(0, "a😀bi", rows, END), after=whole[5]["sequence_number"], tokens=tokens)
    assert rest == whole[6:]
    assert [each["bytes"] for each in rest[0]["logprobs"]] == [[0xF0, 0x9F], [0x98, 0x80], [98, 105]]
    assert len(rest[1]["logprobs"]) == 4


def test_a_token_with_a_part_of_a_character_has_its_true_bytes():
    tokens = TokenBytes(VOCABULARY)
    found = tokens.chat_logprob(TokenRow(1, None, (4, 1), (-0.5, None), 0))
    assert found == {
        "token": "\ufffd",
        "logprob": -9999.0,
        "bytes": [0xF0, 0x9F],
        "top_logprobs": [
            {"token": "<|>", "logprob": -0.5, "bytes": None},
            {"token": "\ufffd", "logprob": -9999.0, "bytes": [0xF0, 0x9F]},
        ],
    }
    rows = [TokenRow(token, -1.0, (), (), at) for token, at in ((0, 0), (1, 1), (2, 1), (0, 2))]
    legacy = tokens.completion_logprobs(rows)
    assert legacy["tokens"] == ["a", "bytes:\\xf0\\x9f", "bytes:\\x98\\x80", "a"]
    assert legacy["text_offset"] == [0, 1, 1, 2]
    assert legacy["top_logprobs"] is None


def test_offsets_do_not_depend_on_where_a_text_is_cut_into_chunks():
    rows = [row("a", 0), row("", 1), row("😀", 2), row("bi", 3)]
    for cut in range(5):
        states, progress = States(), TextProgress(1, TokenBytes(VOCABULARY))
        parts = [[*progress.changes(states.after(*part))] for part in (rows[:cut], rows[cut:])]
        offsets = [each.offset for part in parts for change in part for each in change.rows]
        assert offsets == [0, 1, 1, 2]
