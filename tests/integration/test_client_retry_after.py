"""What a server asks a client to wait: in an answer, in a stream, in any form; by client and by call."""

import anyio
import pytest

from support.client_timing import with_timing
from support.scripted_server import (
    CLOSE,
    STREAM,
    ScriptedServer,
    answer,
    discovery,
    done,
    event,
    hello,
    hurried,
    job,
    problem,
    snapshot,
    state,
)
from tidewire import AsyncClient, RetryPolicy
from tidewire.errors import QueueFullError, RateLimitError, RequestError, TidewireError, TransportError

TEXT = "/items/0/value"
BEGUN = STREAM + hello(retry=1000) + snapshot("1-1", state("a"), columns=[TEXT])
ENDED = (
    event([["s", "/items/0/status", "succeeded"]], id="1-2")
    + done("1-3", [{"status": "succeeded", "value": "a"}])
)  # fmt: skip


async def submits(client):
    assert (await client.submit("count")).id == "j1"


async def discovers(client):
    assert (await client.discover()).server == "scripted"


async def reads(client):
    assert await client.job("j1").result() == "a"


RIGHT = {
    submits: [answer(201, job(columns=[TEXT]), Location="/v1/jobs/j1")],
    discovers: [answer(200, discovery("count"))],
    reads: [BEGUN + ENDED, CLOSE],
}


def scripted(*first, then):
    """A server that says something else to the first request."""
    said = [first]

    def script(_):
        yield from said.pop() if said else then

    return ScriptedServer(script)


def asked(does, server, **settings):
    """What a client does with a server, and the waits that it takes."""
    timing, waits = hurried()

    async def live():
        async with with_timing(AsyncClient(server.url, **settings), timing) as client:
            await does(client)

    anyio.run(live)
    return waits


@pytest.mark.parametrize(("status", "code"), [(429, "rate_limited"), (503, "unavailable")])
@pytest.mark.parametrize("does", RIGHT)
def test_seconds_are_waited_and_never_less(does, status, code):
    busy = problem(status, code, retry_after="7", retryable=True)
    with scripted(busy, then=RIGHT[does]) as server:
        [wait] = asked(does, server)
    assert 7 <= wait <= 10.5


@pytest.mark.parametrize("value", ["Wed, 21 Oct 2099 07:28:00 GMT", "-5", "1e9", "7 s", ""])
@pytest.mark.parametrize("does", RIGHT)
def test_any_other_form_is_ignored_and_the_backoff_waits(does, value):
    busy = problem(429, "rate_limited", retry_after=value, retryable=True)
    with scripted(busy, then=RIGHT[does]) as server:
        [wait] = asked(does, server)
    assert 0.5 <= wait <= 1.5


@pytest.mark.parametrize("value", ["601", "99999999999", "9" * 400])
@pytest.mark.parametrize(("does", "code"), [(submits, "queue_full"), (discovers, "rate_limited")])
def test_a_wait_longer_than_the_policy_is_the_servers_refusal_at_once(does, code, value):
    busy = problem(429, code, retry_after=value, retryable=True)
    with scripted(busy, then=RIGHT[does]) as server:
        with pytest.raises(QueueFullError if code == "queue_full" else RateLimitError) as caught:
            asked(does, server)
        assert len(server.requests) == 1
    error = caught.value
    assert (error.status_code, error.code, error.retryable) == (429, code, True)


@pytest.mark.parametrize("value", ["601", "9" * 400])
def test_a_stream_that_is_to_wait_longer_than_the_policy_ends_in_an_error_that_says_so(value):
    busy = problem(503, "unavailable", retry_after=value, retryable=True)
    with scripted(busy, then=RIGHT[reads]) as server, pytest.raises(TransportError) as caught:
        asked(reads, server)
    assert "the retry policy allows 600 s in total" in caught.value.what
    assert (caught.value.job_id, caught.value.retryable) == ("j1", True)
    assert isinstance(caught.value.__cause__, RequestError)
    assert caught.value.__cause__.status_code == 503


@pytest.mark.parametrize(("retry_ms", "least", "most"), [(0, 0.1, 1.5), (50, 0.1, 1.5), (7000, 7, 10.5)])
def test_a_planned_close_is_waited_for(retry_ms, least, most):
    goaway = event({"reason": "restart", "retry_ms": retry_ms}, type="goaway")
    with scripted(BEGUN + goaway, CLOSE, then=[STREAM + hello() + ENDED, CLOSE]) as server:
        [wait] = asked(reads, server)
    assert least <= wait <= most


def test_a_planned_close_for_longer_than_the_policy_has_ends_in_an_error_that_says_so():
    goaway = event({"reason": "restart", "retry_ms": 2**53}, type="goaway")
    with scripted(BEGUN + goaway, CLOSE, then=[CLOSE]) as server:
        with pytest.raises(TransportError, match="the retry policy allows 600 s in total") as caught:
            asked(reads, server)
        assert len(server.requests) == 1
    assert caught.value.last_event_id == "1-1"


@pytest.mark.parametrize("retry_ms", [-1, 1.5, "soon", None])
def test_a_planned_close_for_a_time_that_is_none_is_malformed_and_the_cursor_dropped(retry_ms):
    goaway = event({"reason": "restart", "retry_ms": retry_ms}, type="goaway")
    with scripted(BEGUN + goaway, CLOSE, then=RIGHT[reads]) as server:
        asked(reads, server)
        assert [request.cursor for request in server.requests] == [None, None]


def test_the_policy_of_a_call_goes_before_that_of_its_client():
    busy = problem(429, "rate_limited", retry_after="700", retryable=True)

    async def patiently(client):
        await client.with_options(retry=RetryPolicy(max_seconds=1e6)).discover()

    with scripted(busy, then=RIGHT[discovers]) as server:
        [wait] = asked(patiently, server)
    assert wait >= 700
    with scripted(busy, then=RIGHT[discovers]) as server:
        assert asked(discovers, server, retry=RetryPolicy(max_seconds=1e6))[0] >= 700

    async def impatiently(client):
        await client.with_options(retry=RetryPolicy()).discover()

    with scripted(busy, then=RIGHT[discovers]) as server, pytest.raises(TidewireError):
        asked(impatiently, server, retry=RetryPolicy(max_seconds=1e6))
