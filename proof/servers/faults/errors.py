"""Faulty servers with wrong error responses."""

import json
import re

from proof.servers.fault_helpers import drop_header, refuse, rewrite_body, set_header
from proof.servers.fault_proxy import problem
from proof.servers.faults import faulty_server


@faulty_server(
    "TW-ERR-006", "errors.retryable_errors_have_retry_after", "idempotency.concurrent_submits_start_one_job"
)
def status_409_without_retry_after(hooks):
    """A response with status 409 lacks `Retry-After`."""

    def busy(exchange):
        seen = hooks.shared.setdefault("keys", [])
        seen.append(exchange.key)
        in_flight = exchange.key and seen.count(exchange.key) == 3
        return (
            problem(409, "idempotency_in_flight", retryable=True, retry_after_ms=1000) if in_flight else None
        )

    hooks.instead.append(busy)


@faulty_server("TW-ERR-007", "errors.retryable_errors_have_retry_after", "jobs.submit_returns_the_job")
def retry_after_ms_exceeds_retry_after(hooks):
    """`retry_after_ms` is longer than `Retry-After`."""

    def busy(exchange):
        hooks.shared["n"] = hooks.shared.get("n", 0) + 1
        status, headers, body = problem(429, "rate_limited", retryable=True, retry_after_ms=5000)
        return (status, headers | {"retry-after": "1"}, body) if hooks.shared["n"] == 8 else None

    hooks.instead.append(busy)


@faulty_server(
    "TW-ERR-006", "errors.retryable_errors_have_retry_after", "idempotency.concurrent_submits_start_one_job"
)
def retry_after_is_a_date(hooks):
    """`Retry-After` is a date instead of a number of seconds."""

    def busy(exchange):
        seen = hooks.shared.setdefault("keys", [])
        seen.append(exchange.key)
        response = problem(409, "idempotency_in_flight", retryable=True, retry_after_ms=1000)
        response[1]["retry-after"] = "Wed, 21 Oct 2026 07:28:00 GMT"
        return response if exchange.key and seen.count(exchange.key) == 3 else None

    hooks.instead.append(busy)


@faulty_server(
    "TW-ERR-001", "errors.errors_are_valid_problem_documents", "errors.unknown_resources_return_404"
)
def errors_as_plain_text(hooks):
    """The body of an error is plain text."""
    hooks.bodies.append(lambda exchange, status, body: (status, b"error") if status >= 400 else None)


@faulty_server(
    "TW-ERR-002", "errors.errors_are_valid_problem_documents", "errors.unknown_resources_return_404"
)
def errors_as_application_json(hooks):
    """Problems have the media type `application/json`."""

    def head(exchange, status, headers):
        if status >= 400:
            headers["content-type"] = "application/json"

    hooks.heads.append(head)


@faulty_server("TW-ERR-008", "errors.errors_do_not_leak_internals", "errors.unknown_resources_return_404")
def stack_trace_leaked(hooks):
    """`detail` contains a stack trace."""

    def leak(exchange, status, body):
        if status < 400:
            return None
        trace = 'Traceback (most recent call last):\n  File "/srv/app/server.py", line 7'
        return status, json.dumps(json.loads(body) | {"detail": trace}).encode()

    hooks.bodies.append(leak)


@faulty_server(
    "TW-ERR-004", "errors.errors_are_valid_problem_documents", "errors.unknown_resources_return_404"
)
def every_client_error_is_400(hooks):
    """Every client error has status 400."""

    def flatten(exchange, status, body):
        return (400, json.dumps(json.loads(body) | {"status": 400}).encode()) if 400 <= status < 500 else None

    hooks.bodies.append(flatten)


@faulty_server(
    "TW-ERR-003",
    "errors.errors_are_valid_problem_documents",
    "refused_submits.invalid_submit_body_returns_422",
)
def problem_status_differs_from_response(hooks):
    """The `status` of a problem differs from the response status."""
    hooks.heads.append(lambda exchange, status, headers: 400 if status == 422 else status)


@faulty_server(
    "TW-ERR-020", "errors.errors_are_valid_problem_documents", "errors.unknown_resources_return_404"
)
def unregistered_problem_code(hooks):
    """A problem has a code that is not registered and contains no dot."""
    rewrite_body(hooks, b'"not_found"', b'"nothing_here"')


@faulty_server("TW-JOB-043", "errors.unknown_resources_return_404")
def unknown_job_returns_empty_object(hooks):
    """A request for an unknown job is answered with 200 and an empty object."""
    hooks.bodies.append(
        lambda exchange, status, body: (
            (200, b"{}") if status == 404 and "/v1/jobs/" in exchange.path else None
        )
    )


@faulty_server("TW-JOB-013", "errors.unknown_resources_return_404")
def unknown_endpoint_is_500(hooks):
    """A request to submit a job to an unknown endpoint is answered with 500."""
    refuse(hooks, lambda exchange: "there-is-none/jobs" in exchange.path, 500, "internal")


