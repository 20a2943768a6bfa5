"""The recording client resumes streams that end with `goaway`, and the suite cancels the jobs that it leaves."""

import asyncio
import json
from itertools import count

import pytest

from proof.servers.judge_server import plan
from proof.servers.server_process import ALICE, running_server
from tidewire_conformance import registry
from tidewire_conformance.judging.leftover_jobs import cancel_leftover_jobs, leftover_jobs
from tidewire_conformance.judging.state_history import value_has_grown
from tidewire_conformance.judging.verdict import SkipReason
from tidewire_conformance.runner import Plan, run
from tidewire_conformance.schema_violations import json_text, named_members
from tidewire_conformance.wire.event_stream_decoder import EventStreamDecoder
from tidewire_conformance.wire.recorded_exchange import RecordedExchange
from tidewire_conformance.wire.recording_client import MAX_EMPTY_RESPONSES, Wire
from tidewire_server import Server

HELLO = b'retry:1\n\nevent:hello\ndata:{"events":"/v1/jobs/a/events"}\n\n'
FIRST = b'id:1-1\nevent:snapshot\ndata:{"reason":"start"}\n\n'
DONE = b"id:1-2\nevent:done\ndata:{}\n\n"


def goaway(reason):
    return b'event:goaway\nretry:1\ndata:{"reason":"%b","retry_ms":1}\n\n' % reason


async def read(responses, method="GET", **sent):
    """Read a stream from a server that sends these responses one after the other. Return the stream and the record."""
    numbers, requests = count(), []

    async def serve(reader, writer):
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        status, body = responses[next(numbers)]
        writer.write(
            b"HTTP/1.1 %b\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" % status + body
        )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        wire = Wire(
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", header=[("Authorization", "Bearer x")]
        )
        async with wire.open(method, "/v1/jobs/a/events", **sent) as stream:
            await stream.to_end()
    return stream.exchange, wire.record, requests


OK, GONE = b"200 OK", b"410 Gone"


@pytest.mark.parametrize(
    ("method", "responses", "cursors", "kinds", "ended"),
    [
        ("GET", [(OK, HELLO + FIRST + goaway(b"rotate")), (OK, HELLO + DONE)], [b"1-1"], ["hello", "snapshot", "goaway", "hello", "done"], "whole"),
        ("POST", [(OK, HELLO + FIRST + goaway(b"restart")), (OK, HELLO + DONE)], [b"1-1"], ["hello", "snapshot", "goaway", "hello", "done"], "whole"),
        ("GET", [(OK, HELLO + goaway(b"rotate")), (OK, HELLO + FIRST + goaway(b"new")), (OK, DONE)], [b"", b"1-1"], ["hello", "goaway", "hello", "snapshot", "goaway", "done"], "whole"),
        ("GET", [(OK, HELLO + FIRST + goaway(b"auth_expired"))], [], ["hello", "snapshot", "goaway"], "whole"),
        ("GET", [(OK, HELLO + FIRST + goaway(b"slow_consumer"))], [], ["hello", "snapshot", "goaway"], "whole"),
        ("GET", [(OK, HELLO + FIRST + goaway(b"rotate")), (GONE, b"")], [b"1-1"], ["hello", "snapshot", "goaway"], "whole"),
        ("GET", [(OK, HELLO + FIRST)], [], ["hello", "snapshot"], "whole"),
    ],
)  # fmt: skip
async def test_a_stream_that_ends_with_goaway_is_resumed(method, responses, cursors, kinds, ended):
    stream, record, requests = await read(responses, method, body=b"{}" if method == "POST" else None)
    assert [block.type for block in stream.events] == kinds
    assert stream.body == b"".join(body for status, body in responses if status == OK)
    assert stream.ended == ended
    assert [each.body for each in record] == [body for _, body in responses], (
        "each response is recorded separately"
    )
    assert stream is record[0] or len(record) > 1
    for request, cursor in zip(requests[1:], cursors, strict=True):
        assert request.startswith(b"GET /v1/jobs/a/events HTTP/1.1\r\n")
        assert (b"Last-Event-ID: %b\r\n" % cursor in request) == bool(cursor)
        assert b"Authorization: Bearer x" in request
        assert b"Content-Length" not in request


async def test_a_stream_whose_responses_all_end_at_once_is_not_resumed_forever():
    empty = (OK, HELLO + goaway(b"rotate"))
    _, record, _ = await read([empty] * (MAX_EMPTY_RESPONSES + 1))
    assert len(record) == MAX_EMPTY_RESPONSES
    progress = (OK, HELLO + FIRST + goaway(b"rotate"))
    _, record, _ = await read([*[empty] * (MAX_EMPTY_RESPONSES - 1), progress, empty, (OK, HELLO + DONE)])
    assert len(record) == MAX_EMPTY_RESPONSES + 2


async def test_checks_of_the_whole_run_are_judged_although_the_time_is_over():
    name = "queue_progress_ping_goaway.stream_ends_with_a_closing_event"
    chosen = [each for each in registry.checks() if each.name in {name, "jobs.submit_returns_the_job"}]
    with running_server() as url:
        found = {each.check: each for each in (await run(plan(url, budget=0.0), chosen)).verdicts}
    assert found["jobs.submit_returns_the_job"].why is SkipReason.UNTESTED
    assert found[name].why is not SkipReason.UNTESTED


