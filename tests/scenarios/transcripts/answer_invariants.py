"""What holds for all JSON and all answers, and for what a server says of itself."""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

from proof.reimplementations.plain_state import MalformedError, parse
from scenarios.transcripts.record import Talk, is_discovery, job_bodies, judges
from support.spec_document import SPEC, breaches

# ---- JSON ----------------------------------------------------------------------------------------------------------


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


@judges("TW-OVR-007")
def values_have_at_most_56_levels(run):
    for step in run.steps:
        for item in (step.after or {"items": []})["items"]:
            if _depth(item["value"]) > 56:
                yield f"{step.event.id}: a value of depth {_depth(item['value'])}"


@judges("TW-OVR-001", "TW-OVR-002", "TW-OVR-003", "TW-OVR-004", "TW-OVR-005", "TW-OVR-006", "TW-DIF-032")
def all_json_is_valid(run):
    """Finite numbers, exact integers, unique members, whole code points, bounded depth."""
    for talk in run.talks:
        texts = [event.fields["data"] for event in talk.events]
        if talk.ended and not talk.is_stream and "json" in talk.headers.get("content-type", ""):
            texts.append(talk.received.decode("utf-8", "replace"))
        for text in texts:
            try:
                parse(text)
            except MalformedError as error:
                yield f"{talk.where}: {error}: {text[:200]}"


_FREE = {"value", "input_schema", "value_schema", "examples"}
"""Members whose content is the endpoint's."""
_NULL_ALLOWED = {"done"}


def _nulls(value: Any, at: str = "") -> Iterator[str]:
    if isinstance(value, list):
        for child in value:
            yield from _nulls(child, at)
    elif isinstance(value, dict):
        for name, child in value.items():
            if child is None and name not in _NULL_ALLOWED | _FREE:
                yield f"{at}/{name}"
            elif name not in _FREE:
                yield from _nulls(child, f"{at}/{name}")


@judges("TW-OVR-026")
def null_is_used_only_where_allowed(run):
    for talk in run.talks:
        if "/vocabulary" in talk.path:
            continue
        bodies = [event.data for event in talk.events if event.type != "message"]
        bodies += [] if talk.json is None else [talk.json]
        for found in (found for body in bodies for found in _nulls(body)):
            yield f"{talk.where}: {found} is null"


# ---- answers -------------------------------------------------------------------------------------------------------


_SCHEMAS = {
    r"/v1": "discovery",
    r"/v1/endpoints/[^/]+": "endpoint",
    r"/v1/endpoints/[^/]+/vocabulary": "vocabulary",
    r"/v1/endpoints/[^/]+/jobs": "job",
    r"/v1/jobs": "job-list",
    r"/v1/jobs/[^/]+(/cancel)?": "job",
    r"/v1/jobs/[^/]+/stream-token": "stream-token",
}
"""Path → the schema of what is answered there with success."""


@judges(
    "TW-DSC-001", "TW-DSC-016", "TW-JOB-018", "TW-JOB-038", "TW-JOB-045", "TW-JOB-051", "TW-BRW-012", "TW-GEN-037"
)  # fmt: skip
def bodies_match_their_schemas(run):
    for talk in (talk for talk in run.talks if talk.status < 300 and talk.json is not None):
        name = next(name for path, name in _SCHEMAS.items() if re.fullmatch(path, talk.path))
        for breach in breaches(name, talk.json):
            yield f"{talk.where}: {breach}"


@judges("TW-JOB-004", "TW-FRM-002")
def job_responses_are_not_cacheable(run):
    for talk in run.talks:
        if talk.is_of_jobs and "no-store" not in talk.headers.get("cache-control", ""):
            yield f"{talk.where}: Cache-Control is {talk.headers.get('cache-control')!r}"


@judges("TW-FRM-001", "TW-FRM-003", "TW-FRM-004")
def streams_have_required_headers(run):
    for talk in (talk for talk in run.talks if talk.is_stream):
        media = talk.headers["content-type"].lower().replace(" ", "")
        if media not in {"text/event-stream", "text/event-stream;charset=utf-8"}:
            yield f"{talk.where}: {media}"
        if talk.headers.get("x-accel-buffering") != "no" or "content-encoding" in talk.headers:
            yield f"{talk.where}: {talk.headers}"


