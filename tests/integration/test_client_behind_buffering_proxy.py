"""A proxy that holds back event streams, and submits whose response is lost while the server restarts."""

import logging

import pytest

from support.client_timing import with_timing
from support.scripted_server import (
    CLOSE,
    HOLD,
    RESET,
    STREAM,
    ScriptedServer,
    answer,
    discovery,
    done,
    ending,
    event,
    hello,
    hurried,
    job,
    problem,
    state,
)
from tidewire import AsyncClient, RetryPolicy
from tidewire.errors import JobNotFoundError, SilenceTimeoutError, TransportError
from tidewire.jobs.reconnecting_stream import READS_PER_STREAM, SILENT_CONNECTIONS

pytestmark = pytest.mark.anyio

TEXT = "/items/0/value"
FINAL = [{"status": "succeeded", "value": "Hello"}]
ENDED = job(state("Hello", status="succeeded"), cursor="1-6", columns=[TEXT], ended=ending(FINAL))
CREATED = answer(201, job(columns=[TEXT]), Location="/v1/jobs/j1")
KEYS = answer(200, discovery("count", capabilities=["idempotency"]))
SOON = {"connect_timeout": 0.3, "answer_timeout": 0.1}
"""Options of a client that does not wait long for a response."""


def running(text, cursor):
    return job(state(text, status="running"), cursor=cursor, columns=[TEXT])


def by_kind(*, submits=(), streams=(), reads=(), discoveries=(KEYS,)):
    """Script with the responses to each kind of request, in order; the last one of each kind repeats."""
    left = {"submits": [*submits], "streams": [*streams], "reads": [*reads], "discoveries": [*discoveries]}

    def script(request):
        if request.path == "/":
            return iter([answer(404)])
        if request.method == "POST":
            kind = "submits"
        elif request.path == "/v1":
            kind = "discoveries"
        else:
            kind = "streams" if request.path.endswith("/events") else "reads"
        turns = left[kind]
        turn = turns.pop(0) if len(turns) > 1 else turns[0]
        return iter([turn] if isinstance(turn, bytes) else turn)

    return script


def posts_of(server):
    return [request for request in server.requests if request.method == "POST"]


def silent_soon():
    return hurried(hello_timeout=0.1)


# ---- streams that deliver nothing --------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [[HOLD], [STREAM, HOLD]], ids=["no head", "no body"])
async def test_a_job_behind_a_buffering_proxy_is_submitted_and_read(held, caplog):
    """The proxy holds every event stream back until the job ends, but forwards JSON."""
    reads = [running("Hel", "1-3"), running("Hel", "1-3"), running("Hell", "1-4"), ENDED]
    timing, _ = silent_soon()
    script = by_kind(submits=[[HOLD], CREATED], streams=[held], reads=[answer(200, one) for one in reads])
    with ScriptedServer(script) as server, caplog.at_level(logging.WARNING, "tidewire"):
        async with with_timing(AsyncClient(server.url, **SOON), timing) as client:
            started = await client.submit("count")
            assert [update.value async for update in started] == ["Hel", "Hell", "Hello"]
            assert await started.result() == "Hello"
        first, second = posts_of(server)
        assert [one.headers["accept"] for one in (first, second)] == ["text/event-stream", "application/json"]
        assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
        assert first.body == second.body
        paths = [request.path for request in server.requests[3:]]
        assert paths == ["/v1/jobs/j1/events"] * SILENT_CONNECTIONS + ["/v1/jobs/j1"] * len(reads)
    assert ["the stream delivers nothing" in record.message for record in caplog.records] == [True]


async def test_reads_in_place_of_a_stream_slow_down_and_do_not_exhaust_the_policy():
    reads = [answer(200, running("Hel", "1-3"))] * 6 + [answer(200, ENDED)]
    timing, waits = silent_soon()
    retry = RetryPolicy(patience=4.5, jitter=0)
    with ScriptedServer(by_kind(streams=[[HOLD]], reads=reads)) as server:
        async with with_timing(AsyncClient(server.url, retry=retry, **SOON), timing) as client:
            assert await client.job("j1").result() == "Hello"
    assert waits[-6:] == [1, 2, 4, 8, 16, 30]