async def test_credentials_are_not_sent_to_another_origin():
    async def serve(reader, writer):
        found.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    found = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        other = b"http://127.0.0.1:%d/v1/jobs/a/events" % server.sockets[0].getsockname()[1]
        await read([(OK, HELLO.replace(b"/v1/jobs/a/events", other) + goaway(b"rotate"))], "POST", body=b"{}")
    (request,) = found
    assert b"Bearer" not in request


async def test_the_condition_of_a_stream_is_evaluated_for_each_block_and_not_for_each_byte():
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(b"".join(b"1\r\n%c\r\n" % each for each in HELLO + FIRST + DONE) + b"0\r\n\r\n")
        writer.close()

    calls = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        wire = Wire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with wire.open("GET", "/v1/jobs/a/events") as stream:
            assert await stream.until(lambda now: calls.append(1) or now.of_type("done"))
            await stream.to_end()
    assert stream.exchange.body == HELLO + FIRST + DONE
    assert len(calls) <= 1 + len(stream.exchange.blocks)


@pytest.mark.timeout(60)
def test_the_jobs_that_a_run_leaves_are_cancelled():
    server = Server()

    @server.endpoint(examples=[{}])
    async def endless():
        while True:
            yield "x"
            await asyncio.sleep(0.05)

    endless_checks = [each for each in registry.checks() if each.name == "jobs.submit_returns_the_job"]
    with server.running() as url:
        found = asyncio.run(run(Plan(url, patience=0.02), endless_checks))
        jobs = {each.json["id"] for each in found.record if each.status == 201 and "id" in each.members}
        assert jobs
        assert [each.request.endpoint for each in found.server.failed_examples] == ["endless"]
        statuses = asyncio.run(final_statuses(url, jobs))
    assert statuses == ["cancelled"] * len(jobs)


async def final_statuses(url, jobs):
    wire = Wire(url)
    return [
        (await wire.request("GET", f"/v1/jobs/{job}/events")).of_type("done")[0].member("status")
        for job in jobs
    ]


async def test_a_job_that_has_ended_is_not_cancelled():
    with running_server() as url:
        wire = Wire(url, header=[("Authorization", f"Bearer {ALICE}")])
        body = {"input": {"script": [{"append": "x"}]}}
        place = "/v1/endpoints/tidewire.script/jobs"
        first = await wire.request("POST", place, json=body)
        await wire.request("GET", f"/v1/jobs/{first.json['id']}/events")
        second = await wire.request("POST", place, json={"input": {"script": [{"sleep_ms": 60_000}]}})
        assert [job for job, _ in leftover_jobs(wire.record)] == [second.json["id"]]
        count_before = len(wire.record)
        await cancel_leftover_jobs(wire)
        assert len(wire.record) == count_before
        assert (await wire.request("GET", f"/v1/jobs/{second.json['id']}/events")).of_type("done")


@pytest.mark.timeout(60)
def test_a_server_without_date_is_reported_as_such():
    check = [each for each in registry.checks() if each.name == "browser.stream_ends_when_its_token_expires"]
    with running_server("responses_without_date") as url:
        (verdict,) = asyncio.run(run(plan(url), check)).verdicts
    assert verdict.why is SkipReason.UNTESTED
    assert "Date" in verdict.note


def stream_of(*events):
    exchange = RecordedExchange(1, "GET", "http://x/v1/jobs/a/events", (), b"", "", 0.0, 200)
    exchange.blocks = EventStreamDecoder().feed(b"".join(events), 0.0)
    return exchange


def snapshot(value):
    state = {"status": "running", "items": [{"status": "running", "value": value}]}
    return b"id:1-1\nevent:snapshot\ndata:" + json.dumps({"state": state}).encode() + b"\n\n"


def diff(data):
    return b"id:1-2\ndata:" + json.dumps(data).encode() + b"\n\n"


STATUS = [["s", "/items/0/status", "running"], ["s", "/status", "running"]]


@pytest.mark.parametrize(
    ("events", "grown"),
    [
        ([], False),
        ([snapshot("")], False),
        ([snapshot({"text": "", "token_ids": [], "finish_reason": None})], False),
        ([snapshot(""), diff(STATUS)], False),
        ([snapshot("x")], True),
        ([snapshot({"text": "", "token_ids": [], "notes": ["x"]})], True),
        ([snapshot(0), snapshot(1)], True),
        ([snapshot(""), diff("x")], True),
        ([snapshot(""), diff([*STATUS, ["a", "/items/0/value", "x"]])], True),
        ([snapshot(None), diff({"ops": [["s", "/items/0/value", 1]]})], True),
        ([snapshot({}), diff([["r", "x", 1]])], True),
    ],
)
def test_a_value_has_grown_when_an_event_shows_it(events, grown):
    assert value_has_grown(stream_of(*events)) == grown


def test_only_members_that_a_schema_names_are_members_of_the_protocol():
    body = {
        "status": "succeeded",
        "usage": {"size": 1.5},
        "x.cost": {"started_at": "never"},
        "expires_at": "2026-03-01T13:00:00Z",
    }
    assert dict(named_members("done", body)) == {name: body[name] for name in body if name != "x.cost"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ((1, 2), "[1, 2]"),
        ({"a": None}, '{"a": null}'),
        (b"id:\xff\n", '"id:\\\\xff\\n"'),
    ],
)
def test_findings_show_values_as_json(value, text):
    assert json_text(value) == text