def _registry() -> dict[str, tuple[int, bool]]:
    text = (SPEC / "09-errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \| (yes|no) \|", text, re.MULTILINE)
    return {code: (int(status), retryable == "yes") for code, status, retryable in rows}


REGISTRY = _registry()


@judges("TW-ERR-001", "TW-ERR-002", "TW-ERR-003", "TW-ERR-004", "TW-ERR-020")
def errors_are_valid_problem_documents(run):
    for talk in run.talks:
        problems = [event.data for event in talk.events if event.type == "problem"]
        if talk.status >= 400:
            if talk.headers.get("content-type") != "application/problem+json":
                yield f"{talk.where}: {talk.headers.get('content-type')}"
                continue
            body = talk.json if talk.ended else None
            problems += [] if body is None else [body]
            if body is not None and body["status"] != talk.status:
                yield f"{talk.where}: the body says {body['status']}"
        problems += [item["error"] for item in items_of(talk) if "error" in item]
        for problem in problems:
            kind = REGISTRY.get(problem["code"])
            if found := breaches("problem", problem):
                yield f"{talk.where}: {found[0]}"
            elif kind is None and not {".", ":"} & set(problem["code"]):
                yield f"{talk.where}: the code {problem['code']!r}"
            elif kind is not None and kind != (problem["status"], problem.get("retryable", False)):
                yield f"{talk.where}: {problem} is not {kind}"


def items_of(talk: Talk) -> Iterator[Any]:
    for body in job_bodies(talk):
        yield from body.get("state", {"items": []})["items"]


@judges("TW-ERR-006", "TW-ERR-007")
def retryable_errors_have_retry_after(run):
    for talk in (talk for talk in run.talks if talk.status in {409, 429, 503}):
        seconds, wait = talk.headers.get("retry-after", ""), (talk.json or {}).get("retry_after_ms")
        if not re.fullmatch(r"[1-9][0-9]*", seconds) or type(wait) is not int or wait > 1000 * int(seconds):
            yield f"{talk.where}: Retry-After {seconds!r}, retry_after_ms {wait!r}"


_INSIDES = re.compile(r'Traceback|File \\?"|site-packages|\.py\b|/(?:home|usr|root|tmp|work|var)/')


@judges("TW-ERR-008")
def errors_do_not_leak_internals(run):
    """No stack trace and no path of the server's file system in a problem."""
    for talk in run.talks:
        texts = [json.dumps(event.data) for event in talk.events if event.type == "problem"]
        texts += [json.dumps(item["error"]) for item in items_of(talk) if "error" in item]
        texts += [talk.received.decode("utf-8", "replace")] if talk.status >= 400 else []
        for text in texts:
            if found := _INSIDES.search(text):
                yield f"{talk.where}: {found[0]!r} in {text[:300]}"


@judges("TW-SEC-003")
def unauthorized_responses_have_www_authenticate(run):
    for talk in (talk for talk in run.talks if talk.status == 401):
        if "www-authenticate" not in talk.headers:
            yield f"{talk.where}: no WWW-Authenticate"


@judges("TW-BRW-005", "TW-BRW-006", "TW-BRW-007", "TW-BRW-009", "TW-BRW-011")
def allowed_origins_can_read_every_response(run):
    """…errors included, and those of no other."""
    for talk in run.talks:
        origin, allowed = talk.asked.get("origin"), talk.headers.get("access-control-allow-origin")
        may = origin is not None and (origin in run.origins or "*" in run.origins)
        if may != (allowed in {origin, "*"} and allowed is not None):
            yield f"{talk.where}: from {origin}, Access-Control-Allow-Origin is {allowed!r}"
        if allowed == "*" and talk.headers.get("access-control-allow-credentials") == "true":
            yield f"{talk.where}: any page, with credentials"
        if allowed not in {None, "*"} and "origin" not in talk.headers.get("vary", "").lower():
            yield f"{talk.where}: no Vary"
        exposed = {"location", "content-location", "retry-after", "idempotency-replayed"}
        if may and not exposed <= set(re.split(r"[ ,]+", _exposed(talk).lower())):
            yield f"{talk.where}: exposed are {_exposed(talk)!r}"


def _exposed(talk: Talk) -> str:
    return talk.headers.get("access-control-expose-headers", "")


