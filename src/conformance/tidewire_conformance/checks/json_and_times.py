"""Sections 1.4 and 1.5: how JSON, times and what is absent are written."""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from tidewire_conformance.registry import check
from tidewire_conformance.session import Session

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
"""Numbers of the protocol; `status` of a job is a word."""
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?Z", re.ASCII)
_FREE = {"value", "input_schema", "value_schema", "examples", "tokens"}


@check("TW-OVR-001", "TW-OVR-002", "TW-OVR-003", "TW-OVR-004", "TW-OVR-005", "TW-OVR-006", whole_run=True)
async def all_json_is_that_of_section_1_4(s: Session) -> None:
    """Finite numbers, exact integers, unique members, whole code points, bounded depth."""
    rules = ("TW-OVR-001", "TW-OVR-002", "TW-OVR-003", "TW-OVR-004", "TW-OVR-005", "TW-OVR-006")
    for exchange in s.wire.record:
        readings = [(block.reading, block) for block in exchange.events]
        if exchange.is_whole and "json" in exchange.media_type and exchange.status not in {204, 304}:
            readings.append((exchange.reading, None))  # type: ignore[arg-type]
        for reading, block in readings:
            for fault in reading.faults:
                s.expect(fault.sentence, False, "JSON by section 1.4", fault.what, at=exchange, block=block)
            for rule in rules:
                s.expect(rule, rule not in {fault.sentence for fault in reading.faults}, "JSON by section 1.4",
                         str(reading.faults), at=exchange, block=block)  # fmt: skip


@check("TW-OVR-026", "TW-OVR-011", "TW-OVR-010", whole_run=True)
async def null_and_times_are_written_as_said(s: Session) -> None:
    """A member without a value is left out; `done` of a job alone may be null. Times are RFC 3339 with `Z`."""
    for exchange in s.wire.record:
        bodies = [(block.json, block) for block in exchange.events if block.type != "message"]
        if exchange.is_whole and "json" in exchange.media_type and exchange.status not in {204, 304}:
            bodies.append((exchange.json, None))  # type: ignore[arg-type]
        for body, block in bodies:
            nulls = [*_nulls(body)]
            s.expect("TW-OVR-026", not nulls, "no null", nulls, at=exchange, block=block)
            for name, value in _members(body):
                if name.endswith("_at"):
                    s.expect("TW-OVR-011", isinstance(value, str) and _is_time(value),
                             f"{name} as RFC 3339 with Z", value, at=exchange, block=block)  # fmt: skip
                if name.endswith(("_ms", "_bytes")) or (name in INTEGERS and isinstance(value, float)):
                    s.expect(
                        "TW-OVR-010",
                        type(value) is int,
                        f"{name} as an integer",
                        value,
                        at=exchange,
                        block=block,
                    )


def _is_time(told: str) -> bool:
    """Whether it is a time in the form of RFC 3339 with `Z`; a fraction may be as long as it likes."""
    found = _TIME.fullmatch(told)
    try:
        return bool(found and datetime.fromisoformat(found[1]))
    except ValueError:
        return False


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Members of the protocol, at any depth; what belongs to an endpoint is left out."""
    if isinstance(value, list):
        for child in value:
            yield from _members(child)
    elif isinstance(value, dict):
        for name, child in value.items():
            yield name, child
            if name not in _FREE:
                yield from _members(child)


def _nulls(value: Any) -> Iterator[str]:
    yield from (name for name, child in _members(value) if child is None and name not in {"done", "value"})
