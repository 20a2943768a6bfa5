"""Members of events and bodies are what they say: an integer is an integer, and null says that there is none."""

import pytest
from pydantic import ValidationError

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

HELLO = {"protocol": "tidewire/1", "job": "j", "events": "/e", "head": "1-1", "heartbeat_ms": 15000}
PLACE = {"size": 2, "row": 0, "wait_ms": 0}
PROBLEM = {"code": "internal", "title": "The server failed", "status": 500}
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

# model, members, the integer among them, its least value
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
    *((Limits, {}, name, 0 if name.endswith("_ttl_s") else 1) for name in Limits.model_fields),
]


@pytest.mark.parametrize(("model", "members", "name", "least"), INTEGERS)
def test_an_integer_is_neither_a_text_nor_a_boolean_nor_a_fraction_nor_too_small(model, members, name, least):
    assert getattr(model.model_validate(members | {name: least}), name) == least
    for wrong in (least - 1, str(least), float(least), True, False, [], {}):
        with pytest.raises(ValidationError, match=name):
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
def test_a_boolean_is_neither_a_text_nor_a_number(model, members, name):
    for wrong in ("true", "yes", 1, 0):
        with pytest.raises(ValidationError, match=name):
            model.model_validate(members | {name: wrong})


@pytest.mark.parametrize("wrong", ["1.5", True, float("nan"), float("inf")])
def test_a_number_is_neither_a_text_nor_a_boolean_and_finite(wrong):
    with pytest.raises(ValidationError, match="current"):
        Progress.model_validate({"current": wrong})
    assert Progress.model_validate({"current": 3, "total": 4.5}).current == 3


@pytest.mark.parametrize("wrong", [-1, "3", True, 3.0, None])
def test_integers_inside_other_members_are_integers_as_well(wrong):
    with pytest.raises(ValidationError):
        Item.model_validate({"status": "running", "stable": {"/text": wrong}})
    with pytest.raises(ValidationError):
        Cancel.model_validate({"items": [0, wrong]})


def test_models_inside_models_are_read_from_json():
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
def test_null_in_a_member_that_may_be_left_out_says_the_same_as_its_absence(model, members):
    absent = {name: value for name, value in members.items() if value is not None}
    assert model.model_validate(members) == model.model_validate(absent)


def test_null_in_a_member_that_must_be_there_is_refused():
    with pytest.raises(ValidationError, match="position"):
        Queue.model_validate({"position": None})


def test_null_in_an_unknown_member_of_a_problem_is_handed_over():
    assert read(
        Problem, '{"code":"a:b","title":"t","status":500,"hint":null}', what="problem"
    ).model_extra == {"hint": None}
