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


@faulty_server("TW-JOB-085", "deadlines.job_runs_for_min_grace_ms_without_a_reader")
def grace_below_the_minimum_accepted(hooks):
    """`grace_ms` may be less than `min_grace_ms`, so that the job is cancelled soon after its reader disconnects."""
    hooks.settings["min_grace"] = 0.0
    rewrite_body(hooks, b'"min_grace_ms":0', b'"min_grace_ms":5000', at="/v1")


@faulty_server("TW-DSC-025", "deadlines.min_grace_ms_is_at_least_5_s")
def grace_of_a_second_declared(hooks):
    """The server declares a minimum of one second for `grace_ms`."""
    rewrite_body(hooks, b'"min_grace_ms":5000', b'"min_grace_ms":1000', at="/v1")
