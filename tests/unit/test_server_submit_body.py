"""Body of a submit request: limits on its validation and on the length of error messages."""

import asyncio
import json

import pytest
from pydantic import BaseModel

from tidewire_server import Server
from tidewire_server.errors import ProblemError
from tidewire_server.jobs.admission import submit_body
from tidewire_server.jobs.admission.submit_body import admit_inputs, read_submit


def body(**members):
    return json.dumps(members).encode()


def admitted(inputs, shared):
    server = Server()

    @server.endpoint
    def echo(text: str) -> str:
        return text

    submission = read_submit(body(inputs=inputs, shared=shared), max_inputs=9)
    return asyncio.run(admit_inputs(server.endpoints["echo"], submission))


def test_shared_members_are_limited_by_their_total_size_in_all_inputs(monkeypatch):
    shared = {"text": "x" * 989}  # 1,000 bytes as JSON
    monkeypatch.setattr(submit_body, "MAX_SHARED_BYTES", 4000)
    assert len(admitted([{}] * 4, shared)) == 4
    with pytest.raises(ProblemError) as refused:
        admitted([{}] * 5, shared)
    found = refused.value.problem
    assert (found.code, found.pointer) == ("batch_too_large", "/shared")
    assert "1000 bytes, and each of 5 inputs" in str(refused.value)
    assert found.model_extra == {"limit": 4}


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
            "/input/numbers/1: Input should be a valid integer (and 999 more)",
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
