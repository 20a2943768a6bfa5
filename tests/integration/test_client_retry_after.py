"""Waits that a server requests by `Retry-After` and `goaway`, within the limits of the retry policy."""

import asyncio

import anyio
import pytest

from support.client_timing import with_timing
from support.reference_server import QUICK
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
from tidewire.http.api_session import Timing
from tidewire_server import Server, Stream

TEXT = "/items/0/value"
STREAM_START = STREAM + hello(retry=1000) + snapshot("1-1", state("a"), columns=[TEXT])
STREAM_END = (
    event([["s", "/items/0/status", "succeeded"]], id="1-2")
    + done("1-3", [{"status": "succeeded", "value": "a"}])
)  # fmt: skip


async def start_job(client):
    assert (await client.submit("count")).id == "j1"


async def read_discovery(client):
    assert (await client.discover()).server == "scripted"


async def read_result(client):
    assert await client.job("j1").result() == "a"


SUCCESSES = {
    start_job: [answer(201, job(columns=[TEXT]), Location="/v1/jobs/j1")],
    read_discovery: [answer(200, discovery("count"))],
    read_result: [STREAM_START + STREAM_END, CLOSE],
}


def scripted(*first, then):
    """A server that answers the first request with `first` and all later requests with `then`."""
    pending = [first]

    def script(_):
        yield from pending.pop() if pending else then

    return ScriptedServer(script)


def waits_of(action, server, **settings):
    """Run one action against a server and return the client's waits in seconds. No other time passes for the client."""
    timing, waits = hurried(clock=lambda: 0.0)

    async def main():
        async with with_timing(AsyncClient(server.url, **settings), timing) as client:
            await action(client)

    anyio.run(main)
    return waits


@pytest.mark.parametrize(
    ("status", "code"), [(408, "request.late"), (429, "rate_limited"), (503, "unavailable")]
)
@pytest.mark.parametrize("action", SUCCESSES)
def test_retry_after_seconds_are_a_lower_bound_of_the_wait(action, status, code):
    refusal = problem(status, code, retry_after="7", retryable=True)
    with scripted(refusal, then=SUCCESSES[action]) as server:
        [wait] = waits_of(action, server)
    assert 7 <= wait <= 10.5


@pytest.mark.parametrize("action", SUCCESSES)
def test_retry_after_0_is_a_short_wait_and_no_failure(action):
    refusal = problem(503, "unavailable", retry_after="0", retryable=True)
    with scripted(refusal, then=SUCCESSES[action]) as server:
        [wait] = waits_of(action, server, retry=RetryPolicy(attempts=1))
    assert 0.1 <= wait <= 0.15


@pytest.mark.parametrize("action", SUCCESSES)
def test_a_408_of_a_proxy_is_followed_by_the_wait_of_a_failure(action):
    page = answer(408, b"<h1>Request timeout</h1>", media="text/html")
    with scripted(page, then=SUCCESSES[action]) as server:
        [wait] = waits_of(action, server)
    assert 0.5 <= wait <= 1.5


@pytest.mark.parametrize("value", ["Wed, 21 Oct 2099 07:28:00 GMT", "-5", "1e9", "7 s", ""])
@pytest.mark.parametrize("action", SUCCESSES)
def test_an_invalid_retry_after_is_ignored_in_favor_of_backoff(action, value):
    refusal = problem(429, "rate_limited", retry_after=value, retryable=True)
    with scripted(refusal, then=SUCCESSES[action]) as server:
        [wait] = waits_of(action, server)
    assert 0.5 <= wait <= 1.5


@pytest.mark.parametrize("value", ["301", "99999999999", "9" * 400])
@pytest.mark.parametrize(("action", "code"), [(start_job, "queue_full"), (read_discovery, "rate_limited")])
def test_a_retry_after_beyond_the_policy_raises_the_refusal_at_once(action, code, value):
    refusal = problem(429, code, retry_after=value, retryable=True)
    with scripted(refusal, then=SUCCESSES[action]) as server:
        with pytest.raises(QueueFullError if code == "queue_full" else RateLimitError) as caught:
            waits_of(action, server)
        assert len(server.requests) == 1
    error = caught.value
    assert (error.status_code, error.code, error.retryable) == (429, code, True)
    assert "the server asked to wait" in error.what
    assert "but 300 s are left of patience=300 s" in error.what


