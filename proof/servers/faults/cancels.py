"""Faulty servers with errors in cancels."""

import json

from proof.servers.fault_helpers import rewrite_body, rewrite_request_body
from proof.servers.fault_proxy import problem
from proof.servers.faults import faulty_server


@faulty_server("TW-JOB-050", "cancels.a_cancel_ends_the_job")
def cancel_answers_and_runs_on(hooks):
    """A cancel is answered with 202, but the job continues."""
    body = json.dumps({"items": []}).encode()

    def none(exchange):
        if exchange.path.endswith("/cancel"):
            exchange.body = body
            exchange.set_header("content-type", "application/json")

    hooks.requests.append(none)


@faulty_server("TW-JOB-051", "cancels.a_cancel_ends_the_job")
def cancel_is_not_idempotent(hooks):
    """A second cancel is refused."""

    def refuse(exchange):
        seen = hooks.shared.setdefault("cancelled", set())
        again = exchange.path.endswith("/cancel") and exchange.path in seen
        seen.add(exchange.path)
        return problem(409, "jobs.cancelled", retry_after_ms=1) if again else None

    hooks.instead.append(refuse)


@faulty_server("TW-JOB-054", "cancels.a_cancel_that_names_no_item_cancels_none")
def cancel_of_any_index(hooks):
    """A cancel that names an unknown item cancels the known items."""
    rewrite_request_body(hooks, rb'^\{"items": ?\[0, ?1\]\}$', b'{"items":[0]}')


@faulty_server("TW-JOB-057", "cancels.a_cancel_ends_the_job")
def cancel_drops_the_value(hooks):
    """A cancelled job loses its value."""
    rewrite_body(hooks, rb'("status":"cancelled","value":)"[^"]*"', rb'\1""')


@faulty_server("TW-JOB-055", "cancels.a_cancel_after_the_end_changes_nothing")
def a_late_cancel_wins(hooks):
    """A cancel after the end changes the status to cancelled."""

    def cancelled(exchange, status, body):
        late = exchange.path.endswith("/cancel") and status == 200
        return (status, body.replace(b'"status":"succeeded"', b'"status":"cancelled"')) if late else None

    hooks.bodies.append(cancelled)


@faulty_server("TW-JOB-054", "cancels.a_cancel_that_names_no_item_cancels_none")
def false_is_the_first_item(hooks):
    """A cancel with `items: [false]` cancels item 0, as in Python."""
    rewrite_request_body(hooks, rb'^\{"items": ?\[false\]\}$', b'{"items":[0]}')
