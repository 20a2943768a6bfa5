"""Bodies, parameters, methods and media types that are judged wrongly at their bounds."""

import json
import re

from conformance.suite.meddling import problem
from conformance.suite.mutants import mutant
from conformance.suite.mutants.subtle import on_query
from conformance.suite.stage import MIB

RULES = "bodies.the_rules_of_json_hold_up_to_their_bounds"
LIMITS = "bodies.a_limit_is_reached_before_it_is_passed"
CANCELS = "bodies.a_cancel_of_another_shape_cancels_nothing"
SAME = "parameters.what_means_the_same_as_nothing_is_taken"
PAGES = "parameters.a_limit_is_a_number_from_1_to_1000"
PATHS = "errors.what_there_is_not_is_refused"
SHAPES = "submits.a_submit_of_another_shape_is_refused"
ACCEPT = "framing.a_stream_that_is_not_accepted_is_refused"


def mended(hooks, pattern, by):
    """Have the server see another body than the one that came."""

    def mend(talk):
        talk.body = re.sub(pattern, by, talk.body)

    hooks.requests.append(mend)


def refusing(hooks, holds, status, code, **more):
    """Refuse requests of which something holds."""
    hooks.instead.append(lambda talk: problem(status, code, **more) if holds(talk) else None)


@mutant("TW-OVR-001", RULES)
def a_mark_before_a_body_is_dropped(hooks):
    """A byte order mark before a body is dropped."""
    mended(hooks, rb"^\xef\xbb\xbf", b"")


@mutant("TW-OVR-001", RULES)
def bodies_are_decoded_kindly(hooks):
    """Bytes that are no UTF-8 are taken for U+FFFD."""
    mended(hooks, rb"\xed\xa0\x80|\xc0\xaf", "\ufffd".encode())


@mutant("TW-OVR-004", RULES)
def names_are_compared_as_they_are_spelt(hooks):
    """Two names of which one is escaped are taken for two."""
    mended(hooks, rb'"\\u0061"', b'"another"')


@mutant("TW-OVR-004", RULES)
def only_the_first_level_is_looked_at_for_twins(hooks):
    """Two members of one name are refused at the top level alone."""
    mended(hooks, rb'"a": 1, "a": 1', b'"a": 1')


@mutant("TW-OVR-005", RULES)
def only_the_first_half_of_a_pair_is_looked_at(hooks):
    """The second half of a pair may stand alone."""
    mended(hooks, rb'x\\udc00"', b'x"')


@mutant("TW-OVR-008", RULES)
def what_follows_a_body_is_not_read(hooks):
    """The body ends where its JSON does."""

    def cut(talk):
        if talk.is_submit and talk.body[:1] == b"{" and talk.json is None:
            found = re.match(rb'\{"input":\{"script":.*?\}\}(?=\{)', talk.body)
            talk.body = found[0] if found else talk.body

    hooks.requests.append(cut)


@mutant("TW-OVR-003", RULES)
def the_greatest_integer_is_2_to_53_minus_1(hooks):
    """2^53 is refused, as by `Number.isSafeInteger`."""
    refusing(hooks, lambda talk: b"9007199254740992" in talk.body, 400, "malformed_body")


@mutant("TW-DSC-004", RULES)
def half_the_depth_is_enough(hooks):
    """Bodies may be 32 levels deep."""
    refusing(hooks, lambda talk: b"[" * 32 in talk.body, 400, "malformed_body")


@mutant("TW-DSC-004", LIMITS)
def a_body_of_the_limit_is_too_large(hooks):
    """A body of exactly `max_body_bytes` is refused."""
    refusing(hooks, lambda talk: len(talk.body) == MIB, 413, "body_too_large")


@mutant("TW-DSC-004", LIMITS)
def inputs_of_the_limit_are_too_many(hooks):
    """A job of exactly as many inputs as are allowed is refused."""
    refusing(hooks, lambda talk: len(talk.inputs) == 32, 422, "batch_too_large", pointer="/inputs")


@mutant("TW-JOB-079", CANCELS)
def a_cancel_of_null_is_one_of_all(hooks):
    """`items` of null cancels all."""
    mended(hooks, rb'\{"items": ?null\}', b"{}")


@mutant("TW-JOB-077", CANCELS)
def a_cancel_that_is_no_object_is_one_of_none(hooks):
    """A cancel whose body is no object is answered like one of no item."""

    def none(talk):
        if talk.path.endswith("/cancel") and talk.json is not None and not isinstance(talk.json, dict):
            talk.body = b'{"items":[]}'

    hooks.requests.append(none)


@mutant("TW-JOB-010", CANCELS)
def a_cancel_of_any_media_type(hooks):
    """The media type of a cancel is not looked at."""
    hooks.requests.append(
        lambda talk: talk.path.endswith("/cancel") and talk.set_header("content-type", "application/json")
    )