@pytest.mark.parametrize("value", ["301", "9" * 400])
def test_a_stream_with_a_retry_after_beyond_the_policy_raises(value):
    refusal = problem(503, "unavailable", retry_after=value, retryable=True)
    with scripted(refusal, then=SUCCESSES[read_result]) as server, pytest.raises(TransportError) as caught:
        waits_of(read_result, server)
    assert "patience=300 s" in caught.value.what
    assert (caught.value.job_id, caught.value.retryable) == ("j1", True)
    assert isinstance(caught.value.__cause__, RequestError)
    assert caught.value.__cause__.status_code == 503


def test_a_stream_that_is_refused_for_longer_than_the_policy_raises_with_both_numbers():
    def script(request):
        refusal = problem(429, "too_many_streams", retry_after="7", retryable=True)
        return [refusal] if request.path.endswith("/events") else [answer(200, discovery("count"))]

    with ScriptedServer(script) as server:
        with pytest.raises(
            TransportError, match=r"asked to wait 7 s, but [\d.]+ s are left of patience=300 s"
        ):
            waits_of(read_result, server)
        # The waits are honored, so they are not failures: only the patience ends them.
        streams = [request for request in server.requests if request.path.endswith("/events")]
        assert 300 / 10.5 <= len(streams) <= 300 / 7 + 2


async def one_job_at_a_time(url):
    """Read two jobs of a server that allows one stream per caller. The first reader leaves after the second was refused 20
    times.
    """
    refused = anyio.Event()
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        if len(waits) >= 20:
            refused.set()
        await anyio.sleep(0.001)

    async with AsyncClient(url) as first, with_timing(AsyncClient(url), Timing(sleep=sleep)) as second:
        updates = (await first.submit("hold")).updates()
        await anext(updates)
        async with anyio.create_task_group() as tasks:

            @tasks.start_soon
            async def leave():
                await refused.wait()
                await updates.aclose()

            assert await (await second.submit("double", x=21)).result() == 42
    return waits


def test_a_reader_beyond_the_limit_of_streams_waits_until_another_one_leaves():
    server = Server(**QUICK, default_concurrency_limit=None, max_streams_per_principal=1)

    @server.endpoint
    async def hold(stream: Stream[str]) -> None:
        stream.append("x")
        await asyncio.sleep(600)

    @server.endpoint
    async def double(x: int) -> int:
        return 2 * x

    with server.running() as url:
        waits = anyio.run(one_job_at_a_time, url)
    assert len(waits) >= 20
    assert min(waits) >= 0.5, "each refusal names a time to wait"


@pytest.mark.parametrize(("retry_ms", "least", "most"), [(0, 0.1, 1.5), (50, 0.1, 1.5), (7000, 7, 10.5)])
def test_the_client_waits_retry_ms_after_a_goaway(retry_ms, least, most):
    goaway = event({"reason": "restart", "retry_ms": retry_ms}, type="goaway")
    with scripted(STREAM_START + goaway, CLOSE, then=[STREAM + hello() + STREAM_END, CLOSE]) as server:
        [wait] = waits_of(read_result, server)
    assert least <= wait <= most


def test_a_goaway_with_a_wait_beyond_the_policy_raises():
    goaway = event({"reason": "restart", "retry_ms": 2**53}, type="goaway")
    with scripted(STREAM_START + goaway, CLOSE, then=[CLOSE]) as server:
        with pytest.raises(TransportError, match="patience=300 s") as caught:
            waits_of(read_result, server)
        assert len(server.requests) == 1
    assert caught.value.last_event_id == "1-1"


@pytest.mark.parametrize("retry_ms", [-1, 1.5, "soon", None])
def test_a_goaway_with_an_invalid_retry_ms_drops_the_cursor(retry_ms):
    goaway = event({"reason": "restart", "retry_ms": retry_ms}, type="goaway")
    with scripted(STREAM_START + goaway, CLOSE, then=SUCCESSES[read_result]) as server:
        waits_of(read_result, server)
        assert [request.cursor for request in server.requests] == [None, None]


def test_the_retry_policy_of_a_call_overrides_that_of_the_client():
    refusal = problem(429, "rate_limited", retry_after="700", retryable=True)

    async def patiently(client):
        await client.with_options(retry=RetryPolicy(patience=1e6)).discover()

    with scripted(refusal, then=SUCCESSES[read_discovery]) as server:
        [wait] = waits_of(patiently, server)
    assert wait >= 700
    with scripted(refusal, then=SUCCESSES[read_discovery]) as server:
        assert waits_of(read_discovery, server, retry=RetryPolicy(patience=1e6))[0] >= 700

    async def impatiently(client):
        await client.with_options(retry=RetryPolicy()).discover()

    with scripted(refusal, then=SUCCESSES[read_discovery]) as server, pytest.raises(TidewireError):
        waits_of(impatiently, server, retry=RetryPolicy(patience=1e6))
