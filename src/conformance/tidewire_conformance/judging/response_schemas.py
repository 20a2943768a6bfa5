"""Schemas of the responses: which schema of the specification each response and each event must fit.

If a check cannot continue because a response violates its schema, the violation is the reason, and not a fault of the
suite.
"""

import re
from typing import Final

from tidewire_conformance.schema_violations import schema_violation
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

EVENT_SCHEMAS: Final = {
    "snapshot": "snapshot",
    "message": "diff",
    "done": "done",
    "hello": "hello",
    "queue": "queue",
    "progress": "progress",
    "ping": "ping",
    "goaway": "goaway",
    "problem": "problem",
}
"""Schema of the data of each type of event."""

_BODIES: Final = (
    ("GET", re.compile(r".*/v1"), "discovery"),
    ("GET", re.compile(r".*/v1/endpoints/[^/]+"), "endpoint"),
    ("GET", re.compile(r".*/v1/endpoints/[^/]+/vocabulary"), "vocabulary"),
    ("POST", re.compile(r".*/v1/endpoints/[^/]+/jobs"), "job"),
    ("GET", re.compile(r".*/v1/jobs"), "job-list"),
    ("GET", re.compile(r".*/v1/jobs/[^/]+"), "job"),
    ("POST", re.compile(r".*/v1/jobs/[^/]+/cancel"), "job"),
    ("POST", re.compile(r".*/v1/jobs/[^/]+/stream-token"), "stream-token"),
)
"""Schemas of the bodies of successful responses, by method and path."""


def schema_of(exchange: RecordedExchange) -> str:
    """Return the name of the schema that the body of a response must fit, or an empty string if there is none."""
    if exchange.status >= 400:
        return "problem"
    if exchange.is_stream or not exchange.is_whole or exchange.status in {204, 304}:
        return ""
    return next(
        (
            name
            for method, place, name in _BODIES
            if method == exchange.method and place.fullmatch(exchange.path)
        ),
        "",
    )


def response_violation(exchange: RecordedExchange) -> str:
    """Say how a response violates the schema of its body, or the schemas of its events. The text is empty if it fits."""
    if name := schema_of(exchange):
        violation = schema_violation(name, exchange.json)
        return violation and f"a body that does not fit {name}.schema.json: {violation}"
    for block in exchange.events:
        name = EVENT_SCHEMAS.get(block.type, "")
        if not block.reading.is_json:
            return f"an event {block.type} whose data is not JSON"
        if name and (violation := schema_violation(name, block.json)):
            return f"an event {block.type} that does not fit {name}.schema.json: {violation}"
    return ""
