"""Invariants for JSON, HTTP responses, and discovery."""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

from proof.reimplementations.plain_state import MalformedError, parse
from scenarios.transcripts.record import Exchange, checks, is_discovery, job_bodies
from support.spec_document import SPEC, breaches

# ---- JSON ----------------------------------------------------------------------------------------------------------


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


@checks("TW-OVR-007")
def values_have_at_most_56_levels(run):
    for step in run.steps:
        for item in (step.after or {"items": []})["items"]:
            if _depth(item["value"]) > 56:
                yield f"{step.event.id}: a value of depth {_depth(item['value'])}"


@checks("TW-OVR-001", "TW-OVR-002", "TW-OVR-003", "TW-OVR-004", "TW-OVR-005", "TW-OVR-006", "TW-DIF-032")
def all_json_is_valid(run):
    """JSON has finite numbers, exact integers, unique members, whole code points and bounded depth."""
    for exchange in run.exchanges:
        texts = [event.fields["data"] for event in exchange.events]
        if exchange.ended and not exchange.is_stream and "json" in exchange.headers.get("content-type", ""):
            texts.append(exchange.received.decode("utf-8", "replace"))
        for text in texts:
            try:
                parse(text)
            except MalformedError as error:
                yield f"{exchange.where}: {error}: {text[:200]}"


_FREE = {"value", "input_schema", "value_schema", "examples"}
"""Members whose content belongs to the endpoint."""
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


@checks("TW-OVR-026")
def null_is_used_only_where_allowed(run):
    for exchange in run.exchanges:
        if "/vocabulary" in exchange.path:
            continue
        bodies = [event.data for event in exchange.events if event.type != "message"]
        bodies += [] if exchange.json is None else [exchange.json]
        for found in (found for body in bodies for found in _nulls(body)):
            yield f"{exchange.where}: {found} is null"


# ---- responses -----------------------------------------------------------------------------------------------------


_SCHEMAS = {
    r"/v1": "discovery",
    r"/v1/endpoints/[^/]+": "endpoint",
    r"/v1/endpoints/[^/]+/vocabulary": "vocabulary",
    r"/v1/endpoints/[^/]+/jobs": "job",
    r"/v1/jobs": "job-list",
    r"/v1/jobs/[^/]+(/cancel)?": "job",
    r"/v1/jobs/[^/]+/stream-token": "stream-token",
}
"""Path → schema of a successful response."""


@checks(
    "TW-DSC-001", "TW-DSC-016", "TW-JOB-018", "TW-JOB-038", "TW-JOB-045", "TW-JOB-051", "TW-BRW-012", "TW-GEN-037"
)  # fmt: skip
def bodies_match_their_schemas(run):
    for exchange in (
        exchange for exchange in run.exchanges if exchange.status < 300 and exchange.json is not None
    ):
        name = next(name for path, name in _SCHEMAS.items() if re.fullmatch(path, exchange.path))
        for breach in breaches(name, exchange.json):
            yield f"{exchange.where}: {breach}"


@checks("TW-JOB-004", "TW-FRM-002")
def job_responses_are_not_cacheable(run):
    for exchange in run.exchanges:
        if exchange.is_of_jobs and "no-store" not in exchange.headers.get("cache-control", ""):
            yield f"{exchange.where}: Cache-Control is {exchange.headers.get('cache-control')!r}"


@checks("TW-FRM-001", "TW-FRM-003", "TW-FRM-004")
def streams_have_required_headers(run):
    for exchange in (exchange for exchange in run.exchanges if exchange.is_stream):
        media = exchange.headers["content-type"].lower().replace(" ", "")
        if media not in {"text/event-stream", "text/event-stream;charset=utf-8"}:
            yield f"{exchange.where}: {media}"
        if exchange.headers.get("x-accel-buffering") != "no" or "content-encoding" in exchange.headers:
            yield f"{exchange.where}: {exchange.headers}"


def _registry() -> dict[str, tuple[int, bool]]:
    text = (SPEC / "09-errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \| (yes|no) \|", text, re.MULTILINE)
    return {code: (int(status), retryable == "yes") for code, status, retryable in rows}


REGISTRY = _registry()


