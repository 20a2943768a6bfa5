"""Faulty servers with errors in the cancellation of jobs and items."""

import json

from proof.servers.fault_helpers import rewrite_body, rewrite_request_body
from proof.servers.fault_proxy import problem
from proof.servers.faults import faulty_server


@faulty_server("TW-JOB-050", "cancels.cancel_ends_the_job")
def cancelled_job_continues(hooks):
    """A cancel request is answered with 202, but the job continues."""
    body = json.dumps({"items": []}).encode()

    def none(exchange):
        if exchange.path.endswith("/cancel"):
            exchange.body = body
            exchange.set_header("content-type", "application/json")

    hooks.requests.append(none)


@faulty_server("TW-JOB-051", "cancels.cancel_ends_the_job")
def cancel_is_not_idempotent(hooks):
    """A second request to cancel a job is rejected."""

    def refuse(exchange):
        seen = hooks.shared.setdefault("cancelled", set())
        again = exchange.path.endswith("/cancel") and exchange.path in seen
        seen.add(exchange.path)
        return problem(409, "jobs.cancelled", retry_after_ms=1) if again else None

    hooks.instead.append(refuse)


@faulty_server("TW-JOB-054", "cancels.cancel_with_empty_or_invalid_items_has_no_effect")
def cancel_with_unknown_index_accepted(hooks):
    """A cancel request that names an unknown item is accepted, and cancels the known items."""
    rewrite_request_body(hooks, rb'^\{"items": ?\[0, ?1\]\}$', b'{"items":[0]}')


@faulty_server("TW-JOB-057", "cancels.cancel_ends_the_job")
def cancelled_job_loses_its_value(hooks):
    """A cancelled job loses its value."""
    rewrite_body(hooks, rb'("status":"cancelled","value":)"[^"]*"', rb'\1""')


@faulty_server("TW-JOB-055", "cancels.cancel_of_ended_job_has_no_effect")
def late_cancel_changes_status(hooks):
    """A cancel request for an ended job changes its status to `cancelled`."""

    def cancelled(exchange, status, body):
        late = exchange.path.endswith("/cancel") and status == 200
        return (status, body.replace(b'"status":"succeeded"', b'"status":"cancelled"')) if late else None

    hooks.bodies.append(cancelled)


@faulty_server("TW-JOB-054", "cancels.cancel_with_empty_or_invalid_items_has_no_effect")
def cancel_reads_false_as_item_0(hooks):
    """A cancel request with `items: [false]` cancels item 0, because `False` equals 0 in Python."""
    rewrite_request_body(hooks, rb'^\{"items": ?\[false\]\}$', b'{"items":[0]}')
