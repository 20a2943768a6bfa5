"""Texts of schema violations: each violation with its place and the expected form."""

import copy
import random

import pytest

from support.mutated_server import FAULTS, mutated, paths
from tidewire_conformance.compiled_schemas import is_valid
from tidewire_conformance.schema_violations import MAX_LISTED, form, schema_violation, usable, violation_of
from tidewire_conformance.specification import folder, schema, validator
from tidewire_conformance.wire.typed_json import EVENT_SCHEMAS

DISCOVERY = schema("discovery.schema.json")["examples"][0]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"const": 64}, "64"),
        ({"enum": ["process", "host", None]}, '"process", "host" or null'),
        ({"type": "string"}, "a string"),
        ({"type": "string", "pattern": "^a$"}, "a string that matches ^a$"),
        ({"type": "string", "minLength": 1}, "a non-empty string"),
        ({"type": "string", "format": "uri-reference", "minLength": 1}, "a link"),
        ({"type": "integer", "minimum": 1}, "an integer of at least 1"),
        ({"type": "integer", "minimum": 0, "maximum": 9}, "an integer of at least 0 and at most 9"),
        ({"type": "number", "maximum": 0}, "a number of at most 0"),
        ({"type": ["number", "null"]}, "a number or null"),
        ({"type": "boolean"}, "true or false"),
        ({"type": "array", "items": {"type": "string"}}, "an array in which each element is a string"),
        ({"type": "object", "required": ["a", "b"]}, "an object with a, b"),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "a string or an array"),
        ({"$ref": "job-id.schema.json"}, "a string that matches ^[A-Za-z0-9_-]{22,128}$"),
        ({}, "a JSON value"),
    ],
)
def test_the_form_of_a_schema_is_described(schema, text):
    assert form(schema) == text


def test_the_form_of_each_schema_of_the_specification_is_described():
    for file in sorted((folder() / "schema").iterdir()):
        assert form(schema(file.name)), file.name


def test_a_single_violation_is_one_line_and_several_are_a_list():
    wrong = copy.deepcopy(DISCOVERY)
    assert schema_violation("discovery", wrong) == ""
    del wrong["server"]
    assert schema_violation("discovery", wrong) == "server: missing; expected a string"
    wrong["limits"] = None
    assert schema_violation("discovery", wrong).splitlines() == [
        "2 faults:",
        "- server: missing; expected a string",
        "- limits: expected an object with state_ttl_s, not null",
    ]


def test_a_list_of_violations_is_limited():
    wrong = DISCOVERY | {"endpoints": [0] * 100}
    *listed, more = schema_violation("discovery", wrong).splitlines()
    assert (len(listed), more) == (1 + MAX_LISTED, f"- and {100 - MAX_LISTED} more")


def test_the_usable_part_has_no_member_of_a_wrong_type():
    wrong = DISCOVERY | {
        "capabilities": {"list": 1},
        "heartbeat_ms": "1",
        "endpoints": [7, {"name": "a", "href": ""}],
    }
    found = usable("discovery", wrong)
    assert found == {
        name: value for name, value in DISCOVERY.items() if name not in {"capabilities", "heartbeat_ms"}
    } | {"endpoints": [{"name": "a"}]}
    assert usable("discovery", [DISCOVERY]) == {}


@pytest.mark.parametrize(("status", "is_kept"), [("paused", True), ({}, False), ([], False), (None, False)])
def test_a_word_of_a_wrong_type_is_no_member_but_another_word_is(status, is_kept):
    """Checks look for a status among the words of a set, and a dict cannot be looked for there."""
    item = {"status": "running", "value": ""}
    found = usable("state", {"status": status, "items": [item], "usage": {}, "notes": []}, types_only=True)
    assert ("status" in found) == is_kept


@pytest.mark.parametrize(
    "schema", [None, "x", {"type": "strng"}, {"$ref": "#/nowhere"}, {"pattern": "("}, {"$ref": "#"}]
)
def test_a_schema_that_cannot_be_used_finds_no_violation(schema):
    assert violation_of(schema, "value") == ""


@pytest.mark.parametrize("name", [*EVENT_SCHEMAS.values(), "job", "job-list", "state", "job-id"])
def test_a_compiled_schema_accepts_the_same_values_as_jsonschema(name):
    """The values are the examples of the schema and mutations of them."""
    valid, rng = is_valid(name), random.Random(name)
    examples = schema(f"{name}.schema.json").get("examples", [])
    assert valid is not None
    assert examples
    found = {True: 0, False: 0}
    for example in examples:
        for _ in range(20):
            value = {"": example}
            if rng.random() < 0.9:
                value = mutated(value, rng.choice([*paths(value)]), rng.choice(FAULTS))
            value = value.get("")
            assert valid(value) == validator(name).is_valid(value), value
            found[valid(value)] += 1
    assert found[True] > 0
    assert found[False] > 0
