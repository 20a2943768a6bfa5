"""Pages, stream tokens and problems in-band that are answered wrongly."""

import json
import re

from proof.servers.fault_helpers import on_query, refusing, retold, told_otherwise, with_header, without
from proof.servers.fault_proxy import problem
from proof.servers.faults import faulty_server
from proof.servers.server_process import ORIGIN


def gone_all_the_same(hooks, holds):
    """Refuse with 410 those requests for streams of purged jobs of which something holds."""

    def note(talk, status, body):
        if talk.method == "DELETE" and status == 204:
            hooks.shared[f"{talk.path}/events"] = "purged"

    hooks.bodies.append(note)
    refusing(hooks, lambda talk: talk.path in hooks.shared and holds(talk), 410, "job_expired")


@faulty_server("TW-BRW-005", "browser.pages_of_an_allowed_origin_may_read_every_answer")
def errors_without_cors(hooks):
    """Errors do not name the origin."""
    without(hooks, "access-control-allow-origin", range(400, 600))


@faulty_server("TW-BRW-006", "browser.pages_of_other_origins_may_not")
def every_origin_is_allowed(hooks):
    """Every origin is named back."""

    def name(talk, status, headers):
        if talk.header("origin"):
            headers["access-control-allow-origin"] = talk.header("origin")

    hooks.heads.append(name)


@faulty_server("TW-BRW-013", "browser.a_stream_token_opens_nothing_else")
def a_stream_token_opens_any_job(hooks):
    """A stream token opens the stream of every job."""

    def redirect(talk):
        token = re.search(rb"token=([^&]+)", talk.query)
        if token and token[1].decode() in hooks.shared:
            talk.path = hooks.shared[token[1].decode()]

    def note(talk, status, body):
        if talk.path.endswith("/stream-token") and status == 200:
            hooks.shared[json.loads(body)["url"].rpartition("token=")[2]] = talk.path.replace(
                "stream-token", "events"
            )

    hooks.requests.append(redirect)
    hooks.bodies.append(note)


@faulty_server("TW-ERR-015", "browser.a_problem_comes_in_band_where_the_url_says_so")
def a_fatal_problem_without_an_id(hooks):
    """A fatal problem in-band has no id, so that an EventSource comes back for ever."""
    retold(hooks, b"id:0-1\n", b"")


@faulty_server("TW-BRW-008", "browser.a_preflight_allows_what_a_page_needs")
def a_preflight_forgets_the_cursor(hooks):
    """A preflight does not allow `Last-Event-ID`."""

    def forget(talk, status, headers):
        name = "access-control-allow-headers"
        headers[name] = ", ".join(
            each for each in headers.get(name, "").split(", ") if each.lower() != "last-event-id"
        )

    hooks.heads.append(forget)


@faulty_server("TW-BRW-010", "browser.a_preflight_allows_what_a_page_needs")
def a_preflight_for_five_seconds(hooks):
    """A preflight is kept for five seconds."""
    with_header(hooks, "access-control-max-age", "5")


@faulty_server("TW-BRW-020", "browser.a_stream_token_opens_its_stream")
def tokens_stand_in_referrers(hooks):
    """The answer to a URL with a token has no `Referrer-Policy`."""
    without(hooks, "referrer-policy")


@faulty_server("TW-BRW-017", "browser.a_stream_token_opens_its_stream")
def tokens_without_problems_in_band(hooks):
    """With a stream token problems come by their status."""

    def plain(talk):
        talk.query = talk.query.replace(b"errors=inband&", b"")

    hooks.requests.append(plain)
    refusing(hooks, lambda talk: b"token=" in talk.query and b"after=x" in talk.query, 400, "bad_cursor")


@faulty_server(
    "TW-ERR-019",
    "browser.problems_come_in_band_only_where_asked_for",
    "resume.a_cursor_that_is_no_id_is_refused",
)
def problems_are_always_in_band(hooks):
    """Every problem of a stream comes in-band."""

    def ask(talk):
        if talk.method == "GET" and talk.path.endswith("/events"):
            talk.query = b"&".join(filter(None, [talk.query, b"errors=inband"]))

    hooks.requests.append(ask)