@checks("TW-ERR-001", "TW-ERR-002", "TW-ERR-003", "TW-ERR-004", "TW-ERR-020")
def errors_are_valid_problem_documents(run):
    for exchange in run.exchanges:
        problems = [event.data for event in exchange.events if event.type == "problem"]
        if exchange.status >= 400:
            if exchange.headers.get("content-type") != "application/problem+json":
                yield f"{exchange.where}: {exchange.headers.get('content-type')}"
                continue
            body = exchange.json if exchange.ended else None
            problems += [] if body is None else [body]
            if body is not None and body["status"] != exchange.status:
                yield f"{exchange.where}: the body has status {body['status']}"
        problems += [item["error"] for item in items_of(exchange) if "error" in item]
        for problem in problems:
            kind = REGISTRY.get(problem["code"])
            if found := breaches("problem", problem):
                yield f"{exchange.where}: {found[0]}"
            elif kind is None and not {".", ":"} & set(problem["code"]):
                yield f"{exchange.where}: unregistered code {problem['code']!r}"
            elif kind is not None and kind != (problem["status"], problem.get("retryable", False)):
                yield f"{exchange.where}: {problem} does not match the registry entry {kind}"


def items_of(exchange: Exchange) -> Iterator[Any]:
    for body in job_bodies(exchange):
        yield from body.get("state", {"items": []})["items"]


@checks("TW-ERR-006", "TW-ERR-007")
def retryable_errors_have_retry_after(run):
    for exchange in (exchange for exchange in run.exchanges if exchange.status in {409, 429, 503}):
        seconds, wait = exchange.headers.get("retry-after", ""), (exchange.json or {}).get("retry_after_ms")
        if not re.fullmatch(r"[1-9][0-9]*", seconds) or type(wait) is not int or wait > 1000 * int(seconds):
            yield f"{exchange.where}: Retry-After {seconds!r}, retry_after_ms {wait!r}"


_INSIDES = re.compile(r'Traceback|File \\?"|site-packages|\.py\b|/(?:home|usr|root|tmp|work|var)/')


@checks("TW-ERR-008")
def errors_do_not_leak_internals(run):
    """Problems contain no stack trace and no path of the server's file system."""
    for exchange in run.exchanges:
        texts = [json.dumps(event.data) for event in exchange.events if event.type == "problem"]
        texts += [json.dumps(item["error"]) for item in items_of(exchange) if "error" in item]
        texts += [exchange.received.decode("utf-8", "replace")] if exchange.status >= 400 else []
        for text in texts:
            if found := _INSIDES.search(text):
                yield f"{exchange.where}: {found[0]!r} in {text[:300]}"


@checks("TW-SEC-003")
def unauthorized_responses_have_www_authenticate(run):
    for exchange in (exchange for exchange in run.exchanges if exchange.status == 401):
        if "www-authenticate" not in exchange.headers:
            yield f"{exchange.where}: no WWW-Authenticate"


@checks("TW-BRW-005", "TW-BRW-006", "TW-BRW-007", "TW-BRW-009", "TW-BRW-011")
def allowed_origins_can_read_every_response(run):
    """Allowed origins may read every response, including errors. Other origins may read none."""
    for exchange in run.exchanges:
        origin, allowed = (
            exchange.request_headers.get("origin"),
            exchange.headers.get("access-control-allow-origin"),
        )
        may = origin is not None and (origin in run.origins or "*" in run.origins)
        if may != (allowed in {origin, "*"} and allowed is not None):
            yield f"{exchange.where}: for origin {origin}, Access-Control-Allow-Origin is {allowed!r}"
        if allowed == "*" and exchange.headers.get("access-control-allow-credentials") == "true":
            yield f"{exchange.where}: Access-Control-Allow-Origin * together with credentials"
        if allowed not in {None, "*"} and "origin" not in exchange.headers.get("vary", "").lower():
            yield f"{exchange.where}: Vary lacks Origin"
        exposed = {"location", "content-location", "retry-after", "idempotency-replayed"}
        if may and not exposed <= set(re.split(r"[ ,]+", _exposed(exchange).lower())):
            yield f"{exchange.where}: Access-Control-Expose-Headers is {_exposed(exchange)!r}"


def _exposed(exchange: Exchange) -> str:
    return exchange.headers.get("access-control-expose-headers", "")


