"""Limits on the JSON Schema of a request: each at its bound, and one beyond."""

from typing import Any

import pytest

from tidewire_server.generation.check_schema_limits import check_schema
from tidewire_server.generation.pattern_size import pattern_size
from tidewire_server.generation.schema_limits import (
    DEFAULT_LIMITS,
    LIMIT_DESCRIPTIONS,
    LimitCounts,
    SchemaLimitError,
)

Schema = dict[str, Any]


def nested(levels: int) -> Schema:
    return {} if levels == 1 else {"items": nested(levels - 1)}


def of_bytes(size: int) -> Schema:
    pad = size - len('{"description":""}')
    return {"description": "é" * (pad // 2) + "x" * (pad % 2)}


def of_resolved_depth(depth: int) -> Schema:
    """Return a schema with 8 definitions, each of which contains the next one."""
    size = (depth - 1) // 8
    definitions = {f"d{i}": around(size, {"$ref": f"#/$defs/d{i + 1}"}) for i in range(7)}
    return {"$defs": definitions | {"d7": around(depth - 9 - 7 * size, {})}, "$ref": "#/$defs/d0"}


def around(levels: int, schema: Schema) -> Schema:
    return schema if levels == 0 else {"items": around(levels - 1, schema)}


ENUM = [f"{i}" for i in range(100)]

AT_THE_LIMIT: list[tuple[str, str, Any]] = [
    ("max_schema_bytes", "", of_bytes),
    ("max_depth", "/items" * 32, nested),
    ("max_refs", "", lambda n: {"$defs": {"a": {}}, "prefixItems": [{"$ref": "#/$defs/a"}] * n}),
    ("max_all_of", "", lambda n: {"prefixItems": [{"allOf": [{}] * 8}, {"allOf": [{}] * (n - 8)}]}),
    ("max_alternatives", "", lambda n: {"prefixItems": [{"anyOf": [{}] * 40}, {"oneOf": [{}] * (n - 40)}]}),
    (
        "max_properties",
        "",
        lambda n: {"properties": {f"p{i}": {} for i in range(n - 2)}, "required": ["a", "b"]},
    ),
    (
        "max_pattern_properties",
        "/patternProperties",
        lambda n: {"patternProperties": {f"^{i}$": {} for i in range(n)}},
    ),
    (
        "max_patterns",
        "",
        lambda n: {"prefixItems": [{"pattern": "a"}, {"format": "date"}, *[{"pattern": "b"}] * (n - 2)]},
    ),
    ("max_pattern_length", "/pattern", lambda n: {"pattern": "[" + "a" * (n - 2) + "]"}),
    ("max_pattern_size", "/pattern", lambda n: {"pattern": "a{" + str(n) + "}"}),
    (
        "max_pattern_states",
        "",
        lambda n: {"allOf": [{"pattern": "a{256}"}, {"pattern": "b{" + str(n - 65_280) + "}"}]},
    ),
    ("max_pattern_states", "", lambda n: {"pattern": "a{256}", "maxLength": n - 65_280}),
    ("max_pattern_states", "", lambda n: {"format": "date", "allOf": [{"minLength": n - 61_440}]}),
    ("max_resolved_depth", "", of_resolved_depth),
    (
        "max_required_text",
        "",
        lambda n: {"items": {"const": "x" * 126}, "minItems": 127, "pattern": "a{" + str(n - 16_256) + "}"},
    ),
    ("max_values", "/enum", lambda n: {"enum": [*range(n - 5), [1, {"a": 2}]]}),
    ("max_text_length", "/const", lambda n: {"const": "x" * n}),
    ("max_items", "/maxItems", lambda n: {"maxItems": n}),
    ("max_items", "/minItems", lambda n: {"minItems": n}),
    ("max_items", "/minProperties", lambda n: {"minProperties": n}),
    ("max_items", "/maxProperties", lambda n: {"maxProperties": n}),
    ("max_string_length", "/minLength", lambda n: {"minLength": n}),
    ("max_string_length", "/maxLength", lambda n: {"maxLength": n}),
    ("max_digits", "/maximum", lambda n: {"maximum": 10 ** (n - 1)}),
    ("max_digits", "/minimum", lambda n: {"minimum": -(10.0 ** -(n - 1))}),
    ("max_digits", "/exclusiveMinimum", lambda n: {"exclusiveMinimum": 10 ** (n - 1)}),
    ("max_digits", "/exclusiveMaximum", lambda n: {"exclusiveMaximum": 10 ** (n - 1)}),
    ("max_digits", "/const", lambda n: {"const": 10 ** (n - 1)}),
    ("max_multiple", "/multipleOf", lambda n: {"multipleOf": n}),
    ("max_multiple", "/multipleOf", lambda n: {"multipleOf": n / 1000}),
    (
        "max_merged_size",
        "",
        lambda n: {"allOf": [{"enum": ENUM[:63]}, {"enum": ENUM[: n - 4033]}]},
    ),
]


@pytest.mark.parametrize(
    ("limit", "pointer", "build"), AT_THE_LIMIT, ids=[f"{row[0]}{row[1][:30]}" for row in AT_THE_LIMIT]
)
def test_a_schema_at_a_limit_is_accepted_and_one_beyond_is_refused(limit: str, pointer: str, build: Any):
    most = getattr(DEFAULT_LIMITS, limit)
    check_schema(build(most), LimitCounts())
    with pytest.raises(
        SchemaLimitError, match=rf"json_schema exceeds the limit {limit}: .* may be at most {most}"
    ) as error:
        check_schema(build(most + 1), LimitCounts())
    assert f" is {most + 1}, " in str(error.value) or limit in {"max_merged_size", "max_pattern_states"}
    assert error.value.within.startswith(pointer)
    assert (error.value.member, error.value.code) == ("json_schema", "invalid_input")


def test_every_limit_has_a_row_and_a_description():
    assert {row[0] for row in AT_THE_LIMIT} == set(LIMIT_DESCRIPTIONS)
    assert all(LIMIT_DESCRIPTIONS.values())


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 0),
        ("abc", 3),
        ("^a+$", 4),
        (r"\{5}", 3),
        (r"\\{5}", 5),
        ("a{3}", 3),
        ("a{3,}", 3),
        ("a{3,7}b", 8),
        ("a{0}", 1),
        ("(ab){5}", 15),
        ("(a{10}b){5}", 60),
        ("((a{4}){4}){4}", 80 + 4),
        ("(?:a{1000}){1000}", 1001 * 1000),
        ("(a{1000}){1000}", 1001 * 1000),
        ("[a-z{9}]{3}", 3),
        ("[^]a(]{3}", 3),
        (r"[\]{9}]{3}", 3),
        ("(?<name>a{3})", 4),
    ],
)
def test_size_of_a_pattern_counts_each_part_as_often_as_it_is_repeated(pattern: str, size: int):
    assert pattern_size(pattern) == size


