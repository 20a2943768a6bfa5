"""Schemas of the specification, compiled to functions that only say whether a value is valid.

With `jsonschema`, the validation of a diff with 10,000 operations takes about a second. Meanwhile, no other check of the
run receives events, so it could report an event as late that was sent in time. The compiled functions take about a tenth
of that time, and `jsonschema` only explains the few invalid values.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from tidewire_conformance import specification

Test = Callable[[Any], bool]

_ANNOTATIONS: Final = frozenset(
    {"$schema", "$id", "$defs", "title", "description", "examples", "default", "format"}
)
_TYPES: Final[dict[str, Test]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: type(value) is int or (isinstance(value, float) and value.is_integer()),
}


class UnsupportedSchemaError(Exception):
    """Raised if a schema uses a keyword that this module does not implement."""


@cache
def is_valid(name: str) -> Test | None:
    """Return a function that says whether a value fits a schema, or None if the schema cannot be compiled.

    Args:
        name: File name of the schema without `.schema.json`.
    """
    try:
        return _compiled(specification.schema(f"{name}.schema.json"))
    except UnsupportedSchemaError:
        return None


def _compiled(schema: Any) -> Test:
    if isinstance(schema, bool):
        return lambda _: schema
    tests = [_test(name, schema) for name in schema if name not in {*_ANNOTATIONS, "then", "else", "items"}]
    if "items" in schema:
        tests.append(_items(schema))

    def fits(value: Any) -> bool:
        for test in tests:  # noqa: SIM110 - a generator expression would take a sixth of the CPU time of a run
            if not test(value):
                return False
        return True

    return tests[0] if len(tests) == 1 else fits


def _items(schema: dict[str, Any]) -> Test:
    first, rest = len(schema.get("prefixItems", ())), _compiled(schema["items"])
    return lambda value: not isinstance(value, list) or all(map(rest, value[first:]))


def _test(name: str, schema: dict[str, Any]) -> Test:
    wanted = schema[name]
    match name:
        case "$ref" if "#" not in wanted:
            return _compiled(specification.schema(wanted))
        case "type":
            kinds = [_TYPES[each] for each in ([wanted] if isinstance(wanted, str) else wanted)]
            return lambda value: any(kind(value) for kind in kinds)
        case "const" if isinstance(wanted, str | bool):
            return lambda value: type(value) is type(wanted) and value == wanted
        case "enum" if all(isinstance(each, str) for each in wanted):
            return lambda value: isinstance(value, str) and value in wanted
        case "pattern":
            found = re.compile(wanted).search
            return lambda value: not isinstance(value, str) or bool(found(value))
        case "minLength":
            return lambda value: not isinstance(value, str) or len(value) >= wanted
        case "minimum":
            return lambda value: not _TYPES["number"](value) or not value < wanted
        case "maximum":
            return lambda value: not _TYPES["number"](value) or not value > wanted
        case "minItems":
            return lambda value: not isinstance(value, list) or len(value) >= wanted
        case "required":
            return lambda value: not isinstance(value, dict) or all(each in value for each in wanted)
        case "properties":
            members = {each: _compiled(part) for each, part in wanted.items()}
            return lambda value: (
                not isinstance(value, dict)
                or all(test(value[each]) for each, test in members.items() if each in value)
            )
        case "additionalProperties":
            known, rest = schema.get("properties", {}), _compiled(wanted)
            return lambda value: (
                not isinstance(value, dict) or all(rest(value[each]) for each in value if each not in known)
            )
        case "propertyNames":
            rest = _compiled(wanted)
            return lambda value: not isinstance(value, dict) or all(map(rest, value))
        case "prefixItems":
            parts = [*map(_compiled, wanted)]
            return lambda value: (
                not isinstance(value, list)
                or all(part(each) for part, each in zip(parts, value, strict=False))
            )
        case "allOf":
            parts = [*map(_compiled, wanted)]
            return lambda value: all(part(value) for part in parts)
        case "anyOf":
            parts = [*map(_compiled, wanted)]
            return lambda value: any(part(value) for part in parts)
        case "oneOf":
            parts = [*map(_compiled, wanted)]
            return lambda value: sum(part(value) for part in parts) == 1
        case "if":
            condition = _compiled(wanted)
            then, other = _compiled(schema.get("then", True)), _compiled(schema.get("else", True))
            return lambda value: then(value) if condition(value) else other(value)
    raise UnsupportedSchemaError(name)
