"""Faulty servers with wrong error responses."""

import json
import re

from proof.servers.expected_side_failures import THIRD_SUBMIT, UNKNOWN_JOB, UNKNOWN_WITH_ERRORS, WRONG_ERRORS
from proof.servers.fault_helpers import drop_header, refuse, rewrite_body, set_header
from proof.servers.fault_proxy import problem
from proof.servers.faults import fault, faulty_server


def third_submit_gets_409(**headers):
    """Return a hook that answers the third submission with the same key by 409 with these headers."""

    def respond(exchange):
        seen = exchange.shared.setdefault("keys", [])
        seen.append(exchange.key)
        status, kept, body = problem(409, "idempotency_in_flight", retryable=True, retry_after_ms=1000)
        return (status, kept | headers, body) if exchange.key and seen.count(exchange.key) == 3 else None

    return respond


# fmt: off
fault("errors_as_plain_text", "TW-ERR-001", "errors.errors_are_valid_problem_documents",
      "The body of an error is plain text.",
      bodies=lambda exchange, status, body: (status, b"error") if status >= 400 else None,
      also_run="errors.unknown_resources_return_404",
      also_fails=WRONG_ERRORS)
fault("problem_status_differs_from_response", "TW-ERR-003", "errors.errors_are_valid_problem_documents",
      "The `status` of a problem differs from the response status.",
      heads=lambda exchange, status, headers: 400 if status == 422 else status,
      also_run="refused_submits.invalid_submit_body_returns_422",
      also_fails=WRONG_ERRORS)
fault("unregistered_problem_code", "TW-ERR-020", "errors.errors_are_valid_problem_documents",
      "A problem has a code that is not registered and contains no dot.",
      bodies=rewrite_body(b'"not_found"', b'"nothing_here"'),
      also_run="errors.unknown_resources_return_404")

fault("unknown_job_returns_empty_object", "TW-JOB-043", "errors.unknown_resources_return_404",
      "A request for an unknown job is answered with 200 and an empty object.",
      bodies=lambda exchange, status, body: (200, b"{}") if status == 404 and "/v1/jobs/" in exchange.path else None,
      also_fails={"an empty object is no job":
          "jobs.response_bodies_fit_their_schemas"} | UNKNOWN_WITH_ERRORS)
fault("unknown_endpoint_is_500", "TW-JOB-013", "errors.unknown_resources_return_404",
      "A request to submit a job to an unknown endpoint is answered with 500.",
      instead=refuse(lambda exchange: "there-is-none/jobs" in exchange.path, 500, "internal"),
      also_fails=UNKNOWN_WITH_ERRORS)
fault("head_is_405", "TW-JOB-088", "errors.head_and_options_need_no_body",
      "A HEAD request gets 405.",
      instead=refuse(lambda exchange: exchange.method == "HEAD", 405, "method_not_allowed"))
fault("options_without_allow", "TW-JOB-003", "errors.head_and_options_need_no_body",
      "The response to OPTIONS lacks `Allow`.",
      heads=drop_header("allow", where=lambda exchange: exchange.method == "OPTIONS"))
fault("status_405_without_allow", "TW-JOB-003", "errors.unknown_resources_return_404",
      "A response with status 405 lacks `Allow`.",
      heads=drop_header("allow"))
fault("allow_lists_the_refused_method", "TW-JOB-003", "errors.unknown_resources_return_404",
      "`Allow` lists the refused method.",
      heads=lambda exchange, status, headers: headers.update(allow=exchange.method) if status == 405 else None)
fault("unknown_url_below_job_is_job_not_found", "TW-JOB-002", "errors.unknown_resources_return_404",
      "A request for an unknown URL below a job's URL is answered with the problem `job_not_found`.",
      bodies=rewrite_body(b'"code":"not_found"', b'"code":"job_not_found"', at="/v1/jobs/.*"))
fault("job_id_with_nul_gets_500", "TW-JOB-043", "errors.unknown_resources_return_404",
      "A request with U+0000 in the job id is answered with 500.",
      instead=refuse(lambda exchange: "\0" in exchange.path, 500, "internal"))
fault("short_job_id_gets_400", "TW-JOB-043", "errors.unknown_resources_return_404",
      "A request with a job id that is too short is answered with 400 instead of 404.",
      instead=refuse(lambda exchange: re.fullmatch("/v1/jobs/[^/]{1,21}", exchange.path), 400,
          "bad_parameter"))