@pytest.mark.parametrize(("on_disconnect", "reads"), [("continue", READS_PER_STREAM), ("cancel", 1)])
async def test_the_stream_is_requested_again_after_some_reads(on_disconnect, reads):
    """With `on_disconnect="cancel"`, the server needs a reader of the stream at least every minute."""
    ended = event([["s", "/items/0/status", "succeeded"]], id="1-5") + done("1-6", FINAL)
    whole = STREAM + hello() + event("lo", id="1-4") + ended
    opened = [[HOLD]] * SILENT_CONNECTIONS + [whole]
    timing, _ = silent_soon()
    script = by_kind(streams=opened, reads=[answer(200, running("Hel", "1-3"))])
    with ScriptedServer(script) as server:
        async with with_timing(AsyncClient(server.url, **SOON), timing) as client:
            view = client.with_options(on_disconnect=on_disconnect)
            updates = [update.value async for update in view.job("j1")]
        assert updates[:2] == ["Hel", "Hello"]
        paths = [request.path for request in server.requests]
    assert paths.count("/v1/jobs/j1") == reads
    assert [one.cursor for one in server.requests if one.path.endswith("/events")] == [None, None, "1-3"]


async def test_a_job_that_is_gone_ends_the_reads():
    timing, _ = silent_soon()
    with ScriptedServer(by_kind(streams=[[HOLD]], reads=[problem(404, "job_not_found")])) as server:
        async with with_timing(AsyncClient(server.url, **SOON), timing) as client:
            with pytest.raises(JobNotFoundError):
                await client.job("j1").result()


# ---- submits whose response is lost ------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [[HOLD], [CLOSE], [RESET], [answer(502, b"<h1>Bad gateway")]])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "x"}], ids=["anonymous", "credentials"])
async def test_the_first_submit_whose_response_is_lost_is_repeated(lost, headers):
    timing, _ = silent_soon()
    with ScriptedServer(by_kind(submits=[lost, CREATED])) as server:
        async with with_timing(AsyncClient(server.url, headers=headers, **SOON), timing) as client:
            assert (await client.submit("count")).id == "j1"
        paths = [request.path for request in server.requests]
    submit = "/v1/endpoints/count/jobs"
    assert paths == ([submit, submit] if headers else [submit, "/v1", submit])


async def test_a_lost_batch_submit_is_repeated():
    created = answer(201, job(columns=[TEXT], batch=True), Location="/v1/jobs/j1")
    timing, _ = silent_soon()
    with ScriptedServer(by_kind(submits=[[HOLD], created])) as server:
        async with with_timing(AsyncClient(server.url, **SOON), timing) as client:
            assert (await client.submit_batch("count", [{"n": 1}])).id == "j1"
        first, second = posts_of(server)
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


async def test_discovery_is_repeated_while_the_server_restarts():
    timing, waits = silent_soon()
    restarting = [[CLOSE], [RESET], answer(502, b"<h1>Bad gateway"), [CLOSE], [HOLD], KEYS]
    script = by_kind(submits=[[CLOSE], CREATED], discoveries=restarting)
    with ScriptedServer(script) as server:
        async with with_timing(
            AsyncClient(server.url, retry=RetryPolicy(jitter=0), **SOON), timing
        ) as client:
            assert (await client.submit("count")).id == "j1"
        assert len(posts_of(server)) == 2
    # One policy counts the failures of the submit and of the reads of discovery.
    assert waits == [1, 2, 4, 8, 16, 30]


async def test_nothing_is_claimed_about_a_server_whose_discovery_could_not_be_read():
    timing, _ = silent_soon()
    with ScriptedServer(by_kind(submits=[[CLOSE]], discoveries=[[CLOSE]])) as server:
        async with with_timing(
            AsyncClient(server.url, retry=RetryPolicy(attempts=5), **SOON), timing
        ) as client:
            with pytest.raises(TransportError, match="could not read whether the server keeps") as caught:
                await client.submit("count", idempotency_key="my-key")
        assert len(posts_of(server)) == 1
    assert caught.value.retryable
    assert "idempotency_key='my-key'" in caught.value.advice
    assert "does not keep" not in str(caught.value)


async def test_a_submit_that_stays_silent_raises_and_names_its_key():
    timing, _ = silent_soon()
    with ScriptedServer(by_kind(submits=[[HOLD]])) as server:
        async with with_timing(
            AsyncClient(server.url, retry=RetryPolicy(attempts=3), **SOON), timing
        ) as client:
            with pytest.raises(SilenceTimeoutError, match="gave up: 3 failures in a row") as caught:
                await client.submit("count", idempotency_key="my-key")
        assert len(posts_of(server)) == 3
    assert caught.value.retryable
    assert "idempotency_key='my-key'" in caught.value.advice
