"""Test vectors for JSON, events, bodies and statuses, run against client and server."""

import json
from types import SimpleNamespace

import httpx2
import pytest

from support.random_json import canonical_text
from support.spec_vectors import bytes_of, for_each_vector, load_vectors
from tidewire.following.follower import (
    MAX_RESYNCS,
    Applied,
    Cause,
    Fatal,
    FatalKind,
    Follower,
    Ignored,
    Notice,
    Reconnect,
)
from tidewire.following.http_status_actions import RequestKind, action_for, retry_after
from tidewire.jobs.reconnecting_stream import _is_stream
from tidewire.protocol import messages, resources, strict_json
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.messages import MessageError
from tidewire.protocol.problems import Problem
from tidewire.protocol.sse import Event, EventWithoutId

# ---- JSON


@for_each_vector("messages/json")
def test_json_is_accepted_or_refused(vector):
    body = bytes_of(vector, "text", "bytes")
    texts = [body] if "bytes" in vector else [body, vector["text"]]
    for text in texts:
        if vector["outcome"] == "accept":
            assert canonical_text(strict_json.loads(text)) == canonical_text(json.loads(text))
        else:
            with pytest.raises(strict_json.StrictJsonError):
                strict_json.loads(text)


# ---- events

EVENTS = load_vectors("messages/events")


def reader(held, *, resyncs=0):
    """Return a follower that holds a state, has just connected, and has received `hello`."""
    follower = Follower(job_id=EVENTS["job"])
    follower.restore(held["state"], held["columns"], Cursor.parse(held["id"]))
    follower.resyncs = resyncs
    follower.connected()
    hello = {
        "protocol": "tidewire/1",
        "job": EVENTS["job"],
        "events": "e",
        "head": held["id"],
        "heartbeat_ms": 1,
    }
    assert isinstance(follower.receive(Event("hello", json.dumps(hello), held["id"])), Ignored)
    return follower


def outcome_of(follower, vector, last_id):
    kind = Event if "id" in vector else EventWithoutId
    event = kind(vector["type"], vector["data"], vector.get("id", last_id))
    match follower.receive(event):
        case Applied() | Notice():
            return "accept"
        case Ignored() as ignored:
            return "ignore" if ignored.why.startswith("unknown event") else "accept"
        case Reconnect(cause=Cause.RESYNC):
            return "resync"
        case Reconnect():
            return "leave"
        case Fatal(kind=FatalKind.UNSUPPORTED) if follower.resyncs > MAX_RESYNCS:
            return "unknown"
        case Fatal() if follower.resyncs > MAX_RESYNCS:
            return "malformed"
        case Fatal():
            return "fatal"


@for_each_vector("messages/events")
def test_reader_handles_an_event_as_the_vector_requires(vector):
    held = EVENTS["held"][vector["held"]]
    follower = reader(held)
    before = canonical_text(follower.document.value())
    outcome = outcome_of(follower, vector, held["id"])
    if outcome == "resync":
        assert canonical_text(follower.document.value()) == before, (
            "a malformed event must not change the state"
        )
        assert (follower.cursor, follower.done) == (None, None)
        # Malformed and unknown events differ only in the fatal error after too many resyncs.
        outcome = outcome_of(reader(held, resyncs=MAX_RESYNCS), vector, held["id"])
    assert outcome == vector["outcome"]
    if "after" in vector:
        assert canonical_text(follower.document.value()) == canonical_text(vector["after"])


# ---- bodies

MODELS = {
    "discovery": resources.Discovery,
    "endpoint": resources.EndpointDescription,
    "job": resources.JobResource,
    "job-list": resources.JobList,
    "stream-token": resources.StreamToken,
    "problem": Problem,
}


@for_each_vector("messages/bodies")
def test_response_body_is_accepted_or_refused(vector):
    model = MODELS[vector["body"]]
    if vector["outcome"] == "accept":
        messages.read(model, vector["data"], what="the body")
    else:
        with pytest.raises(MessageError):
            messages.read(model, vector["data"], what="the body")


@for_each_vector("messages/requests")
def test_request_body_is_accepted_or_refused(vector):
    pytest.importorskip("starlette", reason="the server is not installed")
    from tidewire_server.errors import ProblemError

    accept = accept_submit if vector["body"] == "submit" else accept_cancel
    if vector["outcome"] == "accept":
        accept(vector["data"].encode())
        return
    with pytest.raises(ProblemError) as refusal:
        accept(vector["data"].encode())
    problem = refusal.value.problem
    assert problem.code == vector["code"], problem
    assert problem.pointer == vector.get("pointer", problem.pointer), problem


def accept_submit(body):
    """Validate a submit body without the schema of an endpoint."""
    import anyio

    from tidewire_server.jobs.admission.submit_body import admit_inputs, read_submit

    class Anything:
        async def admit(self, value, pointer):
            return value

        def items_of(self, value, pointer, *, batch):
            return [value]

    anyio.run(admit_inputs, Anything(), read_submit(body, max_inputs=1024, max_values=10_000))


def accept_cancel(body):
    """Validate a cancel body for a job of four items."""
    from tidewire_server.http.request_parameters import items_to_cancel
    from tidewire_server.jobs.admission.submit_body import read_json

    if body:
        items_to_cancel(read_json(body, max_values=10_000), 4)


# ---- responses

REQUEST_KINDS = {"stream": RequestKind.STREAM, "submit": RequestKind.SUBMIT, "other": RequestKind.REQUEST}


@for_each_vector("messages/answers")
def test_client_handles_a_status_as_the_vector_requires(vector):
    expected = vector["then"].replace("read", "read_job")
    if "headers" in vector:
        found = _is_stream(SimpleNamespace(headers=httpx2.Headers(vector["headers"])))
        assert ("use" if found else "cut") == expected
    kind = REQUEST_KINDS[vector["asked"]]
    found = action_for(vector["status"], kind, has_cursor=vector.get("cursor", False)).value
    assert found == ("use" if "headers" in vector else expected)


@for_each_vector("messages/retry-after")
def test_retry_after_is_parsed_as_the_vector_requires(vector):
    assert retry_after(vector["value"]) == vector["seconds"]
