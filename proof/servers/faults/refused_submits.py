"""Faulty servers that accept invalid requests to submit a job, or describe the error wrongly."""

import json

from proof.servers.fault_helpers import drop_member, rewrite_request_body
from proof.servers.faults import faulty_server


def _fits(input_value):
    return (
        isinstance(input_value, dict)
        and isinstance(input_value.get("script"), list)
        and set(input_value) <= {"script", "initial", "columns"}
    )


@faulty_server("TW-JOB-014", "refused_submits.input_violating_its_schema_returns_422")
def invalid_input_accepted(hooks):
    """An input that does not match the endpoint's schema is accepted, but fails later."""
    good = {"input": {"script": [{"fail": "a wrong input"}]}}

    def rewrite(exchange):
        if (
            exchange.is_submit
            and isinstance(exchange.json, dict)
            and set(exchange.json) == {"input"}
            and "script" in exchange.path
            and not _fits(exchange.json["input"])
        ):
            exchange.body = json.dumps(good).encode()

    hooks.requests.append(rewrite)


@faulty_server("TW-JOB-017", "refused_submits.accept_header_selects_json_or_stream")
def accept_weights_ignored(hooks):
    """The server searches `Accept` for `text/event-stream`, and ignores the weight of the media type."""

    def search(exchange):
        if "text/event-stream" in exchange.header("accept"):
            exchange.set_header("accept", "text/event-stream")

    hooks.requests.append(search)


@faulty_server("TW-JOB-016", "refused_submits.invalid_submit_body_returns_422")
def status_422_without_pointer(hooks):
    """A response with status 422 lacks `pointer`."""

    def drop(exchange, status, body):
        found = json.loads(body) if status == 422 else {}
        return (
            (status, json.dumps({name: found[name] for name in found if name != "pointer"}).encode())
            if found
            else None
        )

    hooks.bodies.append(drop)


@faulty_server("TW-JOB-083", "refused_submits.invalid_submit_body_returns_422")
def deadline_0_means_no_deadline(hooks):
    """A deadline of 0 or less is treated as no deadline."""
    drop_member(hooks, "deadline_ms", lambda value: isinstance(value, int) and value <= 0)


@faulty_server("TW-JOB-083", "refused_submits.invalid_submit_body_returns_422")
def any_on_disconnect_accepted(hooks):
    """Any value of `on_disconnect` is accepted."""
    drop_member(
        hooks, "on_disconnect", lambda value: value is not None and value not in {"continue", "cancel"}
    )


@faulty_server("TW-JOB-083", "refused_submits.invalid_submit_body_returns_422")
def fractional_deadline_accepted(hooks):
    """A fractional deadline is accepted."""
    rewrite_request_body(hooks, rb'("deadline_ms": ?600000)\.5', rb"\1")


@faulty_server("TW-JOB-083", "refused_submits.invalid_submit_body_returns_422")
def deadline_true_read_as_1(hooks):
    """`deadline_ms: true` is treated as 1, because `True` equals 1 in Python."""
    rewrite_request_body(hooks, rb'("deadline_ms": ?)true', rb"\g<1>1")


@faulty_server("TW-JOB-083", "refused_submits.invalid_submit_body_returns_422")
def grace_ms_string_accepted(hooks):
    """`grace_ms` may be a string of digits."""
    rewrite_request_body(hooks, rb'("grace_ms": ?)"60000"', rb"\g<1>60000")


@faulty_server("TW-JOB-083", "refused_submits.invalid_submit_body_returns_422")
def fractional_grace_ms_accepted(hooks):
    """A fractional `grace_ms` is accepted."""
    rewrite_request_body(hooks, rb'("grace_ms": ?60000)\.5', rb"\1")


@faulty_server("TW-JOB-079", "refused_submits.invalid_submit_body_returns_422")
def null_inputs_accepted(hooks):
    """`inputs: null` next to `input` is accepted."""
    drop_member(hooks, "inputs", lambda inputs: inputs is None)


@faulty_server("TW-JOB-079", "refused_submits.invalid_submit_body_returns_422")
def null_shared_accepted(hooks):
    """`shared: null` is accepted."""
    drop_member(hooks, "shared", lambda shared: shared is None)


@faulty_server("TW-JOB-016", "refused_submits.input_violating_its_schema_returns_422")
def pointer_escaped_like_a_url(hooks):
    """A slash in a pointer is escaped as `%2F` instead of `~1`."""
    hooks.bodies.append(
        lambda exchange, status, body: (status, body.replace(b"~1", b"%2F")) if status == 422 else None
    )
