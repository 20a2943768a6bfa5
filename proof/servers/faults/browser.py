"""Faulty servers with errors in CORS, stream tokens or in-band problems."""

import json
import math
import re

from proof.servers.expected_side_failures import IDS_DECREASE, WRONG_ERRORS
from proof.servers.fault_helpers import (
    drop_header,
    refuse,
    rewrite_body,
    rewrite_events,
    rewrite_query,
    set_header,
    set_request_header,
)
from proof.servers.fault_proxy import problem
from proof.servers.faults import fault, faulty_server
from proof.servers.server_process import ORIGIN
from tidewire_server.jobs.admission.stream_tokens import StreamTokens


def refuse_purged_jobs(condition):
    """Return hooks that refuse a request for the stream of a purged job with 410, if it satisfies a condition."""

    def note(exchange, status, body):
        if exchange.method == "DELETE" and status == 204:
            exchange.shared[f"{exchange.path}/events"] = "purged"

    purged = lambda exchange: exchange.path in exchange.shared and condition(exchange)  # noqa: E731
    return {"bodies": note, "instead": refuse(purged, 410, "job_expired")}


# fmt: off
fault("errors_without_cors", "TW-BRW-005", "browser.allowed_origins_can_read_every_response",
      "Error responses lack `Access-Control-Allow-Origin`.",
      heads=drop_header("access-control-allow-origin", range(400, 600)))
fault("responses_without_vary_origin", "TW-BRW-011", "browser.allowed_origins_can_read_every_response",
      "Responses that allow a specific origin lack `Vary: Origin`.",
      heads=drop_header("vary"))
fault("location_header_not_exposed", "TW-BRW-009", "browser.allowed_origins_can_read_every_response",
      "`Location` is not exposed to pages.",
      heads=set_header("access-control-expose-headers", "Retry-After, Idempotency-Replayed"))
fault("no_cors_headers_on_submit_stream", "TW-BRW-005", "browser.allowed_origins_can_read_every_response",
      "A stream in response to a submitted job lacks `Access-Control-Allow-Origin`.",
      heads=drop_header("access-control-allow-origin", [200], lambda exchange: exchange.is_submit))
for status in (204, 401, 405, 410, 413, 422):
    fault(f"no_cors_headers_on_{status}", "TW-BRW-005", "browser.allowed_origins_can_read_every_response",
          f"Responses with status {status} lack `Access-Control-Allow-Origin`.",
          heads=drop_header("access-control-allow-origin", [status]))


fault("fatal_inband_problem_without_id", "TW-ERR-015", "browser.errors_inband_returns_problem_events",
      "A fatal in-band problem has no id, so an EventSource reconnects forever.",
      frames=rewrite_events(b"id:0-1\n", b""))
fault("purged_job_not_inband", "TW-ERR-014", "browser.errors_inband_returns_problem_events",
      "If a job was purged, the server responds with 410 despite `errors=inband`.",
      **refuse_purged_jobs(lambda exchange: True),
      also_fails={"all purged jobs get 410, also those of other callers":
          "purges.purged_jobs_of_other_principals_look_unknown"})
fault("cursor_0_1_of_purged_job_gets_410", "TW-ERR-021", "browser.errors_inband_returns_problem_events",
      "The cursor `0-1` of a purged job is answered with 410 instead of 204.",
      **refuse_purged_jobs(lambda exchange: exchange.cursor == "0-1"))
fault("invalid_last_event_id_not_inband", "TW-ERR-014", "browser.errors_inband_returns_problem_events",
      "If `Last-Event-ID` is invalid, the server responds with 400 despite `errors=inband`.",
      instead=refuse(lambda exchange: exchange.cursor == "x" and b"errors=inband" in exchange.query, 400,
          "bad_cursor"))
fault("invalid_parameter_not_inband", "TW-ERR-014", "browser.errors_inband_returns_problem_events",
      "If a parameter is invalid, the server responds with 400 despite `errors=inband`.",
      instead=refuse(lambda exchange: b"errors=inband&diffs=7" in exchange.query, 400, "bad_parameter"))

