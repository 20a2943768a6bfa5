"""Typed access to the JSON of the server under test.

The schemas of the specification are the types. A check reads the members of a response or event in one of two ways:

- `members` has only the members of the right type. A check that judges a single member reads it from there, because a
  member of another type is absent.
- `validated` is the whole value, which fits its schema. If it does not, the property raises `MalformedJsonError`. A check
  that cannot continue without a valid response uses it: the check is then blocked, and its note names the violation.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from tidewire_conformance.schema_violations import schema_violation, usable

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
"""Name of the schema for event data, by event type."""

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

REQUIREMENTS: Final = {
    "discovery": "TW-DSC-001",
    "endpoint": "TW-DSC-028",
    "vocabulary": "TW-GEN-037",
    "job": "TW-JOB-038",
    "job-list": "TW-JOB-045",
    "stream-token": "TW-BRW-012",
    "problem": "TW-ERR-001",
}
"""Requirement that a response body violates if it does not fit its schema. For events, it is `EVENT_REQUIREMENT`."""
EVENT_REQUIREMENT: Final = "TW-FRM-043"


class MalformedJsonError(Exception):
    """Raised if a check needs JSON that does not fit its schema. The message names the requirement and the violation."""


@dataclass(frozen=True)
class TypedJson:
    """JSON value from the server, together with the schema that it must fit."""

    value: Any
    schema: str
    """File name of the schema without `.schema.json`, or an empty string if the specification defines no schema."""
    requirement: str
    """Requirement to fit the schema."""
    source: str
    """Response or event that contains the value, for messages."""

    @cached_property
    def violation(self) -> str:
        """Violations of the schema. The text is empty if there is none."""
        return schema_violation(self.schema, self.value) if self.schema else ""

    @cached_property
    def members(self) -> dict[str, Any]:
        """Members of the right type, or an empty object if the value is not an object. Any member may be absent."""
        if self.violation:
            found: dict[str, Any] = usable(self.schema, self.value, types_only=True)
            return found
        return self.value if isinstance(self.value, dict) else {}

    @property
    def validated(self) -> dict[str, Any]:
        """The members of an object that fits its schema.

        Raises:
            MalformedJsonError: The value does not fit the schema, or is not an object.
        """
        violation = self.violation or ("" if isinstance(self.value, dict) else "it is not a JSON object")
        if violation:
            raise MalformedJsonError(f"{self.source} violates {self.requirement}: {violation}")
        return self.members


def typed_event(kind: str, value: Any) -> TypedJson:
    """Return the data of an event of a type."""
    return TypedJson(value, EVENT_SCHEMAS.get(kind, ""), EVENT_REQUIREMENT, f"an event {kind}")


def body_schema(method: str, path: str, status: int) -> str:
    """Return the name of the schema that the body of a response must fit, or an empty string if there is none."""
    if status >= 400:
        return "problem"
    if status in {204, 304}:
        return ""
    return next((name for each, place, name in _BODIES if each == method and place.fullmatch(path)), "")