@mutant("TW-JOB-083", SHAPES)
def a_deadline_with_a_fraction(hooks):
    """A deadline may have a fraction."""
    mended(hooks, rb'("deadline_ms": ?600000)\.5', rb"\1")


@mutant("TW-JOB-083", SHAPES)
def a_deadline_of_true(hooks):
    """A deadline of true is one of 1, as in Python."""
    mended(hooks, rb'("deadline_ms": ?)true', rb"\g<1>1")


@mutant("TW-JOB-007", SAME)
def diffs_is_known_with_0_alone(hooks):
    """`diffs=1` is refused."""
    refusing(hooks, lambda talk: b"diffs=1" in talk.scope["query_string"], 400, "bad_parameter")


@mutant("TW-JOB-078", SAME)
def an_empty_token_is_a_wrong_one(hooks):
    """`token=` is taken for a token."""
    refusing(hooks, lambda talk: b"token=&" in talk.scope["query_string"], 401, "unauthorized")


@mutant("TW-JOB-006", SAME)
def parameters_are_judged_at_every_url(hooks):
    """A parameter of event streams is judged at other URLs as well."""
    wrong = lambda talk: talk.path == "/v1" and b"diffs=2" in talk.scope["query_string"]  # noqa: E731
    refusing(hooks, wrong, 400, "bad_parameter")


@mutant("TW-JOB-007", PAGES)
def a_page_of_nothing_is_one_of_all(hooks):
    """`limit=0` means no limit."""
    on_query(hooks, rb"limit=0", b"")


@mutant("TW-JOB-007", PAGES)
def a_page_of_too_many_is_cut_silently(hooks):
    """A `limit` above 1000 is taken for 1000."""
    on_query(hooks, rb"limit=1001", b"limit=1000")


@mutant("TW-JOB-007", "parameters.an_interval_is_a_number_without_a_sign")
def an_interval_below_nothing_is_taken(hooks):
    """A `min_interval_ms` below 0 is taken for 0."""
    on_query(hooks, rb"min_interval_ms=-\d+", b"min_interval_ms=0")


@mutant("TW-JOB-003", PATHS)
def allow_names_what_was_asked(hooks):
    """`Allow` names the method that is not allowed."""
    hooks.heads.append(
        lambda talk, status, headers: headers.update(allow=talk.method) if status == 405 else None
    )


@mutant("TW-JOB-002", PATHS)
def below_a_job_all_is_about_the_job(hooks):
    """A URL below that of a job that there is not is answered like an unknown job."""
    hooks.bodies.append(
        lambda talk, status, body: (
            problem(404, "job_not_found")[::2]
            if b'"not_found"' in body and talk.path.startswith("/v1/jobs/")
            else None
        )
    )


@mutant("TW-JOB-043", PATHS)
def an_unknown_job_is_purged_all_the_same(hooks):
    """`DELETE` of a job that never was is answered with 204."""

    def gone(talk):
        unknown = talk.method == "DELETE" and talk.path == f"/v1/jobs/{'A' * 22}"
        return (204, {"cache-control": "no-store"}, b"") if unknown else None

    hooks.instead.append(gone)


@mutant("TW-JOB-043", PATHS)
def anything_gets_a_stream_token(hooks):
    """A stream token is signed without a look at its job."""
    token = {"url": "/v1/jobs/x/events?token=x", "expires_at": "2030-01-01T00:00:00Z"}

    def sign(talk):
        unknown = talk.path == f"/v1/jobs/{'A' * 22}/stream-token"
        header = {"content-type": "application/json", "cache-control": "no-store"}
        return (200, header, json.dumps(token).encode()) if unknown else None

    hooks.instead.append(sign)


@mutant("TW-JOB-062", "purges.a_purged_job_is_gone")
def a_token_of_a_purged_job_is_looked_for_elsewhere(hooks):
    """A stream token for a job that was purged is answered with 404."""
    hooks.bodies.append(
        lambda talk, status, body: (
            problem(404, "job_not_found")[::2]
            if status == 410 and talk.path.endswith("/stream-token")
            else None
        )
    )


@mutant("TW-FRM-008", ACCEPT)
def only_whole_media_types_admit_a_stream(hooks):
    """`Accept: text/*` does not admit an event stream."""
    refusing(
        hooks,
        lambda talk: talk.path.endswith("/events") and talk.header("accept") == "text/*",
        406,
        "not_acceptable",
    )


@mutant("TW-FRM-008", ACCEPT)
def a_weight_of_0_admits_a_stream(hooks):
    """What `Accept` names with a weight of 0 is sent."""
    hooks.requests.append(
        lambda talk: (
            talk.path.endswith("/events")
            and ";q=0" in talk.header("accept")
            and talk.set_header("accept", "*/*")
        )
    )
