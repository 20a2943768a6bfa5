"""Every invariant for transcripts passes a correct run and reports a violation of its requirement."""

import base64
import json

import pytest

from scenarios.transcripts.invariants import RULES, Exchange, Run, violations
from support.spec_document import SCHEMAS, SPEC, document, extract

JOB = "2yJq8sVbT1mHkP0dXw4RcA"
HELLO = f'{{"protocol":"tidewire/1","job":"{JOB}","events":"/v1/jobs/{JOB}/events","head":"1-1","heartbeat_ms":15000}}'
STREAM = f"""retry:900

event:hello
data:{HELLO}

id:1-1
event:snapshot
data:{{"state":{{"status":"queued","items":[{{"status":"queued","value":""}}],"usage":{{}},"notes":[]}},"columns":["/items/0/value"],"reason":"start"}}

id:1-2
data:[["s","/items/0/status","running"],["s","/status","running"],["s","/items/0/stable",{{"":0}}]]

event:progress
data:{{"current":1}}

id:1-3
data:"Hello"

event:ping
data:{{"head":"1-3"}}

id:1-4
data:[["s","/items/0/stable",{{"":5}}]]

id:1-5
data:{{"ops":[["s","/items/0/status","succeeded"]],"check":[["/items/0/value",5,4157704578]]}}

id:1-6
event:done
data:{{"status":"succeeded","usage":{{}},"check":[],"digest":"5888dedc5ad62758","expires_at":"2026-03-01T13:00:00Z"}}

"""
DISCOVERY = SCHEMAS["discovery"]["examples"][0] | {
    "capabilities": ["list", "delete", "snapshots_only", "batches"],
    "limits": SCHEMAS["discovery"]["examples"][0]["limits"]
    | {
        "max_depth": 64,
        "max_event_bytes": 2048,
        "max_state_bytes": 2048,
        "state_ttl_s": 3600,
    },
    "endpoints": [{"name": "e", "href": "/v1/endpoints/e"}],
}
BODY = {
    "id": JOB,
    "endpoint": "e",
    "status": "succeeded",
    "batch": False,
    "state": {
        "status": "succeeded",
        "items": [{"status": "succeeded", "value": "Hello", "stable": {"": 5}}],
        "usage": {},
        "notes": [],
    },
    "columns": ["/items/0/value"],
    "cursor": "1-6",
    "attempt": 1,
    "created_at": "2026-03-01T12:00:00Z",
    "ended_at": "2026-03-01T12:00:00Z",
    "expires_at": "2026-03-01T13:00:00Z",
    "done": SCHEMAS["done"]["examples"][0],
    "links": dict.fromkeys(("self", "events", "cancel"), f"/v1/jobs/{JOB}"),
}
PROBLEM = {"code": "queue_full", "title": "x", "status": 429, "retryable": True, "retry_after_ms": 2000}
E = {"e": {"value_schema": {"type": "string"}, "capabilities": {"streams": True, "rollback": True}}}
PLAIN = {"e": {"value_schema": {}, "capabilities": {}}}
NO_STORE = {"cache-control": "no-store"}


def exchange(target, status, body, *, request_headers=None, request_body=b"", at=0.0, ended=True, **headers):
    method, url = target.split(" ")
    kind = "application/problem+json" if status >= 400 else "application/json"
    header = (
        NO_STORE | {"content-type": kind} | {name.replace("_", "-"): value for name, value in headers.items()}
    )
    if isinstance(body, str):
        header |= {"content-type": "text/event-stream", "x-accel-buffering": "no"} | headers
    received = (
        body.encode()
        if isinstance(body, str)
        else body
        if isinstance(body, bytes)
        else json.dumps(body).encode()
    )
    return Exchange(method, url, request_headers or {}, request_body, status, header, received, ended, at)


def follow(text=STREAM, **more):
    return exchange("POST /v1/endpoints/e/jobs", 200, text, location=f"/v1/jobs/{JOB}", **more)


