"""Agreement of the code's models with the specification's schemas.

Each value written by a model is valid for its schema, and the model reads each value that the schema allows. Members
required by the schema are required by the model, except those in `READ_WITHOUT`: a server must write these members,
but a reader does without them.
"""

import typing
from types import UnionType

import msgspec
import pytest

from support.spec_document import SCHEMAS, breaches
from tidewire.protocol import messages, problems, resources
from tidewire.protocol.wire_model import Count, MessageError, WireModel

MODELS = {
    "problem": problems.Problem,
    "item": messages.Item,
    "state": messages.State,
    "snapshot": messages.Snapshot,
    "done": messages.Done,
    "hello": messages.Hello,
    "queue": messages.Queue,
    "progress": messages.Progress,
    "ping": messages.Ping,
    "goaway": messages.Goaway,
    "discovery": resources.Discovery,
    "endpoint": resources.EndpointDescription,
    "submit": resources.SubmitBody,
    "job-entry": resources.JobResource,
    "job-list": resources.JobList,
    "cancel": resources.Cancel,
    "stream-token": resources.StreamToken,
}

# The protocol's code validates the first seven; a `job` is a `job-entry` with a state; the server has the other models.
NO_MODEL = {
    "event-id", "job-id", "pointer", "columns", "op", "check", "diff",
    "job",
    "generate-input", "generate-value", "vocabulary",
}  # fmt: skip

READ_WITHOUT = {
    "state": {"usage", "notes"},
    "done": {"usage", "check", "expires_at"},
    "job-entry": {"columns", "attempt"},
    "discovery": {"protocol"},
}
"""Members that a server always writes, and that a reader does not need."""

SAMPLES = {
    "status": 503,
    "job": "2yJq8sVbT1mHkP0dXw4RcA",
    "id": "2yJq8sVbT1mHkP0dXw4RcA",
    "protocol": "tidewire/1",
    "head": "1-17",
    "cursor": "1-17",
    "digest": "0123456789abcdef",
    "pointer": "/input/a",
    "columns": ["/items/0/value"],
    "check": [["/items/0/value", 5, 4157704578]],
    "stable": {"/text": 3},
    "max_depth": 64,
    "max_event_bytes": 1024,
    "max_event_ops": 64,
    "max_state_bytes": 1024,
    "state": SCHEMAS["state"]["examples"][0],
    "items": SCHEMAS["state"]["examples"][0]["items"],
    "capabilities": ["list", "delete"],
    "inputs": [1, 2],
}
"""Example values for members whose type does not determine a valid value."""


def samples(name, annotation):
    """Yield JSON values of a type: one value, or each value of a Literal."""
    if isinstance(annotation, type) and issubclass(annotation, WireModel):
        yield next(instances(annotation))
        return
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from samples(name, arguments[0])
    elif origin is typing.Literal:
        yield from arguments
    elif origin in {typing.Union, UnionType}:
        yield from samples(name, next(one for one in arguments if one is not type(None)))
    elif origin is list and arguments[0] is Count:
        yield [0, 2]
    elif name in SAMPLES:
        yield SAMPLES[name]
    elif name.endswith("_at"):
        yield "2026-03-01T12:00:00Z"
    elif origin is list:
        yield [next(samples("", arguments[0]))]
    elif origin is dict or annotation is dict:
        yield {}
    else:
        yield {str: "text", int: 1, float: 1.5, bool: True}.get(annotation, {"any": [None]})


def instances(model):
    """Yield inputs of a model: all members, each value of each Literal, and each optional member left out."""
    full = {}
    members = [field for field in msgspec.structs.fields(model) if field.name != "model_extra"]
    for member in members:
        full[member.encode_name] = next(samples(member.encode_name, member.type))
    yield full
    for member in members:
        key = member.encode_name
        for value in samples(key, member.type):
            if value != full[key]:
                yield full | {key: value}
        if not member.required:
            yield {other: value for other, value in full.items() if other != key}