@faulty_server("TW-ERR-017", "browser.the_cursor_0_1_is_answered_with_204")
def the_cursor_0_1_needs_credentials(hooks):
    """The cursor `0-1` is answered with 204 to those alone who may read the job."""
    refusing(
        hooks, lambda talk: talk.cursor == "0-1" and not talk.header("authorization"), 401, "unauthorized"
    )


@faulty_server("TW-BRW-011", "browser.pages_of_an_allowed_origin_may_read_every_answer")
def no_vary(hooks):
    """An origin is named without `Vary: Origin`."""
    without(hooks, "vary")


@faulty_server("TW-BRW-009", "browser.pages_of_an_allowed_origin_may_read_every_answer")
def location_is_not_exposed(hooks):
    """A page may not read `Location`."""
    with_header(hooks, "access-control-expose-headers", "Retry-After, Idempotency-Replayed")


@faulty_server("TW-BRW-005", "browser.pages_of_an_allowed_origin_may_read_every_answer")
def no_origin_where_credentials_are_wrong(hooks):
    """401 does not name the origin."""
    without(hooks, "access-control-allow-origin", [401])


@faulty_server("TW-BRW-005", "browser.pages_of_an_allowed_origin_may_read_every_answer")
def no_origin_where_there_is_nothing(hooks):
    """204 does not name the origin."""
    without(hooks, "access-control-allow-origin", [204])


@faulty_server("TW-BRW-013", "browser.a_stream_token_opens_nothing_else")
def a_stream_token_reads_the_job(hooks):
    """A stream token opens the job and its cancel as well."""

    def note(talk, status, body):
        if found := re.search(rb"token=([^\"&]+)", body if talk.path.endswith("/stream-token") else b""):
            hooks.shared[found[1]] = talk.header("authorization")

    def let(talk):
        found = re.search(rb"token=([^&]+)", talk.query)
        if found and found[1] in hooks.shared and not talk.path.endswith("/events"):
            talk.set_header("authorization", hooks.shared[found[1]])

    hooks.bodies.append(note)
    hooks.requests.append(let)


@faulty_server("TW-ERR-014", "browser.a_problem_comes_in_band_where_the_url_says_so")
def who_may_not_read_is_told_by_the_status(hooks):
    """A caller without credentials gets 401, also where the URL asks for problems in-band."""

    def refuse(talk):
        bare = not talk.header("authorization") and b"token=" not in talk.query
        return problem(401, "unauthorized") if bare and b"errors=inband" in talk.query else None

    hooks.instead.append(refuse)


@faulty_server("TW-BRW-005", "browser.pages_of_an_allowed_origin_may_read_every_answer")
def no_origin_where_an_input_is_wrong(hooks):
    """422 does not name the origin."""
    without(hooks, "access-control-allow-origin", [422])


@faulty_server("TW-BRW-005", "browser.pages_of_an_allowed_origin_may_read_every_answer")
def no_origin_where_the_method_is_wrong(hooks):
    """405, which the router makes, does not name the origin."""
    without(hooks, "access-control-allow-origin", [405])


@faulty_server("TW-BRW-005", "browser.a_preflight_allows_what_a_page_needs")
def a_preflight_names_no_origin(hooks):
    """The answer to a preflight does not name the origin."""
    hooks.heads.append(
        lambda talk, status, headers: (
            headers.pop("access-control-allow-origin", None) and None if talk.method == "OPTIONS" else None
        )
    )


@faulty_server("TW-BRW-006", "browser.pages_of_other_origins_may_not")
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


@faulty_server("TW-BRW-006", "browser.pages_of_other_origins_may_not")
def the_origin_null_is_allowed(hooks):
    """A page without an origin, such as one in a sandbox, is allowed."""
    bare = lambda talk, status: talk.header("origin") == "null"  # noqa: E731
    with_header(hooks, "access-control-allow-origin", "null", bare)


@faulty_server("TW-BRW-015", "browser.a_stream_token_opens_its_stream")
def a_token_lives_for_years(hooks):
    """A stream token lives for years."""
    told_otherwise(hooks, rb'("expires_at":")\d{4}', rb"\g<1>2999", at=".*/stream-token")


