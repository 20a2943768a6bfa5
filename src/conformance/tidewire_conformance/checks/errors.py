"""Checks for chapter 9: error responses, problem documents, and requests for unknown resources."""

import re
from typing import Any

from tidewire_conformance import specification
from tidewire_conformance.judging.state_history import items_of, job_bodies
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text, schema_violation
from tidewire_conformance.session import Session
from tidewire_conformance.wire.json_violations import compact
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

_INTERNALS = re.compile(
    r'Traceback|File \\?"|site-packages|\bat .+\.(?:js|mjs|java|go|rs):\d+|/(?:home|usr|root|srv)/\S+\.\w+'
)
UNKNOWN_JOB = "A" * 22


@check("TW-ERR-001", "TW-ERR-002", "TW-ERR-003", "TW-ERR-004", "TW-ERR-020", whole_run=True)
async def errors_are_valid_problem_documents(s: Session) -> None:
    """Each error is a valid problem document with the right media type, the response's status, and a registered code."""
    codes = specification.problem_codes()
    for each in s.wire.record:
        found = [(block.json, block) for block in each.of_type("problem")]
        if each.status >= 400 and each.is_whole:
            s.at(each).media_type("TW-ERR-002", "application/problem+json")
            is_object = isinstance(each.json, dict)
            if s.at(each).expect("TW-ERR-001", is_object, "a problem document", json_text(each.body[:200])):
                s.at(each).equal(
                    "TW-ERR-003", each.member("status"), each.status, f"the member status {each.status}"
                )
                found.append((each.json, None))  # type: ignore[arg-type]
        found += [(item["error"], None) for item in _items(each) if "error" in item]  # type: ignore[misc]
        for problem, block in found:
            violation = schema_violation("problem", problem)
            if not s.at(each, block).empty(
                "TW-ERR-001", violation, "a problem document that fits its schema"
            ):
                continue
            known = codes.get(problem["code"])
            own = known is not None or bool({".", ":"} & set(problem["code"]))
            s.at(each, block).expect(
                "TW-ERR-020", own, "a registered code, a code with a dot, or a URI", problem["code"]
            )
            if known is not None:
                got = problem["status"], problem.get("retryable", False)
                wanted = f"status and retryable {tuple(known)} for {problem['code']}"
                s.at(each, block).equal("TW-ERR-004", got, tuple(known), wanted)


def _items(each: RecordedExchange) -> list[dict[str, Any]]:
    return [item for body in job_bodies(each) for item in items_of(body)]


@check("TW-JOB-005", whole_run=True)
async def successful_responses_are_application_json(s: Session) -> None:
    """Each successful response with a body has the media type `application/json`, unless it is a stream."""
    for each in s.wire.record:
        if each.is_whole and 200 <= each.status < 300 and each.body and not each.is_stream:
            s.at(each).media_type("TW-JOB-005", "application/json")


@check("TW-ERR-006", "TW-ERR-007", whole_run=True)
async def retryable_errors_have_retry_after(s: Session) -> None:
    """A response with status 409, 429 or 503 has `Retry-After` in whole seconds, and a `retry_after_ms` of at most that
    time.
    """
    waits = [each for each in s.wire.record if each.status in {409, 429, 503} and each.is_whole]
    if not waits:
        s.skip_no_occasion("no response in this run was 409, 429 or 503")
    for each in waits:
        seconds = each.response_header("retry-after")
        whole = re.fullmatch(r"[1-9][0-9]{0,8}", seconds)
        s.at(each).expect("TW-ERR-006", whole, "a Retry-After of at least 1", seconds)
        wait = each.member("retry_after_ms")
        sound = type(wait) is int and (not whole or wait <= 1000 * int(seconds))
        s.at(each).expect("TW-ERR-007", sound, f"retry_after_ms of at most {seconds} s", wait)


@check("TW-ERR-008", whole_run=True)
async def errors_do_not_leak_internals(s: Session) -> None:
    """Error responses contain no stack trace and no file path of the server."""
    for each in s.wire.record:
        texts = [block.data for block in each.of_type("problem")] + [
            compact(i["error"]) for i in _items(each) if "error" in i
        ]
        texts += [each.body] if each.status >= 400 else []
        for text in texts:
            found = _INTERNALS.search(text.decode("utf-8", "replace"))
            s.at(each).expect(
                "TW-ERR-008", not found, "no stack trace and no server path", found and found[0]
            )