@checks("TW-OVR-013", "TW-OVR-014")
def links_point_to_protocol_urls(run):
    """Links stay at the origin of their response and below one root, and contain no raw space."""
    roots = set()
    for exchange in run.exchanges:
        links = [
            exchange.headers[name] for name in ("location", "content-location") if name in exchange.headers
        ]
        links += [event.data["events"] for event in exchange.events if event.type == "hello"]
        body = exchange.json if isinstance(exchange.json, dict) and exchange.status < 300 else {}
        for part in (body, *body.get("jobs", ())):
            links += [*part.get("links", {}).values()]
        links += [one["href"] for one in body.get("endpoints", ())] + [
            body[n] for n in ("next",) if n in body
        ]
        for link in links:
            place = urljoin(f"http://here{exchange.url}", link)
            if not place.startswith("http://here/") or "/v1" not in place or re.search(r"[^!-~]", link):
                yield f"{exchange.where}: invalid link {link!r}"
            else:
                roots.add(urlsplit(place).path.partition("/v1")[0])
    if len(roots) > 1:
        yield f"links have several roots: {sorted(roots)}"


# ---- discovery -----------------------------------------------------------------------------------------------------


@checks("TW-DSC-005")
def discovery_document_does_not_change(run):
    discoveries = [
        exchange.json for exchange in run.exchanges if is_discovery(exchange) and "colour" not in exchange.url
    ]
    for one in discoveries[1:]:
        if {**one, "endpoints": 0} != {**discoveries[0], "endpoints": 0}:
            yield f"discovery says {one}, and before {discoveries[0]}"


@checks("TW-DSC-014", "TW-DSC-015")
def limits_meet_their_minimum(run):
    limits = (run.discovery or {}).get("limits")
    if limits is not None and (
        limits["max_depth"] != 64 or min(limits["max_event_bytes"], limits["max_state_bytes"]) < 1024
    ):
        yield f"the limits are too small: {limits}"


def _used(exchange: Exchange) -> Iterator[tuple[str, bool]]:
    """The capabilities that a request needs, and whether the server served it."""
    query = parse_qs(urlsplit(exchange.url).query)
    served = exchange.status < 300
    if exchange.path.endswith("/v1/jobs") and exchange.method == "GET":
        yield "list", served
    if exchange.method == "DELETE" and "/v1/jobs/" in exchange.path:
        yield "delete", served
    if exchange.path.endswith("/stream-token") and exchange.method == "POST":
        yield "stream_tokens", served
    if query.get("diffs") == ["0"]:
        yield "snapshots_only", served
    if query.get("errors") == ["inband"]:
        yield "inband_problems", served
    if exchange.is_submit and b'"inputs"' in exchange.request_body:
        yield "batches", served


@checks("TW-DSC-003", "TW-DSC-011")
def capabilities_match_discovery(run):
    """Capabilities that were used successfully are listed.

    Requests for listed capabilities are not refused as unknown.
    """
    named = (run.discovery or {}).get("capabilities")
    if named is None:
        return
    refusals = {"not_found", "method_not_allowed", "bad_parameter"}
    for exchange in run.exchanges:
        for capability, served in _used(exchange):
            code = exchange.json.get("code") if isinstance(exchange.json, dict) else None
            absent = code in refusals and not re.search("after|min_interval|limit=", exchange.url)
            if (served and capability not in named) or (absent and capability in named):
                yield f"{exchange.where}: capability {capability} does not match the listed ones: {named}"


@checks("TW-RES-052", "TW-RES-028")
def jobs_are_kept_until_purged_or_expired(run):
    """A 410 follows a DELETE or `expires_at`, which is at least `state_ttl_s` after the end of the job."""
    ttl = (run.discovery or {}).get("limits", {}).get("state_ttl_s", 0)
    purged: set[str] = set()
    expiry_times: dict[str, float] = {}
    for exchange in run.exchanges:
        name = exchange.path.partition("/v1/jobs/")[2].partition("/")[0]
        if exchange.method == "DELETE" and exchange.status == 204:
            purged.add(name)
        for body in job_bodies(exchange):
            if "expires_at" in body:
                expiry_times[body["id"]] = _seconds(body["expires_at"])
                if expiry_times[body["id"]] - _seconds(body["ended_at"]) < ttl - 1:
                    yield f"{exchange.where}: ended_at {body['ended_at']}, expires_at {body['expires_at']}, state_ttl_s {ttl}"
        if (
            exchange.status == 410
            and name
            and name not in purged
            and exchange.at < expiry_times.get(name, 0) - 1
        ):
            yield f"{exchange.where}: 410 before expires_at"


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
