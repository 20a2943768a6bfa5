"""Faulty servers that parse request bodies too leniently, or apply wrong limits."""

import json
import re

from proof.servers.fault_helpers import refuse, rewrite_body, rewrite_request_body, set_request_header
from proof.servers.faults import faulty_server
from proof.servers.server_process import MIB
from tidewire_conformance.wire import strict_json


@faulty_server("TW-SEC-019", "bodies.what_a_client_sends_stays_data")
def prototypes_are_dropped(hooks):
    """A member `__proto__` is dropped, as by JavaScript objects."""
    rewrite_body(hooks, rb'"__proto__":\{[^}]*\},?', b"")


@faulty_server("TW-OVR-008", "bodies.a_body_that_breaks_json_is_refused")
def json_is_read_kindly(hooks):
    """Request bodies are parsed leniently: NaN and duplicate names are accepted."""

    def kind(exchange):
        if exchange.is_submit and exchange.json is not None and strict_json.read(exchange.body).faults:
            exchange.body = json.dumps({"input": {"script": []}}).encode()

    hooks.requests.append(kind)


@faulty_server("TW-JOB-009", "bodies.a_body_of_another_media_type_is_refused")
def codings_are_ignored(hooks):
    """The `Content-Encoding` of a request body is ignored."""
    set_request_header(hooks, "content-encoding", None)


@faulty_server("TW-JOB-008", "bodies.both_framings_of_a_body_are_taken")
def a_body_needs_its_length(hooks):
    """A request body with chunked transfer encoding is refused."""
    refuse(
        hooks,
        lambda exchange: exchange.header("transfer-encoding") and exchange.is_submit,
        411,
        "x.length_required",
    )


@faulty_server("TW-OVR-001", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def a_mark_before_a_body_is_dropped(hooks):
    """A byte order mark before a request body is accepted."""
    rewrite_request_body(hooks, rb"^\xef\xbb\xbf", b"")


@faulty_server("TW-OVR-001", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def bodies_are_decoded_kindly(hooks):
    """Invalid UTF-8 in a request body is replaced by U+FFFD."""
    rewrite_request_body(hooks, rb"\xed\xa0\x80|\xc0\xaf", "\ufffd".encode())


@faulty_server("TW-OVR-004", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def names_are_compared_as_they_are_spelt(hooks):
    """Duplicate names are not detected if one of them is escaped."""
    rewrite_request_body(hooks, rb'"\\u0061"', b'"another"')


@faulty_server("TW-OVR-004", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def only_the_first_level_is_looked_at_for_twins(hooks):
    """Duplicate names are refused only at the top level."""
    rewrite_request_body(hooks, rb'"a": 1, "a": 1', b'"a": 1')


@faulty_server("TW-OVR-005", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def only_the_first_half_of_a_pair_is_looked_at(hooks):
    """A lone low surrogate is accepted."""
    rewrite_request_body(hooks, rb'x\\udc00"', b'x"')


@faulty_server("TW-OVR-008", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def what_follows_a_body_is_not_read(hooks):
    """Data after the JSON value of a request body is ignored."""

    def cut(exchange):
        if exchange.is_submit and exchange.body[:1] == b"{" and exchange.json is None:
            found = re.match(rb'\{"input":\{"script":.*?\}\}(?=\{)', exchange.body)
            exchange.body = found[0] if found else exchange.body

    hooks.requests.append(cut)


@faulty_server("TW-OVR-003", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def the_greatest_integer_is_2_to_53_minus_1(hooks):
    """The integer 2^53 is refused, as by `Number.isSafeInteger`."""
    refuse(hooks, lambda exchange: b"9007199254740992" in exchange.body, 400, "malformed_body")


@faulty_server("TW-DSC-004", "bodies.the_rules_of_json_hold_up_to_their_bounds")
def half_the_depth_is_enough(hooks):
    """Request bodies may be only 32 levels deep."""
    refuse(hooks, lambda exchange: b"[" * 32 in exchange.body, 400, "malformed_body")


@faulty_server("TW-DSC-004", "bodies.a_limit_is_reached_before_it_is_passed")
def a_body_of_the_limit_is_too_large(hooks):
    """A request body of exactly `max_body_bytes` is refused."""
    refuse(hooks, lambda exchange: len(exchange.body) == MIB, 413, "body_too_large")


@faulty_server("TW-DSC-004", "bodies.a_limit_is_reached_before_it_is_passed")
def inputs_of_the_limit_are_too_many(hooks):
    """A job with exactly `max_inputs` inputs is refused."""
    refuse(hooks, lambda exchange: len(exchange.inputs) == 32, 422, "batch_too_large", pointer="/inputs")


@faulty_server("TW-JOB-079", "bodies.a_cancel_of_another_shape_cancels_nothing")
def a_cancel_of_null_is_one_of_all(hooks):
    """A cancel with `items: null` cancels all items."""
    rewrite_request_body(hooks, rb'\{"items": ?null\}', b"{}")


@faulty_server("TW-JOB-077", "bodies.a_cancel_of_another_shape_cancels_nothing")
def a_cancel_that_is_no_object_is_one_of_none(hooks):
    """A cancel whose body is not an object is accepted and cancels nothing."""

    def none(exchange):
        if (
            exchange.path.endswith("/cancel")
            and exchange.json is not None
            and not isinstance(exchange.json, dict)
        ):
            exchange.body = b'{"items":[]}'

    hooks.requests.append(none)


@faulty_server("TW-JOB-010", "bodies.a_cancel_of_another_shape_cancels_nothing")
def a_cancel_of_any_media_type(hooks):
    """The media type of a cancel is not checked."""
    set_request_header(
        hooks, "content-type", "application/json", lambda exchange: exchange.path.endswith("/cancel")
    )


@faulty_server("TW-JOB-009", "bodies.a_cancel_of_another_shape_cancels_nothing")
def a_cancel_of_any_coding(hooks):
    """The `Content-Encoding` of a cancel is not checked."""
    set_request_header(hooks, "content-encoding", None, lambda exchange: exchange.path.endswith("/cancel"))
