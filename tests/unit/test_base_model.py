"""Strict validation of message members: no type coercion, and null equals an absent optional member."""

import pytest

from tidewire.protocol.messages import (
    BatchPlace,
    Done,
    Goaway,
    Hello,
    Item,
    Progress,
    Queue,
    State,
    check_state,
    read,
)
from tidewire.protocol.problems import Problem
from tidewire.protocol.resources import (
    Cancel,
    Discovery,
    EndpointCapabilities,
    EndpointSummary,
    JobResource,
    Limits,
    SubmitBody,
)
from tidewire.protocol.wire_model import MessageError

HELLO = {"protocol": "tidewire/1", "job": "j", "events": "/e", "head": "1-1", "heartbeat_ms": 15000}
PLACE = {"size": 2, "row": 0, "wait_ms": 0}
PROBLEM = {"code": "internal", "title": "Internal server error", "status": 500}
JOB = {
    "id": "j",
    "endpoint": "e",
    "status": "queued",
    "batch": False,
    "cursor": "1-1",
    "created_at": "2026-03-01T12:00:00Z",
    "links": {"self": "/j", "events": "/e", "cancel": "/c"},
}
DISCOVERY = {
    "server": "s",
    "durability": "process",
    "capabilities": [],
    "limits": {},
    "heartbeat_ms": 1,
    "endpoints": [],
}

# (model, valid members, name of the integer member, minimum of that member)
MINIMUM = {"min_grace_ms": 0, "max_event_ops": 64}
INTEGERS = [
    (Hello, HELLO, "heartbeat_ms", 1),
    (Queue, {"position": 1}, "position", 1),
    (Queue, {"position": 1}, "eta_ms", 0),
    (Progress, {}, "item", 0),
    (Goaway, {"reason": "restart", "retry_ms": 5}, "retry_ms", 0),
    (BatchPlace, PLACE, "size", 1),
    (BatchPlace, PLACE, "row", 0),
    (BatchPlace, PLACE, "wait_ms", 0),
    (Problem, PROBLEM, "status", 400),
    (Problem, PROBLEM, "retry_after_ms", 0),
    (JobResource, JOB, "attempt", 1),
    (Discovery, DISCOVERY, "heartbeat_ms", 1),
    (Discovery, DISCOVERY, "min_interval_ms", 0),
    (SubmitBody, {"input": 1}, "grace_ms", 0),
    (SubmitBody, {"input": 1}, "deadline_ms", 1),
    *(
        (Limits, {}, name, MINIMUM.get(name, 0 if name.endswith("_ttl_s") else 1))
        for name in Limits.__struct_fields__
    ),
]


@pytest.mark.parametrize(("model", "members", "name", "least"), INTEGERS)
def test_integer_member_refuses_other_types_and_values_below_its_minimum(model, members, name, least):
    assert getattr(model.model_validate(members | {name: least}), name) == least
    for wrong in (least - 1, str(least), float(least), True, False, [], {}):
        with pytest.raises(MessageError, match=name):
            model.model_validate(members | {name: wrong})


@pytest.mark.parametrize(
    ("model", "members", "name"),
    [
        (Problem, PROBLEM, "retryable"),
        (JobResource, JOB, "batch"),
        (EndpointSummary, {"name": "e", "href": "/e"}, "defaults"),
        (EndpointCapabilities, {}, "streams"),
        (EndpointCapabilities, {}, "cancel"),
        (EndpointCapabilities, {}, "rollback"),
    ],
)
def test_boolean_member_refuses_strings_and_numbers(model, members, name):
    for wrong in ("true", "yes", 1, 0):
        with pytest.raises(MessageError, match=name):
            model.model_validate(members | {name: wrong})


@pytest.mark.parametrize("wrong", ["1.5", True, float("nan"), float("inf")])
def test_number_member_refuses_strings_booleans_and_non_finite_values(wrong):
    with pytest.raises(MessageError, match="current"):
        Progress.model_validate({"current": wrong})
    assert Progress.model_validate({"current": 3, "total": 4.5}).current == 3


@pytest.mark.parametrize("wrong", [-1, "3", True, 3.0, None])
def test_integers_in_nested_values_are_validated_strictly(wrong):
    with pytest.raises(MessageError):
        Item.model_validate({"status": "running", "stable": {"/text": wrong}})
    with pytest.raises(MessageError):
        Cancel.model_validate({"items": [0, wrong]})


