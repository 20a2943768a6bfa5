import pytest

from support.tables import for_each_case
from tidewire.protocol.problems import REGISTRY, Problem, problem, to_json


def test_each_code_with_a_status_to_retry_has_a_retry_after():
    for code, kind in REGISTRY.items():
        if kind.status in {409, 429, 503}:
            assert kind.retryable, code
            assert kind.retry_after_ms is not None, code


@for_each_case((code,) for code in REGISTRY)
def test_problem_has_the_members_of_its_registry_entry_and_is_decoded_unchanged(code):
    one = problem(code, "what happened", pointer="/input", limit=3)
    body = to_json(one)
    assert body["code"] == code
    assert body["status"] == REGISTRY[code].status
    assert body["retryable"] is REGISTRY[code].retryable
    assert body["limit"] == 3
    assert Problem.model_validate(body) == one


def test_unregistered_code_raises_a_key_error():
    with pytest.raises(KeyError):
        problem("no_such_code")


def test_problem_with_an_unknown_code_and_unknown_members_is_read():
    read = Problem.model_validate({"code": "https://example.com/p", "title": "t", "status": 418, "tea": True})
    assert (read.model_extra or {})["tea"] is True
    assert read.retryable is False