@faulty_server("TW-ERR-014", "browser.a_problem_comes_in_band_where_the_url_says_so")
def what_is_gone_is_told_by_the_status(hooks):
    """410 is answered by its status, also where the URL asks for problems in-band."""
    gone_all_the_same(hooks, lambda talk: True)


@faulty_server("TW-ERR-017", "browser.a_problem_comes_in_band_where_the_url_says_so")
def the_cursor_0_1_is_looked_at_after_the_job(hooks):
    """The cursor `0-1` of a job that is gone is answered with 410."""
    gone_all_the_same(hooks, lambda talk: talk.cursor == "0-1")


@faulty_server("TW-BRW-005", "browser.a_preflight_allows_what_a_page_needs")
def a_preflight_needs_credentials(hooks):
    """A preflight, which no browser sends credentials with, is refused without them."""
    bare = lambda talk: talk.method == "OPTIONS" and not talk.header("authorization")  # noqa: E731
    refusing(hooks, bare, 401, "unauthorized")


@faulty_server("TW-BRW-008", "browser.a_preflight_allows_what_a_page_needs")
def a_preflight_of_a_purge_is_refused(hooks):
    """A preflight is answered where a page submits, and not where it purges."""
    purge = lambda talk: talk.header("access-control-request-method") == "DELETE"  # noqa: E731
    refusing(hooks, purge, 405, "method_not_allowed")


@faulty_server("TW-BRW-007", "browser.a_preflight_allows_what_a_page_needs")
def all_pages_with_credentials(hooks):
    """A preflight allows every origin, with credentials."""

    def allow(talk, status, headers):
        if talk.method == "OPTIONS" and "access-control-allow-origin" in headers:
            headers["access-control-allow-origin"] = "*"
            headers["access-control-allow-credentials"] = "true"

    hooks.heads.append(allow)


@faulty_server("TW-BRW-005", "browser.pages_of_an_allowed_origin_may_read_every_answer")
def what_is_gone_is_for_no_page(hooks):
    """410 does not name the origin."""
    without(hooks, "access-control-allow-origin", {410})


@faulty_server("TW-BRW-005", "browser.pages_of_an_allowed_origin_may_read_every_answer")
def what_is_too_large_is_for_no_page(hooks):
    """413, which another layer makes, does not name the origin."""
    without(hooks, "access-control-allow-origin", {413})


@faulty_server("TW-BRW-005", "browser.pages_of_an_allowed_origin_may_read_every_answer")
def a_stream_of_a_submit_is_for_no_page(hooks):
    """The stream that answers a submit does not name the origin."""
    hooks.heads.append(
        lambda talk, status, headers: (
            headers.pop("access-control-allow-origin", None) and None
            if talk.is_submit and status == 200
            else None
        )
    )


@faulty_server("TW-BRW-018", "browser.a_stream_token_opens_nothing_else")
def a_stream_token_is_compared_as_far_as_it_goes(hooks):
    """What follows a stream token is not looked at."""
    on_query(hooks, rb"(token=[\w-]{43})A", rb"\1")


@faulty_server("TW-BRW-014", "browser.a_stream_token_opens_its_stream")
def a_token_begins_anew(hooks):
    """With a stream token `Last-Event-ID` is not looked at."""
    hooks.requests.append(
        lambda talk: (
            b"token=" in talk.query and talk.cursor[:2] == "1-" and talk.set_header("last-event-id", None)
        )
    )


@faulty_server("TW-ERR-014", "browser.a_problem_comes_in_band_where_the_url_says_so")
def a_wrong_header_is_refused_by_its_status(hooks):
    """A `Last-Event-ID` that is no id is answered with 400, also where the URL asks for problems in-band."""
    wrong = lambda talk: talk.cursor == "x" and b"errors=inband" in talk.query  # noqa: E731
    refusing(hooks, wrong, 400, "bad_cursor")


@faulty_server("TW-ERR-014", "browser.a_problem_comes_in_band_where_the_url_says_so")
def a_wrong_parameter_is_refused_by_its_status(hooks):
    """A wrong parameter is answered with 400, also where the URL asks for problems in-band."""
    wrong = lambda talk: b"errors=inband&diffs=7" in talk.query  # noqa: E731
    refusing(hooks, wrong, 400, "bad_parameter")
