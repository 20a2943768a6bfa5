"""Faulty servers that accept invalid requests to submit a job, or describe the error wrongly."""

import json

from proof.servers.expected_side_failures import WRONG_ERRORS
from proof.servers.fault_helpers import drop_member, rewrite_request_body, set_request_header
from proof.servers.faults import fault, faulty_server


def _fits(input_value):
    return (
        isinstance(input_value, dict)
        and isinstance(input_value.get("script"), list)
        and set(input_value) <= {"script", "initial", "columns"}
    )


# fmt: off
fault("deadline_0_means_no_deadline", "TW-JOB-087", "refused_submits.invalid_submit_body_returns_422",
      "A deadline of 0 or less is treated as no deadline.",
      requests=drop_member("deadline_ms", lambda value: isinstance(value, int) and value <= 0))
fault("any_on_disconnect_accepted", "TW-JOB-087", "refused_submits.invalid_submit_body_returns_422",
      "Any value of `on_disconnect` is accepted.",
      requests=drop_member("on_disconnect",
          lambda value: value is not None and value not in {"continue", "cancel"}))
fault("fractional_deadline_accepted", "TW-JOB-087", "refused_submits.invalid_submit_body_returns_422",
      "A fractional deadline is accepted.",
      requests=rewrite_request_body(rb'("deadline_ms": ?600000)\.5', rb"\1"))
fault("deadline_true_read_as_1", "TW-JOB-087", "refused_submits.invalid_submit_body_returns_422",
      "`deadline_ms: true` is treated as 1, because `True` equals 1 in Python.",
      requests=rewrite_request_body(rb'("deadline_ms": ?)true', rb"\g<1>1"))
fault("grace_ms_string_accepted", "TW-JOB-087", "refused_submits.invalid_submit_body_returns_422",
      "`grace_ms` may be a string of digits.",
      requests=rewrite_request_body(rb'("grace_ms": ?)"60000"', rb"\g<1>60000"))
fault("fractional_grace_ms_accepted", "TW-JOB-087", "refused_submits.invalid_submit_body_returns_422",
      "A fractional `grace_ms` is accepted.",
      requests=rewrite_request_body(rb'("grace_ms": ?60000)\.5', rb"\1"))
fault("null_inputs_accepted", "TW-JOB-087", "refused_submits.invalid_submit_body_returns_422",
      "`inputs: null` next to `input` is accepted.",
      requests=drop_member("inputs", lambda inputs: inputs is None))
fault("null_shared_accepted", "TW-JOB-087", "refused_submits.invalid_submit_body_returns_422",
      "`shared: null` is accepted.",
      requests=drop_member("shared", lambda shared: shared is None))

fault("pointer_escaped_like_a_url", "TW-JOB-016", "refused_submits.input_violating_its_schema_returns_422",
      "A slash in a pointer is escaped as `%2F` instead of `~1`.",
      bodies=lambda exchange, status, body: (status, body.replace(b"~1", b"%2F")) if status == 422 else None)

fault("accept_weights_ignored", "TW-JOB-017", "refused_submits.accept_header_selects_json_or_stream",
      "The server searches `Accept` for `text/event-stream`, and ignores the weight of the media type.",
      requests=set_request_header("accept", "text/event-stream",
                                  lambda exchange: "text/event-stream" in exchange.header("accept")),
      also_fails={"the check also sends its `Accept` header to the URL of a stream":
          "framing.unacceptable_stream_request_returns_406"})
# fmt: on


@faulty_server(
    "TW-JOB-014",
    "refused_submits.input_violating_its_schema_returns_422",
    hook="requests",
    also_fails={"invalid JSON within an input counts as an invalid input": "bodies.invalid_json_is_rejected"},
)
def invalid_input_accepted(exchange):
    """An input that does not match the endpoint's schema is accepted, but fails later."""
    body = exchange.json if exchange.is_submit and "script" in exchange.path else None
    if isinstance(body, dict) and set(body) == {"input"} and not _fits(body["input"]):
        exchange.body = json.dumps({"input": {"script": [{"fail": "a wrong input"}]}}).encode()


@faulty_server(
    "TW-JOB-016", "refused_submits.invalid_submit_body_returns_422", hook="bodies", also_fails=WRONG_ERRORS
)
def status_422_without_pointer(exchange, status, body):
    """A response with status 422 lacks `pointer`."""
    found = json.loads(body) if status == 422 else {}
    return (
        (status, json.dumps({name: found[name] for name in found if name != "pointer"}).encode())
        if found
        else None
    )