fault("allow_lists_every_method", "TW-JOB-003", "errors.unknown_resources_return_404",
      "`Allow` lists every method, including the refused one.",
      heads=set_header("allow", "GET, HEAD, POST, PUT, DELETE, OPTIONS",
          lambda exchange, status: status == 405))
fault("wrong_method_on_stream_gets_404", "TW-JOB-003", "errors.unknown_resources_return_404",
      "If the URL of an event stream is requested with a wrong method, the response is 404 instead of 405.",
      instead=refuse(lambda exchange: exchange.method == "DELETE" and exchange.path.endswith("/events"), 404,
          "not_found"))

fault("cancel_response_is_plain_text", "TW-JOB-005", "errors.successful_responses_are_application_json",
      "The response to a cancel request has the media type `text/plain`.",
      heads=set_header("content-type", "text/plain",
          lambda exchange, status: exchange.path.endswith("/cancel") and status < 300),
      also_run="cancels.cancel_of_ended_job_has_no_effect")

fault("errors_as_application_json", "TW-ERR-002", "errors.errors_are_valid_problem_documents",
      "Problems have the media type `application/json`.", also_run="errors.unknown_resources_return_404",
      heads=set_header("content-type", "application/json", lambda exchange, status: status >= 400),
      also_fails=WRONG_ERRORS)

fault("status_409_without_retry_after", "TW-ERR-006", "errors.retryable_errors_have_retry_after",
      "A response with status 409 lacks `Retry-After`.",
      instead=third_submit_gets_409(), also_run="idempotency.concurrent_submits_start_one_job", also_fails=THIRD_SUBMIT)
fault("retry_after_is_a_date", "TW-ERR-006", "errors.retryable_errors_have_retry_after",
      "`Retry-After` is a date instead of a number of seconds.",
      instead=third_submit_gets_409(**{"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}),
      also_run="idempotency.concurrent_submits_start_one_job", also_fails=THIRD_SUBMIT)

fault("every_client_error_is_400", "TW-ERR-004", "errors.errors_are_valid_problem_documents",
      "Every client error has status 400.", also_run="errors.unknown_resources_return_404",
      bodies=lambda exchange, status, body:
          (400, json.dumps(json.loads(body) | {"status": 400}).encode()) if 400 <= status < 500 else None,
      also_fails=WRONG_ERRORS)
# fmt: on


@faulty_server(
    "TW-ERR-007",
    "errors.retryable_errors_have_retry_after",
    hook="instead",
    also_run="jobs.submit_returns_the_job",
)
def retry_after_ms_exceeds_retry_after(exchange):
    """`retry_after_ms` is longer than `Retry-After`."""
    exchange.shared["n"] = exchange.shared.get("n", 0) + 1
    status, headers, body = problem(429, "rate_limited", retryable=True, retry_after_ms=5000)
    return (status, headers | {"retry-after": "1"}, body) if exchange.shared["n"] == 8 else None


@faulty_server(
    "TW-ERR-008",
    "errors.errors_do_not_leak_internals",
    hook="bodies",
    also_run="errors.unknown_resources_return_404",
    also_fails=WRONG_ERRORS,
)
def stack_trace_leaked(exchange, status, body):
    """`detail` contains a stack trace."""
    if status < 400:
        return None
    trace = 'Traceback (most recent call last):\n  File "/srv/app/server.py", line 7'
    return status, json.dumps(json.loads(body) | {"detail": trace}).encode()


@faulty_server("TW-JOB-043", "errors.unknown_resources_return_404", hook="instead", also_fails=UNKNOWN_JOB)
def delete_of_unknown_job_gets_204(exchange):
    """`DELETE` of an unknown job is answered with 204."""
    unknown = exchange.method == "DELETE" and exchange.path == f"/v1/jobs/{'A' * 22}"
    return (204, {"cache-control": "no-store"}, b"") if unknown else None


@faulty_server("TW-JOB-043", "errors.unknown_resources_return_404", hook="instead", also_fails=UNKNOWN_JOB)
def stream_token_for_unknown_job(exchange):
    """The server issues a stream token for an unknown job."""
    header = {"content-type": "application/json", "cache-control": "no-store"}
    token = b'{"url":"/v1/jobs/x/events?token=x","expires_at":"2030-01-01T00:00:00Z"}'
    return (200, header, token) if exchange.path == f"/v1/jobs/{'A' * 22}/stream-token" else None


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


@faulty_server("TW-JOB-013", "errors.unknown_resources_return_404", hook="requests")
def endpoint_names_case_insensitive(exchange):
    """Endpoint names are compared case-insensitively."""
    if exchange.path.startswith("/v1/endpoints/"):
        exchange.path = exchange.path.lower()