def read(**members):
    return exchange(f"GET /v1/jobs/{JOB}", 200, BODY | members)


def discover(**members):
    return exchange("GET /v1", 200, DISCOVERY | members)


def refused(status=429, **members):
    headers = {"retry_after": "2"} if status in {409, 429, 503} else {}
    return exchange("GET /v1/jobs/x", status, PROBLEM | {"status": status} | members, **headers)


def modified(old, new, count=1):
    assert old in STREAM
    return Run([follow(STREAM.replace(old, new, count)), read()], E)


def tokens(**columns):
    """A stream of `generate` whose only event sets these columns."""
    value = json.dumps({"text": "", "finish_reason": None} | columns)
    text = STREAM.partition("id:1-2")[0].replace('"value":""', f'"value":{value}')
    known = [base64.b64encode(token).decode() for token in (b"a", b"<end>", b"c")]
    return Run(
        [follow(text.replace('["/items/0/value"]', "[]"), ended=False)],
        {"generate": {"vocabulary": {"tokens": known, "special": [1]}}},
    )


def test_a_correct_run_passes():
    page = {"origin": "https://page.example"}
    cors = {
        "access-control-allow-origin": "https://page.example",
        "access-control-expose-headers": "Location, Content-Location, Retry-After, Idempotency-Replayed",
        "vary": "Origin",
    }
    foreign = exchange(
        "GET /v1/jobs/x",
        404,
        PROBLEM | {"code": "job_not_found", "status": 404, "retryable": False},
        request_headers=page,
    )
    foreign.headers |= cors
    good = Run(
        [discover(), follow(), follow(), read(), refused(), foreign], E, frozenset({"https://page.example"})
    )
    assert violations(good) == []


