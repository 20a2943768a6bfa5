"""Faulty servers with errors in CORS, stream tokens or in-band problems."""

import json
import math
import re

from proof.servers.fault_helpers import (
    drop_header,
    refuse,
    rewrite_body,
    rewrite_events,
    rewrite_query,
    set_header,
)
from proof.servers.fault_proxy import problem
from proof.servers.faults import faulty_server
from proof.servers.server_process import ORIGIN
from tidewire_server.jobs.admission.stream_tokens import StreamTokens


def refuse_purged_jobs(hooks, holds):
    """If a request for the stream of a purged job satisfies a condition, respond with 410."""

    def note(exchange, status, body):
        if exchange.method == "DELETE" and status == 204:
            hooks.shared[f"{exchange.path}/events"] = "purged"

    hooks.bodies.append(note)
    refuse(hooks, lambda exchange: exchange.path in hooks.shared and holds(exchange), 410, "job_expired")


@faulty_server("TW-BRW-005", "browser.allowed_origins_can_read_every_response")
def errors_without_cors(hooks):
    """Error responses lack `Access-Control-Allow-Origin`."""
    drop_header(hooks, "access-control-allow-origin", range(400, 600))


@faulty_server("TW-BRW-006", "browser.other_origins_cannot_read_responses")
def every_origin_allowed(hooks):
    """Every origin is allowed."""

    def name(exchange, status, headers):
        if exchange.header("origin"):
            headers["access-control-allow-origin"] = exchange.header("origin")

    hooks.heads.append(name)


@faulty_server("TW-BRW-013", "browser.stream_token_is_limited_to_its_stream")
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


@faulty_server("TW-ERR-015", "browser.errors_inband_returns_problem_events")
def fatal_inband_problem_without_id(hooks):
    """A fatal in-band problem has no id, so an EventSource reconnects forever."""
    rewrite_events(hooks, b"id:0-1\n", b"")


@faulty_server("TW-BRW-008", "browser.preflight_allows_protocol_headers")
def preflight_without_last_event_id(hooks):
    """A preflight response does not allow `Last-Event-ID`."""

    def forget(exchange, status, headers):
        name = "access-control-allow-headers"
        headers[name] = ", ".join(
            each for each in headers.get(name, "").split(", ") if each.lower() != "last-event-id"
        )

    hooks.heads.append(forget)


@faulty_server("TW-BRW-010", "browser.preflight_allows_protocol_headers")
def preflight_max_age_of_five_seconds(hooks):
    """A preflight response may be cached for only five seconds."""
    set_header(hooks, "access-control-max-age", "5")


@faulty_server("TW-BRW-020", "browser.stream_token_opens_its_stream")
def token_urls_without_referrer_policy(hooks):
    """Responses to URLs with a token lack `Referrer-Policy`."""
    drop_header(hooks, "referrer-policy")


@faulty_server("TW-BRW-017", "browser.stream_token_opens_its_stream")
def token_stream_errors_not_inband(hooks):
    """If a stream with a token fails, the error is reported by the HTTP status instead of in-band."""

    def plain(exchange):
        exchange.query = exchange.query.replace(b"errors=inband&", b"")

    hooks.requests.append(plain)
    refuse(
        hooks,
        lambda exchange: b"token=" in exchange.query and b"after=x" in exchange.query,
        400,
        "bad_cursor",
    )


@faulty_server(
    "TW-ERR-019",
    "browser.problem_events_are_sent_only_on_request",
    "resume.malformed_cursor_returns_400",
)
def errors_always_inband(hooks):
    """Every error of a stream is reported in-band, even without `errors=inband`."""

    def ask(exchange):
        if exchange.method == "GET" and exchange.path.endswith("/events"):
            exchange.query = b"&".join(filter(None, [exchange.query, b"errors=inband"]))

    hooks.requests.append(ask)


