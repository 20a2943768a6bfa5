"""Checks for chapter 2: the discovery document, endpoint descriptions, capabilities and limits."""

import re
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from tidewire_conformance.judging.state_history import items_of, job_bodies
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import schema_fault, schema_violation
from tidewire_conformance.session import Session
from tidewire_conformance.wire.recorded_exchange import RecordedExchange, resolve

UNDECLARED_CAPABILITY_ERRORS = {
    "list": (404, "not_found"),
    "delete": (405, "method_not_allowed"),
    "stream_tokens": (404, "not_found"),
    "snapshots_only": (400, "bad_parameter"),
    "batches": (422, "invalid_input"),
    "inband_problems": (400, "bad_parameter"),
}
"""Status and problem code of the response to a request that uses an undeclared capability (section 2.3)."""

_NAME = re.compile("[A-Za-z][A-Za-z0-9_.-]{0,63}")
"""Grammar rule `endpoint-name` (section 1.5)."""
CLOCK_TOLERANCE = timedelta(seconds=1)
"""Tolerance for the comparison of two times, each of which has a resolution of one second."""
MAX_COMPARED_SECONDS = 10**9
"""Longest retention, in seconds, that the suite compares with times. A longer one could exceed the last year of a date."""


@check("TW-DSC-001", "TW-DSC-014", "TW-DSC-015", "TW-DSC-026", "TW-OVR-012", "TW-JOB-001")
async def discovery_document_is_valid(s: Session) -> None:
    """`GET /v1` gets 200 with a valid body, and the sizes of events and states, and `max_depth` and `max_event_ops`, are in
    their ranges.
    """
    answer = await s.wire.request("GET", "/v1")
    _judge_body(s, "TW-DSC-001", "discovery", answer)
    s.expect("TW-JOB-001", answer.status == 200, "200 for GET /v1", answer.status, at=answer)
    body = answer.json if isinstance(answer.json, dict) else {}
    limits = body["limits"] if isinstance(body.get("limits"), dict) else {}
    s.expect("TW-DSC-014", limits.get("max_depth") == 64, "max_depth 64", limits.get("max_depth"), at=answer)
    for name in ("max_event_bytes", "max_state_bytes"):
        size = limits.get(name)
        s.expect("TW-DSC-015", isinstance(size, int | float) and size >= 1024, f"{name} of at least 1024", size,
                 at=answer)  # fmt: skip
    ops = limits.get("max_event_ops", 10_000)
    s.expect(
        "TW-DSC-026",
        type(ops) is int and 64 <= ops <= 10_000,
        "max_event_ops from 64 to 10000",
        ops,
        at=answer,
    )
    times = {name: value for name, value in {**body, **limits}.items() if name.endswith(("_ms", "_s"))}
    s.expect("TW-OVR-012", all(type(value) is int for value in times.values()), "integers", times, at=answer)


def _judge_body(s: Session, requirement: str, name: str, answer: RecordedExchange) -> None:
    """Judge a description of the server. If it has several faults, the assertion lists all of them."""
    violation = schema_violation(name, answer.json)
    s.expect(requirement, answer.status == 200, "200", answer.status, at=answer)
    s.expect(requirement, not violation, f"a body that fits {name}.schema.json", violation, at=answer)


@check("TW-DSC-005", whole_run=True)
async def discovery_document_does_not_change(s: Session) -> None:
    """The discovery document does not change during the run, apart from its list of endpoints."""
    answer = await s.wire.request("GET", "/v1")
    before, after = ({**each.json, "endpoints": 0} for each in (s.server.discovery, answer))
    s.expect("TW-DSC-005", before == after, f"{before}", after, at=answer)


@check("TW-DSC-016", "TW-DSC-017", "TW-DSC-022", "TW-OVR-016", "TW-JOB-001")
async def endpoint_descriptions_are_valid(s: Session) -> None:
    """Each listed endpoint has a valid description. The schemas in a description do not refer to other documents."""
    body = s.server.discovery.json
    entries = body["endpoints"] if isinstance(body.get("endpoints"), list) else []
    listed = [each for each in entries if isinstance(each, dict) and isinstance(each.get("name"), str)]
    if not listed:
        s.skip_untested("discovery lists no endpoint with a name")
    for each in listed:
        s.expect("TW-OVR-016", _NAME.fullmatch(each["name"]), "a valid endpoint name", each["name"],
                 at=s.server.discovery)  # fmt: skip
        place = each["href"] if isinstance(each.get("href"), str) else f"/v1/endpoints/{quote(each['name'])}"
        answer = await s.wire.request("GET", resolve(s.server.discovery, place))
        s.expect("TW-JOB-001", answer.status == 200, f"200 for {place}", answer.status, at=answer)
        _judge_body(s, "TW-DSC-016", "endpoint", answer)
        description = answer.json if isinstance(answer.json, dict) else {}
        for name in ("input_schema", "value_schema"):
            foreign = [ref for ref in _refs(description.get(name)) if not ref.startswith("#")]
            s.expect("TW-DSC-022", not foreign, "no reference to another document", foreign, at=answer)
            samples = description["examples"] if isinstance(description.get("examples"), list) else []
            fault = schema_fault(description.get(name), [] if foreign else [None, *samples])
            s.expect(
                "TW-DSC-017", not fault, f"{name} that is a JSON Schema of draft 2020-12", fault, at=answer
            )


