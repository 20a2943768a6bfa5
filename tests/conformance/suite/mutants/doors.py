"""Who is let in, and who is told: origins, tokens and credentials that are looked at in some places alone."""

import json
import re

from conformance.suite.meddling import problem
from conformance.suite.mutants import mutant
from conformance.suite.mutants.subtle import ORIGINS, without
from conformance.suite.stage import ALICE, ORIGIN

INBAND = "browser.a_problem_comes_in_band_where_the_url_says_so"
TOKEN = "browser.a_stream_token_opens_its_stream"
STRANGERS = "browser.pages_of_other_origins_may_not"
CREDENTIALS = "ownership.wrong_credentials_are_refused"


def is_known(talk):
    return re.match("Bearer (alice|bob)-", talk.header("authorization"))


@mutant("TW-BRW-005", ORIGINS)
def no_origin_where_an_input_is_wrong(hooks):
    """422 does not name the origin."""
    without(hooks, "access-control-allow-origin", 422)


@mutant("TW-BRW-005", ORIGINS)
def no_origin_where_the_method_is_wrong(hooks):
    """405, which the router makes, does not name the origin."""
    without(hooks, "access-control-allow-origin", 405)


@mutant("TW-BRW-005", "browser.a_preflight_allows_what_a_page_needs")
def a_preflight_names_no_origin(hooks):
    """The answer to a preflight does not name the origin."""
    hooks.heads.append(
        lambda talk, status, headers: (
            headers.pop("access-control-allow-origin", None) and None if talk.method == "OPTIONS" else None
        )
    )


@mutant("TW-BRW-006", STRANGERS)
def origins_are_compared_by_how_they_begin(hooks):
    """An origin that begins like an allowed one is allowed."""

    def forgive(talk):
        if talk.header("origin").startswith(ORIGIN):
            talk.own["origin"] = talk.header("origin")
            talk.set_header("origin", ORIGIN)

    def name(talk, status, headers):
        if "origin" in talk.own and "access-control-allow-origin" in headers:
            headers["access-control-allow-origin"] = talk.own["origin"]

    hooks.requests.append(forgive)
    hooks.heads.append(name)


@mutant("TW-BRW-006", STRANGERS)
def the_origin_null_is_allowed(hooks):
    """A page without an origin, such as one in a sandbox, is allowed."""
    hooks.heads.append(
        lambda talk, status, headers: (
            headers.update({"access-control-allow-origin": "null"})
            if talk.header("origin") == "null"
            else None
        )
    )


@mutant("TW-BRW-015", TOKEN)
def a_token_lives_for_years(hooks):
    """A stream token lives for years."""
    hooks.bodies.append(
        lambda talk, status, body: (
            (status, re.sub(rb'("expires_at":")\d{4}', rb"\g<1>2999", body))
            if talk.path.endswith("/stream-token")
            else None
        )
    )


@mutant("TW-ERR-014", INBAND)
def what_is_gone_is_told_by_the_status(hooks):
    """410 is answered by its status, also where the URL asks for problems in-band."""

    def note(talk, status, body):
        if talk.method == "DELETE" and status == 204:
            hooks.shared[talk.path] = "purged"

    def refuse(talk):
        gone = hooks.shared.get(talk.path.removesuffix("/events")) == "purged"
        return problem(410, "job_expired") if gone and talk.path.endswith("/events") else None

    hooks.bodies.append(note)
    hooks.instead.append(refuse)


@mutant("TW-ERR-017", INBAND)
def the_cursor_0_1_is_looked_at_after_the_job(hooks):
    """The cursor `0-1` of a job that is gone is answered with 410."""

    def note(talk, status, body):
        if talk.method == "DELETE" and status == 204:
            hooks.shared[f"{talk.path}/events"] = "purged"

    hooks.bodies.append(note)
    hooks.instead.append(
        lambda talk: (
            problem(410, "job_expired") if talk.cursor == "0-1" and hooks.shared.get(talk.path) else None
        )
    )


@mutant("TW-SEC-001", "ownership.a_job_of_another_principal_is_an_unknown_one")
def anybody_gets_a_stream_token(hooks):
    """A stream token is given to whoever knows the id of the job."""

    def note(talk, status, body):
        if talk.is_submit and status == 201:
            hooks.shared[f"/v1/jobs/{json.loads(body)['id']}/stream-token"] = talk.header("authorization")

    hooks.bodies.append(note)
    hooks.requests.append(
        lambda talk: (
            is_known(talk)
            and talk.path in hooks.shared
            and talk.set_header("authorization", hooks.shared[talk.path])
        )
    )


@mutant("TW-SEC-003", CREDENTIALS)
def anybody_may_submit(hooks):
    """Credentials are asked for where jobs are read, and not where they are submitted."""
    hooks.requests.append(
        lambda talk: (
            talk.is_submit and not is_known(talk) and talk.set_header("authorization", f"Bearer {ALICE}")
        )
    )


@mutant("TW-SEC-003", CREDENTIALS)
def a_stranger_has_an_empty_list(hooks):
    """The list of a caller who is unknown is empty."""
    header = {"content-type": "application/json", "cache-control": "no-store"}
    hooks.instead.append(
        lambda talk: (200, header, b'{"jobs":[]}') if talk.path == "/v1/jobs" and not is_known(talk) else None
    )