fault("preflight_max_age_of_five_seconds", "TW-BRW-010", "browser.preflight_allows_protocol_headers",
      "A preflight response may be cached for only five seconds.",
      heads=set_header("access-control-max-age", "5"))
fault("preflight_without_allow_origin", "TW-BRW-005", "browser.preflight_allows_protocol_headers",
      "A preflight response lacks `Access-Control-Allow-Origin`.",
      heads=drop_header("access-control-allow-origin", where=lambda exchange: exchange.method == "OPTIONS"))
fault("preflight_needs_credentials", "TW-BRW-005", "browser.preflight_allows_protocol_headers",
      "A preflight request without credentials is refused.",
      instead=refuse(lambda exchange: exchange.method == "OPTIONS" and not exchange.header("authorization"),
          401, "unauthorized"))
fault("preflight_for_delete_refused", "TW-BRW-008", "browser.preflight_allows_protocol_headers",
      "A preflight request for `DELETE` is refused.",
      instead=refuse(lambda exchange: exchange.header("access-control-request-method") == "DELETE", 405,
          "method_not_allowed"))

fault("token_urls_without_referrer_policy", "TW-BRW-020", "browser.stream_token_opens_its_stream",
      "Responses to URLs with a token lack `Referrer-Policy`.",
      heads=drop_header("referrer-policy"))
fault("stream_token_valid_for_years", "TW-BRW-015", "browser.stream_token_opens_its_stream",
      "A stream token is valid for years.",
      bodies=rewrite_body(rb'("expires_at":")\d{4}', rb"\g<1>2999", at=".*/stream-token"))
fault("token_stream_ignores_last_event_id", "TW-BRW-014", "browser.stream_token_opens_its_stream",
      "`Last-Event-ID` is ignored for streams with a token.",
      requests=set_request_header("last-event-id", None,
          lambda exchange: b"token=" in exchange.query and exchange.cursor.startswith("1-")),
      also_fails=IDS_DECREASE)
fault("token_stream_errors_not_inband", "TW-BRW-017", "browser.stream_token_opens_its_stream",
      "If a stream with a token fails, the error is reported by the HTTP status instead of in-band.",
      requests=rewrite_query(b"errors=inband&", b""),
      instead=refuse(lambda exchange: b"token=" in exchange.query and b"after=x" in exchange.query, 400,
          "bad_cursor"))


fault("cursor_0_1_needs_credentials", "TW-ERR-021", "browser.cursor_0_1_returns_204",
      "The cursor `0-1` is answered with 204 only if the caller is authorized.",
      instead=refuse(lambda exchange: exchange.cursor == "0-1" and not exchange.header("authorization"), 401,
          "unauthorized"))

fault("origin_null_allowed", "TW-BRW-006", "browser.other_origins_cannot_read_responses",
      "The origin `null`, which a sandboxed page has, is allowed.",
      heads=set_header("access-control-allow-origin", "null",
          lambda exchange, status: exchange.header("origin") == "null"))

fault("stream_token_compared_by_prefix", "TW-BRW-018", "browser.stream_token_is_limited_to_its_stream",
      "A stream token is valid even if more characters follow it.",
      requests=rewrite_query(rb"(token=[\w-]{43})A", rb"\1"))
# fmt: on


@faulty_server("TW-BRW-006", "browser.other_origins_cannot_read_responses", hook="heads")
def every_origin_allowed(exchange, status, headers):
    """Every origin is allowed."""
    if exchange.header("origin"):
        headers["access-control-allow-origin"] = exchange.header("origin")