@judges("TW-OVR-013", "TW-OVR-014")
def links_point_to_protocol_urls(run):
    """Resolved against the URL of their answer they stay at its origin, below one root, and have no raw space."""
    roots = set()
    for talk in run.talks:
        links = [talk.headers[name] for name in ("location", "content-location") if name in talk.headers]
        links += [event.data["events"] for event in talk.events if event.type == "hello"]
        body = talk.json if isinstance(talk.json, dict) and talk.status < 300 else {}
        for part in (body, *body.get("jobs", ())):
            links += [*part.get("links", {}).values()]
        links += [one["href"] for one in body.get("endpoints", ())] + [
            body[n] for n in ("next",) if n in body
        ]
        for link in links:
            place = urljoin(f"http://here{talk.url}", link)
            if not place.startswith("http://here/") or "/v1" not in place or re.search(r"[^!-~]", link):
                yield f"{talk.where}: the link {link!r}"
            else:
                roots.add(urlsplit(place).path.partition("/v1")[0])
    if len(roots) > 1:
        yield f"links lead to {sorted(roots)}"


# ---- what a server says of itself ----------------------------------------------------------------------------------


@judges("TW-DSC-005")
def discovery_document_does_not_change(run):
    told = [talk.json for talk in run.talks if is_discovery(talk) and "colour" not in talk.url]
    for one in told[1:]:
        if {**one, "endpoints": 0} != {**told[0], "endpoints": 0}:
            yield f"discovery says {one}, and before {told[0]}"


@judges("TW-DSC-014", "TW-DSC-015")
def limits_meet_their_minimum(run):
    limits = (run.discovery or {}).get("limits")
    if limits is not None and (
        limits["max_depth"] != 64 or min(limits["max_event_bytes"], limits["max_state_bytes"]) < 1024
    ):
        yield f"{limits}"


def _used(talk: Talk) -> Iterator[tuple[str, bool]]:
    """The capabilities that a request needs, and whether it was served."""
    query = parse_qs(urlsplit(talk.url).query)
    served = talk.status < 300
    if talk.path.endswith("/v1/jobs") and talk.method == "GET":
        yield "list", served
    if talk.method == "DELETE" and "/v1/jobs/" in talk.path:
        yield "delete", served
    if talk.path.endswith("/stream-token") and talk.method == "POST":
        yield "stream_tokens", served
    if query.get("diffs") == ["0"]:
        yield "snapshots_only", served
    if query.get("errors") == ["inband"]:
        yield "inband_problems", served
    if talk.is_submit and b'"inputs"' in talk.sent:
        yield "batches", served


@judges("TW-DSC-003", "TW-DSC-011")
def capabilities_match_discovery(run):
    """What is used with success is named; what is named is not refused as if it were not there."""
    named = (run.discovery or {}).get("capabilities")
    if named is None:
        return
    refusals = {"not_found", "method_not_allowed", "bad_parameter"}
    for talk in run.talks:
        for capability, served in _used(talk):
            code = talk.json.get("code") if isinstance(talk.json, dict) else None
            absent = code in refusals and not re.search("after|min_interval|limit=", talk.url)
            if (served and capability not in named) or (absent and capability in named):
                yield f"{talk.where}: {capability}, and named are {named}"


@judges("TW-RES-026", "TW-RES-028")
def jobs_are_kept_until_purged_or_expired(run):
    """410 needs a DELETE, or a time after `expires_at`; `expires_at` is `state_ttl_s` after the end at least."""
    ttl = (run.discovery or {}).get("limits", {}).get("state_ttl_s", 0)
    purged: set[str] = set()
    due: dict[str, float] = {}
    for talk in run.talks:
        name = talk.path.partition("/v1/jobs/")[2].partition("/")[0]
        if talk.method == "DELETE" and talk.status == 204:
            purged.add(name)
        for body in job_bodies(talk):
            if "expires_at" in body:
                due[body["id"]] = _seconds(body["expires_at"])
                if due[body["id"]] - _seconds(body["ended_at"]) < ttl - 1:
                    yield f"{talk.where}: {body['ended_at']} to {body['expires_at']}, state_ttl_s is {ttl}"
        if talk.status == 410 and name and name not in purged and talk.at < due.get(name, 0) - 1:
            yield f"{talk.where}: before its time is over"


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
