"""Test vectors for event ids and cursors, run against client and server."""

import json

import httpx2
import pytest

from support.spec_vectors import for_each_vector, load_vectors
from tidewire.following.follower import Applied, Cause, Follower, Ignored, Reconnect
from tidewire.protocol.cursor import BEGINNING, Cursor, CursorError
from tidewire.protocol.document.digests import digest
from tidewire.protocol.messages import LOGGED
from tidewire.protocol.sse import Decoder, Event

STATE = {"status": "running", "items": [{"status": "running", "value": ""}], "usage": {}, "notes": []}


@for_each_vector("cursor/ids")
def test_id_is_parsed_or_refused(vector):
    if vector["id"] is None:
        with pytest.raises(CursorError, match="EPOCH-SEQ"):
            Cursor.parse(vector["text"])
    else:
        assert list(Cursor.parse(vector["text"])) == vector["id"]
        assert str(Cursor.parse(vector["text"])) == vector["text"]


@for_each_vector("cursor/order")
def test_ids_are_ordered(vector):
    one, other = map(Cursor.parse, vector["ids"])
    below = vector["order"] == "below"
    assert (one < other, one == other, other < one) == (below, not below, False)


def data_of(vector):
    if vector["event"] == "snapshot":
        return {"state": STATE, "columns": [], "reason": vector["reason"]}
    if vector["event"] == "done":
        return {"status": "succeeded", "usage": {}, "check": [], "digest": digest(STATE["items"])}
    return {"ops": []} | ({"on": vector["on"]} if "on" in vector else {})


@for_each_vector("cursor/standing")
def test_reader_handles_an_id_as_the_vector_requires(vector):
    follower = Follower(job_id="j")
    if vector["mine"] is not None:
        follower.restore(STATE, [], Cursor.parse(vector["mine"]))
    follower.connected()
    hello = {"protocol": "tidewire/1", "job": "j", "events": "e", "head": "1-1", "heartbeat_ms": 1}
    assert isinstance(follower.receive(Event("hello", json.dumps(hello), vector["mine"] or "")), Ignored)
    kind = "message" if vector["event"] == "diff" else vector["event"]
    outcome = follower.receive(Event(kind, json.dumps(data_of(vector)), vector["id"]))
    held = None if follower.cursor is None else str(follower.cursor)
    match vector["then"]:
        case "next":
            assert isinstance(outcome, Applied)
            assert held == vector["id"]
        case "repeat":
            assert outcome == Ignored(f"{kind} {vector['id']} was applied before")
            assert held == vector["mine"]
        case "resync":
            assert isinstance(outcome, Reconnect)
            assert (outcome.cause, held) == (Cause.RESYNC, None)


def before(cursor):
    return cursor._replace(seq=cursor.seq - 1)


ENDED_AND_WHOLE = {"first": "1-1", "head": "1-7", "ended": True}
RESPONSES = load_vectors("cursor/answers")["vectors"]


def vectors_with_log(over_http):
    found = [vector for vector in RESPONSES if (vector["log"] == ENDED_AND_WHOLE) == over_http]
    assert found
    return pytest.mark.parametrize("vector", found, ids=lambda vector: vector["name"])


@vectors_with_log(over_http=False)
def test_replay_plan_matches_the_vector(vector):
    pytest.importorskip("starlette", reason="the server is not installed")
    from tidewire_server.http.replay_plan import NOTHING, ReplayStart, plan_replay
    from tidewire_server.store.records import Extent

    first, head = Cursor.parse(vector["log"]["first"]), Cursor.parse(vector["log"]["head"])
    ended, expected = vector["log"]["ended"], vector["answer"]
    asked = vector.get("last_event_id")
    cursor = None if asked is None else BEGINNING if asked == "0-0" else Cursor.parse(asked)
    found = plan_replay(cursor, Extent(before(first), head, ended, (head._replace(seq=1),), ()))
    if expected == {"status": 204}:
        assert found == NOTHING
    elif "events" in expected:
        assert found.snapshot is None
        assert found.after == before(Cursor.parse(expected["events"]))
    else:
        place, reason = found.snapshot
        end = before(head) if ended else head
        assert (str(end if place is ReplayStart.HEAD else before(first)), reason) == (
            expected["snapshot"],
            expected["reason"],
        )


# ---- responses of a server over HTTP


@pytest.fixture(scope="module")
def ended_job():
    """URL of the stream of an ended job with the log that the vectors describe."""
    pytest.importorskip("starlette", reason="the server is not installed")
    from tidewire_server import Server, Stream

    server = Server(merge_window=0)

    @server.endpoint
    async def letters(stream: Stream[str]) -> None:
        for letter in "abc":
            stream.append(letter)

    with server.running() as url:
        response = httpx2.post(
            f"{url}/v1/endpoints/letters/jobs", json={"input": {}}, headers={"Accept": "text/event-stream"}
        )
        logged = logged_of(response)
        assert (logged[0].id, logged[-1].id, logged[-1].type) == ("1-1", "1-7", "done")
        yield f"{url}{response.headers['content-location']}"


def logged_of(response):
    return [event for event in Decoder().feed(response.content) if event.type in LOGGED]


@vectors_with_log(over_http=True)
def test_server_responds_to_a_cursor_as_the_vector_requires(vector, ended_job):
    headers = {"Last-Event-ID": vector["last_event_id"]} if "last_event_id" in vector else {}
    parameters = {"after": vector["after"]} if "after" in vector else {}
    response, expected = httpx2.get(ended_job, headers=headers, params=parameters), vector["answer"]
    assert response.status_code == expected.get("status", 200)
    if "code" in expected:
        assert response.json()["code"] == expected["code"]
    if response.status_code == 200:
        first, *rest = logged_of(response)
        if "events" in expected:
            assert first.id == expected["events"]
        else:
            assert (first.type, first.id) == ("snapshot", expected["snapshot"])
            assert json.loads(first.data)["reason"] == expected["reason"]
        seqs = [Cursor.parse(event.id).seq for event in (first, *rest)]
        assert seqs == list(range(seqs[0], 8))