DEEP = "[" * 57 + "]" * 57
RESTARTED = (
    STREAM.partition("id:1-5")[0]
    + 'id:7-5\nevent:snapshot\ndata:{"state":{"status":"queued","items":[{"status":"queued","value":""}],'
    '"usage":{},"notes":[]},"columns":["/items/0/value"],"reason":"restart"}\n\n'
)
BREACHES = {
    "streams_follow_the_grammar": [
        modified('data:"Hello"', 'data:"Hel\r'),
        modified("id:1-3\n", "id:\n"),
        modified('data:"Hello"', 'data:"Hel\ndata:lo"'),
        modified("retry:900", "\ufeffretry:900"),
        modified("\n\nid:1-6", "\nname:x\n\nid:1-6"),
        Run([follow(STREAM[:-1])]),
    ],
    "events_match_their_schemas": [
        modified("event:progress\n", "event:progress\nid:1-3\n"),
        modified("id:1-3\n", ""),
        modified('{"current":1}', '{"current":"one"}'),
        modified("event:progress", "event:weather"),
    ],
    "ids_are_consecutive": [
        modified("id:1-3", "id:1-4"),
        modified("id:1-3", "id:2-3"),
        modified("id:1-3", "id:1-03"),
    ],
    "closing_event_is_last": [
        Run([follow(STREAM + 'event:ping\ndata:{"head":"1-6"}\n\n')]),
        Run([follow(STREAM.partition("id:1-6")[0])]),
    ],
    "streams_begin_with_hello": [
        modified("event:hello", "event:goaway"),
        modified("retry:900\n", ":\n"),
        Run([follow(STREAM.replace("id:1-1\nevent:snapshot", ":\nevent:x"))]),
    ],
    "ping_heads_were_sent_before": [modified('{"head":"1-3"}', '{"head":"1-7"}')],
    "events_stay_within_size_limits": [
        Run([discover(), follow(STREAM.replace("Hello", "o" * 2048))]),
        Run([discover(), follow(STREAM.replace('"notes":[]', f'"notes":[{{"level":"info","text":"{"o" * 2048}"}}]'))]),
    ],
    "diffs_apply_and_checks_hold": [
        modified("4157704578", "4157704579"),
        modified("5888dedc5ad62758", "5888dedc5ad62750"),
        modified('data:"Hello"', 'data:[["a","/items/7/value","x"]]'),
        modified('{"ops":[["s","/items/0/status","succeeded"]]', '{"ops":[["t","/items/0/value",1]]'),
        modified('["s","/status","running"]', '["s","/status","awake"]'),
    ],
    "each_id_has_one_state": [
        Run([follow(), read(state=BODY["state"] | {"usage": {"tokens": 1}})]),
        Run([follow(), follow(STREAM.replace('"Hello"', '"Hullo"'))]),
    ],
    "stable_never_decreases_or_exceeds_its_text": [
        modified('{"":5}', '{"":6}'),
        modified('[["s","/items/0/stable",{"":5}]]', '[["d","/items/0/stable"]]'),
    ],
    "columns_and_item_count_are_constant": [
        Run([follow(), read(columns=[])]),
        modified('[["s","/items/0/stable",{"":5}]]', '[["s","/items/1",{"status":"queued","value":1}]]'),
    ],
    "item_status_transitions_are_valid": [
        modified('["s","/items/0/status","running"]', '["s","/items/0/status","succeeded"]'),
        modified('[["s","/items/0/stable",{"":5}]]', '[["s","/items/0/error",{"code":"internal","title":"x","status":500}]]'),
    ],
    "new_epoch_begins_with_a_snapshot": [
        Run([follow(RESTARTED, ended=False), read(attempt=1, cursor="7-6")]),
        Run([follow(RESTARTED.replace("id:7-5", "id:10002-5"), ended=False)]),
        Run([follow(RESTARTED.replace("id:7-5", "id:7-4"), ended=False)]),
        Run([follow(RESTARTED.replace('"reason":"restart"', '"reason":"start"'), ended=False)]),
        Run([follow(), follow(STREAM.partition("id:1-1")[0] + "id:7-5" + RESTARTED.partition("id:7-5")[2], ended=False)]),
    ],
    "values_have_at_most_56_levels": [modified('"items":[{"status":"queued","value":""}]', f'"items":[{{"status":"queued","value":{DEEP}}}]')],
    "all_json_is_valid": [
        modified('data:"Hello"', 'data:"Hell\\ud800"'),
        modified('{"current":1}', '{"current":1,"current":2}'),
        Run([read(extra=2**53 + 1)]),
    ],
    "null_is_used_only_where_allowed": [Run([read(started_at=None)]), modified('{"current":1}', '{"current":1,"total":null}')],
    "bodies_match_their_schemas": [
        Run([discover(heartbeat_ms=0)]),
        Run([exchange("GET /v1/endpoints/e", 200, {"name": "e"})]),
        Run([exchange("POST /v1/endpoints/e/jobs", 201, {"id": JOB})]),
        Run([read(attempt=0)]),
        Run([exchange("GET /v1/jobs", 200, {"jobs": [{}]})]),
        Run([exchange(f"POST /v1/jobs/{JOB}/cancel", 202, {"id": JOB})]),
        Run([exchange(f"POST /v1/jobs/{JOB}/stream-token", 200, {"url": "/v1"})]),
        Run([exchange("GET /v1/endpoints/e/vocabulary", 200, {"tokens": []})]),
    ],
    "job_responses_are_not_cacheable": [Run([exchange("GET /v1/jobs/x", 200, BODY, cache_control="private")])],
    "streams_have_required_headers": [Run([follow(content_encoding="gzip")]), Run([follow(**{"x-accel-buffering": "yes"})])],
    "errors_are_valid_problem_documents": [
        Run([refused(code="of_our_own")]),
        Run([refused(status=503)]),
        Run([exchange("GET /v1/jobs/x", 404, {"code": "job_not_found", "title": "x", "status": 410})]),
        Run([exchange("GET /v1/jobs/x", 404, {}, content_type="text/html")]),
    ],
    "retryable_errors_have_retry_after": [Run([exchange("GET /v1/jobs/x", 429, PROBLEM)]), Run([refused(retry_after_ms=2001)])],
    "errors_do_not_leak_internals": [Run([refused(detail='File "/srv/x.py", line 3')]), Run([refused(detail="in /home/me")])],
    "unauthorized_responses_have_www_authenticate": [Run([refused(status=401, code="unauthorized")])],
    "allowed_origins_can_read_every_response": [
        Run([exchange("GET /v1", 200, {}, request_headers={"origin": "https://page.example"})], {}, frozenset({"https://page.example"})),
        Run([exchange("GET /v1", 200, {}, request_headers={"origin": "https://x.example"}, access_control_allow_origin="*")]),
        Run([exchange("GET /v1", 200, {}, request_headers={"origin": "https://x.example"}, access_control_allow_origin="https://x.example")], {}, frozenset({"https://x.example"})),
    ],
    "links_point_to_protocol_urls": [
        Run([read(links={"self": "https://elsewhere.example/v1/jobs/x"})]),
        Run([read(links={"self": "/a b/v1"})]),
        Run([read(links={"self": "/v1/jobs/x", "events": "/ai/v1/jobs/x/events"})]),
    ],
    "discovery_document_does_not_change": [Run([discover(), discover(capabilities=[])])],
    "limits_meet_their_minimum": [Run([discover(limits=DISCOVERY["limits"] | {"max_event_bytes": 1023})])],
    "capabilities_match_discovery": [
        Run([discover(capabilities=[]), exchange("GET /v1/jobs", 200, {"jobs": []})]),
        Run([discover(), exchange("GET /v1/jobs", 404, PROBLEM | {"code": "not_found"})]),
    ],
    "jobs_are_kept_until_purged_or_expired": [
        Run([discover(), read(expires_at="2026-03-01T12:59:00Z")]),
        Run([read(), exchange(f"GET /v1/jobs/{JOB}", 410, PROBLEM, at=1.0)]),
    ],
    "values_match_value_schema": [Run([read()], {"e": E["e"] | {"value_schema": {"type": "array"}}})],
    "text_is_never_retracted_without_rollback": [
        Run([follow(STREAM.replace('[["s","/items/0/stable",{"":5}]]', '[["t","/items/0/value",1]]'), ended=False), read()], PLAIN)
    ],
    "value_is_set_once_without_streaming": [Run([follow(), read()], PLAIN)],
    "token_columns_stay_aligned": [
        tokens(token_ids=[1], logprobs=[]),
        tokens(top_ids=[[1, 2]], top_logprobs=[[-2.0, -1.0]]),
        tokens(top_ids=[[1, 2]], top_logprobs=[[-0.1, -0.2]]),
    ],
    "text_matches_its_tokens": [
        tokens(text="ab", token_ids=[0, 2], token_text=["a", "c"]),
        tokens(text="a", token_ids=[0], token_text=["b"]),
        tokens(text="ac", token_ids=[0, 1, 2], token_text=["a", "<end>", "b"]),
    ],
    "ephemeral_events_carry_no_results": [modified('{"current":1}', '{"current":1,"text":"Hello"}')],
}  # fmt: skip


def test_every_rule_has_a_violating_run():
    assert BREACHES.keys() == RULES.keys()


@pytest.mark.parametrize(("rule", "run"), [(rule, run) for rule, runs in BREACHES.items() for run in runs])
def test_a_violation_is_reported_by_its_rule(rule, run):
    assert list(RULES[rule].judge(run))


def test_the_readme_lists_the_requirements_of_the_rules():
    text = (SPEC / "README.md").read_text(encoding="utf-8")
    listed = extract.reasons(text, extract.WATCHED_HEADING)
    judged = {name for _, names in RULES.values() for name in names}
    assert {name for name, by in listed.items() if by.startswith("every transcript: ")} == judged
    assert listed.keys() <= {one.id for one in document.requirements}
