"""Checks the JSON Schemas of a server before the code generator reads them.

datamodel-code-generator reads more keywords than JSON Schema has, such as `x-python-type` and `customTypePath`, and
writes their values into the generated module as code. It also resolves `$dynamicRef` to files and to other hosts. Only
the keywords in the tables of this module reach the generator. A schema with any other keyword is rejected.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from tidewire.protocol.document import json_pointer
from tidewire.terminal_escapes import visible

DEFINITIONS: Final = ("$defs", "definitions")
SUBSCHEMA: Final = frozenset(
    {
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""Keywords whose value is a schema."""
SUBSCHEMAS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
"""Keywords whose value is an array of schemas."""
NAMED_SUBSCHEMAS: Final = frozenset({"dependentSchemas", "patternProperties", "properties", *DEFINITIONS})
"""Keywords whose value is an object that maps names to schemas."""
VALUES: Final = frozenset(
    {
        "const",
        "contentEncoding",
        "contentMediaType",
        "default",
        "dependentRequired",
        "deprecated",
        "enum",
        "examples",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "pattern",
        "readOnly",
        "required",
        "type",
        "uniqueItems",
        "writeOnly",
    }
)
"""Keywords whose value is data, which the generator gets unchanged."""
DROPPED: Final = frozenset({"$comment", "$schema", "title"})
"""Keywords that the generator does not need."""
FORMATS: Final = frozenset(
    {
        "base64",
        "binary",
        "byte",
        "date",
        "date-time",
        "decimal",
        "double",
        "duration",
        "email",
        "float",
        "hostname",
        "idn-email",
        "int32",
        "int64",
        "ipv4",
        "ipv4-network",
        "ipv6",
        "ipv6-network",
        "password",
        "path",
        "time",
        "time-delta",
        "uri",
        "uuid",
        "uuid1",
        "uuid3",
        "uuid4",
        "uuid5",
    }
)
"""Formats for which the generated module has a type. JSON Schema treats `format` as an annotation, so other formats are
dropped."""

MAX_TUPLE: Final = 1000
"""Maximum of `minItems` and `maxItems` next to `prefixItems`. The generator writes each element of such an array into the
module, so a larger number would fill the memory."""

_POINTER: Final = re.compile(r"#(?:/(?!\.\.?(?:/|\Z))[A-Za-z0-9_$.-]+)*")
"""Pattern of references that all resolvers understand in the same way: without escapes, and without the segments `.` and
`..`. With another spelling, a reference could pass the check and make the generator read data as a schema."""


class SchemaError(ValueError):
    """A schema contains a keyword or a reference that must not reach the code generator."""


def checked(schema: Any, what: str) -> Any:
    """Check a schema, and return a copy without the keywords that the code generator does not need.

    Args:
        schema: A whole JSON Schema.
        what: The schema's name for error messages, such as `the input schema of endpoint 'talk'`.

    Raises:
        SchemaError: The schema contains an unknown keyword, a malformed subschema, or a reference that does not lead to
            one of its own subschemas. The message contains the JSON pointer and the keyword.
    """
    checker = _SchemaChecker(what)
    copy = checker.copy(schema, "")
    checker.check_references()
    return copy


class _SchemaChecker:
    def __init__(self, what: str) -> None:
        self._what = what
        self._subschemas: set[str] = set()
        self._references: list[tuple[str, str, Any]] = []

    def copy(self, schema: Any, pointer: str) -> Any:
        if isinstance(schema, bool):
            self._subschemas.add(f"#{pointer}")
            return schema
        if not isinstance(schema, dict):
            raise self._error(pointer, "is not a schema")
        self._subschemas.add(f"#{pointer}")
        for keyword in ("minItems", "maxItems") if "prefixItems" in schema else ():
            if not isinstance(size := schema.get(keyword, 0), int) or size > MAX_TUPLE:
                raise self._error(
                    pointer, f"has the keyword {keyword!r} above {MAX_TUPLE} next to 'prefixItems'"
                )
        copy: dict[str, Any] = {}
        for keyword, value in schema.items():
            if keyword in VALUES:
                copy[keyword] = value
            elif keyword == "description":
                copy[keyword] = visible(value) if isinstance(value, str) else value
            elif keyword == "format":
                copy |= {keyword: value} if isinstance(value, str) and value in FORMATS else {}
            elif keyword == "$ref":
                self._references.append((pointer, keyword, value))
                copy[keyword] = value
            elif keyword == "discriminator":
                copy[keyword] = self._discriminator(value, pointer)
            elif keyword in SUBSCHEMA | SUBSCHEMAS | NAMED_SUBSCHEMAS:
                copy[keyword] = self._checked_subschemas(keyword, value, pointer)
            elif keyword not in DROPPED and not (keyword == "$id" and not pointer):
                raise self._error(
                    pointer,
                    f"has the keyword {keyword!r}, which is not a keyword of JSON Schema that"
                    " `tidewire codegen` supports",
                )
        return copy

    def _checked_subschemas(self, keyword: str, value: Any, pointer: str) -> Any:
        kind = list if keyword in SUBSCHEMAS else dict
        if keyword not in SUBSCHEMA and not isinstance(value, kind):
            raise self._error(pointer, f"has a malformed value of the keyword {keyword!r}")
        return map_subschemas(keyword, value, f"{pointer}/{keyword}", self.copy)

    def _discriminator(self, value: Any, pointer: str) -> dict[str, Any]:
        """Check the value of `discriminator`, a keyword of OpenAPI that pydantic writes next to `oneOf`."""
        mapping = value.get("mapping", {}) if isinstance(value, dict) else None
        if not isinstance(mapping, dict) or not isinstance(value.get("propertyName"), str):
            raise self._error(pointer, "has a malformed value of the keyword 'discriminator'")
        if unknown := value.keys() - {"propertyName", "mapping"}:
            raise self._error(pointer, f"has the keyword {min(unknown)!r} in 'discriminator'")
        self._references += [(pointer, "discriminator", target) for target in mapping.values()]
        return {"propertyName": value["propertyName"], "mapping": dict(mapping)}

    def check_references(self) -> None:
        for pointer, keyword, target in self._references:
            if not (isinstance(target, str) and _POINTER.fullmatch(target) and target in self._subschemas):
                raise self._error(
                    pointer,
                    f"has the keyword {keyword!r} with {target!r:.200}, which is not a subschema of the"
                    " same schema",
                )

    def _error(self, pointer: str, problem: str) -> SchemaError:
        return SchemaError(f"{self._what} {problem}, at the JSON pointer {pointer!r:.200}")


def map_subschemas(keyword: str, value: Any, pointer: str, change: Callable[[Any, str], Any]) -> Any:
    """Return a copy of a keyword's value in which each subschema is replaced.

    Args:
        keyword: The keyword.
        value: Its value.
        pointer: JSON Pointer of the value.
        change: Function that gets a subschema and its pointer, and returns the replacement.
    """
    if keyword in SUBSCHEMA:
        return change(value, pointer)
    if keyword in SUBSCHEMAS:
        return [change(each, f"{pointer}/{number}") for number, each in enumerate(value)]
    if keyword in NAMED_SUBSCHEMAS:
        return {name: change(each, f"{pointer}/{json_pointer.escape(name)}") for name, each in value.items()}
    return value
