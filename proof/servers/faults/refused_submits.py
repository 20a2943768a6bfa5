"""Faulty servers that accept invalid submits or describe the error wrongly."""

import json

from proof.servers.fault_helpers import drop_member, rewrite_request_body
from proof.servers.faults import faulty_server


def _fits(input_value):
    return (
        isinstance(input_value, dict)
        and isinstance(input_value.get("script"), list)
        and set(input_value) <= {"script", "initial", "columns"}
    )


@faulty_server("TW-JOB-014", "refused_submits.an_input_that_does_not_fit_is_refused")
def invalid_input_is_taken(hooks):
    """An input that does not match its schema is accepted and fails later."""
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


@faulty_server("TW-JOB-017", "refused_submits.accept_decides_the_form_of_the_answer")
def accept_is_searched_for_a_word(hooks):
    """`Accept` is searched for `text/event-stream` without regard to weights."""

    def search(exchange):
        if "text/event-stream" in exchange.header("accept"):
            exchange.set_header("accept", "text/event-stream")

    hooks.requests.append(search)


@faulty_server("TW-JOB-016", "refused_submits.a_submit_of_another_shape_is_refused")
def no_pointer(hooks):
    """A response with status 422 lacks `pointer`."""

    def drop(exchange, status, body):
        found = json.loads(body) if status == 422 else {}
        return (
            (status, json.dumps({name: found[name] for name in found if name != "pointer"}).encode())
            if found
            else None
        )

    hooks.bodies.append(drop)


@faulty_server("TW-JOB-083", "refused_submits.a_submit_of_another_shape_is_refused")
def a_deadline_of_nothing(hooks):
    """A deadline of 0 or less is treated as no deadline."""
    drop_member(hooks, "deadline_ms", lambda value: isinstance(value, int) and value <= 0)


@faulty_server("TW-JOB-083", "refused_submits.a_submit_of_another_shape_is_refused")
def any_word_on_disconnect(hooks):
    """Any value of `on_disconnect` is accepted."""
    drop_member(
        hooks, "on_disconnect", lambda value: value is not None and value not in {"continue", "cancel"}
    )


@faulty_server("TW-JOB-083", "refused_submits.a_submit_of_another_shape_is_refused")
def a_deadline_with_a_fraction(hooks):
    """A fractional deadline is accepted."""
    rewrite_request_body(hooks, rb'("deadline_ms": ?600000)\.5', rb"\1")


@faulty_server("TW-JOB-083", "refused_submits.a_submit_of_another_shape_is_refused")
def a_deadline_of_true(hooks):
    """`deadline_ms: true` is treated as 1, as in Python."""
    rewrite_request_body(hooks, rb'("deadline_ms": ?)true', rb"\g<1>1")


@faulty_server("TW-JOB-083", "refused_submits.a_submit_of_another_shape_is_refused")
def a_grace_in_words(hooks):
    """`grace_ms` may be a string of digits."""
    rewrite_request_body(hooks, rb'("grace_ms": ?)"60000"', rb"\g<1>60000")


@faulty_server("TW-JOB-083", "refused_submits.a_submit_of_another_shape_is_refused")
def a_grace_with_a_fraction(hooks):
    """A fractional `grace_ms` is accepted."""
    rewrite_request_body(hooks, rb'("grace_ms": ?60000)\.5', rb"\1")


@faulty_server("TW-JOB-079", "refused_submits.a_submit_of_another_shape_is_refused")
def inputs_of_null_are_none(hooks):
    """`inputs: null` next to `input` is accepted."""
    drop_member(hooks, "inputs", lambda inputs: inputs is None)


@faulty_server("TW-JOB-079", "refused_submits.a_submit_of_another_shape_is_refused")
def shared_of_null_is_none(hooks):
    """`shared: null` is accepted."""
    drop_member(hooks, "shared", lambda shared: shared is None)


@faulty_server("TW-JOB-016", "refused_submits.an_input_that_does_not_fit_is_refused")
def a_pointer_is_escaped_like_a_url(hooks):
    """A slash in a pointer is escaped as `%2F` instead of `~1`."""
    hooks.bodies.append(
        lambda exchange, status, body: (status, body.replace(b"~1", b"%2F")) if status == 422 else None
    )