def coherent(name, members):
    """Return whether members that depend on each other are consistent, which member types cannot express."""
    failed = members.get("status") == "failed"
    if name == "item":
        return failed == ("error" in members)
    if name == "done":
        return "expires_at" in members and (not failed or "error" in members)
    return name != "submit" or ("input" in members) != ("inputs" in members)


def serialize(name, model, members):
    made = model.model_validate(members)
    if name == "submit":
        return {key: value for key, value in made.model_dump().items() if key in members}
    return messages.to_json(made)


@pytest.mark.parametrize("name", MODELS)
def test_values_written_by_a_model_are_valid_for_its_schema(name):
    model, seen = MODELS[name], 0
    for members in instances(model):
        if coherent(name, members):
            seen += 1
            assert breaches(name, serialize(name, model, members)) == [], members
    assert seen


@pytest.mark.parametrize("name", MODELS)
def test_model_reads_and_writes_each_example_of_its_schema(name):
    model = MODELS[name]
    for example in SCHEMAS[name]["examples"]:
        again = serialize(name, model, example)
        assert breaches(name, again) == []
        assert {key for key, value in example.items() if value is not None} <= again.keys()


def variants(value):
    """Yield variants of a JSON value with one change: a member removed, or a value replaced."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield {other: one for other, one in value.items() if other != key}
            for other in (None, "x", "3", 3, 0, 1.5, True, [], {}, *variants(child)):
                yield value | {key: other}
        yield value | {"a-member-of-a-later-minor": 1}
    elif isinstance(value, list):
        for index, child in enumerate(value):
            for other in variants(child):
                yield [*value[:index], other, *value[index + 1 :]]


@pytest.mark.parametrize("name", MODELS)
def test_model_reads_every_value_that_its_schema_allows(name):
    allowed = refused = 0
    for example in SCHEMAS[name]["examples"]:
        for near in variants(example):
            if breaches(name, near):
                refused += 1
            else:
                allowed += 1
                MODELS[name].model_validate(near)
    assert allowed
    assert refused


@pytest.mark.parametrize("name", MODELS)
def test_model_requires_the_members_that_its_schema_requires(name):
    model, schema = MODELS[name], SCHEMAS[name]
    members = max(schema["examples"], key=len)
    survived = set()
    for key in schema.get("required", ()):
        try:
            model.model_validate({other: value for other, value in members.items() if other != key})
            survived.add(key)
        except MessageError:
            continue
    assert survived == READ_WITHOUT.get(name, set())


def test_every_schema_has_a_model_or_an_exemption():
    # Schemas for the specification's own data, which servers and clients do not read.
    own = {name for name in SCHEMAS if name.split("-")[0] in {"vector", "scenario"}}
    assert MODELS.keys() | NO_MODEL | own == SCHEMAS.keys()
    assert not MODELS.keys() & NO_MODEL


def test_enumerations_in_schemas_and_models_are_equal():
    def words(schema, member):
        return set(SCHEMAS[schema]["properties"][member]["enum"])

    assert words("item", "status") == set(typing.get_args(messages.ItemStatus))
    assert words("state", "status") == set(typing.get_args(messages.JobStatus))
    assert words("done", "status") == messages.ENDED
    assert words("snapshot", "reason") == set(typing.get_args(messages.SnapshotReason))


def test_limits_in_schema_and_model_have_the_same_names():
    limits = SCHEMAS["discovery"]["properties"]["limits"]
    assert limits["properties"].keys() == set(resources.Limits.__struct_fields__)
    assert limits["required"] == ["state_ttl_s"]


def test_limits_that_are_absent_have_the_defaults_of_the_specification():
    defaults = {field.name: field.default for field in msgspec.structs.fields(resources.Limits)}
    del defaults["state_ttl_s"]
    without_number = {"min_grace_ms": "60000", "max_retained_jobs": "Unlimited"}
    without_number |= {"max_retained_bytes": "Unlimited", "max_tombstones": "Unlimited"}
    properties = SCHEMAS["discovery"]["properties"]["limits"]["properties"]
    for name, default in defaults.items():
        expected = default if default is not None else without_number[name]
        assert properties[name]["description"] == f"{expected} if absent.", name
