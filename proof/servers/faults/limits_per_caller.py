"""Faulty servers with errors in the limits per caller, or in the queue."""

import re

from proof.servers.fault_helpers import (
    PING,
    drop_header,
    rewrite_body,
    rewrite_events,
    serve_anonymous_callers,
)
from proof.servers.fault_proxy import CUT, problem
from proof.servers.faults import fault, faulty_server
from proof.servers.server_process import BOB


def declare_only(name):
    """Return hooks and settings that declare a limit in discovery without enforcing it."""
    declare = rewrite_body(rb'("%b":)1000' % name.encode(), rb"\g<1>32", at="/v1")
    return {"settings": {name: 1000}, "bodies": declare}


# fmt: off
fault("streams_not_limited", "TW-SEC-024", "limits_per_caller.stream_above_the_limit_returns_429",
      "The declared limit on the streams per caller is not enforced.",
      **declare_only("max_streams_per_principal"))
fault("retryable_inband_problem_has_id", "TW-ERR-016", "limits_per_caller.stream_above_the_limit_returns_429",
      "A retryable in-band problem has an id, so an EventSource does not reconnect.",
      frames=rewrite_events(b"event:problem", b"id:0-1\nevent:problem"))
fault("retryable_inband_problem_has_default_retry", "TW-ERR-016",
      "limits_per_caller.stream_above_the_limit_returns_429",
      "A retryable in-band problem has the same `retry` as an ordinary stream.",
      frames=rewrite_events(rb"retry:\d+", b"retry:50", where=lambda exchange: b"inband" in exchange.query))

fault("jobs_not_limited", "TW-DSC-012", "limits_per_caller.job_above_the_limit_returns_429",
      "The declared limit on the jobs per caller is not enforced.",
      **declare_only("max_jobs_per_principal"))
fault("fewer_jobs_allowed_than_declared", "TW-DSC-027", "limits_per_caller.job_above_the_limit_returns_429",
      "A caller may have six unfinished jobs, but discovery declares 64.",
      settings={"max_jobs_per_principal": 6},
      bodies=rewrite_body(rb'("max_jobs_per_principal":)6\b', rb"\g<1>64", at="/v1"),
      also_fails={"the server refuses jobs of checks that run at the same time": "*"})
fault("queue_position_not_repeated_on_resume", "TW-FRM-067", "limits_per_caller.job_above_the_limit_returns_429",
      "The position in the queue is not sent on a resumed stream.",
      frames=lambda exchange, frame: b"" if exchange.cursor and b"event:queue" in frame else frame)
fault("no_cors_headers_on_429", "TW-BRW-005", "limits_per_caller.job_above_the_limit_returns_429",
      "Responses with status 429 lack `Access-Control-Allow-Origin`.",
      heads=drop_header("access-control-allow-origin", {429}))

fault("stream_limit_shared_by_anonymous_callers", "TW-SEC-024", "limits_per_caller.anonymous_caller_at_the_stream_limit_does_not_lock_out_others",
      "The limit on streams per caller counts the streams of all anonymous callers.",
      **serve_anonymous_callers(lambda exchange: BOB))

fault("job_limit_shared_by_anonymous_callers", "TW-SEC-024", "limits_per_caller.anonymous_caller_at_the_job_limit_does_not_lock_out_others",
      "The limit on jobs per caller counts the jobs of all anonymous callers.",
      **serve_anonymous_callers(lambda exchange: BOB))
# fmt: on


@faulty_server(
    "TW-DSC-013",
    "limits_per_caller.stream_above_the_limit_returns_429",
    also_fails={
        "after a stream was refused, the server closes the first stream of each job": "slow_readers.slow_reader_does_not_delay_others resume.* durable.* framing.*"
    },
)
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


@faulty_server("TW-FRM-083", "limits_per_caller.job_above_the_limit_returns_429", hook="frames")
def queued_job_gets_no_pings(exchange, frame):
    """No pings are sent on a stream of a queued job."""
    if b"event:queue" in frame:
        exchange.own["waits"] = True
    return b"" if PING in frame and exchange.own.get("waits") else frame


@faulty_server(
    "TW-FRM-083",
    "limits_per_caller.job_above_the_limit_returns_429",
    hook="frames",
    also_fails={
        "the server repeats positions in place of pings, also after the start of the job": "queue_progress_ping_goaway.queue_positions_start_at_1"
    },
)
def moving_queued_job_gets_no_pings(exchange, frame):
    """The position in the queue changes three times, and then no pings are sent on a stream of a queued job."""
    if found := re.search(rb'event:queue\ndata:\{"position":(\d+)', frame):
        exchange.own["position"] = int(found[1])
    if PING not in frame or "position" not in exchange.own:
        return frame
    exchange.own["moves"] = exchange.own.get("moves", 0) + 1
    exchange.own["position"] -= 1
    moved = b'event:queue\ndata:{"position":%d}\n\n' % max(1, exchange.own["position"])
    return moved if exchange.own["moves"] <= 3 else b""


@faulty_server("TW-FRM-063", "limits_per_caller.job_above_the_limit_returns_429", hook="frames")
def queue_position_sent_once(exchange, frame):
    """The position in the queue is sent only once on each stream."""
    repeated = b"event:queue" in frame and exchange.own.get("sent")
    exchange.own["sent"] = exchange.own.get("sent") or b"event:queue" in frame
    return b"" if repeated else frame
