import pytest

from tidewire.protocol.problems import REGISTRY, Problem, problem, to_json


def test_each_wait_worthy_status_names_a_wait():
    for code, kind in REGISTRY.items():
        if kind.status in {409, 429, 503}:
            assert kind.retryable, code
            assert kind.retry_after_ms is not None, code


@pytest.mark.parametrize("code", REGISTRY)
def test_a_problem_carries_what_the_registry_says_and_survives_the_wire(code):
    one = problem(code, "what happened", pointer="/input", limit=3)
    body = to_json(one)
    assert body["code"] == code
    assert body["status"] == REGISTRY[code].status
    assert body["retryable"] is REGISTRY[code].retryable
    assert body["limit"] == 3
    assert Problem.model_validate(body) == one


def test_a_code_outside_the_registry_is_a_programming_error():
    with pytest.raises(KeyError):
        problem("no_such_code")


def test_a_problem_of_a_stranger_is_read_with_unknown_members():
    read = Problem.model_validate({"code": "https://example.com/p", "title": "t", "status": 418, "tea": True})
    assert (read.model_extra or {})["tea"] is True
    assert read.retryable is False