@faulty_server(
    "TW-BRW-013",
    "browser.stream_token_is_limited_to_its_stream",
    also_fails={
        "the token opens the stream of another job": "framing.streams_begin_with_hello state.each_id_has_one_state"
    },
)
def stream_token_opens_any_job(hooks):
    """A stream token opens the stream of every job."""

    def redirect(exchange):
        token = re.search(rb"token=([^&]+)", exchange.query)
        if token and token[1].decode() in hooks.shared:
            exchange.path = hooks.shared[token[1].decode()]

    def note(exchange, status, body):
        if exchange.path.endswith("/stream-token") and status == 200:
            hooks.shared[json.loads(body)["url"].rpartition("token=")[2]] = exchange.path.replace(
                "stream-token", "events"
            )

    hooks.requests.append(redirect)
    hooks.bodies.append(note)


@faulty_server("TW-BRW-008", "browser.preflight_allows_protocol_headers", hook="heads")
def preflight_without_last_event_id(exchange, status, headers):
    """A preflight response does not allow `Last-Event-ID`."""
    name = "access-control-allow-headers"
    headers[name] = ", ".join(
        each for each in headers.get(name, "").split(", ") if each.lower() != "last-event-id"
    )


@faulty_server(
    "TW-ERR-019",
    "browser.problem_events_are_sent_only_on_request",
    hook="requests",
    also_run="resume.malformed_cursor_returns_400",
    also_fails=WRONG_ERRORS,
)
def errors_always_inband(exchange):
    """Every error of a stream is reported in-band, even without `errors=inband`."""
    if exchange.method == "GET" and exchange.path.endswith("/events"):
        exchange.query = b"&".join(filter(None, [exchange.query, b"errors=inband"]))


@faulty_server("TW-BRW-013", "browser.stream_token_is_limited_to_its_stream")
def stream_token_opens_job_and_cancel(hooks):
    """A stream token also permits reading the job resource and cancelling the job."""

    def note(exchange, status, body):
        if found := re.search(rb"token=([^\"&]+)", body if exchange.path.endswith("/stream-token") else b""):
            hooks.shared[found[1]] = exchange.header("authorization")

    def let(exchange):
        found = re.search(rb"token=([^&]+)", exchange.query)
        if found and found[1] in hooks.shared and not exchange.path.endswith("/events"):
            exchange.set_header("authorization", hooks.shared[found[1]])

    hooks.bodies.append(note)
    hooks.requests.append(let)


@faulty_server("TW-ERR-014", "browser.errors_inband_returns_problem_events", hook="instead")
def missing_credentials_not_inband(exchange):
    """If credentials are missing, the server responds with 401 despite `errors=inband`."""
    bare = not exchange.header("authorization") and b"token=" not in exchange.query
    return problem(401, "unauthorized") if bare and b"errors=inband" in exchange.query else None


@faulty_server("TW-BRW-006", "browser.other_origins_cannot_read_responses")
def origins_compared_by_prefix(hooks):
    """An origin that begins with an allowed origin is allowed."""

    def rewrite(exchange):
        if exchange.header("origin").startswith(ORIGIN):
            exchange.own["origin"] = exchange.header("origin")
            exchange.set_header("origin", ORIGIN)

    def name(exchange, status, headers):
        if "origin" in exchange.own and "access-control-allow-origin" in headers:
            headers["access-control-allow-origin"] = exchange.own["origin"]

    hooks.requests.append(rewrite)
    hooks.heads.append(name)


@faulty_server("TW-BRW-007", "browser.preflight_allows_protocol_headers", hook="heads")
def preflight_allows_all_origins_with_credentials(exchange, status, headers):
    """A preflight response allows requests with credentials from every origin."""
    if exchange.method == "OPTIONS" and "access-control-allow-origin" in headers:
        headers["access-control-allow-origin"] = "*"
        headers["access-control-allow-credentials"] = "true"


@faulty_server("TW-BRW-027", "browser.stream_ends_when_its_token_expires")
def stream_outlives_its_token(hooks):
    """A stream stays open after the stream token with which it was opened has expired."""
    hooks.settings["stream_token_ttl"] = 2.0

    check = StreamTokens.check

    def forget_expiry(tokens, token, job):
        check(tokens, token, job)
        return lambda: math.inf

    StreamTokens.check = forget_expiry  # in this process only
