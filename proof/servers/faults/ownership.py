"""Faulty servers with errors in authentication or in the access to jobs of other callers."""

import asyncio
import json
import re

from proof.servers.fault_helpers import drop_header, set_request_header
from proof.servers.faults import faulty_server
from proof.servers.server_process import ALICE, BOB


def is_known(exchange):
    return re.match("Bearer (alice|bob)-", exchange.header("authorization"))


@faulty_server("TW-JOB-044", "ownership.a_job_of_another_principal_is_an_unknown_one")
def anybody_may_read(hooks):
    """Every caller may read every job whose id they know."""

    def borrow(exchange):
        if "/v1/jobs/" in exchange.path and exchange.header("authorization"):
            owner = hooks.shared.get(exchange.path.split("/")[3])
            exchange.set_header("authorization", owner or exchange.header("authorization"))

    def note(exchange, status, body):
        if exchange.is_submit and status == 201:
            hooks.shared[json.loads(body)["id"]] = exchange.header("authorization")

    hooks.requests.append(borrow)
    hooks.bodies.append(note)


@faulty_server("TW-JOB-044", "ownership.a_job_of_another_principal_is_an_unknown_one")
def another_principal_is_told_forbidden(hooks):
    """Another principal's job is answered with 403, which reveals that it exists."""
    hooks.shared["jobs"] = set()

    def note(exchange, status, body):
        if exchange.is_submit and status == 201:
            hooks.shared["jobs"].add(json.loads(body)["id"])
        known = status == 404 and any(job in exchange.path for job in hooks.shared["jobs"])
        return (403, body.replace(b"job_not_found", b"forbidden").replace(b"404", b"403")) if known else None

    hooks.bodies.append(note)


@faulty_server("TW-SEC-003", "ownership.wrong_credentials_are_refused")
def no_www_authenticate(hooks):
    """A response with status 401 lacks `WWW-Authenticate`."""
    drop_header(hooks, "www-authenticate")


@faulty_server("TW-JOB-046", "ownership.a_list_has_the_callers_jobs_alone")
def the_list_is_everybodys(hooks):
    """The job list contains the jobs of other callers."""

    def borrow(exchange):
        if exchange.path == "/v1/jobs":
            exchange.set_header(
                "authorization", hooks.shared.get("first") or exchange.header("authorization")
            )
        hooks.shared.setdefault("first", exchange.header("authorization"))

    hooks.requests.append(borrow)


@faulty_server("TW-SEC-011", "ownership.a_credential_in_the_url_opens_nothing")
def a_token_in_the_url_is_taken(hooks):
    """A caller's credentials are accepted in the URL."""

    def take(exchange):
        name, _, secret = exchange.query.partition(b"=")
        if name == b"access_token" and not exchange.header("authorization"):
            exchange.set_header("authorization", f"Bearer {secret.decode()}")

    hooks.requests.append(take)


@faulty_server("TW-SEC-001", "ownership.a_job_of_another_principal_is_an_unknown_one")
def anybody_gets_a_stream_token(hooks):
    """Every caller gets a stream token for every job whose id they know."""

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


@faulty_server("TW-SEC-003", "ownership.wrong_credentials_are_refused")
def anybody_may_submit(hooks):
    """A submit needs no credentials."""
    unauthenticated = lambda exchange: exchange.is_submit and not is_known(exchange)  # noqa: E731
    set_request_header(hooks, "authorization", f"Bearer {ALICE}", unauthenticated)


@faulty_server("TW-SEC-003", "ownership.wrong_credentials_are_refused")
def a_stranger_has_an_empty_list(hooks):
    """A caller without valid credentials gets an empty job list."""
    header = {"content-type": "application/json", "cache-control": "no-store"}
    hooks.instead.append(
        lambda exchange: (
            (200, header, b'{"jobs":[]}') if exchange.path == "/v1/jobs" and not is_known(exchange) else None
        )
    )


@faulty_server("TW-SEC-003", "ownership.wrong_credentials_are_refused")
def the_begin_of_a_token_is_compared(hooks):
    """Characters after a valid bearer token are ignored."""
    right = f"Bearer {ALICE}"
    set_request_header(
        hooks, "authorization", right, lambda exchange: exchange.header("authorization").startswith(right)
    )


@faulty_server("TW-SEC-003", "ownership.wrong_credentials_are_refused")
def the_scheme_is_not_looked_at(hooks):
    """The authentication scheme is not checked."""
    right = lambda exchange: exchange.header("authorization").endswith(f" {ALICE}")  # noqa: E731
    set_request_header(hooks, "authorization", f"Bearer {ALICE}", right)


@faulty_server("TW-SEC-008", "ownership.a_job_of_another_principal_takes_no_longer")
def another_job_is_read_before_its_owner_is(hooks):
    """Access to another principal's job is refused measurably later than to an unknown job."""

    async def read(exchange):
        if exchange.header("authorization") == f"Bearer {BOB}" and not exchange.path.endswith("A" * 22):
            await asyncio.sleep(0.3)

    hooks.requests.append(read)


@faulty_server("TW-JOB-044", "ownership.a_job_of_another_principal_is_an_unknown_one")
def a_detail_betrays_a_job(hooks):
    """`detail` differs between another principal's job and an unknown job."""

    def change_detail(exchange, status, body):
        another = exchange.header("authorization") == f"Bearer {BOB}" and "A" * 22 not in exchange.path
        if status != 404 or not another or not exchange.path.startswith("/v1/jobs/"):
            return None
        return status, json.dumps(json.loads(body) | {"detail": "it is not yours"}).encode()

    hooks.bodies.append(change_detail)
