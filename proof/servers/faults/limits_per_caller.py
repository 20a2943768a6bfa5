"""Faulty servers with errors in the limits per caller, or in the queue."""

import re

from proof.servers.fault_helpers import PING, drop_header, rewrite_events
from proof.servers.fault_proxy import CUT, problem
from proof.servers.faults import faulty_server


def declare_only(hooks, name):
    """Declare a limit in discovery without enforcing it."""
    hooks.settings[name] = 1000
    declare = lambda body: re.sub(rb'("%b":)1000' % name.encode(), rb"\g<1>32", body)  # noqa: E731
    hooks.bodies.append(
        lambda exchange, status, body: (status, declare(body)) if exchange.path == "/v1" else None
    )


@faulty_server("TW-SEC-024", "limits_per_caller.a_stream_too_many_is_refused")
def streams_without_a_limit(hooks):
    """The number of streams per caller is not limited."""
    declare_only(hooks, "max_streams_per_principal")


@faulty_server("TW-DSC-012", "limits_per_caller.a_job_too_many_is_refused")
def jobs_without_a_limit(hooks):
    """The number of jobs per caller is not limited."""
    declare_only(hooks, "max_jobs_per_principal")


@faulty_server("TW-DSC-013", "limits_per_caller.a_stream_too_many_is_refused")
def the_oldest_stream_makes_room(hooks):
    """When a stream beyond the limit is refused, the oldest stream is closed."""

    def cut(exchange, frame):
        oldest = hooks.shared.setdefault(exchange.path, id(exchange)) == id(exchange)
        return CUT if oldest and hooks.shared.get("full") else frame

    hooks.frames.append(cut)
    hooks.bodies.append(
        lambda exchange, status, body: hooks.shared.update(full=True) if b"too_many_streams" in body else None
    )


@faulty_server("TW-SEC-024", "limits_per_caller.a_job_too_many_is_refused")
def all_callers_share_a_limit(hooks):
    """The jobs of all callers count against one limit."""

    def refuse(exchange):
        if hooks.shared.get("full") and exchange.is_submit and "bob" in exchange.header("authorization"):
            status, headers, body = problem(429, "too_many_jobs", retryable=True, retry_after_ms=1000)
            return status, headers | {"retry-after": "1"}, body
        return None

    hooks.bodies.append(
        lambda exchange, status, body: hooks.shared.update(full=True) if b"too_many_jobs" in body else None
    )
    hooks.instead.append(refuse)


@faulty_server("TW-ERR-016", "limits_per_caller.a_stream_too_many_is_refused")
def a_problem_that_passes_ends_an_event_source(hooks):
    """A retryable in-band problem has an id, so an EventSource does not reconnect."""
    rewrite_events(hooks, b"event:problem", b"id:0-1\nevent:problem")


@faulty_server("TW-ERR-016", "limits_per_caller.a_stream_too_many_is_refused")
def a_problem_names_its_wait_for_people_alone(hooks):
    """A retryable in-band problem has the default `retry` of a stream."""
    hooks.frames.append(
        lambda exchange, frame: (
            re.sub(rb"retry:\d+", b"retry:50", frame) if b"inband" in exchange.query else frame
        )
    )


@faulty_server("TW-FRM-068", "limits_per_caller.a_job_too_many_is_refused")
def no_ping_in_the_queue(hooks):
    """A stream of a queued job gets no pings."""

    def silent(exchange, frame):
        if b"event:queue" in frame:
            exchange.own["waits"] = True
        return b"" if PING in frame and exchange.own.get("waits") else frame

    hooks.frames.append(silent)


@faulty_server("TW-FRM-067", "limits_per_caller.a_job_too_many_is_refused")
def a_place_is_told_once(hooks):
    """A resumed stream does not get the position in the queue."""
    hooks.frames.append(lambda exchange, frame: b"" if exchange.cursor and b"event:queue" in frame else frame)


@faulty_server("TW-BRW-005", "limits_per_caller.a_job_too_many_is_refused")
def what_has_to_wait_is_for_no_page(hooks):
    """Responses with status 429 lack `Access-Control-Allow-Origin`."""
    drop_header(hooks, "access-control-allow-origin", {429})


@faulty_server("TW-FRM-063", "limits_per_caller.a_job_too_many_is_refused")
def a_place_never_changes(hooks):
    """A stream gets the position in the queue only once."""

    def once(exchange, frame):
        repeated = b"event:queue" in frame and exchange.own.get("sent")
        exchange.own["sent"] = exchange.own.get("sent") or b"event:queue" in frame
        return b"" if repeated else frame

    hooks.frames.append(once)
