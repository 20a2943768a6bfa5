"""Faulty servers that do not comply with deadlines or grace periods."""

import json

from proof.servers.fault_helpers import rewrite_body
from proof.servers.faults import faulty_server


def replace_deadline(hooks, holds):
    """If a request to submit a job satisfies a condition, replace the job's deadline by ten minutes."""

    def drop(exchange):
        if exchange.is_submit and isinstance(exchange.json, dict) and holds(exchange):
            exchange.body = json.dumps({**exchange.json, "deadline_ms": 600_000}).encode()

    hooks.requests.append(drop)


@faulty_server("TW-JOB-069", "deadlines.deadline_fails_unfinished_items")
def deadline_fails_with_code_internal(hooks):
    """An item that exceeds its deadline fails with the code `internal`."""
    rewrite_body(hooks, b"deadline_exceeded", b"internal")


@faulty_server("TW-JOB-069", "deadlines.deadline_keeps_ended_items")
def batch_deadline_ignored(hooks):
    """The deadline of a batch job is ignored."""
    replace_deadline(hooks, lambda exchange: exchange.inputs and "deadline_ms" in exchange.json)


@faulty_server("TW-JOB-069", "deadlines.deadline_fails_unfinished_items")
def stream_submit_deadline_ignored(hooks):
    """A job's deadline is ignored if the request to submit the job asks for a stream."""
    asks = lambda exchange: "deadline_ms" in exchange.json and "event-stream" in exchange.header("accept")  # noqa: E731
    replace_deadline(hooks, asks)


@faulty_server("TW-JOB-065", "deadlines.job_runs_60_s_without_a_reader")
def grace_below_a_minute_accepted(hooks):
    """`grace_ms` may be less than a minute, so that the job is cancelled soon after its reader disconnects."""
    hooks.settings["min_grace"] = 0.0
