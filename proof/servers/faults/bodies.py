"""Faulty servers that parse request bodies too leniently, or apply wrong limits."""

import json
import re

from proof.servers.fault_helpers import refuse, rewrite_body, rewrite_request_body, set_request_header
from proof.servers.faults import faulty_server
from proof.servers.server_process import MIB
from tidewire_conformance.wire import strict_json


@faulty_server("TW-SEC-019", "bodies.markup_and_line_ends_are_returned_unchanged")
def proto_member_dropped(hooks):
    """A member with the name `__proto__` is dropped, as in a JavaScript object."""
    rewrite_body(hooks, rb'"__proto__":\{[^}]*\},?', b"")


@faulty_server("TW-OVR-008", "bodies.invalid_json_is_rejected")
def lenient_json_parser(hooks):
    """Request bodies are parsed leniently, so that NaN and duplicate names are accepted."""

    def kind(exchange):
        if exchange.is_submit and exchange.json is not None and strict_json.read(exchange.body).faults:
            exchange.body = json.dumps({"input": {"script": []}}).encode()

    hooks.requests.append(kind)


@faulty_server("TW-JOB-009", "bodies.unsupported_media_type_returns_415")
def request_content_encoding_ignored(hooks):
    """The `Content-Encoding` of a request body is ignored."""
    set_request_header(hooks, "content-encoding", None)


@faulty_server("TW-JOB-008", "bodies.chunked_bodies_are_accepted")
def chunked_request_refused(hooks):
    """A request body with chunked transfer encoding is refused."""
    refuse(
        hooks,
        lambda exchange: exchange.header("transfer-encoding") and exchange.is_submit,
        411,
        "x.length_required",
    )


@faulty_server("TW-OVR-001", "bodies.json_limits_are_exact")
def request_byte_order_mark_accepted(hooks):
    """A byte order mark before a request body is accepted."""
    rewrite_request_body(hooks, rb"^\xef\xbb\xbf", b"")


@faulty_server("TW-OVR-001", "bodies.json_limits_are_exact")
def invalid_utf8_in_request_replaced(hooks):
    """Invalid UTF-8 in a request body is replaced by U+FFFD."""
    rewrite_request_body(hooks, rb"\xed\xa0\x80|\xc0\xaf", "\ufffd".encode())


@faulty_server("TW-OVR-004", "bodies.json_limits_are_exact")
def escaped_duplicate_names_accepted(hooks):
    """Duplicate names are not detected if one of them is escaped."""
    rewrite_request_body(hooks, rb'"\\u0061"', b'"another"')


@faulty_server("TW-OVR-004", "bodies.json_limits_are_exact")
def nested_duplicate_names_accepted(hooks):
    """Duplicate names are refused only at the top level."""
    rewrite_request_body(hooks, rb'"a": 1, "a": 1', b'"a": 1')


@faulty_server("TW-OVR-005", "bodies.json_limits_are_exact")
def lone_low_surrogate_accepted(hooks):
    """A lone low surrogate is accepted."""
    rewrite_request_body(hooks, rb'x\\udc00"', b'x"')


@faulty_server("TW-OVR-008", "bodies.json_limits_are_exact")
def data_after_json_ignored(hooks):
    """Data after the JSON value of a request body is ignored."""

    def cut(exchange):
        if exchange.is_submit and exchange.body[:1] == b"{" and exchange.json is None:
            found = re.match(rb'\{"input":\{"script":.*?\}\}(?=\{)', exchange.body)
            exchange.body = found[0] if found else exchange.body

    hooks.requests.append(cut)


@faulty_server("TW-OVR-003", "bodies.json_limits_are_exact")
def integer_2_to_53_refused(hooks):
    """The integer 2^53 is rejected, because `Number.isSafeInteger` is false for it."""
    refuse(hooks, lambda exchange: b"9007199254740992" in exchange.body, 400, "malformed_body")


@faulty_server("TW-DSC-004", "bodies.json_limits_are_exact")
def max_depth_is_32(hooks):
    """Request bodies may be only 32 levels deep."""
    refuse(hooks, lambda exchange: b"[" * 32 in exchange.body, 400, "malformed_body")


@faulty_server("TW-DSC-004", "bodies.requests_at_the_limits_are_accepted")
def body_of_maximum_size_refused(hooks):
    """A request body of exactly `max_body_bytes` is refused."""
    refuse(hooks, lambda exchange: len(exchange.body) == MIB, 413, "body_too_large")


@faulty_server("TW-DSC-004", "bodies.requests_at_the_limits_are_accepted")
def maximum_number_of_inputs_refused(hooks):
    """A job with exactly `max_inputs` inputs is refused."""
    refuse(hooks, lambda exchange: len(exchange.inputs) == 32, 422, "batch_too_large", pointer="/inputs")


@faulty_server("TW-JOB-079", "bodies.invalid_cancel_is_rejected")
def cancel_with_null_items_cancels_all(hooks):
    """A cancel request with `items: null` cancels all items."""
    rewrite_request_body(hooks, rb'\{"items": ?null\}', b"{}")


@faulty_server("TW-JOB-077", "bodies.invalid_cancel_is_rejected")
def cancel_with_non_object_body_accepted(hooks):
    """A cancel request whose body is not an object is accepted, but cancels nothing."""

    def none(exchange):
        if (
            exchange.path.endswith("/cancel")
            and exchange.json is not None
            and not isinstance(exchange.json, dict)
        ):
            exchange.body = b'{"items":[]}'

    hooks.requests.append(none)


@faulty_server("TW-JOB-010", "bodies.invalid_cancel_is_rejected")
def cancel_media_type_not_checked(hooks):
    """The media type of a cancel request is not checked."""
    set_request_header(
        hooks, "content-type", "application/json", lambda exchange: exchange.path.endswith("/cancel")
    )


@faulty_server("TW-JOB-009", "bodies.invalid_cancel_is_rejected")
def cancel_content_encoding_not_checked(hooks):
    """The `Content-Encoding` of a cancel request is not checked."""
    set_request_header(hooks, "content-encoding", None, lambda exchange: exchange.path.endswith("/cancel"))
