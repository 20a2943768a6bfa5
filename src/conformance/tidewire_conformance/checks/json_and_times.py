"""Checks for sections 1.4 and 1.5: JSON, integers, times and absent members."""

import re
from datetime import datetime
from typing import Any

from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import named_members
from tidewire_conformance.session import Session
from tidewire_conformance.wire.event_stream_decoder import Block
from tidewire_conformance.wire.typed_json import EVENT_SCHEMAS

INTEGERS = {
    "attempt",
    "head",
    "max_depth",
    "max_inputs",
    "max_items",
    "max_top",
    "on",
    "position",
    "row",
    "size",
    "status",
}
"""Names of protocol members that are integers. (`status` is an integer in problems and a string in jobs.)"""
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?Z", re.ASCII)


@check("TW-OVR-001", "TW-OVR-002", "TW-OVR-003", "TW-OVR-004", "TW-OVR-005", "TW-OVR-006", whole_run=True)
async def all_json_is_valid(s: Session) -> None:
    """All JSON from the server has finite numbers, exact integers, unique member names, valid Unicode and limited
    depth.
    """
    rules = ("TW-OVR-001", "TW-OVR-002", "TW-OVR-003", "TW-OVR-004", "TW-OVR-005", "TW-OVR-006")
    for exchange in s.wire.record:
        readings = [(block.reading, block) for block in exchange.events]
        if exchange.is_whole and "json" in exchange.media_type and exchange.status not in {204, 304}:
            readings.append((exchange.reading, None))  # type: ignore[arg-type]
        for reading, block in readings:
            for fault in reading.faults:
                s.at(exchange, block).expect(
                    fault.requirement, False, "JSON that satisfies section 1.4", fault.detail
                )
        broken = {fault.requirement for reading, _ in readings for fault in reading.faults}
        for rule in rules if readings else ():
            if rule not in broken:
                s.at(exchange).expect(rule, True, "JSON that satisfies section 1.4")


@check("TW-OVR-026", "TW-OVR-011", "TW-OVR-010", whole_run=True)
async def nulls_and_times_are_well_formed(s: Session) -> None:
    """A member without a value is omitted instead of null, except for `done` in a job. Times are in RFC 3339 format
    with `Z`.
    """
    for exchange in s.wire.record:
        bodies: list[tuple[str, Any, Block | None]] = [
            (EVENT_SCHEMAS[block.type], block.json, block)
            for block in exchange.events
            if block.type in EVENT_SCHEMAS and block.type != "message"
        ]
        if exchange.is_whole and "json" in exchange.media_type and (schema := exchange.schema):
            bodies.append((schema, exchange.json, None))
        for schema, body, block in bodies:
            members = [*named_members(schema, body)]
            nulls = [name for name, value in members if value is None and name not in {"done", "value"}]
            s.at(exchange, block).empty("TW-OVR-026", nulls, "no null member")
            for name, value in members:
                if name.endswith("_at"):
                    sound = isinstance(value, str) and _is_time(value)
                    wanted = f"{name} as an RFC 3339 time with Z"
                    s.at(exchange, block).expect("TW-OVR-011", sound, wanted, value)
                if name.endswith(("_ms", "_bytes")) or (name in INTEGERS and isinstance(value, float)):
                    s.at(exchange, block).expect(
                        "TW-OVR-010", type(value) is int, f"{name} as an integer", value
                    )


def _is_time(text: str) -> bool:
    """Whether a text is an RFC 3339 time that ends in `Z`. The fraction of a second may have any number of digits."""
    found = _TIME.fullmatch(text)
    try:
        return bool(found and datetime.fromisoformat(found[1]))
    except ValueError:
        return False
