"""Faulty servers with errors in authentication, or in the protection of jobs from other callers."""

import asyncio
import json
import re

from proof.servers.fault_helpers import drop_header, serve_anonymous_callers, set_request_header
from proof.servers.faults import faulty_server
from proof.servers.server_process import ALICE, BOB


def is_known(exchange):
    return re.match("Bearer (alice|bob)-", exchange.header("authorization"))


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


@faulty_server("TW-JOB-044", "ownership.other_principals_jobs_look_unknown")
def other_principals_job_gets_403(hooks):
    """A request for another caller's job is answered with 403, which reveals that the job exists."""
    hooks.shared["jobs"] = set()

    def note(exchange, status, body):
        if exchange.is_submit and status == 201:
            hooks.shared["jobs"].add(json.loads(body)["id"])
        known = status == 404 and any(job in exchange.path for job in hooks.shared["jobs"])
        return (403, body.replace(b"job_not_found", b"forbidden").replace(b"404", b"403")) if known else None

    hooks.bodies.append(note)


@faulty_server("TW-SEC-003", "ownership.invalid_credentials_return_401")
def status_401_without_www_authenticate(hooks):
    """A response with status 401 lacks `WWW-Authenticate`."""
    drop_header(hooks, "www-authenticate")


@faulty_server("TW-JOB-046", "ownership.list_contains_only_the_callers_jobs")
def job_list_contains_other_callers_jobs(hooks):
    """The job list contains the jobs of other callers."""

    def borrow(exchange):
        if exchange.path == "/v1/jobs":
            exchange.set_header(
                "authorization", hooks.shared.get("first") or exchange.header("authorization")
            )
        hooks.shared.setdefault("first", exchange.header("authorization"))

    hooks.requests.append(borrow)


@faulty_server("TW-SEC-011", "ownership.credentials_in_the_url_are_not_accepted")
def credentials_accepted_in_url(hooks):
    """A caller's credentials are accepted in the URL."""

    def take(exchange):
        name, _, secret = exchange.query.partition(b"=")
        if name == b"access_token" and not exchange.header("authorization"):
            exchange.set_header("authorization", f"Bearer {secret.decode()}")

    hooks.requests.append(take)


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
def submit_without_credentials(hooks):
    """A request to submit a job needs no credentials."""
    unauthenticated = lambda exchange: exchange.is_submit and not is_known(exchange)  # noqa: E731
    set_request_header(hooks, "authorization", f"Bearer {ALICE}", unauthenticated)


@faulty_server("TW-SEC-003", "ownership.invalid_credentials_return_401")
def unauthorized_list_is_empty(hooks):
    """A caller without valid credentials gets an empty job list."""
    header = {"content-type": "application/json", "cache-control": "no-store"}
    hooks.instead.append(
        lambda exchange: (
            (200, header, b'{"jobs":[]}') if exchange.path == "/v1/jobs" and not is_known(exchange) else None
        )
    )


@faulty_server("TW-SEC-003", "ownership.invalid_credentials_return_401")
def bearer_token_compared_by_prefix(hooks):
    """A bearer token is valid even if more characters follow it."""
    right = f"Bearer {ALICE}"
    set_request_header(
        hooks, "authorization", right, lambda exchange: exchange.header("authorization").startswith(right)
    )


@faulty_server("TW-SEC-003", "ownership.invalid_credentials_return_401")
def authentication_scheme_not_checked(hooks):
    """The authentication scheme is not checked."""
    right = lambda exchange: exchange.header("authorization").endswith(f" {ALICE}")  # noqa: E731
    set_request_header(hooks, "authorization", f"Bearer {ALICE}", right)


@faulty_server("TW-SEC-008", "ownership.response_time_does_not_reveal_other_jobs")
def slow_refusal_of_other_principals_job(hooks):
    """A request for another caller's job is rejected measurably later than a request for an unknown job."""

    async def read(exchange):
        if exchange.header("authorization") == f"Bearer {BOB}" and not exchange.path.endswith("A" * 22):
            await asyncio.sleep(0.3)

    hooks.requests.append(read)


@faulty_server("TW-JOB-044", "ownership.other_principals_jobs_look_unknown")
def problem_detail_reveals_job(hooks):
    """The problem's `detail` for another caller's job differs from that for an unknown job."""

    def change_detail(exchange, status, body):
        another = exchange.header("authorization") == f"Bearer {BOB}" and "A" * 22 not in exchange.path
        if status != 404 or not another or not exchange.path.startswith("/v1/jobs/"):
            return None
        return status, json.dumps(json.loads(body) | {"detail": "it is not yours"}).encode()

    hooks.bodies.append(change_detail)


@faulty_server("TW-JOB-076", "ownership.anonymous_callers_cannot_list_jobs")
def anonymous_callers_list_each_others_jobs(hooks):
    """The job list of an anonymous caller contains the jobs of all anonymous callers."""
    serve_anonymous_callers(hooks, BOB, lists_jobs=True)


@faulty_server("TW-SEC-005", "ownership.an_anonymous_job_is_open_to_callers_with_its_id")
def anonymous_job_not_found_by_its_id(hooks):
    """An anonymous caller who knows the id of an anonymous job cannot use the job."""
    serve_anonymous_callers(hooks, BOB)
    bob_job = lambda exchange: exchange.own.get("anonymous") and not exchange.is_submit  # noqa: E731
    set_request_header(hooks, "authorization", f"Bearer {ALICE}", bob_job)


@faulty_server("TW-SEC-005", "ownership.an_anonymous_job_is_open_to_callers_with_its_id")
def anonymous_job_cannot_be_purged(hooks):
    """An anonymous caller who knows the id of an anonymous job can read and cancel the job, but not purge it."""
    serve_anonymous_callers(hooks, BOB)
    is_purge = lambda exchange: exchange.own.get("anonymous") and exchange.method == "DELETE"  # noqa: E731
    set_request_header(hooks, "authorization", f"Bearer {ALICE}", is_purge)
