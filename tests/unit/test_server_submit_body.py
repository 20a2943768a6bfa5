"""Body of a submit request: limits on its validation and on the length of error messages."""

import asyncio
import json

import pytest
from pydantic import BaseModel

from tidewire_server import Server
from tidewire_server.errors import ProblemError
from tidewire_server.jobs.admission import submit_body
from tidewire_server.jobs.admission.submit_body import admit_inputs, read_json, read_stored, read_submit

VALUES = 10_000


def body(**members):
    return json.dumps(members).encode()


def admitted(inputs, shared, max_values=VALUES):
    server = Server()

    @server.endpoint
    def echo(text: str) -> str:
        return text

    submission = read_submit(body(inputs=inputs, shared=shared), max_inputs=9, max_values=max_values)
    return asyncio.run(admit_inputs(server.endpoints["echo"], submission))


def test_shared_members_are_limited_by_their_total_size_in_all_inputs(monkeypatch):
    shared = {"text": "x" * 989}  # 1,000 bytes as JSON
    monkeypatch.setattr(submit_body, "MAX_SHARED_BYTES", 4000)
    assert len(admitted([{}] * 4, shared)) == 4
    with pytest.raises(ProblemError) as refused:
        admitted([{}] * 5, shared)
    found = refused.value.problem
    assert (found.code, found.pointer) == ("batch_too_large", "/shared")
    assert "1000 bytes, and each of the 5 inputs" in str(refused.value)
    assert found.model_extra == {"limit": 4}


def test_values_of_shared_members_count_once_for_each_input():
    shared = {"text": "[,]" * 9}  # three values: the object, the name and the text
    assert len(admitted([{}] * 9, shared, max_values=27)) == 9
    with pytest.raises(ProblemError) as refused:
        admitted([{}] * 9, shared, max_values=26)
    found = refused.value.problem
    assert (found.code, found.pointer) == ("batch_too_large", "/shared")
    assert "/shared has 3 JSON values, and each of the 9 inputs gets a copy" in str(refused.value)
    assert found.model_extra == {"limit": 8}


FIVE_VALUES = ['{"input": [1, null]}', '{"input": {"a": "x"}}', '{"input": "", "x": 1}', '{"input": [{}]}']


@pytest.mark.parametrize("text", FIVE_VALUES)
def test_a_body_with_max_values_is_read(text):
    assert read_json(text.encode(), max_values=5) == json.loads(text)


@pytest.mark.parametrize("text", FIVE_VALUES)
def test_a_body_with_more_than_max_values_is_refused_before_it_is_parsed(text, monkeypatch):
    monkeypatch.setattr(submit_body.strict_json, "loads", None)
    with pytest.raises(ProblemError) as refused:
        read_json(text.encode(), max_values=4)
    found = refused.value.problem
    assert (found.status, found.code, found.model_extra) == (413, "body_too_large", {"limit": 4})
    assert "more than 4 JSON values, including member names; send fewer" in str(refused.value)


@pytest.mark.parametrize(
    "text", ["a, [b]: {c}," * 50, '\\"' * 50 + ",", "\\" * 51 + '",[', 'é\u20ac,"{[:' * 50]
)
def test_characters_within_strings_are_not_counted(text):
    assert read_json(body(input=text), max_values=3) == {"input": text}


@pytest.mark.parametrize(
    "text", ['""' * 5000, '{"a":' * 50, "[" * 3, '"\\', "{" + "\\" * 1000, "[1,'[[[[[']"]
)
def test_an_invalid_body_with_many_marks_is_refused(text):
    with pytest.raises(ProblemError) as refused:
        read_json(text.encode(), max_values=3)
    assert refused.value.problem.code in {"malformed_body", "body_too_large"}


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"inputs": []}, "/inputs"),
        ({"inputs": {"a": 1}}, "/inputs"),
        ({"input": 1, "shared": [1]}, "/shared"),
        ({"input": 1, "grace_ms": "1"}, "/grace_ms"),
    ],
)
def test_an_invalid_member_of_the_body_is_refused_with_its_pointer(members, pointer):
    with pytest.raises(ProblemError) as refused:
        read_submit(body(**members), max_inputs=9, max_values=VALUES)
    assert (refused.value.problem.code, refused.value.problem.pointer) == ("invalid_input", pointer)


class Numbers(BaseModel):
    numbers: list[int]


def make_endpoint():
    server = Server()

    @server.endpoint
    def total(given: Numbers) -> int:
        return sum(given.numbers)

    return server.endpoints["total"]


@pytest.mark.parametrize(
    ("given", "message", "pointer"),
    [
        (
            {"numbers": [1] + ["x"] * 1000},
            (
                '/input/numbers/1: Input should be a valid integer; received "x". Also '
                '/input/numbers/2: Input should be a valid integer; received "x". Also '
                '/input/numbers/3: Input should be a valid integer; received "x" (and 997 more)'
            ),
            None,
        ),
        (
            {"numbers": ["x"] * 1001},
            "/input: the input has 1001 violations of the endpoint's schema",
            "/input",
        ),
        (
            {"n" * 201: 1, "numbers": []},
            f"/input: unknown member '{'n' * 200}'; known members: numbers",
            "/input",
        ),
    ],
)
def test_error_about_a_large_invalid_input_is_short(given, message, pointer):
    with pytest.raises(ProblemError) as refused:
        make_endpoint().input.read(given, "/input")
    assert str(refused.value) == message
    assert refused.value.problem.pointer == (pointer or message.partition(": ")[0])


@pytest.mark.parametrize(
    "members",
    [
        {"input": {"text": "a"}},
        {"input": None},
        {"inputs": [{"text": "a"}, 5, None]},
        {"inputs": [{}, {}, {}], "shared": {"text": "b" * 50, "inputs": [1, 2]}},
        {"input": 1, "on_disconnect": "cancel", "grace_ms": 5, "deadline_ms": 7, "unknown": [1]},
    ],
)
def test_a_stored_body_has_the_options_and_the_size_of_the_submission(members):
    text = json.dumps(members, separators=(",", ":")).encode()
    submission = read_submit(text, max_inputs=9, max_values=VALUES)
    assert read_stored(text) == submission._replace(inputs=[], shared={})


@pytest.mark.parametrize(
    "damaged", [b"", b"\xff", b"[]", b'{"input":', b'{"inputs": 5}', b'{"grace_ms": "5"}']
)
def test_a_damaged_stored_body_is_refused(damaged):
    with pytest.raises(ValueError, match=r"."):
        read_stored(damaged)