@faulty_server("TW-ERR-017", "browser.cursor_0_1_returns_204")
def cursor_0_1_needs_credentials(hooks):
    """The cursor `0-1` is answered with 204 only if the caller is authorized."""
    refuse(
        hooks,
        lambda exchange: exchange.cursor == "0-1" and not exchange.header("authorization"),
        401,
        "unauthorized",
    )


@faulty_server("TW-BRW-011", "browser.allowed_origins_can_read_every_response")
def responses_without_vary_origin(hooks):
    """Responses that allow a specific origin lack `Vary: Origin`."""
    drop_header(hooks, "vary")


@faulty_server("TW-BRW-009", "browser.allowed_origins_can_read_every_response")
def location_header_not_exposed(hooks):
    """`Location` is not exposed to pages."""
    set_header(hooks, "access-control-expose-headers", "Retry-After, Idempotency-Replayed")


@faulty_server("TW-BRW-005", "browser.allowed_origins_can_read_every_response")
def no_cors_headers_on_401(hooks):
    """Responses with status 401 lack `Access-Control-Allow-Origin`."""
    drop_header(hooks, "access-control-allow-origin", [401])


@faulty_server("TW-BRW-005", "browser.allowed_origins_can_read_every_response")
def no_cors_headers_on_204(hooks):
    """Responses with status 204 lack `Access-Control-Allow-Origin`."""
    drop_header(hooks, "access-control-allow-origin", [204])


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


@faulty_server("TW-ERR-014", "browser.errors_inband_returns_problem_events")
def missing_credentials_not_inband(hooks):
    """If credentials are missing, the server responds with 401 despite `errors=inband`."""

    def refuse(exchange):
        bare = not exchange.header("authorization") and b"token=" not in exchange.query
        return problem(401, "unauthorized") if bare and b"errors=inband" in exchange.query else None

    hooks.instead.append(refuse)


@faulty_server("TW-BRW-005", "browser.allowed_origins_can_read_every_response")
def no_cors_headers_on_422(hooks):
    """Responses with status 422 lack `Access-Control-Allow-Origin`."""
    drop_header(hooks, "access-control-allow-origin", [422])


@faulty_server("TW-BRW-005", "browser.allowed_origins_can_read_every_response")
def no_cors_headers_on_405(hooks):
    """Responses with status 405 lack `Access-Control-Allow-Origin`."""
    drop_header(hooks, "access-control-allow-origin", [405])


@faulty_server("TW-BRW-005", "browser.preflight_allows_protocol_headers")
def preflight_without_allow_origin(hooks):
    """A preflight response lacks `Access-Control-Allow-Origin`."""
    hooks.heads.append(
        lambda exchange, status, headers: (
            headers.pop("access-control-allow-origin", None) and None
            if exchange.method == "OPTIONS"
            else None
        )
    )


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


@faulty_server("TW-BRW-006", "browser.other_origins_cannot_read_responses")
def origin_null_allowed(hooks):
    """The origin `null`, which a sandboxed page has, is allowed."""
    bare = lambda exchange, status: exchange.header("origin") == "null"  # noqa: E731
    set_header(hooks, "access-control-allow-origin", "null", bare)


@faulty_server("TW-BRW-015", "browser.stream_token_opens_its_stream")
def stream_token_valid_for_years(hooks):
    """A stream token is valid for years."""
    rewrite_body(hooks, rb'("expires_at":")\d{4}', rb"\g<1>2999", at=".*/stream-token")


@faulty_server("TW-ERR-014", "browser.errors_inband_returns_problem_events")
def purged_job_not_inband(hooks):
    """If a job was purged, the server responds with 410 despite `errors=inband`."""
    refuse_purged_jobs(hooks, lambda exchange: True)


@faulty_server("TW-ERR-017", "browser.errors_inband_returns_problem_events")
def cursor_0_1_of_purged_job_gets_410(hooks):
    """The cursor `0-1` of a purged job is answered with 410 instead of 204."""
    refuse_purged_jobs(hooks, lambda exchange: exchange.cursor == "0-1")


