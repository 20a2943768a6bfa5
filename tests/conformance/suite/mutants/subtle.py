"""Faults that hide in a corner: one method, one status, one digit, one neighbour."""

import itertools
import json
import re
from types import SimpleNamespace

from conformance.suite.meddling import problem
from conformance.suite.mutants import mutant
from conformance.suite.mutants.durable import OTHER_EPOCH, RESTART, after_a_restart
from tidewire_server import service

ORIGINS = "browser.pages_of_an_allowed_origin_may_read_every_answer"
SHAPES = "submits.a_submit_of_another_shape_is_refused"
KEYS = "idempotency.a_key_belongs_to_its_endpoint_byte_by_byte"
IDS = "resume.a_cursor_that_is_no_id_is_refused"


def on_query(hooks, pattern, by):
    """Have the server see another query."""

    def change(talk):
        talk.scope["query_string"] = re.sub(pattern, by, talk.scope["query_string"])

    hooks.requests.append(change)


def without(hooks, name, status):
    """Leave a header out of the answers of one status."""
    hooks.heads.append(
        lambda talk, found, headers: headers.pop(name, None) and None if found == status else None
    )


def dropped(hooks, member, is_wrong):
    """Have a member of a submit be left out where it is wrong."""

    def drop(talk):
        found = talk.json
        if talk.is_submit and isinstance(found, dict) and member in found and is_wrong(found[member]):
            talk.body = json.dumps({name: value for name, value in found.items() if name != member}).encode()

    hooks.requests.append(drop)


@mutant("TW-RES-004", "resume.ids_go_up_without_a_gap", RESTART)
def seqs_begin_anew_in_each_epoch(hooks):
    """In a new epoch seqs are counted from 1."""

    def anew(talk, frame):
        found = OTHER_EPOCH.match(frame)
        if not found:
            return frame
        first = hooks.shared.setdefault(f"first of {talk.path}", int(found[2]))
        return b"id:%b-%d\n" % (found[1], int(found[2]) - first + 1) + frame[found.end() :]

    after_a_restart(hooks, anew)


@mutant("TW-FRM-060", "framing.streams_begin_with_hello", "framing.a_job_ends_by_one_done")
def head_of_hello_is_the_next_id(hooks):
    """`head` of `hello` is the id that the next event would have."""
    after = lambda found: b'"head":"1-%d"' % (int(found[1]) + 1)  # noqa: E731
    hooks.frames.append(
        lambda talk, frame: re.sub(rb'"head":"1-(\d+)"', after, frame) if b"event:hello" in frame else frame
    )


@mutant("TW-JOB-026", KEYS)
def keys_are_one_for_all_endpoints(hooks):
    """A key that was used at one endpoint is taken for reused at another."""

    def refuse(talk):
        first = (
            hooks.shared.setdefault((talk.header("authorization"), talk.key), talk.path) if talk.key else ""
        )
        return problem(422, "idempotency_key_reused") if first not in {"", talk.path} else None

    hooks.instead.append(refuse)


@mutant("TW-JOB-026", KEYS)
def keys_in_any_case(hooks):
    """Keys that differ in the case of their letters are one."""
    hooks.requests.append(
        lambda talk: talk.set_header("idempotency-key", talk.key.lower()) if talk.key else None
    )


@mutant("TW-JOB-016", "batch.a_wrong_input_is_named_by_its_place")
def the_pointer_leads_to_the_first_input(hooks):
    """Whichever input of a batch is wrong, the pointer leads to the first."""
    hooks.bodies.append(
        lambda talk, status, body: (
            (status, re.sub(rb'"pointer":"/inputs/\d+', b'"pointer":"/inputs/0', body))
            if status == 422
            else None
        )
    )


@mutant("TW-BRW-005", ORIGINS)
def no_origin_where_credentials_are_wrong(hooks):
    """401 does not name the origin."""
    without(hooks, "access-control-allow-origin", 401)


@mutant("TW-BRW-005", ORIGINS)
def no_origin_where_there_is_nothing(hooks):
    """204 does not name the origin."""
    without(hooks, "access-control-allow-origin", 204)


@mutant("TW-RES-011", IDS)
def zeros_before_a_seq(hooks):
    """`1-03` is taken for `1-3`."""
    on_query(hooks, rb"after=(\d+)-0+([1-9])", rb"after=\1-\2")


@mutant("TW-RES-011", IDS)
def a_seq_of_sixteen_digits(hooks):
    """A seq of sixteen digits is taken for an id."""
    on_query(hooks, rb"after=(\d+)-(\d{15})\d+", rb"after=\1-\2")


@mutant("TW-RES-009", "resume.the_header_is_younger_than_the_url")
def an_empty_header_overrules_the_url(hooks):
    """An empty `Last-Event-ID` takes away what the URL says."""

    def overrule(talk):
        if (b"last-event-id", b"") in talk.scope["headers"]:
            talk.scope["query_string"] = b""

    hooks.requests.append(overrule)


@mutant("TW-JOB-083", SHAPES)
def a_deadline_of_nothing(hooks):
    """A deadline of 0 or less is taken for none."""
    dropped(hooks, "deadline_ms", lambda value: isinstance(value, int) and value <= 0)


@mutant("TW-JOB-083", SHAPES)
def any_word_on_disconnect(hooks):
    """`on_disconnect` may be any word."""
    dropped(hooks, "on_disconnect", lambda value: value is not None and value not in {"continue", "cancel"})


@mutant("TW-FRM-063", "ephemeral.places_are_counted_from_1", "jobs.a_submit_may_be_answered_by_the_stream")
def a_place_is_told_again_and_again(hooks):
    """`queue` is sent twice for each place."""
    place = b'event:queue\ndata:{"position":3}\n\n'
    hooks.frames.append(lambda talk, frame: frame + 2 * place if b"event:hello" in frame else frame)


@mutant("TW-BRW-013", "browser.a_stream_token_opens_nothing_else")
def a_stream_token_reads_the_job(hooks):
    """A stream token opens the job and its cancel as well."""

    def note(talk, status, body):
        if found := re.search(rb"token=([^\"&]+)", body if talk.path.endswith("/stream-token") else b""):
            hooks.shared[found[1]] = talk.header("authorization")

    def let(talk):
        found = re.search(rb"token=([^&]+)", talk.scope["query_string"])
        if found and found[1] in hooks.shared and not talk.path.endswith("/events"):
            talk.set_header("authorization", hooks.shared[found[1]])

    hooks.bodies.append(note)
    hooks.requests.append(let)


@mutant("TW-ERR-014", "browser.a_problem_comes_in_band_where_the_url_says_so")
def who_may_not_read_is_told_by_the_status(hooks):
    """A caller without credentials gets 401, also where the URL asks for problems in-band."""

    def refuse(talk):
        bare = not talk.header("authorization") and b"token=" not in talk.scope["query_string"]
        return (
            problem(401, "unauthorized") if bare and b"errors=inband" in talk.scope["query_string"] else None
        )

    hooks.instead.append(refuse)


@mutant(
    "TW-JOB-023",
    "jobs.ids_of_jobs_show_no_order",
    "submits.accept_decides_the_form_of_the_answer",
    "bodies.a_body_of_another_media_type_is_refused",
    "bodies.both_framings_of_a_body_are_taken",
)
def ids_of_jobs_are_counted_up(hooks):
    """Ids of jobs are counted up."""
    count = itertools.count(2**100)
    drawn = service.secrets
    service.secrets = SimpleNamespace(
        token_hex=lambda size: f"{next(count):0{2 * size}x}", token_bytes=drawn.token_bytes
    )