@check("TW-JOB-088", "TW-JOB-003")
async def head_and_options_need_no_body(s: Session) -> None:
    """A HEAD request gets the status and the media type of the GET request, without a body. An OPTIONS request gets
    `Allow`, with 204 or with 405.
    """
    job, _ = await s.run_to_end(s.any_sample())
    for place in ("/v1", job.path):
        got, head = await s.get(place), await s.wire.request("HEAD", place)
        wanted = got.status, got.media_type, b""
        s.at(head).equal("TW-JOB-088", (head.status, head.media_type, head.body), wanted)
        options = await s.wire.request("OPTIONS", place)
        sound = options.status in {200, 204, 405} and "GET" in options.response_header("allow")
        s.at(options).response("TW-JOB-003", sound, "204 or 405, with an Allow header that contains GET")


@check("TW-JOB-002", "TW-JOB-003", "TW-JOB-013", "TW-JOB-043", "TW-DSC-028", "TW-DSC-029", "TW-RES-029")
async def unknown_resources_return_404(s: Session) -> None:
    """A request for an unknown URL, endpoint or job gets 404 with a specific code. A wrong method gets 405 with
    `Allow`.
    """
    s.at(await s.get("/v1/nothing")).refused("TW-JOB-002", 404, "not_found")
    answer = await s.get("/v1/endpoints/there-is-none")
    s.at(answer).status("TW-DSC-028", 404, "for an unknown endpoint")
    s.at(answer).refused("TW-DSC-029", 404, "endpoint_not_found")
    answer = await s.wire.request("POST", "/v1/endpoints/there-is-none/jobs", json={"input": {}})
    s.at(answer).refused("TW-JOB-013", 404, "endpoint_not_found")
    sample = s.any_sample()
    if (other := sample.endpoint.swapcase()) not in {*s.server.endpoints, sample.endpoint}:
        answer = await s.wire.request("POST", f"/v1/endpoints/{other}/jobs", json=sample.body)
        s.at(answer).refused("TW-JOB-013", 404, "endpoint_not_found", other)
    asked = [("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("GET", "/events?after=1-1")]
    asked += [("DELETE", "")] if "delete" in s.server.capabilities else []
    asked += [("POST", "/stream-token")] if "stream_tokens" in s.server.capabilities else []
    for method, place in asked:
        answer = await s.wire.request(method, f"/v1/jobs/{UNKNOWN_JOB}{place}")
        s.at(answer).refused(("TW-JOB-043", "TW-RES-029"), 404, "job_not_found")
    job = await s.submit(sample)
    for method, place, right in (
        ("POST", "/v1", "GET"),
        ("GET", sample.submit_to, "POST"),
        ("PUT", "/v1", "GET"),
        ("DELETE", job.events, "GET"),
        ("GET", f"{job.path}/cancel", "POST"),
    ):
        answer = await s.wire.request(method, place)
        s.at(answer).refused("TW-JOB-003", 405, "method_not_allowed", f"{method} {place}")
        allowed = [each.strip() for each in answer.response_header("allow").split(",")]
        wanted = f"an Allow header with {right} and without {method}"
        s.at(answer).expect("TW-JOB-003", right in allowed and method not in allowed, wanted, allowed)
    for place in (f"{job.path}/nothing", f"{job.path}/events/1"):
        s.at(await s.get(place)).refused("TW-JOB-002", 404, "not_found", place)
    # Request the job with its id in swapped letter case, and with names that no server can have assigned as an id.
    for name in (job.id.swapcase(), f"{job.id}%00", f"{job.id}%20", "1", "A" * 500):
        answer = await s.get(f"/v1/jobs/{name}")
        unknown = answer.status == 404 and answer.code in {"job_not_found", "not_found"}
        s.at(answer).response("TW-JOB-043", unknown or name == job.id, f"404 job_not_found for {name[:40]}")
    s.expect("TW-JOB-043", (await s.read(job)).status == 200, "200 for an existing job")