@faulty_server("TW-BRW-005", "browser.preflight_allows_protocol_headers")
def preflight_needs_credentials(hooks):
    """A preflight request without credentials is refused."""
    bare = lambda exchange: exchange.method == "OPTIONS" and not exchange.header("authorization")  # noqa: E731
    refuse(hooks, bare, 401, "unauthorized")


@faulty_server("TW-BRW-008", "browser.preflight_allows_protocol_headers")
def preflight_for_delete_refused(hooks):
    """A preflight request for `DELETE` is refused."""
    purge = lambda exchange: exchange.header("access-control-request-method") == "DELETE"  # noqa: E731
    refuse(hooks, purge, 405, "method_not_allowed")


@faulty_server("TW-BRW-007", "browser.preflight_allows_protocol_headers")
def preflight_allows_all_origins_with_credentials(hooks):
    """A preflight response allows requests with credentials from every origin."""

    def allow(exchange, status, headers):
        if exchange.method == "OPTIONS" and "access-control-allow-origin" in headers:
            headers["access-control-allow-origin"] = "*"
            headers["access-control-allow-credentials"] = "true"

    hooks.heads.append(allow)


@faulty_server("TW-BRW-005", "browser.allowed_origins_can_read_every_response")
def no_cors_headers_on_410(hooks):
    """Responses with status 410 lack `Access-Control-Allow-Origin`."""
    drop_header(hooks, "access-control-allow-origin", {410})


@faulty_server("TW-BRW-005", "browser.allowed_origins_can_read_every_response")
def no_cors_headers_on_413(hooks):
    """Responses with status 413 lack `Access-Control-Allow-Origin`."""
    drop_header(hooks, "access-control-allow-origin", {413})


@faulty_server("TW-BRW-005", "browser.allowed_origins_can_read_every_response")
def no_cors_headers_on_submit_stream(hooks):
    """A stream in response to a submitted job lacks `Access-Control-Allow-Origin`."""
    hooks.heads.append(
        lambda exchange, status, headers: (
            headers.pop("access-control-allow-origin", None) and None
            if exchange.is_submit and status == 200
            else None
        )
    )


@faulty_server("TW-BRW-018", "browser.stream_token_is_limited_to_its_stream")
def stream_token_compared_by_prefix(hooks):
    """A stream token is valid even if more characters follow it."""
    rewrite_query(hooks, rb"(token=[\w-]{43})A", rb"\1")


@faulty_server("TW-BRW-014", "browser.stream_token_opens_its_stream")
def token_stream_ignores_last_event_id(hooks):
    """`Last-Event-ID` is ignored for streams with a token."""
    hooks.requests.append(
        lambda exchange: (
            b"token=" in exchange.query
            and exchange.cursor[:2] == "1-"
            and exchange.set_header("last-event-id", None)
        )
    )


@faulty_server("TW-ERR-014", "browser.errors_inband_returns_problem_events")
def invalid_last_event_id_not_inband(hooks):
    """If `Last-Event-ID` is invalid, the server responds with 400 despite `errors=inband`."""
    wrong = lambda exchange: exchange.cursor == "x" and b"errors=inband" in exchange.query  # noqa: E731
    refuse(hooks, wrong, 400, "bad_cursor")


@faulty_server("TW-ERR-014", "browser.errors_inband_returns_problem_events")
def invalid_parameter_not_inband(hooks):
    """If a parameter is invalid, the server responds with 400 despite `errors=inband`."""
    wrong = lambda exchange: b"errors=inband&diffs=7" in exchange.query  # noqa: E731
    refuse(hooks, wrong, 400, "bad_parameter")


@faulty_server("TW-BRW-016", "browser.stream_ends_when_its_token_expires")
def stream_outlives_its_token(hooks):
    """A stream stays open after the stream token with which it was opened has expired."""
    hooks.settings["stream_token_ttl"] = 2.0

    check = StreamTokens.check

    def forget_expiry(tokens, token, job):
        check(tokens, token, job)
        return lambda: math.inf

    StreamTokens.check = forget_expiry  # in this process only
