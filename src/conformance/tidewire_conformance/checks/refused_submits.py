"""Checks for section 6.2: invalid requests to submit a job, and the media type of the response to a valid request."""

from typing import Any

from tidewire_conformance.judging.server_probe import SampleRequest
from tidewire_conformance.registry import check
from tidewire_conformance.session import Session

UNKNOWN_MEMBER = "no/such~member"
"""Member name that contains `/` and `~`. A JSON Pointer must escape both characters."""


@check("TW-JOB-087", "TW-JOB-016")
async def invalid_submit_body_returns_422(s: Session) -> None:
    """A request to submit a job gets 422 with a pointer to the fault if its body has the wrong shape or an invalid
    member.
    """
    sample = s.any_sample()
    example = sample.inputs[0]
    wrong: list[Any] = [
        [],
        7,
        "input",
        {},
        {"input": example, "inputs": [example]},
        {"inputs": []},
        {"input": example, "deadline_ms": None},
        {"input": example, "on_disconnect": None},
        {"input": example, "grace_ms": None},
        {"input": example, "shared": None},
        {"input": example, "inputs": None},
        {"input": 7, "shared": {}},
        {"input": example, "deadline_ms": 0},
        {"input": example, "deadline_ms": "9"},
        {"input": example, "deadline_ms": 600_000.5},
        {"input": example, "deadline_ms": True},
        {"input": example, "grace_ms": -1},
        {"input": example, "grace_ms": "60000"},
        {"input": example, "grace_ms": 60_000.5},
        {"input": example, "on_disconnect": "stay"},
        {"input": example, "shared": []},
    ]
    for body in wrong:
        answer = await s.post(sample, json=body)
        s.at(answer).refused("TW-JOB-087", 422, "invalid_input", str(body)[:80])
        if answer.status == 422:
            pointer = answer.member("pointer")
            sound = isinstance(pointer, str) and _points_into(body, pointer)
            s.at(answer).expect("TW-JOB-016", sound, "a pointer into the body", pointer)
    s.at(await s.post(sample)).status("TW-JOB-087", 201, "for a body with one input")


def _points_into(body: Any, pointer: str) -> bool:
    """Whether a JSON pointer leads to an existing part of the body, or to a missing member of an object in the body."""
    value = body
    for token in (each.replace("~1", "/").replace("~0", "~") for each in pointer.split("/")[1:]):
        if isinstance(value, dict) and token in value:
            value = value[token]
        elif isinstance(value, list) and token.isdigit() and int(token) < len(value):
            value = value[int(token)]
        else:
            return pointer.endswith(f"/{token}") and isinstance(value, dict | list)
    return True


@check("TW-JOB-014", "TW-JOB-015", "TW-JOB-021", "TW-JOB-016")
async def input_violating_its_schema_returns_422(s: Session) -> None:
    """A request whose input violates the endpoint's schema gets 422 before any job runs, even if it asks for a stream."""
    found = [(sample, bad) for sample in _candidates(s) for bad in unfit(s, sample)]
    if not found:
        s.skip_untested("no endpoint has a schema that rejects null, a number, a list or an unknown member")
    escaped = [each for each in found if isinstance(each[1], dict) and UNKNOWN_MEMBER in each[1]][:1]
    tries = [(*each, "application/json") for each in [*found[:1], *escaped]]
    for sample, bad, accept in [*tries, (*found[0], "text/event-stream")]:
        answer = await s.post(sample, json={"input": bad}, header={"Accept": accept})
        requirement = "TW-JOB-014" if accept == "application/json" else "TW-JOB-021"
        s.at(answer).refused(requirement, 422, "invalid_input", str(bad)[:80])
        s.at(answer).refused("TW-JOB-015", 422, "invalid_input", str(bad)[:80])
        sound = answer.pointer.startswith("/input") and _points_into({"input": bad}, answer.pointer)
        wanted = "a pointer below /input that leads into the body"
        s.at(answer).expect("TW-JOB-016", sound, wanted, answer.pointer)
    s.at(await s.post(found[0][0])).status("TW-JOB-015", 201, "for a valid input")


def _candidates(s: Session) -> list[SampleRequest]:
    script = s.server.any_sample()
    return ([script] if script else []) + [
        sample for sample in s.server.samples if sample.ended == "succeeded"
    ]


def unfit(s: Session, sample: SampleRequest) -> list[Any]:
    """Return inputs that violate the schema of the endpoint."""
    endpoint, good = s.server.endpoints[sample.endpoint], sample.inputs[0]
    tries: list[Any] = [None, 7, []]
    if isinstance(good, dict):
        tries = [{**good, name: {"no": "such"}} for name in good] + [{**good, UNKNOWN_MEMBER: 1}, *tries]
    return [each for each in tries if endpoint.input_violation(each)]


@check("TW-JOB-017", "TW-JOB-005")
async def accept_header_selects_json_or_stream(s: Session) -> None:
    """A request to submit a job gets a stream if `Accept` names event streams, 406 if `Accept` permits neither a stream
    nor JSON, and JSON in all other cases.
    """
    sample = s.any_sample()
    forms = [
        (None, "application/json"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("application/json, text/event-stream;q=0", "application/json"),
        ("text/event-stream", "text/event-stream"),
        ("application/json, text/event-stream;q=0.1", "text/event-stream"),
        ("TEXT/event-stream", "text/event-stream"),
        ("text/html", "application/problem+json"),
        ("text/event-stream;q=0", "application/problem+json"),
    ]
    for accept, media in forms:
        answer = await s.post(sample, header={"Accept": accept}, seconds=30 + sample.seconds)
        got = f"{answer.status} {answer.media_type}"
        wanted = f"{media} for Accept: {accept}"
        s.at(answer).expect("TW-JOB-017", answer.media_type == media, wanted, got)
        if media == "application/problem+json":
            s.at(answer).refused("TW-JOB-017", 406, "not_acceptable", f"Accept: {accept}")
    read = await s.get("/v1", header={"Accept": "application/json, */*;q=0.1"})
    s.at(read).media_type("TW-JOB-005", "application/json")
