"""Limits on the JSON Schema of a request (`SchemaLimits`). `check_schema` enforces them before llguidance compiles the schema.

llguidance recurses over the schema, intersects its parts, and searches the states of its patterns. Some of this work has
no other limit, continues after the client has left, or could end the process by a stack overflow. The limits keep this
work small. They accept the schemas that `bench/schemas.py` measures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from tidewire.protocol.document.json_pointer import build
from tidewire_server.generation.engine_interface import InputError

Path = tuple[str | int, ...]
"""Member names and indexes that lead to a place in a schema."""


def _limit(default: int, description: str) -> int:
    found: int = field(default=default, metadata={"description": description})
    return found


@dataclass(frozen=True)
class SchemaLimits:
    """Maximum sizes of the JSON Schema of a request and of its parts. An error message contains the name of the limit."""

    max_schema_bytes: int = _limit(8192, "size of the schema as compact JSON, in bytes")
    max_depth: int = _limit(32, "number of objects and arrays inside each other")
    max_refs: int = _limit(64, "number of `$ref`")
    max_resolved_depth: int = _limit(200, "number of schemas inside each other, with references resolved")
    max_all_of: int = _limit(16, "number of elements of all `allOf` together")
    max_alternatives: int = _limit(64, "number of elements of all `anyOf` and `oneOf` together")
    max_merged_size: int = _limit(4096, "number of subschemas after the parts of the schema have been merged")
    max_properties: int = _limit(
        256, "number of members of all `properties` and elements of all `required` together"
    )
    max_pattern_properties: int = _limit(16, "number of members of all `patternProperties` together")
    max_patterns: int = _limit(
        32, "number of `pattern`, `format` and members of `patternProperties` together"
    )
    max_pattern_length: int = _limit(512, "length of a pattern, in characters")
    max_pattern_size: int = _limit(
        512, "number of characters and groups of a pattern, each counted as often as it is repeated,"
    )
    max_pattern_states: int = _limit(
        65_536,
        "product of the sizes of all patterns that apply to one text and of its `minLength` or `maxLength`",
    )
    max_values: int = _limit(
        512, "number of values in all `const` and `enum` together, with the values inside them,"
    )
    max_text_length: int = _limit(256, "length of a string in `const` or `enum`, in characters")
    max_required_text: int = _limit(
        16_384, "length of the text that the schema requires, where `items` count `minItems` times,"
    )
    max_items: int = _limit(1024, "value of `minItems`, `maxItems`, `minProperties` and `maxProperties`")
    max_string_length: int = _limit(2**20, "value of `minLength` and `maxLength`")
    max_digits: int = _limit(20, "number of digits of a number, written without an exponent,")
    max_multiple: int = _limit(1000, "value of `multipleOf`, without its decimal point,")


DEFAULT_LIMITS: Final = SchemaLimits()
LIMIT_DESCRIPTIONS: Final[Mapping[str, str]] = {
    each.name: each.metadata["description"].removesuffix(",") for each in fields(SchemaLimits)
}


BOUNDS: Final[Mapping[str, str]] = {
    "minItems": "max_items",
    "maxItems": "max_items",
    "minProperties": "max_items",
    "maxProperties": "max_items",
    "minLength": "max_string_length",
    "maxLength": "max_string_length",
}
"""Keyword with a limited number as its value → name of the limit."""

NUMBERS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
"""Keywords whose value is a number of any size. Only its digits are limited."""


class SchemaLimitError(InputError):
    """A JSON Schema exceeds a limit, or has a reference or an option that is not supported."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(f"json_schema {message}", member="json_schema", within=build(path))


class LimitCounts:
    """Compares sizes of a schema with their limits. For limits that apply to the whole schema, it adds up the sizes."""

    def __init__(self, limits: SchemaLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._totals: Counter[str] = Counter()
        self.largest: Counter[str] = Counter()
        """Largest number that was compared with each limit."""

    def compare(self, limit: str, found: int, path: Path) -> None:
        """Raise a `SchemaLimitError` if a number exceeds its limit."""
        most = getattr(self._limits, limit)
        self.largest[limit] = max(self.largest[limit], found)
        if found > most:
            what = next(each.metadata["description"] for each in fields(SchemaLimits) if each.name == limit)
            raise SchemaLimitError(
                f"exceeds the limit {limit}: the {what} is {found}, and may be at most {most}", path
            )

    def add(self, limit: str, number: int, path: Path) -> None:
        """Add a number to a total, and raise a `SchemaLimitError` if the total exceeds its limit."""
        self._totals[limit] += number
        self.compare(limit, self._totals[limit], path)


def values_in(value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield a JSON value and all values inside it, each with its path. A value is yielded before those inside it."""
    pending: list[tuple[Path, Any]] = [((), value)]
    while pending:
        path, node = pending.pop()
        yield path, node
        if isinstance(node, dict):
            pending.extend(((*path, name), inside) for name, inside in node.items())
        elif isinstance(node, list):
            pending.extend(((*path, index), inside) for index, inside in enumerate(node))


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number. In Python, a bool is an int, but it does not count here."""
    return isinstance(value, int | float) and not isinstance(value, bool)
