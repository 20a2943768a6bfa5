"""The assertions of a check describe the expected and the actual result, and keep their evidence."""

import pytest

from tidewire_conformance.session import Evidence
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

PROBLEM = (("Content-Type", "application/problem+json"),)


def answer(status=404, header=PROBLEM, body=b'{"code":"not_found"}'):
    url, chunks, secrets = "http://127.0.0.1/v1", [(0.0, body)], (("Bearer a-long-secret", "TOKEN"),)
    return RecordedExchange(
        1, "GET", url, (), b"", "x.y", 0.0, status, header, chunks=chunks, secrets=secrets
    )


CASES = {
    "a condition": (
        lambda at: at.expect("TW-DSC-001", [], "some", {"n": 1}),
        ("some", '{"n": 1}'),
    ),
    "a tuple that is joined": (
        lambda at: at.expect("TW-DSC-001", 0, ("the same as", [1]), None),
        ("the same as [1]", "null"),
    ),
    "a secret": (
        lambda at: at.expect("TW-DSC-001", 0, "none", "a-long-secret"),
        ("none", "$TOKEN"),
    ),
    "another value": (lambda at: at.equal("TW-DSC-001", "a", "b"), ("b", "a")),
    "another described value": (lambda at: at.equal("TW-DSC-001", 1, 2, "two"), ("two", "1")),
    "a violation": (lambda at: at.empty("TW-DSC-001", ["x"], "no x"), ("no x", '["x"]')),
    "another status": (
        lambda at: at.status("TW-DSC-001", 200, "for a reader"),
        ("200 for a reader", "404 not_found"),
    ),
    "another code": (
        lambda at: at.refused("TW-DSC-001", 404, "job_not_found", "a job"),
        ("404 job_not_found for a job", "404 not_found"),
    ),
    "another media type": (
        lambda at: at.media_type("TW-DSC-001", "application/json"),
        ("application/json", "application/problem+json"),
    ),
    "a response": (
        lambda at: at.response("TW-DSC-001", at.exchange.is_stream, "a stream"),
        ("a stream", "404 not_found"),
    ),
}
"""Failed assertions, each with the texts of the expected and the actual result."""


@pytest.mark.parametrize("case", CASES)
def test_a_failed_assertion_describes_both_results(case):
    make, texts = CASES[case]
    at = Evidence([], answer())
    assert make(at) is False
    (found,) = at.assertions
    assert (found.holds, found.expected, found.got, found.exchange) == (False, *texts, at.exchange)


def test_a_body_has_to_fit_its_schema():
    at = Evidence([], answer(200, (), b'{"url":"/x"}'))
    assert not at.body("TW-BRW-012", 200, "stream-token")
    (found,) = at.assertions
    assert found.expected == "200 and a body that fits stream-token.schema.json"
    assert found.got.startswith("200 ")
    assert "expires_at" in found.got


@pytest.mark.parametrize(
    "make",
    [
        lambda at: at.expect("TW-DSC-001", 1, "one"),
        lambda at: at.equal("TW-DSC-001", 1, 1),
        lambda at: at.empty("TW-DSC-001", "", "nothing"),
        lambda at: at.status("TW-DSC-001", 404),
        lambda at: at.refused("TW-DSC-001", 404, "not_found"),
        lambda at: at.media_type("TW-DSC-001", "application/problem+json"),
    ],
)
def test_an_assertion_that_holds_is_recorded_without_texts(make):
    at = Evidence([], answer())
    assert make(at) is True
    (found,) = at.assertions
    assert (found.holds, found.expected, found.exchange) == (True, "", None)


def test_an_assertion_about_a_response_needs_the_response():
    with pytest.raises(ValueError, match="needs its exchange"):
        Evidence([]).status("TW-DSC-001", 200)
