"""Checks for chapter 2: the discovery document, endpoint descriptions, capabilities and limits."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from tidewire_conformance.judging.state_history import Step, items_of, job_bodies
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import schema_fault, schema_violation
from tidewire_conformance.session import JSON, Session
from tidewire_conformance.wire.json_violations import compact
from tidewire_conformance.wire.recorded_exchange import RecordedExchange, resolve

UNDECLARED_CAPABILITY_ERRORS = {
    "list": ("404", "405"),
    "delete": ("404", "405"),
    "stream_tokens": ("404", "405"),
    "snapshots_only": ("400 bad_parameter",),
    "batches": ("422 invalid_input",),
    "inband_problems": ("400 bad_parameter",),
    "deadlines": ("422 invalid_input",),
    "disconnect": ("422 invalid_input",),
}
"""Allowed responses to a request that uses a capability that the server does not declare (section 2.3). Each entry is the
beginning of the status and problem code.
"""
CORE_LIMITS = frozenset(
    {
        "max_body_bytes",
        "max_inputs",
        "max_jobs_per_principal",
        "max_streams_per_principal",
        "max_state_bytes",
        "max_event_bytes",
        "max_log_bytes",
        "max_depth",
        "log_ttl_s",
        "state_ttl_s",
        "tombstone_ttl_s",
    }
)
"""Limits that a server of the profile `core` declares (section 2.4)."""

_NAME = re.compile("[A-Za-z][A-Za-z0-9_.-]{0,63}")
"""Grammar rule `endpoint-name` (section 1.5)."""
CLOCK_TOLERANCE = timedelta(seconds=1)
"""Tolerance for the comparison of two times, each of which has a resolution of one second."""
MAX_COMPARED_SECONDS = 10**9
"""Longest retention, in seconds, that the suite adds to a time. A longer one could exceed the year 9999."""


@check("TW-DSC-001", "TW-DSC-014", "TW-DSC-015", "TW-DSC-026", "TW-DSC-027", "TW-OVR-012", "TW-JOB-001")
async def discovery_document_is_valid(s: Session) -> None:
    """`GET /v1` gets 200 with a valid body that declares the limits of the profile `core`. The sizes of events and states,
    `max_depth` and `max_event_ops` are in their ranges.
    """
    answer = await s.get("/v1")
    _judge_body(s, "TW-DSC-001", "discovery", answer)
    s.at(answer).status("TW-JOB-001", 200, "for GET /v1")
    # Judge the members even if they have another type, for example a fraction in place of an integer.
    body = answer.json if isinstance(answer.json, dict) else {}
    limits = body["limits"] if isinstance(body.get("limits"), dict) else {}
    missing = sorted(CORE_LIMITS - limits.keys())
    s.at(answer).empty("TW-DSC-027", missing, "each limit that the profile core requires")
    s.at(answer).equal("TW-DSC-014", limits.get("max_depth"), 64, "max_depth 64")
    for name in ("max_event_bytes", "max_state_bytes"):
        size = limits.get(name, 1024)
        s.at(answer).expect(
            "TW-DSC-015", isinstance(size, int | float) and size >= 1024, f"{name} of at least 1024", size
        )
    ops = limits.get("max_event_ops", 10_000)
    s.at(answer).expect(
        "TW-DSC-026", type(ops) is int and 64 <= ops <= 10_000, "max_event_ops from 64 to 10000", ops
    )
    times = {name: value for name, value in {**body, **limits}.items() if name.endswith(("_ms", "_s"))}
    s.at(answer).expect("TW-OVR-012", all(type(value) is int for value in times.values()), "integers", times)


def _judge_body(s: Session, requirement: str, name: str, answer: RecordedExchange) -> None:
    """Judge whether a response body fits its schema. The assertion lists all violations."""
    violation = schema_violation(name, answer.json)
    s.at(answer).status(requirement, 200)
    s.at(answer).empty(requirement, violation, f"a body that fits {name}.schema.json")


@check("TW-DSC-005", whole_run=True)
async def discovery_document_does_not_change(s: Session) -> None:
    """The discovery document does not change during the run, apart from its list of endpoints."""
    answer = await s.get("/v1")
    before, after = (
        {**each.json, "endpoints": 0} if isinstance(each.json, dict) else each.json
        for each in (s.server.discovery, answer)
    )
    s.at(answer).expect("TW-DSC-005", before == after, (before,), after)


@check("TW-DSC-028", "TW-DSC-017", "TW-DSC-022", "TW-OVR-016", "TW-JOB-001")
async def endpoint_descriptions_are_valid(s: Session) -> None:
    """Each listed endpoint has a valid description. The schemas in a description do not refer to other documents."""
    # The schema of the discovery document judges entries that are not objects with a name.
    document = s.server.discovery.json
    entries = document.get("endpoints") if isinstance(document, dict) else None
    listed = [each for each in (entries if isinstance(entries, list) else []) if _is_named(each)]
    if not listed:
        s.skip_untested("discovery lists no endpoint with a name")
    for each in listed:
        s.at(s.server.discovery).expect(
            "TW-OVR-016", _NAME.fullmatch(each["name"]), "a valid endpoint name", each["name"]
        )
        place = each["href"] if isinstance(each.get("href"), str) else f"/v1/endpoints/{quote(each['name'])}"
        answer = await s.get(resolve(s.server.discovery, place))
        s.at(answer).status("TW-JOB-001", 200, f"for {place}")
        _judge_body(s, "TW-DSC-028", "endpoint", answer)
        description = answer.json if isinstance(answer.json, dict) else {}
        for name in ("input_schema", "value_schema"):
            foreign = [ref for ref in _refs(description.get(name)) if not ref.startswith("#")]
            s.at(answer).empty("TW-DSC-022", foreign, "no reference to another document")
            samples = description["examples"] if isinstance(description.get("examples"), list) else []
            fault = schema_fault(description.get(name), [] if foreign else [None, *samples])
            s.at(answer).empty("TW-DSC-017", fault, f"{name} that is a JSON Schema of draft 2020-12")


def _is_named(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("name"), str)


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
        s.at(endpoint.described).expect("TW-DSC-018", endpoint.examples, f"an example of {endpoint.name}")
        for example in endpoint.examples:
            fault = endpoint.input_violation(example)
            s.at(endpoint.described).expect(
                "TW-DSC-019", not fault, "an example that fits the input_schema of its endpoint", fault[:200]
            )
    for each in s.server.failed_examples:
        submit = each.exchange if each.exchange and each.exchange.method == "POST" else None
        rejected = each.exchange is None or (submit is not None and submit.status >= 400)
        s.at(each.exchange).expect(
            "TW-DSC-019", not rejected, f"an example of {each.request.endpoint} that is accepted", each.why
        )


@check("TW-DSC-020", "TW-DSC-021", whole_run=True, after="state")
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
                    wanted = f"a value that fits the value_schema of {endpoint.name}"
                    s.at(exchange).empty(("TW-DSC-020", "TW-DSC-021"), fault[:300], wanted)


@check("TW-DSC-003", "TW-DSC-011", after="browser")
async def capabilities_match_discovery(s: Session) -> None:
    """The server provides each capability that it declares. It rejects requests for other capabilities as section 2.3
    requires.
    """
    sample = s.any_sample()
    job, _ = await s.run_to_end(sample)
    asked = {
        "list": await s.get("/v1/jobs?limit=1"),
        "stream_tokens": await s.wire.request("POST", f"{job.path}/stream-token"),
        "snapshots_only": await s.stream(job, query="?diffs=0"),
        "inband_problems": await s.stream(job, query="?errors=inband"),
        "delete": await s.wire.request("DELETE", job.path),
    }
    for name, answer in asked.items():
        _judge_capability(s, name, answer)
    for name, member, value in (
        ("deadlines", "deadline_ms", 600_000),
        ("disconnect", "on_disconnect", "continue"),
        ("disconnect", "grace_ms", 60_000),
    ):
        _judge_capability(s, name, await s.post(sample, json=sample.body | {member: value}))
    if "batches" not in s.server.capabilities:
        _judge_capability(s, "batches", await s.post(sample, json={"inputs": sample.inputs}))


def _judge_capability(s: Session, name: str, answer: RecordedExchange) -> None:
    served = answer.status < 300
    if name in s.server.capabilities:
        s.at(answer).response(
            "TW-DSC-003", served, f"a successful response, because the server declares {name}"
        )
        return
    s.at(answer).response("TW-DSC-003", not served, f"an error for the undeclared capability {name}")
    allowed = UNDECLARED_CAPABILITY_ERRORS[name]
    sound = answer.outcome.startswith(allowed)
    s.at(answer).response("TW-DSC-011", sound, f"{' or '.join(allowed)} for the missing capability {name}")


@check("TW-DSC-023", whole_run=True, after="state")
async def text_is_never_retracted_without_rollback(s: Session) -> None:
    """An endpoint that declares `"rollback": false` never truncates or replaces text in the values of its items."""
    judged = False
    for step, before, after in _diffs_without(s, "rollback"):
        judged = True
        for old, new in zip(before, after, strict=False):
            held, value = old.get("value"), new.get("value")
            wanted = "a value whose texts begin with the texts of", held
            s.at(step.exchange, step.block).expect("TW-DSC-023", _extends(held, value), wanted, value)
    if not judged:
        s.skip_no_occasion("each endpoint declares `rollback`")


def _diffs_without(s: Session, capability: str) -> Iterator[tuple[Step, list[Any], list[Any]]]:
    """Yield the diffs of endpoints that do not declare a capability, each with the items before and after the diff."""
    jobs = {str(body["id"]): str(body.get("endpoint")) for each in s.wire.record for body in job_bodies(each)}
    names = {name for name, each in s.server.endpoints.items() if not each.capability(capability)}
    for step in s.histories().steps:
        if jobs.get(step.job) in names and step.block.type == "message" and step.before and step.after:
            yield step, step.before.value["items"], step.after.value["items"]


def _extends(old: Any, new: Any) -> bool:
    if old is new:  # successive states share their unchanged parts
        return True
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
    for step, before, after in _diffs_without(s, "streams"):
        for old, new in zip(before, after, strict=False):
            if old.get("value") != new.get("value"):
                where = s.at(step.exchange, step.block)
                once = old.get("value") is None and new["status"] not in {"queued", "running"}
                where.expect("TW-DSC-024", once, "one value, set in the event that ends the item", new)
                wanted = "a change of the status to succeeded in the same event as the value"
                where.expect("TW-BAT-006", new["status"] == "succeeded", wanted, new)


@check("TW-RES-052", whole_run=True)
async def expires_at_respects_state_ttl_s(s: Session) -> None:
    """The `expires_at` of a job is at least `state_ttl_s` seconds after its `ended_at`, or after its `created_at` if the
    server does not send `ended_at`.
    """
    kept = timedelta(seconds=min(s.server.limits.get("state_ttl_s", 0), MAX_COMPARED_SECONDS))
    for exchange in s.wire.record:
        for body in job_bodies(exchange):
            since = body.get("ended_at") or body.get("created_at")
            ended, done = _time(since), body.get("done")
            for expiry in (
                body.get("expires_at"),
                done.get("expires_at") if isinstance(done, dict) else None,
            ):
                if ended and (until := _time(expiry)):
                    late_enough = until >= ended + kept - CLOCK_TOLERANCE
                    wanted = f"at least {kept} after {since}"
                    s.at(exchange).expect("TW-RES-052", late_enough, wanted, expiry)


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
    if not limit:
        s.skip_untested("discovery does not declare max_body_bytes")
    if limit > 16 * 2**20:
        s.skip_untested(f"max_body_bytes is {limit}, which is too large for the suite to test")
    small = compact(sample.body)
    large = small + b" " * (limit + 1 - len(small))
    for body in (large, [large[:-1], large[-1:]]):
        answer = await s.post(sample, body=body, header=JSON)
        s.at(answer).refused(("TW-SEC-014", "TW-DSC-012"), 413, "body_too_large")
    control = await s.post(sample, body=small + b" " * min(1000, limit - len(small)), header=JSON)
    s.at(control).status("TW-DSC-012", 201, "for a body below the limit")
