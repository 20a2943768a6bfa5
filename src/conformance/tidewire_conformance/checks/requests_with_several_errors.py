"""Checks of refused requests: those with several errors, those with very long numbers, and the effect of a refusal."""

from typing import Any, NamedTuple
from urllib.parse import quote

from tidewire_conformance.checks.errors import UNKNOWN_JOB
from tidewire_conformance.registry import check
from tidewire_conformance.session import EVENT_STREAM, JSON, Session
from tidewire_conformance.wire.json_violations import compact
from tidewire_conformance.wire.recording_client import Header

LONG_DIGITS = "9" * 5000
"""Digits that a server must not convert to a number. Python refuses to convert more than 4300 digits."""


class _WrongRequest(NamedTuple):
    """Request with several errors, and the responses that report one of them."""

    method: str
    place: str
    allowed: frozenset[str]
    header: Header
    body: bytes | None = None


@check("TW-ERR-010")
async def request_with_several_errors_reports_one(s: Session) -> None:
    """A request with several errors gets the problem of one of these errors. A request with a single error gets that error's problem."""
    sample = s.any_sample()
    job, _ = await s.run_to_end(sample)
    nowhere = "/v1/endpoints/there-is-none/jobs"
    unknown = f"/v1/jobs/{UNKNOWN_JOB}"
    no_endpoint, no_job = "404 endpoint_not_found", "404 job_not_found"
    json_400, type_415, accept_406 = "400 malformed_body", "415 unsupported_media_type", "406 not_acceptable"
    input_422, cursor_400, parameter_400 = "422 invalid_input", "400 bad_cursor", "400 bad_parameter"
    text: Header = {"Content-Type": "text/plain"}
    page: Header = {**JSON, "Accept": "text/html"}
    long_key: Header = {**JSON, "Idempotency-Key": "x" * 256}
    wrong = [
        _WrongRequest("POST", nowhere, frozenset({no_endpoint, json_400}), JSON, b"{"),
        _WrongRequest("POST", nowhere, frozenset({no_endpoint, type_415}), text, b"{}"),
        _WrongRequest("POST", sample.submit_to, frozenset({type_415, json_400}), text, b"{"),
        _WrongRequest("POST", sample.submit_to, frozenset({accept_406, json_400}), page, b"{"),
        _WrongRequest("POST", sample.submit_to, frozenset({accept_406, input_422}), page, b"{}"),
        _WrongRequest("POST", sample.submit_to, frozenset({parameter_400, input_422}), long_key, b"{}"),
        _WrongRequest("POST", f"{unknown}/cancel", frozenset({no_job, json_400}), JSON, b"{"),
        _WrongRequest("POST", f"{unknown}/cancel", frozenset({no_job, input_422}), JSON, b'{"items":["x"]}'),
        _WrongRequest("GET", f"{unknown}/events?after=x", frozenset({no_job, cursor_400}), EVENT_STREAM),
        _WrongRequest("GET", f"{unknown}/events?diffs=2", frozenset({no_job, parameter_400}), EVENT_STREAM),
        _WrongRequest(
            "GET", f"{job.events}?after=x&diffs=2", frozenset({cursor_400, parameter_400}), EVENT_STREAM
        ),
    ]
    for each in wrong:
        answer = await s.wire.request(each.method, each.place, header=each.header, body=each.body)
        s.at(answer).response("TW-ERR-010", answer.outcome in each.allowed, " or ".join(sorted(each.allowed)))
    s.at(await s.post(sample)).status("TW-ERR-010", 201, "for a request without an error")


@check("TW-RES-011", "TW-JOB-087")
async def long_numbers_are_refused(s: Session) -> None:
    """A cursor with thousands of digits is refused like any other invalid one, and a JSON number or an index with
    thousands of digits causes no server error.
    """
    sample = s.any_sample()
    job, _ = await s.run_to_end(sample)
    for cursor in (f"1-{LONG_DIGITS}", f"{LONG_DIGITS}-1", f"1-{quote('٩' * 500)}"):
        answer = await s.stream(job, query=f"?after={cursor}")
        s.at(answer).refused("TW-RES-011", 400, "bad_cursor", f"a cursor of {len(cursor)} characters")
    answer = await s.stream(job, f"1-{LONG_DIGITS}")
    s.at(answer).refused("TW-RES-011", 400, "bad_cursor", "a Last-Event-ID with 5000 digits")
    digits = LONG_DIGITS.encode()
    example = compact(sample.inputs[0])
    running = await s.submit(s.server.long_running_sample(30) or sample)
    bodies = [
        (sample.submit_to, b'{"input":%b,"deadline_ms":%b}' % (example, digits)),
        (sample.submit_to, b'{"input":%b,"grace_ms":-%b}' % (example, digits)),
        (sample.submit_to, b'{"input":%b,"deadline_ms":1e%b}' % (example, digits)),
        (f"{running.path}/cancel", b'{"items":[%b]}' % digits),
    ]
    for place, body in bodies:
        answer = await s.wire.request("POST", place, body=body, header=JSON)
        # Other checks judge which numbers a server must refuse.
        s.at(answer).response(
            "TW-JOB-087", answer.status < 500, "no server error for a number of 5000 digits"
        )
    cancelled = await s.cancel(running)
    s.at(cancelled).response("TW-JOB-087", cancelled.status in {200, 202}, "202 for a valid cancel")


@check("TW-JOB-022", needs=["list"], serial=True)
async def refused_submit_starts_no_job(s: Session) -> None:
    """A submission that is refused does not appear in the list of jobs, and one that is accepted does."""
    sample = s.any_sample()
    example: Any = sample.inputs[0]
    before = await _listed(s)
    body = compact({"input": example})
    refused: list[tuple[bytes, Header]] = [
        (body, {**JSON, "Accept": "text/html"}),
        (body, {"Content-Type": "text/plain"}),
        (body, {**JSON, "Idempotency-Key": "with a space"}),
        (compact({"input": example, "deadline_ms": 0}), JSON),
        (compact({"input": example, "on_disconnect": "stay"}), JSON),
        (compact({"inputs": []}), JSON),
        (body + b"}", JSON),
    ]
    for sent, header in refused:
        answer = await s.wire.request("POST", sample.submit_to, body=sent, header=header)
        s.skip_unless(answer.status >= 400, f"{answer} returned {answer.status} for an invalid request")
    after = await _listed(s)
    s.expect("TW-JOB-022", after <= before, "no new job after refused submissions", sorted(after - before))
    job = await s.submit(sample)
    s.expect("TW-JOB-022", job.id in await _listed(s), f"the job {job.id} in the list")


async def _listed(s: Session) -> set[str]:
    """Return the ids of the caller's newest jobs."""
    answer = await s.get("/v1/jobs?limit=50")
    s.skip_unless(answer.status == 200, f"{answer} returned {answer.outcome}")
    return {str(entry.get("id")) for entry in answer.member("jobs", [])}
