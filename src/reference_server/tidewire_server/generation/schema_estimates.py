"""Estimate the work of compiling a JSON Schema: its references, its merged parts and the text that it requires.

A small schema can cause much work, so limits on the number of keywords are not enough. The estimates are upper bounds. "The
library" is llguidance, which compiles the schema.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tidewire.protocol.document.json_pointer import PointerError, array_index, parse
from tidewire_server.generation.pattern_size import pattern_size
from tidewire_server.generation.schema_limits import (
    BOUNDS,
    NUMBERS,
    LimitCounts,
    Path,
    SchemaLimitError,
    is_number,
    values_in,
)

FORMAT_SIZE: Final = 16
"""Size that is assumed for a `format`. The library replaces each format by a pattern with few states."""

# ---- references ------------------------------------------------------------------------------------------------------


def resolve_references(root: Mapping[str, Any], nodes: Sequence[tuple[Path, Any]]) -> dict[str, Any]:
    """Return the schema for each `$ref` of a schema.

    Args:
        root: The schema.
        nodes: All values in the schema with their paths.

    Raises:
        SchemaLimitError: A reference does not refer to a part of the schema, or could be relative to an inner identifier.
    """
    found: dict[str, Any] = {}
    for path, node in nodes:
        if isinstance(node, dict) and isinstance(reference := node.get("$ref"), str):
            found[reference] = _target(root, reference, (*path, "$ref"))
    for path, node in nodes if found else ():
        for name in ("$id", "id"):
            if path and isinstance(node, dict) and isinstance(url := node.get(name), str) and url[:1] != "#":
                raise SchemaLimitError(
                    f"must not have both a `$ref` and the identifier `{name}` inside; remove the identifier",
                    (*path, name),
                )
    return found


def _target(root: Mapping[str, Any], reference: str, path: Path) -> Any:
    try:
        # Refuse `%`, because libraries differ in the order of percent-decoding and splitting at `/`.
        if not reference.startswith("#") or "%" in reference:
            raise PointerError("a reference to another document")
        found: Any = root
        for token in parse(reference[1:]):
            found = found[array_index(token)] if isinstance(found, list) else found[token]
    except (PointerError, LookupError, TypeError):
        raise SchemaLimitError(
            f"has the reference {reference[:100]!r}, which does not refer to a part of the schema; use # followed by a JSON "
            "Pointer without %, such as #/$defs/name",
            path,
        ) from None
    return found


# ---- required text ---------------------------------------------------------------------------------------------------


class _Required(NamedTuple):
    length: int = 0
    height: int = 0
    """Nesting depth of the schema. A schema that contains itself counts once."""


class RequiredText:
    """Estimates the length of the fixed text in all documents of a schema, such as required names. The library tokenizes the
    whole fixed text at once.

    Args:
        targets: The schema for each reference.
        counts: The limits.
    """

    def __init__(self, targets: Mapping[str, Any], counts: LimitCounts) -> None:
        self._targets = targets
        self._counts = counts
        self._known: dict[int, _Required] = {}

    def check(self, root: Mapping[str, Any]) -> None:
        """Raise a `SchemaLimitError` if the text is too long, or if schemas are nested too deeply."""
        found = self._of(root, depth=1)
        self._counts.compare("max_resolved_depth", found.height, ())
        self._counts.compare("max_required_text", found.length, ())

    def _of(self, schema: Any, *, depth: int) -> _Required:
        if not isinstance(schema, dict):
            return _Required()
        if (known := self._known.get(id(schema))) is not None:
            return known
        self._counts.compare("max_resolved_depth", depth, ())
        self._known[id(schema)] = _Required()  # for a schema that contains itself
        length, height = _own_text(schema), 0
        for inside, times, is_choice in self._inside(schema):
            parts = [self._of(each, depth=depth + 1) for each in inside]
            lengths = [each.length for each in parts]
            length += times * (max(lengths, default=0) if is_choice else sum(lengths))
            height = max(height, max((each.height for each in parts), default=0))
        found = self._known[id(schema)] = _Required(length, height + 1)
        return found

    def _inside(self, schema: Mapping[str, Any]) -> Iterator[tuple[Sequence[Any], int, bool]]:
        """Yield groups of subschemas. For each group, yield the subschemas, the number of times that each is required, and
        whether only one of them is required.
        """
        for name in ("anyOf", "oneOf", "allOf", "prefixItems", "items"):
            if isinstance(inside := schema.get(name), list):
                yield inside, 1, name in {"anyOf", "oneOf"}
        if isinstance(inside := schema.get("properties"), dict):
            yield [*inside.values()], 1, False
        for name, least in (("items", "minItems"), ("additionalItems", "minItems")):
            yield [schema.get(name)], _times(schema.get(least)), False
        required = schema.get("required")
        count = _times(schema.get("minProperties")) + (len(required) if isinstance(required, list) else 0)
        yield [schema.get("additionalProperties")], count, False
        if isinstance(inside := schema.get("patternProperties"), dict):
            yield [*inside.values()], count, False
        if isinstance(reference := schema.get("$ref"), str):
            yield [self._targets[reference]], 1, False


def _own_text(schema: Mapping[str, Any]) -> int:
    """Return the length of the text that a schema requires, without the text that its subschemas require."""
    length = pattern_size(schema["pattern"]) if isinstance(schema.get("pattern"), str) else 0
    if "const" in schema:
        length += len(json.dumps(schema["const"]))
    if isinstance(values := schema.get("enum"), list):
        length += max((len(json.dumps(each)) for each in values), default=0)
    for name in ("properties", "required"):
        if isinstance(names := schema.get(name), dict | list):
            length += sum(len(each) + 6 for each in names if isinstance(each, str))
    return length


def _times(value: Any) -> int:
    return max(1, int(value)) if is_number(value) else 1


# ---- merged schemas --------------------------------------------------------------------------------------------------

_OWN: Final = frozenset(
    {
        *("type", "properties", "patternProperties", "additionalProperties", "required"),
        *("items", "prefixItems", "additionalItems", "pattern", "format"),
        *BOUNDS,
        *NUMBERS,
    }
)
"""Keywords that the library compiles together to one part of a schema. It then merges this part with the other parts."""


class _Sizes(NamedTuple):
    """Size of a schema after its parts have been merged."""

    subschemas: int = 1
    patterns: int = 1
    """Product of the sizes of the patterns that apply to the same text, or the largest of several such products."""
    length: int = 1
    """Largest `minLength` or `maxLength`."""

    @property
    def states(self) -> int:
        """Maximum number of states through which the library searches for a matching text of this length. Without a pattern, it
        does not search.
        """
        return self.patterns * self.length if self.patterns > 1 else 1


class MergedSize:
    """Estimates the number of subschemas after the library has merged the parts of a schema.

    The parts are `allOf`, `anyOf`, `oneOf`, `$ref`, `enum`, `const`, and all other keywords together. If a schema has several
    parts, the estimate is the product of their sizes, with references resolved.

    Args:
        targets: The schema for each reference.
        counts: The limits.
    """

    def __init__(self, targets: Mapping[str, Any], counts: LimitCounts) -> None:
        self._targets = targets
        self._counts = counts
        self._known: dict[tuple[int, bool], _Sizes] = {}
        self._open: set[int] = set()

    def check(self, root: Mapping[str, Any]) -> None:
        """Raise a `SchemaLimitError` if the merged schema is too large, or if a text has too many patterns."""
        for schema in (root, *self._targets.values()):
            size = self._size(schema, merged=False, depth=0).subschemas
            self._counts.add("max_merged_size", size, ())

    def _size(self, schema: Any, *, merged: bool, depth: int) -> _Sizes:
        """Return the size of a schema.

        Args:
            schema: The schema.
            merged: Whether the library merges this schema with another part. If so, it resolves the references in this schema.
                Otherwise it compiles each referenced schema only once.
            depth: Number of schemas around this one.
        """
        if not isinstance(schema, dict):
            return _Sizes()
        if (known := self._known.get((id(schema), merged))) is not None:
            return known
        if id(schema) in self._open:
            raise SchemaLimitError(
                "exceeds the limit max_merged_size: a reference to a schema that contains the reference itself cannot be "
                "merged with other keywords; remove the keywords next to `$ref`, or the other elements of `allOf`",
                (),
            )
        self._counts.compare("max_depth", depth, ())
        self._open.add(id(schema))
        parts = list(self._parts(schema, merged=merged, depth=depth + 1))
        found = _Sizes(
            math.prod(each.subschemas for each in parts),
            math.prod(each.patterns for each in parts),
            max((each.length for each in parts), default=1),
        )
        self._counts.compare("max_merged_size", found.subschemas, ())
        if len(parts) > 1:
            self._counts.compare("max_pattern_states", found.states, ())
        self._open.discard(id(schema))
        self._known[id(schema), merged] = found
        return found

    def _parts(self, schema: Mapping[str, Any], *, merged: bool, depth: int) -> Iterator[_Sizes]:
        """Yield the sizes of the parts of a schema that the library merges."""
        own = not _OWN.isdisjoint(schema)
        all_of = schema["allOf"] if isinstance(schema.get("allOf"), list) else []
        others = [name for name in ("const", "enum", "anyOf", "oneOf", "$ref") if name in schema]
        merged = merged or own + len(all_of) + len(others) > 1

        def sizes(*inside: Any, merged: bool = merged) -> _Sizes:
            return _together([self._size(each, merged=merged, depth=depth) for each in inside])

        if own:
            text, inside = _text_sizes(schema), _inside_sizes(schema, sizes, merged=merged)
            self._counts.compare("max_pattern_states", text.states, ())
            yield _Sizes(
                inside.subschemas, max(inside.patterns, text.patterns), max(inside.length, text.length)
            )
        for name in others:
            value = schema[name]
            if name in {"const", "enum"}:
                yield _Sizes(sum(1 for _ in values_in(value)))
            elif isinstance(value, list):
                yield sizes(*value)
            elif isinstance(value, str) and merged:
                yield sizes(self._targets[value])
        for each in all_of:
            yield sizes(each)


def _together(inside: Sequence[_Sizes]) -> _Sizes:
    """Return the total size of schemas that are not merged, because they apply to different values."""
    return _Sizes(
        max(sum(each.subschemas for each in inside), 1),
        max((each.patterns for each in inside), default=1),
        max((each.length for each in inside), default=1),
    )


def _inside_sizes(schema: Mapping[str, Any], sizes: Callable[..., _Sizes], *, merged: bool) -> _Sizes:
    """Return the size of a schema, including the schemas of its members and elements."""
    inside = [_Sizes()]
    # The library merges a property with the schema of the pattern that matches its name.
    merged = merged or {"properties", "patternProperties"} <= schema.keys()
    for name in ("properties", "patternProperties"):
        if isinstance(value := schema.get(name), dict):
            inside += [sizes(each, merged=merged) for each in value.values()]
    for name in ("items", "prefixItems", "additionalItems"):
        if isinstance(value := schema.get(name), list | dict):
            inside += [sizes(each) for each in (value if isinstance(value, list) else [value])]
    # The library compiles `additionalProperties` again for each name in `required`, and the whole schema for each type.
    required, kinds = schema.get("required"), schema.get("type")
    if isinstance(value := schema.get("additionalProperties"), dict):
        inside += [sizes(value)] * (1 + (len(required) if isinstance(required, list) else 0))
    found = _together(inside)
    times = max(Counter(map(str, kinds)).values(), default=1) if isinstance(kinds, list) else 1
    return found._replace(subschemas=found.subschemas * times)


def _text_sizes(schema: Mapping[str, Any]) -> _Sizes:
    """Return the sizes of the patterns and lengths of a schema."""
    patterns = pattern_size(schema["pattern"]) if isinstance(schema.get("pattern"), str) else 1
    patterns *= FORMAT_SIZE if "format" in schema else 1
    # The library intersects each pair of the patterns for names.
    names = schema.get("patternProperties")
    pair = sorted(map(pattern_size, names))[-2:] if isinstance(names, dict) else []
    lengths = [int(schema[name]) for name in ("minLength", "maxLength") if is_number(schema.get(name))]
    return _Sizes(1, max(patterns, math.prod(pair)), max([1, *lengths]))
