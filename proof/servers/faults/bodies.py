"""Bodies of requests that are read kindly, or judged wrongly at their bounds."""

import json
import re

from proof.servers.fault_helpers import asked_otherwise, mended, refusing, told_otherwise
from proof.servers.faults import faulty_server
from proof.servers.server_process import MIB
from tidewire_conformance import strict_json


@faulty_server("TW-SEC-019", "bodies.what_a_client_sends_stays_data")
def prototypes_are_dropped(hooks):
    """A member `__proto__` is dropped, as by objects of JavaScript."""
    told_otherwise(hooks, rb'"__proto__":\{[^}]*\},?', b"")


@faulty_server("TW-OVR-008", "bodies.a_body_that_breaks_json_is_refused")
def json_is_read_kindly(hooks):
    """JSON is read by a kind reader, which takes NaN and two members of one name."""

    def kind(talk):
        if talk.is_submit and talk.json is not None and strict_json.read(talk.body).faults:
            talk.body = json.dumps({"input": {"script": []}}).encode()

    hooks.requests.append(kind)


@faulty_server("TW-JOB-009", "bodies.a_body_of_another_media_type_is_refused")
def codings_are_ignored(hooks):
    """A content coding of a body is ignored."""
    asked_otherwise(hooks, "content-encoding", None)


@faulty_server("TW-JOB-008", "bodies.both_framings_of_a_body_are_taken")
def a_body_needs_its_length(hooks):
    """A body in chunks is refused."""
    refusing(
        hooks, lambda talk: talk.header("transfer-encoding") and talk.is_submit, 411, "x.length_required"
    )


@faulty_server("TW-OVR-001", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def a_mark_before_a_body_is_dropped(hooks):
    """A byte order mark before a body is dropped."""
    mended(hooks, rb"^\xef\xbb\xbf", b"")


@faulty_server("TW-OVR-001", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def bodies_are_decoded_kindly(hooks):
    """Bytes that are no UTF-8 are taken for U+FFFD."""
    mended(hooks, rb"\xed\xa0\x80|\xc0\xaf", "\ufffd".encode())


@faulty_server("TW-OVR-004", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def names_are_compared_as_they_are_spelt(hooks):
    """Two names of which one is escaped are taken for two."""
    mended(hooks, rb'"\\u0061"', b'"another"')


@faulty_server("TW-OVR-004", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def only_the_first_level_is_looked_at_for_twins(hooks):
    """Two members of one name are refused at the top level alone."""
    mended(hooks, rb'"a": 1, "a": 1', b'"a": 1')


@faulty_server("TW-OVR-005", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def only_the_first_half_of_a_pair_is_looked_at(hooks):
    """The second half of a pair may stand alone."""
    mended(hooks, rb'x\\udc00"', b'x"')


@faulty_server("TW-OVR-008", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def what_follows_a_body_is_not_read(hooks):
    """The body ends where its JSON does."""

    def cut(talk):
        if talk.is_submit and talk.body[:1] == b"{" and talk.json is None:
            found = re.match(rb'\{"input":\{"script":.*?\}\}(?=\{)', talk.body)
            talk.body = found[0] if found else talk.body

    hooks.requests.append(cut)


@faulty_server("TW-OVR-003", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def the_greatest_integer_is_2_to_53_minus_1(hooks):
    """2^53 is refused, as by `Number.isSafeInteger`."""
    refusing(hooks, lambda talk: b"9007199254740992" in talk.body, 400, "malformed_body")


@faulty_server("TW-DSC-004", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def half_the_depth_is_enough(hooks):
    """Bodies may be 32 levels deep."""
    refusing(hooks, lambda talk: b"[" * 32 in talk.body, 400, "malformed_body")


@faulty_server("TW-DSC-004", "bodies.a_limit_is_reached_before_it_is_passed")
def a_body_of_the_limit_is_too_large(hooks):
    """A body of exactly `max_body_bytes` is refused."""
    refusing(hooks, lambda talk: len(talk.body) == MIB, 413, "body_too_large")


@faulty_server("TW-DSC-004", "bodies.a_limit_is_reached_before_it_is_passed")
def inputs_of_the_limit_are_too_many(hooks):
    """A job of exactly as many inputs as are allowed is refused."""
    refusing(hooks, lambda talk: len(talk.inputs) == 32, 422, "batch_too_large", pointer="/inputs")


@faulty_server("TW-JOB-079", "bodies.a_cancel_of_another_shape_cancels_nothing")
def a_cancel_of_null_is_one_of_all(hooks):
    """`items` of null cancels all."""
    mended(hooks, rb'\{"items": ?null\}', b"{}")


@faulty_server("TW-JOB-077", "bodies.a_cancel_of_another_shape_cancels_nothing")
def a_cancel_that_is_no_object_is_one_of_none(hooks):
    """A cancel whose body is no object is answered like one of no item."""

    def none(talk):
        if talk.path.endswith("/cancel") and talk.json is not None and not isinstance(talk.json, dict):
            talk.body = b'{"items":[]}'

    hooks.requests.append(none)


@faulty_server("TW-JOB-010", "bodies.a_cancel_of_another_shape_cancels_nothing")
def a_cancel_of_any_media_type(hooks):
    """The media type of a cancel is not looked at."""
    asked_otherwise(hooks, "content-type", "application/json", lambda talk: talk.path.endswith("/cancel"))


@faulty_server("TW-JOB-009", "bodies.a_cancel_of_another_shape_cancels_nothing")
def a_cancel_of_any_coding(hooks):
    """The content coding of a cancel is not looked at."""
    asked_otherwise(hooks, "content-encoding", None, lambda talk: talk.path.endswith("/cancel"))
