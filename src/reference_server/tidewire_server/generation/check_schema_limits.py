"""Reject JSON Schemas that would take too long to compile (`check_schema`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from tidewire_server.generation.pattern_size import pattern_size
from tidewire_server.generation.schema_estimates import MergedSize, RequiredText, resolve_references
from tidewire_server.generation.schema_limits import (
    BOUNDS,
    NUMBERS,
    LimitCounts,
    Path,
    SchemaLimitError,
    is_number,
    values_in,
)

_TOTALS: Final[Mapping[str, tuple[type, str]]] = {
    "allOf": (list, "max_all_of"),
    "anyOf": (list, "max_alternatives"),
    "oneOf": (list, "max_alternatives"),
    "properties": (dict, "max_properties"),
    "required": (list, "max_properties"),
    "patternProperties": (dict, "max_pattern_properties"),
}
"""Keyword → type of its value, and name of the limit. The lengths of all values of this keyword are added up and limited."""


def check_schema(schema: Mapping[str, Any], counts: LimitCounts) -> str:
    """Compare all sizes of the JSON Schema of a request with their limits, and return the schema as compact JSON.

    Each object in the schema is checked like a schema, even inside `const` or `default`, because a `$ref` can refer to it.

    Raises:
        SchemaLimitError: The schema exceeds a limit, or has a reference or an option that is not supported.
    """
    text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    # Check the size first, because the other checks take time in proportion to it, and recurse as deep as the schema.
    counts.compare("max_schema_bytes", len(text.encode("utf-8", "surrogatepass")), ())
    nodes = list(values_in(schema))
    for path, node in nodes:
        if isinstance(node, dict | list):
            counts.compare("max_depth", len(path) + 1, path)
    # llguidance reads options from this member, such as a pattern for whitespace. A client must not set them.
    if "x-guidance" in schema:
        raise SchemaLimitError("must not have this member", ("x-guidance",))
    for path, node in nodes:
        if isinstance(node, dict):
            _check_keywords(path, node, counts)
    targets = resolve_references(schema, nodes)
    RequiredText(targets, counts).check(schema)
    MergedSize(targets, counts).check(schema)
    return text


def _check_keywords(path: Path, schema: Mapping[str, Any], counts: LimitCounts) -> None:
    for name, value in schema.items():
        at = (*path, name)
        if name in _TOTALS and isinstance(value, list | dict) and isinstance(value, _TOTALS[name][0]):
            counts.add(_TOTALS[name][1], len(value), at)
        if name == "$ref" and isinstance(value, str):
            counts.add("max_refs", 1, at)
        elif name in {"pattern", "format"} and isinstance(value, str):
            _check_pattern(value, at, counts)
        elif name == "patternProperties" and isinstance(value, dict):
            for pattern in value:
                _check_pattern(pattern, (*at, pattern), counts)
        elif name in {"const", "enum"}:
            _check_values(value, at, counts)
        elif is_number(value):
            _check_number(name, value, at, counts)


def _check_pattern(pattern: str, path: Path, counts: LimitCounts) -> None:
    counts.add("max_patterns", 1, path)
    counts.compare("max_pattern_length", len(pattern), path)
    counts.compare("max_pattern_size", pattern_size(pattern), path)


def _check_values(value: Any, path: Path, counts: LimitCounts) -> None:
    for inside, node in values_in(value):
        at = (*path, *inside)
        counts.add("max_values", 1, at)
        if isinstance(node, str):
            counts.compare("max_text_length", len(node), at)
        elif is_number(node):
            counts.compare("max_digits", _digits(node), at)


def _check_number(name: str, value: float, path: Path, counts: LimitCounts) -> None:
    if name in BOUNDS:
        counts.compare(BOUNDS[name], int(value), path)
    elif name in NUMBERS:
        counts.compare("max_digits", _digits(value), path)
    if name == "multipleOf":
        counts.compare("max_multiple", int("".join(map(str, Decimal(repr(value)).as_tuple().digits))), path)


def _digits(number: float) -> int:
    """Return the number of digits of a number in the form that llguidance writes, without an exponent."""
    decimal = Decimal(repr(number))
    exponent = decimal.as_tuple().exponent
    return max(decimal.adjusted() + 1, 1) + max(-exponent, 0) if isinstance(exponent, int) else 0
