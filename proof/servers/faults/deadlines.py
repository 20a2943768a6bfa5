"""Deadlines and graces that are promised and not kept."""

import json

from proof.servers.fault_helpers import told_otherwise
from proof.servers.faults import faulty_server


def without_a_deadline(hooks, holds):
    """Submits of which something holds have no deadline."""

    def drop(talk):
        if talk.is_submit and isinstance(talk.json, dict) and holds(talk):
            talk.body = json.dumps({**talk.json, "deadline_ms": 600_000}).encode()

    hooks.requests.append(drop)


@faulty_server("TW-JOB-069", "deadlines.a_deadline_fails_what_has_not_ended")
def deadlines_are_ignored(hooks):
    """A deadline changes nothing but the status."""
    told_otherwise(hooks, b"deadline_exceeded", b"internal")


@faulty_server("TW-JOB-069", "deadlines.a_deadline_leaves_what_has_ended")
def a_batch_has_no_deadline(hooks):
    """The deadline of a job of several inputs is ignored."""
    without_a_deadline(hooks, lambda talk: talk.inputs and "deadline_ms" in talk.json)


@faulty_server("TW-JOB-069", "deadlines.a_deadline_fails_what_has_not_ended")
def a_stream_has_no_deadline(hooks):
    """The deadline of a submit that is answered by a stream is ignored."""
    asks = lambda talk: "deadline_ms" in talk.json and "event-stream" in talk.header("accept")  # noqa: E731
    without_a_deadline(hooks, asks)


@faulty_server("TW-JOB-065", "deadlines.a_reader_may_be_away_for_a_minute")
def a_grace_of_nothing_is_taken(hooks):
    """A job whose reader goes away is cancelled at once, where the submit says so."""
    hooks.settings["min_grace"] = 0.0
