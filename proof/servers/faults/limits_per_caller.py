"""Faulty servers with errors in the limits per caller, or in the queue."""

import re

from proof.servers.fault_helpers import PING, drop_header, rewrite_events, serve_anonymous_callers
from proof.servers.fault_proxy import CUT, problem
from proof.servers.faults import faulty_server
from proof.servers.server_process import BOB


def declare_only(hooks, name):
    """Declare a limit in discovery without enforcing it."""
    hooks.settings[name] = 1000
    declare = lambda body: re.sub(rb'("%b":)1000' % name.encode(), rb"\g<1>32", body)  # noqa: E731
    hooks.bodies.append(
        lambda exchange, status, body: (status, declare(body)) if exchange.path == "/v1" else None
    )


@faulty_server("TW-SEC-024", "limits_per_caller.stream_above_the_limit_returns_429")
def streams_not_limited(hooks):
    """The declared limit on the streams per caller is not enforced."""
    declare_only(hooks, "max_streams_per_principal")


@faulty_server("TW-DSC-012", "limits_per_caller.job_above_the_limit_returns_429")
def jobs_not_limited(hooks):
    """The declared limit on the jobs per caller is not enforced."""
    declare_only(hooks, "max_jobs_per_principal")


@faulty_server("TW-DSC-013", "limits_per_caller.stream_above_the_limit_returns_429")
def oldest_stream_closed_at_the_limit(hooks):
    """When a stream beyond the limit is refused, the oldest stream is closed."""

    def cut(exchange, frame):
        oldest = hooks.shared.setdefault(exchange.path, id(exchange)) == id(exchange)
        return CUT if oldest and hooks.shared.get("full") else frame

    hooks.frames.append(cut)
    hooks.bodies.append(
        lambda exchange, status, body: hooks.shared.update(full=True) if b"too_many_streams" in body else None
    )


@faulty_server("TW-SEC-024", "limits_per_caller.job_above_the_limit_returns_429")
def job_limit_shared_by_all_callers(hooks):
    """The limit on jobs per caller counts the jobs of all callers."""

    def refuse(exchange):
        if hooks.shared.get("full") and exchange.is_submit and "bob" in exchange.header("authorization"):
            status, headers, body = problem(429, "too_many_jobs", retryable=True, retry_after_ms=1000)
            return status, headers | {"retry-after": "1"}, body
        return None

    hooks.bodies.append(
        lambda exchange, status, body: hooks.shared.update(full=True) if b"too_many_jobs" in body else None
    )
    hooks.instead.append(refuse)


@faulty_server("TW-ERR-016", "limits_per_caller.stream_above_the_limit_returns_429")
def retryable_inband_problem_has_id(hooks):
    """A retryable in-band problem has an id, so an EventSource does not reconnect."""
    rewrite_events(hooks, b"event:problem", b"id:0-1\nevent:problem")


@faulty_server("TW-ERR-016", "limits_per_caller.stream_above_the_limit_returns_429")
def retryable_inband_problem_has_default_retry(hooks):
    """A retryable in-band problem has the same `retry` as an ordinary stream."""
    hooks.frames.append(
        lambda exchange, frame: (
            re.sub(rb"retry:\d+", b"retry:50", frame) if b"inband" in exchange.query else frame
        )
    )


@faulty_server("TW-FRM-068", "limits_per_caller.job_above_the_limit_returns_429")
def queued_job_gets_no_pings(hooks):
    """No pings are sent on a stream of a queued job."""

    def silent(exchange, frame):
        if b"event:queue" in frame:
            exchange.own["waits"] = True
        return b"" if PING in frame and exchange.own.get("waits") else frame

    hooks.frames.append(silent)


@faulty_server("TW-FRM-067", "limits_per_caller.job_above_the_limit_returns_429")
def queue_position_not_repeated_on_resume(hooks):
    """The position in the queue is not sent on a resumed stream."""
    hooks.frames.append(lambda exchange, frame: b"" if exchange.cursor and b"event:queue" in frame else frame)


@faulty_server("TW-BRW-005", "limits_per_caller.job_above_the_limit_returns_429")
def no_cors_headers_on_429(hooks):
    """Responses with status 429 lack `Access-Control-Allow-Origin`."""
    drop_header(hooks, "access-control-allow-origin", {429})


@faulty_server("TW-FRM-063", "limits_per_caller.job_above_the_limit_returns_429")
def queue_position_sent_once(hooks):
    """The position in the queue is sent only once on each stream."""

    def once(exchange, frame):
        repeated = b"event:queue" in frame and exchange.own.get("sent")
        exchange.own["sent"] = exchange.own.get("sent") or b"event:queue" in frame
        return b"" if repeated else frame

    hooks.frames.append(once)


@faulty_server(
    "TW-SEC-024", "limits_per_caller.anonymous_caller_at_the_stream_limit_does_not_lock_out_others"
)
def stream_limit_shared_by_anonymous_callers(hooks):
    """The limit on streams per caller counts the streams of all anonymous callers."""
    serve_anonymous_callers(hooks, BOB)


@faulty_server("TW-SEC-024", "limits_per_caller.anonymous_caller_at_the_job_limit_does_not_lock_out_others")
def job_limit_shared_by_anonymous_callers(hooks):
    """The limit on jobs per caller counts the jobs of all anonymous callers."""
    serve_anonymous_callers(hooks, BOB)