def _refs(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [ref for child in schema for ref in _refs(child)]
    if not isinstance(schema, dict):
        return []
    own = [
        value for name, value in schema.items() if name in {"$ref", "$dynamicRef"} and isinstance(value, str)
    ]
    return own + [ref for child in schema.values() for ref in _refs(child)]


@check("TW-DSC-018", "TW-DSC-019")
async def examples_are_accepted(s: Session) -> None:
    """Each endpoint has at least one example and accepts all of its examples."""
    if not s.server.endpoints:
        s.skip_untested("no endpoint has a usable description")
    for endpoint in s.server.endpoints.values():
        s.expect("TW-DSC-018", endpoint.examples, f"an example of {endpoint.name}", at=endpoint.described)
        for example in endpoint.examples:
            fault = endpoint.input_violation(example)
            s.expect("TW-DSC-019", not fault, "an example that fits the input_schema of its endpoint", fault[:200],
                     at=endpoint.described)  # fmt: skip
    for each in s.server.failed_examples:
        submit = each.exchange if each.exchange and each.exchange.method == "POST" else None
        rejected = each.exchange is None or (submit is not None and submit.status >= 400)
        s.expect("TW-DSC-019", not rejected, f"an example of {each.request.endpoint} that is accepted", each.why,
                 at=each.exchange)  # fmt: skip


@check("TW-DSC-020", whole_run=True, after="state")
async def values_match_value_schema(s: Session) -> None:
    """The value of each item that succeeded fits the `value_schema` of its endpoint."""
    for exchange in s.wire.record:
        for body in job_bodies(exchange):
            endpoint = s.server.endpoints.get(str(body.get("endpoint")))
            if endpoint is None:
                continue
            for item in items_of(body):
                if item["status"] == "succeeded":
                    fault = endpoint.value_violation(item.get("value"))
                    s.expect(
                        "TW-DSC-020",
                        not fault,
                        f"a value that fits the value_schema of {endpoint.name}",
                        fault[:300],
                        at=exchange,
                    )


@check("TW-DSC-003", "TW-DSC-011", after="browser")
async def capabilities_match_discovery(s: Session) -> None:
    """The server provides each capability that it declares. It rejects requests for other capabilities as section 2.3
    requires.
    """
    sample = s.any_sample()
    job, _ = await s.run_to_end(sample)
    asked = {
        "list": await s.wire.request("GET", "/v1/jobs?limit=1"),
        "stream_tokens": await s.wire.request("POST", f"{job.path}/stream-token"),
        "snapshots_only": await s.stream(job, query="?diffs=0"),
        "inband_problems": await s.stream(job, query="?errors=inband"),
        "delete": await s.wire.request("DELETE", job.path),
    }
    for name, answer in asked.items():
        _judge_capability(s, name, answer)
    if "batches" not in s.server.capabilities:
        _judge_capability(
            s, "batches", await s.wire.request("POST", sample.submit_to, json={"inputs": sample.inputs})
        )


def _judge_capability(s: Session, name: str, answer: RecordedExchange) -> None:
    served = answer.status < 300
    if name in s.server.capabilities:
        s.expect(
            "TW-DSC-003",
            served,
            f"a successful response, because the server declares {name}",
            f"{answer.status} {answer.code}",
            at=answer,
        )
        return
    s.expect(
        "TW-DSC-003",
        not served,
        f"an error for the undeclared capability {name}",
        answer.status,
        at=answer,
    )
    s.expect("TW-DSC-011", (answer.status, answer.code) == UNDECLARED_CAPABILITY_ERRORS[name], f"{UNDECLARED_CAPABILITY_ERRORS[name]} without the capability {name}",
             f"{answer.status} {answer.code}", at=answer)  # fmt: skip


@check("TW-DSC-023", whole_run=True, after="state")
async def text_is_never_retracted_without_rollback(s: Session) -> None:
    """An endpoint that declares `"rollback": false` never truncates or replaces text in the values of its items."""
    jobs = {str(body["id"]): str(body.get("endpoint")) for each in s.wire.record for body in job_bodies(each)}
    without_rollback = {name for name, each in s.server.endpoints.items() if not each.capability("rollback")}
    judged = False
    for step in s.histories().steps:
        if (
            jobs.get(step.job) not in without_rollback
            or step.before is None
            or step.after is None
            or step.block.type != "message"
        ):
            continue
        judged = True
        for old, new in zip(step.before.value["items"], step.after.value["items"], strict=False):
            s.expect("TW-DSC-023", _extends(old.get("value"), new.get("value")), ("a value whose texts begin with the texts of", old.get("value")),
                     new.get("value"), at=step.exchange, block=step.block)  # fmt: skip
    if not judged:
        s.skip_no_occasion("each endpoint declares `rollback`")


def _extends(old: Any, new: Any) -> bool:
    if isinstance(old, str):
        return isinstance(new, str) and new.startswith(old)
    if isinstance(old, dict):
        return all(
            _extends(child, new.get(name) if isinstance(new, dict) else None) for name, child in old.items()
        )
    if isinstance(old, list):
        return isinstance(new, list) and all(map(_extends, old, new))
    return True


@check("TW-DSC-024", "TW-BAT-006", whole_run=True, after="state")
async def value_is_set_once_without_streaming(s: Session) -> None:
    """An endpoint with `"streams": false` sets the value of an item only once, in the event that ends the item."""
    jobs = {str(body["id"]): str(body.get("endpoint")) for each in s.wire.record for body in job_bodies(each)}
    without_streams = {name for name, each in s.server.endpoints.items() if not each.capability("streams")}
    for step in s.histories().steps:
        if jobs.get(step.job) not in without_streams or step.before is None or step.after is None:
            continue
        for old, new in zip(step.before.value["items"], step.after.value["items"], strict=False):
            if old.get("value") != new.get("value") and step.block.type == "message":
                where: dict[str, Any] = {"at": step.exchange, "block": step.block}
                s.expect("TW-DSC-024", old.get("value") is None and new["status"] not in {"queued", "running"},
                         "one value, set in the event that ends the item", new, **where)  # fmt: skip
                s.expect(
                    "TW-BAT-006",
                    new["status"] == "succeeded",
                    "a change of the status to succeeded in the same event as the value",
                    new,
                    **where,
                )


@check("TW-RES-052", whole_run=True)
async def expires_at_respects_state_ttl_s(s: Session) -> None:
    """The `expires_at` of a job is at least `state_ttl_s` seconds after its `ended_at`."""
    kept = timedelta(seconds=min(s.server.limits.get("state_ttl_s", 0), MAX_COMPARED_SECONDS))
    for exchange in s.wire.record:
        for body in job_bodies(exchange):
            ended, done = _time(body.get("ended_at")), body.get("done")
            for expiry in (
                body.get("expires_at"),
                done.get("expires_at") if isinstance(done, dict) else None,
            ):
                if ended and (until := _time(expiry)):
                    s.expect("TW-RES-052", until >= ended + kept - CLOCK_TOLERANCE, f"at least {kept} after {body['ended_at']}",
                             expiry, at=exchange)  # fmt: skip


def _time(expiry: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(expiry) if isinstance(expiry, str) else None
    except ValueError:
        return None


@check("TW-DSC-012", "TW-SEC-014", after="bodies")
async def oversized_body_returns_413(s: Session) -> None:
    """A body one byte above `max_body_bytes` gets 413 `body_too_large`, both with `Content-Length` and in chunked
    coding.
    """
    sample = s.any_sample()
    limit = s.server.limits.get("max_body_bytes", 0)
    if limit > 16 * 2**20:
        s.skip_untested(f"max_body_bytes is {limit}, which is too large for the suite to test")
    from tidewire_conformance.wire.strict_json import compact  # noqa: PLC0415 - imported at its single use

    small = compact(sample.body)
    large = small + b" " * (limit + 1 - len(small))
    header = {"Content-Type": "application/json"}
    for body in (large, [large[:-1], large[-1:]]):
        answer = await s.wire.request("POST", sample.submit_to, body=body, header=header)
        for requirement in ("TW-SEC-014", "TW-DSC-012"):
            s.expect(requirement, (answer.status, answer.code) == (413, "body_too_large"), "413 body_too_large",
                     f"{answer.status} {answer.code}", at=answer)  # fmt: skip
    control = await s.wire.request(
        "POST", sample.submit_to, body=small + b" " * min(1000, limit - len(small)), header=header
    )
    s.expect(
        "TW-DSC-012", control.status == 201, "201 for a body below the limit", control.status, at=control
    )
