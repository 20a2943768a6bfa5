"""Inputs as KEY=VALUE words, typed by JSON Schema."""

import json

import pytest

from tidewire.inputs.input_words import (
    member_schema,
    parse_word,
    takes_base64,
    types_of,
    words_for_required_members,
    words_of,
)
from tidewire.protocol.strict_json import StrictJsonError

SCHEMA = {
    "$defs": {
        "Mode": {"enum": ["fast", "slow"]},
        "Point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
    },
    "type": "object",
    "properties": {
        "hero": {"type": "string"},
        "n": {"type": "integer", "minimum": 3},
        "seed": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "stop": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]
        },
        "mode": {"$ref": "#/$defs/Mode"},
        "at": {"$ref": "#/$defs/Point"},
        "anything": {},
    },
    "required": ["hero", "n", "mode", "at"],
}


@pytest.mark.parametrize(
    ("member", "text", "value"),
    [
        ("hero", "12", "12"),
        ("hero", "true", "true"),
        ("hero", "null", "null"),
        ("hero", '"quoted"', '"quoted"'),
        ("hero", "", ""),
        ("mode", "fast", "fast"),
        ("n", "12", 12),
        ("n", "twelve", "twelve"),
        ("seed", "null", None),
        ("seed", "4", 4),
        ("stop", "12", "12"),
        ("stop", "null", None),
        ("stop", '["a"]', ["a"]),
        ("stop", '"null"', "null"),
        ("at", '{"x":1.5}', {"x": 1.5}),
        ("anything", "12", 12),
        ("anything", "text", "text"),
        ("unknown", "12", 12),
        ("anything", "NaN", "NaN"),
        ("anything", "{not JSON", "{not JSON"),
        ("stop", "9007199254740993", "9007199254740993"),
    ],
)
def test_a_word_has_the_type_of_its_member(member, text, value):
    parsed = parse_word(text, member_schema(member, SCHEMA), SCHEMA)
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("member", "text", "message"),
    [
        ("anything", '{"id": 9007199254740993}', "9007199254740993"),
        ("n", "9007199254740993", "9007199254740993"),
        ("n", "9" * 5000, "2\\^53"),
        ("at", '{"x": 1e400}', "1e400"),
        ("anything", '{"a": 1, "a": 2}', "'a'"),
        ("anything", '"\\ud800"', "surrogate"),
        ("anything", "[" * 2000 + "]" * 2000, "nested deeper"),
    ],
)
def test_json_that_the_protocol_does_not_allow_is_not_sent_as_a_text(member, text, message):
    with pytest.raises(StrictJsonError, match=message):
        parse_word(text, member_schema(member, SCHEMA), SCHEMA)
    assert words_of({member: text}, SCHEMA) == [f"{member}={json.dumps(text)}"]


def test_words_of_an_example_are_parsed_to_the_same_example():
    example = {"hero": "12", "n": 3, "seed": None, "stop": "12", "mode": "slow", "at": {"x": 1}}
    words = words_of(example, SCHEMA)
    assert words == ["hero=12", "n=3", "seed=null", "stop=12", "mode=slow", 'at={"x": 1}']
    for word in words:
        name, _, text = word.partition("=")
        assert parse_word(text, member_schema(name, SCHEMA), SCHEMA) == example[name]


@pytest.mark.parametrize(
    "example", [{"hero": "two\nlines"}, {"": 1}, {"a=b": 1}, [1], "text", {"hero": "@dataclass"}]
)
def test_an_example_that_words_cannot_express_is_passed_as_json(example):
    assert words_of(example, SCHEMA)[0] == "--input"


BASE64 = {"type": "string", "format": "base64"}


@pytest.mark.parametrize(
    ("schema", "takes"),
    [
        (BASE64, True),
        ({"type": "string", "contentEncoding": "base64"}, True),
        ({"type": "string", "format": "byte"}, True),
        ({"anyOf": [BASE64, {"type": "null"}]}, True),
        ({"allOf": [{"$ref": "#/$defs/Bytes"}]}, True),
        ({"type": "string"}, False),
        ({"type": "string", "format": "binary"}, False),
        ({"type": "array", "items": BASE64}, False),
        ({"$ref": "#/$defs/Loop"}, False),
        ({"format": ["base64"], "anyOf": BASE64}, False),
        (True, False),
    ],
)
def test_base64_is_recognized_by_the_schema(schema, takes):
    root = {"$defs": {"Bytes": BASE64, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}]}}}
    assert takes_base64(schema, root) is takes


def test_a_required_member_of_base64_has_a_file_as_placeholder():
    schema = {"type": "object", "properties": {"a": BASE64, "b": {"type": "string"}}, "required": ["a", "b"]}
    assert words_for_required_members(schema) == ["a=@FILE", "b=TEXT"]


def test_an_example_that_begins_with_an_at_sign_is_passed_as_json_if_the_schema_allows_more_than_strings():
    assert words_of({"stop": "@"}, SCHEMA) == ['stop="@"']


def test_required_members_have_placeholders_of_their_types():
    assert words_for_required_members(SCHEMA) == ["hero=TEXT", "n=3", "mode=fast", 'at={"x": 1}']
    assert words_for_required_members({"type": "object", "properties": {"n": {"type": "integer"}}}) == []


@pytest.mark.parametrize(
    "schema", [True, None, {"$ref": "#/$defs/Loop"}, {"type": 5}, {"anyOf": 3}, {"$ref": 1}, {"enum": []}]
)
def test_a_malformed_schema_allows_any_type(schema):
    root = {"$defs": {"Loop": {"$ref": "#/$defs/Loop"}}}
    assert {"string", "integer"} <= types_of(schema, root)