def test_nested_models_are_read_from_json():
    state = check_state(
        {
            "status": "running",
            "items": [{"status": "running", "batch": PLACE, "stable": {"/t": 3}}],
            "usage": {},
            "notes": [],
        },
        what="state",
    )
    assert state.items[0].batch == BatchPlace(size=2, row=0, wait_ms=0)


@pytest.mark.parametrize(
    ("model", "members"),
    [
        (Queue, {"position": 1, "eta_ms": None}),
        (Progress, {"current": None, "unit": None, "item": None}),
        (Item, {"status": "queued", "value": None, "error": None, "stable": None, "batch": None}),
        (State, {"status": "queued", "items": [{"status": "queued"}], "error": None}),
        (Done, {"status": "succeeded", "digest": "0" * 16, "check": None, "expires_at": None}),
        (Problem, PROBLEM | {"type": None, "retryable": None, "retry_after_ms": None}),
        (JobResource, JOB | {"done": None, "started_at": None, "state": None}),
        (EndpointSummary, {"name": "e", "href": "/e", "summary": None, "defaults": None}),
        (Cancel, {"items": None}),
    ],
)
def test_null_in_an_optional_member_equals_its_absence(model, members):
    absent = {name: value for name, value in members.items() if value is not None}
    assert model.model_validate(members) == model.model_validate(absent)


def test_null_in_a_required_member_is_refused():
    with pytest.raises(MessageError, match="position"):
        Queue.model_validate({"position": None})


def test_null_in_an_unknown_member_of_a_problem_is_kept():
    assert read(
        Problem, '{"code":"a:b","title":"t","status":500,"hint":null}', what="problem"
    ).model_extra == {"hint": None}


@pytest.mark.parametrize(
    ("model", "members", "message"),
    [
        (Queue, {"position": 0}, "/position: expected `int` >= 1; received 0"),
        (Queue, {"position": "3"}, '/position: expected `int`; received "3"'),
        (Queue, {}, "/position: this member is required"),
        (Queue, [], "the whole value: expected `object`; received []"),
        (
            SubmitBody,
            {"on_disconnect": "x"},
            "/on_disconnect: expected 'continue' or 'cancel'; received \"x\"",
        ),
        (
            State,
            {"status": "running", "items": [{"status": "queued"}, {"status": "lost"}]},
            "/items/1/status: expected 'queued', 'running', 'succeeded', 'failed' or 'cancelled'; received \"lost\"",
        ),
        (JobResource, JOB | {"done": {"status": "failed"}}, "/done/digest: this member is required"),
    ],
)
def test_error_names_the_member_the_rule_and_the_received_value(model, members, message):
    with pytest.raises(MessageError) as caught:
        model.model_validate(members)
    assert str(caught.value) == message


def test_model_dump_writes_the_members_as_they_were_read():
    members = JOB | {"done": {"status": "failed", "digest": "0" * 16, "error": PROBLEM | {"limit": 4}}}
    written = JobResource.model_validate(members).model_dump(exclude_none=True)
    assert members["done"]["error"].items() <= written["done"]["error"].items()
    assert written["links"] == JOB["links"]
    assert "state" in JobResource.model_validate(JOB).model_dump()
    assert "state" not in JobResource.model_validate(JOB).model_dump(exclude={"state"})


def test_model_dump_shares_no_containers_with_the_model():
    model = JobResource.model_validate(
        JOB
        | {
            "state": {"items": [1]},
            "done": {"status": "failed", "digest": "0" * 16, "error": PROBLEM | {"x": [1]}},
        }
    )
    written = model.model_dump()
    written["state"]["items"].append(2)
    written["done"]["error"]["x"].append(2)
    assert model.state == {"items": [1]}
    assert model.done.error.model_extra == {"x": [1]}
    assert model.model_dump() != written


def test_model_copy_needs_no_changes():
    model = Queue(position=2)
    assert model.model_copy() == model.model_copy(update={}) == model
    assert model.model_copy(update={"position": 3}) == Queue(position=3)


@pytest.mark.parametrize("method", ["model_dump", "model_dump_json"])
def test_arguments_of_pydantic_that_have_no_effect_are_refused(method):
    for argument in ({"mode": "python"}, {"by_alias": False}):
        with pytest.raises(TypeError, match="unexpected keyword"):
            getattr(Queue(position=2), method)(**argument)
    assert Queue(position=2).model_dump_json(exclude_none=True) == '{"position":2}'