@faulty_server("TW-JOB-003", "errors.unknown_resources_return_404")
def status_405_without_allow(hooks):
    """A response with status 405 lacks `Allow`."""
    drop_header(hooks, "allow")


@faulty_server("TW-JOB-003", "errors.unknown_resources_return_404")
def allow_lists_the_refused_method(hooks):
    """`Allow` lists the refused method."""
    hooks.heads.append(
        lambda exchange, status, headers: headers.update(allow=exchange.method) if status == 405 else None
    )


@faulty_server("TW-JOB-002", "errors.unknown_resources_return_404")
def unknown_url_below_job_is_job_not_found(hooks):
    """A request for an unknown URL below a job's URL is answered with the problem `job_not_found`."""
    hooks.bodies.append(
        lambda exchange, status, body: (
            problem(404, "job_not_found")[::2]
            if b'"not_found"' in body and exchange.path.startswith("/v1/jobs/")
            else None
        )
    )


@faulty_server("TW-JOB-043", "errors.unknown_resources_return_404")
def delete_of_unknown_job_gets_204(hooks):
    """`DELETE` of an unknown job is answered with 204."""

    def gone(exchange):
        unknown = exchange.method == "DELETE" and exchange.path == f"/v1/jobs/{'A' * 22}"
        return (204, {"cache-control": "no-store"}, b"") if unknown else None

    hooks.instead.append(gone)


@faulty_server("TW-JOB-043", "errors.unknown_resources_return_404")
def stream_token_for_unknown_job(hooks):
    """The server issues a stream token for an unknown job."""
    token = {"url": "/v1/jobs/x/events?token=x", "expires_at": "2030-01-01T00:00:00Z"}

    def sign(exchange):
        unknown = exchange.path == f"/v1/jobs/{'A' * 22}/stream-token"
        header = {"content-type": "application/json", "cache-control": "no-store"}
        return (200, header, json.dumps(token).encode()) if unknown else None

    hooks.instead.append(sign)


@faulty_server("TW-JOB-005", "errors.successful_responses_are_application_json")
def cancel_response_is_plain_text(hooks):
    """The response to a cancel request has the media type `text/plain`."""
    taken = lambda exchange, status: exchange.path.endswith("/cancel") and status < 300  # noqa: E731
    set_header(hooks, "content-type", "text/plain", taken)


@faulty_server("TW-JOB-043", "errors.unknown_resources_return_404")
def job_ids_case_insensitive(hooks):
    """Job ids are compared case-insensitively, as some database collations do."""
    known = hooks.shared.setdefault("ids", {})

    def remember(exchange, status, body):
        known.update({found.lower(): found for found in re.findall(rb'"id":"([\w-]{22,})"', body)})

    def find(exchange):
        own = exchange.path.removeprefix("/v1/jobs/").encode()
        if exchange.method == "GET" and own.lower() in known:
            exchange.path = f"/v1/jobs/{known[own.lower()].decode()}"

    hooks.bodies.append(remember)
    hooks.requests.append(find)


@faulty_server("TW-JOB-043", "errors.unknown_resources_return_404")
def job_id_with_nul_gets_500(hooks):
    """A request with U+0000 in the job id is answered with 500."""
    refuse(hooks, lambda exchange: "\0" in exchange.path, 500, "internal")


@faulty_server("TW-JOB-043", "errors.unknown_resources_return_404")
def short_job_id_gets_400(hooks):
    """A request with a job id that is too short is answered with 400 instead of 404."""
    is_short = lambda exchange: re.fullmatch("/v1/jobs/[^/]{1,21}", exchange.path)  # noqa: E731
    refuse(hooks, is_short, 400, "bad_parameter")


@faulty_server("TW-JOB-003", "errors.unknown_resources_return_404")
def allow_lists_every_method(hooks):
    """`Allow` lists every method, including the refused one."""
    set_header(
        hooks, "allow", "GET, HEAD, POST, PUT, DELETE, OPTIONS", lambda exchange, status: status == 405
    )


@faulty_server("TW-JOB-003", "errors.unknown_resources_return_404")
def wrong_method_on_stream_gets_404(hooks):
    """If the URL of an event stream is requested with a wrong method, the response is 404 instead of 405."""
    refuse(
        hooks,
        lambda exchange: exchange.method == "DELETE" and exchange.path.endswith("/events"),
        404,
        "not_found",
    )


@faulty_server("TW-JOB-013", "errors.unknown_resources_return_404")
def endpoint_names_case_insensitive(hooks):
    """Endpoint names are compared case-insensitively."""

    def lower(exchange):
        if exchange.path.startswith("/v1/endpoints/"):
            exchange.path = exchange.path.lower()

    hooks.requests.append(lower)
