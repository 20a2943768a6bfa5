"""Faulty servers that parse request bodies too leniently, or apply wrong limits."""

import json
import re

from proof.servers.expected_side_failures import READ_DIFFERS
from proof.servers.fault_helpers import refuse, rewrite_body, rewrite_request_body, set_request_header
from proof.servers.faults import fault, faulty_server
from proof.servers.server_process import MIB
from tidewire_conformance.wire import json_violations

# fmt: off
fault("proto_member_dropped", "TW-SEC-019", "bodies.markup_and_line_ends_are_returned_unchanged",
      "A member with the name `__proto__` is dropped, as in a JavaScript object.",
      bodies=rewrite_body(rb'"__proto__":\{[^}]*\},?', b""),
      also_fails=READ_DIFFERS)

fault("request_content_encoding_ignored", "TW-JOB-009", "bodies.unsupported_media_type_returns_415",
      "The `Content-Encoding` of a request body is ignored.",
      requests=set_request_header("content-encoding", None))

fault("chunked_request_refused", "TW-JOB-008", "bodies.chunked_bodies_are_accepted",
      "A request body with chunked transfer encoding is refused.",
      instead=refuse(lambda exchange: exchange.header("transfer-encoding") and exchange.is_submit, 411,
          "x.length_required"),
      also_fails={"a check uses chunked coding to send a body that is too large":
          "discovery.oversized_body_returns_413"})

fault("request_byte_order_mark_accepted", "TW-OVR-001", "bodies.json_limits_are_exact",
      "A byte order mark before a request body is accepted.",
      requests=rewrite_request_body(rb"^\xef\xbb\xbf", b""))
fault("invalid_utf8_in_request_replaced", "TW-OVR-001", "bodies.json_limits_are_exact",
      "Invalid UTF-8 in a request body is replaced by U+FFFD.",
      requests=rewrite_request_body(rb"\xed\xa0\x80|\xc0\xaf", "\ufffd".encode()))
fault("escaped_duplicate_names_accepted", "TW-OVR-004", "bodies.json_limits_are_exact",
      "Duplicate names are not detected if one of them is escaped.",
      requests=rewrite_request_body(rb'"\\u0061"', b'"another"'))
fault("nested_duplicate_names_accepted", "TW-OVR-004", "bodies.json_limits_are_exact",
      "Duplicate names are refused only at the top level.",
      requests=rewrite_request_body(rb'"a": 1, "a": 1', b'"a": 1'))
fault("lone_low_surrogate_accepted", "TW-OVR-005", "bodies.json_limits_are_exact",
      "A lone low surrogate is accepted.",
      requests=rewrite_request_body(rb'x\\udc00"', b'x"'))
fault("integer_2_to_53_refused", "TW-OVR-003", "bodies.json_limits_are_exact",
      "The integer 2^53 is rejected, because `Number.isSafeInteger` is false for it.",
      instead=refuse(lambda exchange: b"9007199254740992" in exchange.body, 400, "malformed_body"))
fault("max_depth_is_32", "TW-DSC-004", "bodies.json_limits_are_exact",
      "Request bodies may be only 32 levels deep.",
      instead=refuse(lambda exchange: b"[" * 32 in exchange.body, 400, "malformed_body"))

fault("body_of_maximum_size_refused", "TW-DSC-004", "bodies.requests_at_the_limits_are_accepted",
      "A request body of exactly `max_body_bytes` is refused.",
      instead=refuse(lambda exchange: len(exchange.body) == MIB, 413, "body_too_large"))
fault("maximum_number_of_inputs_refused", "TW-DSC-004", "bodies.requests_at_the_limits_are_accepted",
      "A job with exactly `max_inputs` inputs is refused.",
      instead=refuse(lambda exchange: len(exchange.inputs) == 32, 422, "batch_too_large", pointer="/inputs"))

fault("cancel_with_null_items_cancels_all", "TW-JOB-087", "bodies.invalid_cancel_is_rejected",
      "A cancel request with `items: null` cancels all items.",
      requests=rewrite_request_body(rb'\{"items": ?null\}', b"{}"))
fault("cancel_media_type_not_checked", "TW-JOB-010", "bodies.invalid_cancel_is_rejected",
      "The media type of a cancel request is not checked.",
      requests=set_request_header("content-type", "application/json",
          lambda exchange: exchange.path.endswith("/cancel")))
fault("cancel_content_encoding_not_checked", "TW-JOB-009", "bodies.invalid_cancel_is_rejected",
      "The `Content-Encoding` of a cancel request is not checked.",
      requests=set_request_header("content-encoding", None,
          lambda exchange: exchange.path.endswith("/cancel")))
# fmt: on


@faulty_server("TW-OVR-008", "bodies.invalid_json_is_rejected", hook="requests")
def lenient_json_parser(exchange):
    """Request bodies are parsed leniently, so that NaN and duplicate names are accepted."""
    if exchange.is_submit and exchange.json is not None and json_violations.read(exchange.body).faults:
        exchange.body = json.dumps({"input": {"script": []}}).encode()


@faulty_server("TW-OVR-008", "bodies.json_limits_are_exact", hook="requests")
def data_after_json_ignored(exchange):
    """Data after the JSON value of a request body is ignored."""
    if exchange.is_submit and exchange.body[:1] == b"{" and exchange.json is None:
        found = re.match(rb'\{"input":\{"script":.*?\}\}(?=\{)', exchange.body)
        exchange.body = found[0] if found else exchange.body


@faulty_server("TW-JOB-087", "bodies.invalid_cancel_is_rejected", hook="requests")
def cancel_with_non_object_body_accepted(exchange):
    """A cancel request whose body is not an object is accepted, but cancels nothing."""
    if (
        exchange.path.endswith("/cancel")
        and exchange.json is not None
        and not isinstance(exchange.json, dict)
    ):
        exchange.body = b'{"items":[]}'