@pytest.mark.parametrize(
    "pattern",
    [
        "(?x)(a #){1}\n){1000}",
        "(?i:a{10}){100}",
        "[a[b]{2}(]{500}",
        "(a{10}){100}(",
        "a{10}){100}",
        "(?=a{1000})",
        "((?x: a {10} ) {100})",
    ],
)
def test_size_of_a_pattern_that_is_not_clear_is_the_largest_possible(pattern: str):
    assert pattern_size(pattern) >= 1000


def definitions(count: int, link: Any) -> Schema:
    return {
        "$defs": {f"d{i}": link(f"#/$defs/d{i + 1}") for i in range(count)} | {f"d{count}": {}},
        "$ref": "#/$defs/d0",
    }


def test_references_without_keywords_next_to_them_are_not_merged():
    check_schema(definitions(60, lambda to: {"properties": {"x": {"$ref": to}}}), LimitCounts())
    check_schema({"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}, LimitCounts())


@pytest.mark.parametrize(
    ("count", "link"),
    [
        (
            30,
            lambda to: {
                "type": "object",
                "properties": {name: {"type": "object", "$ref": to} for name in "xy"},
            },
        ),
        (8, lambda to: {"allOf": [{"$ref": to}, {"properties": {"x": {"$ref": to}}}]}),
        (30, lambda to: {"type": ["object", "object"], "properties": {"x": {"type": "object", "$ref": to}}}),
        (30, lambda to: {"required": ["a", "b"], "additionalProperties": {"type": "object", "$ref": to}}),
    ],
)
def test_merged_references_that_grow_exponentially_are_refused(count: int, link: Any):
    with pytest.raises(SchemaLimitError, match="max_merged_size|max_depth|max_required_text"):
        check_schema(definitions(count, link), LimitCounts())


@pytest.mark.parametrize(
    ("schema", "message", "pointer"),
    [
        ({"allOf": [{"$ref": "#"}, {}]}, "cannot be merged", ""),
        ({"$ref": "#/$defs/a"}, "does not refer to a part of the schema", "/$ref"),
        ({"$ref": "http://example.com/schema"}, "does not refer to a part of the schema", "/$ref"),
        ({"$ref": "#name", "$anchor": "name"}, "does not refer to a part of the schema", "/$ref"),
        ({"$ref": "#/$defs/a%62", "$defs": {"ab": {}, "a%62": {}}}, "does not refer to a part", "/$ref"),
        ({"$ref": "#/items", "items": {"$id": "http://example.com/"}}, "identifier", "/items/$id"),
        ({"x-guidance": {"whitespace_pattern": "(a|b)*"}}, "must not have this member", "/x-guidance"),
    ],
)
def test_references_and_options_that_are_not_supported_are_refused(
    schema: Schema, message: str, pointer: str
):
    with pytest.raises(SchemaLimitError, match=message) as error:
        check_schema(schema, LimitCounts())
    assert error.value.within == pointer
