"""Faulty servers with errors in authentication, or in the protection of jobs from other callers."""

import asyncio
import json
import re

from proof.servers.expected_side_failures import SHARED_LIMITS
from proof.servers.fault_helpers import drop_header, serve_anonymous_callers, set_request_header
from proof.servers.faults import fault, faulty_server
from proof.servers.server_process import ALICE, BOB


def is_known(exchange):
    return re.match("Bearer (alice|bob)-", exchange.header("authorization"))


# fmt: off
fault("status_401_without_www_authenticate", "TW-SEC-003", "ownership.invalid_credentials_return_401",
      "A response with status 401 lacks `WWW-Authenticate`.",
      heads=drop_header("www-authenticate"))
fault("submit_without_credentials", "TW-SEC-003", "ownership.invalid_credentials_return_401",
      "A request to submit a job needs no credentials.",
      requests=set_request_header("authorization", f"Bearer {ALICE}",
          lambda exchange: exchange.is_submit and not is_known(exchange)))
fault("bearer_token_compared_by_prefix", "TW-SEC-003", "ownership.invalid_credentials_return_401",
      "A bearer token is valid even if more characters follow it.",
      requests=set_request_header("authorization", f"Bearer {ALICE}",
          lambda exchange: exchange.header("authorization").startswith(f"Bearer {ALICE}")))
fault("authentication_scheme_not_checked", "TW-SEC-003", "ownership.invalid_credentials_return_401",
      "The authentication scheme is not checked.",
      requests=set_request_header("authorization", f"Bearer {ALICE}",
          lambda exchange: exchange.header("authorization").endswith(f" {ALICE}")))

fault("anonymous_callers_list_each_others_jobs", "TW-JOB-076", "ownership.anonymous_callers_cannot_list_jobs",
      "The job list of an anonymous caller contains the jobs of all anonymous callers.",
      **serve_anonymous_callers(lambda exchange: BOB, lists_jobs=True))

fault("anonymous_job_not_found_by_its_id", "TW-SEC-005", "ownership.an_anonymous_job_is_open_to_callers_with_its_id",
      "An anonymous caller who knows the id of an anonymous job cannot use the job.",
      **serve_anonymous_callers(lambda exchange: BOB if exchange.is_submit else ALICE),
      also_fails=SHARED_LIMITS | {"anonymous callers may use the jobs of the first caller":
          "browser.stream_token_is_limited_to_its_stream"})
fault("anonymous_job_cannot_be_purged", "TW-SEC-005", "ownership.an_anonymous_job_is_open_to_callers_with_its_id",
      "An anonymous caller who knows the id of an anonymous job can read and cancel the job, but not purge it.",
      **serve_anonymous_callers(lambda exchange: ALICE if exchange.method == "DELETE" else BOB),
      also_fails=SHARED_LIMITS)
# fmt: on


@faulty_server("TW-JOB-044", "ownership.other_principals_jobs_look_unknown")
def any_caller_can_read_any_job(hooks):
    """Every caller who knows the id of a job may read it."""

    def borrow(exchange):
        if "/v1/jobs/" in exchange.path and exchange.header("authorization"):
            owner = hooks.shared.get(exchange.path.split("/")[3])
            exchange.set_header("authorization", owner or exchange.header("authorization"))

    def note(exchange, status, body):
        if exchange.is_submit and status == 201:
            hooks.shared[json.loads(body)["id"]] = exchange.header("authorization")

    hooks.requests.append(borrow)
    hooks.bodies.append(note)


@faulty_server(
    "TW-JOB-044",
    "ownership.other_principals_jobs_look_unknown",
    also_fails={
        "unknown jobs and jobs of other callers must get the same response": "errors.unknown_resources_return_404 errors.errors_are_valid_problem_documents"
    },
)
def other_principals_job_gets_403(hooks):
    """A request for another caller's job is answered with 403, which reveals that the job exists."""
    hooks.shared["jobs"] = set()

    def note(exchange, status, body):
        if exchange.is_submit and status == 201:
            hooks.shared["jobs"].add(json.loads(body)["id"])
        known = status == 404 and any(job in exchange.path for job in hooks.shared["jobs"])
        return (403, body.replace(b"job_not_found", b"forbidden").replace(b"404", b"403")) if known else None

    hooks.bodies.append(note)


@faulty_server("TW-JOB-046", "ownership.list_contains_only_the_callers_jobs", hook="requests")
def job_list_contains_other_callers_jobs(exchange):
    """The job list contains the jobs of other callers."""
    if exchange.path == "/v1/jobs":
        exchange.set_header("authorization", exchange.shared.get("first") or exchange.header("authorization"))
    exchange.shared.setdefault("first", exchange.header("authorization"))


@faulty_server("TW-SEC-011", "ownership.credentials_in_the_url_are_not_accepted", hook="requests")
def credentials_accepted_in_url(exchange):
    """A caller's credentials are accepted in the URL."""
    name, _, secret = exchange.query.partition(b"=")
    if name == b"access_token" and not exchange.header("authorization"):
        exchange.set_header("authorization", f"Bearer {secret.decode()}")


@faulty_server("TW-SEC-001", "ownership.other_principals_jobs_look_unknown")
def any_caller_gets_a_stream_token(hooks):
    """Every caller who knows the id of a job can get a stream token for it."""

    def note(exchange, status, body):
        if exchange.is_submit and status == 201:
            hooks.shared[f"/v1/jobs/{json.loads(body)['id']}/stream-token"] = exchange.header("authorization")

    hooks.bodies.append(note)
    hooks.requests.append(
        lambda exchange: (
            is_known(exchange)
            and exchange.path in hooks.shared
            and exchange.set_header("authorization", hooks.shared[exchange.path])
        )
    )


@faulty_server("TW-SEC-003", "ownership.invalid_credentials_return_401")
def unauthorized_list_is_empty(hooks):
    """A caller without valid credentials gets an empty job list."""
    header = {"content-type": "application/json", "cache-control": "no-store"}
    hooks.instead.append(
        lambda exchange: (
            (200, header, b'{"jobs":[]}') if exchange.path == "/v1/jobs" and not is_known(exchange) else None
        )
    )


@faulty_server("TW-SEC-008", "ownership.response_time_does_not_reveal_other_jobs", hook="requests")
async def slow_refusal_of_other_principals_job(exchange):
    """A request for another caller's job is rejected measurably later than a request for an unknown job."""
    if exchange.header("authorization") == f"Bearer {BOB}" and not exchange.path.endswith("A" * 22):
        await asyncio.sleep(0.3)


@faulty_server("TW-JOB-044", "ownership.other_principals_jobs_look_unknown", hook="bodies")
def problem_detail_reveals_job(exchange, status, body):
    """The problem's `detail` for another caller's job differs from that for an unknown job."""
    another = exchange.header("authorization") == f"Bearer {BOB}" and "A" * 22 not in exchange.path
    if status != 404 or not another or not exchange.path.startswith("/v1/jobs/"):
        return None
    return status, json.dumps(json.loads(body) | {"detail": "it is not yours"}).encode()
