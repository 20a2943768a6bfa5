"""Client timeouts: queue, silence, total, connect and whole-response limits, and the error that each raises."""

import base64
import logging
import re
from collections import Counter

import anyio
import pytest

from support.client_timing import session_of, with_timing
from support.full_listener import full_listener
from support.scripted_server import (
    CLOSE,
    HOLD,
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
from tidewire.errors import (
    ConnectTimeoutError,
    EndpointNotFoundError,
    QueueTimeoutError,
    RateLimitError,
    SilenceTimeoutError,
    TotalTimeoutError,
    TransportError,
)
from tidewire.http.api_session import Timing

pytestmark = pytest.mark.anyio

TEXT = "/items/0/value"
QUEUED = hello(heartbeat_ms=50) + snapshot("1-1", state(None, status="queued"), columns=[TEXT])
RUNNING = event([["s", "/status", "running"], ["s", TEXT, "Hel"]], id="1-2")
END = done("1-3", [{"status": "queued", "value": "Hel"}])


def streams(*sent):
    """Script for the submit and one stream."""

    def script(request):
        if request.method == "POST":
            yield answer(201, job(columns=[TEXT]), Location="/v1/jobs/j1")
            return
        yield STREAM
        yield from sent

    return script


# ---- the queue ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["result", "loop"])
async def test_queue_timeout_raises_while_the_job_is_queued(how):
    place = event({"position": 4}, type="queue")
    with ScriptedServer(streams(QUEUED, place, HOLD)) as server:
        async with AsyncClient(server.url, queue_timeout=30) as client:
            waiting = await client.with_options(queue_timeout=0.3).submit("count")
            with pytest.raises(
                QueueTimeoutError, match=r"queue_timeout of 0.3 s passed .* position 4"
            ) as caught:
                await (waiting.result() if how == "result" else anext(waiting.updates()))
            assert isinstance(caught.value, TimeoutError)
            assert "client.job('j1')" in caught.value.advice


async def test_queue_timeout_does_not_apply_to_a_running_job():
    with ScriptedServer(streams(QUEUED + RUNNING, HOLD)) as server:
        async with AsyncClient(server.url, queue_timeout=0.05, timeout=0.5) as client:
            with pytest.raises(TotalTimeoutError, match=r"timeout of 0.5 s passed \("):
                await client.run("count")


async def test_queue_timeout_must_be_positive():
    with pytest.raises(ValueError, match="queue_timeout"):
        AsyncClient("http://127.0.0.1:1", queue_timeout=0)


# ---- silence and retries -----------------------------------------------------------------------------------------


async def test_silence_raises_silence_timeout_after_its_attempts():
    timing, waits = hurried()
    policy = RetryPolicy(attempts=3)
    with ScriptedServer(streams(QUEUED, HOLD)) as server:
        async with with_timing(AsyncClient(server.url, retry=policy, answer_timeout=0.1), timing) as client:
            with pytest.raises(
                SilenceTimeoutError, match="3 failures in a row without progress, and attempts=3"
            ):
                await client.run("count")
        assert len(server.paths()) == 3
    assert len(waits) == 2


async def test_silence_counts_toward_the_patience_of_the_policy():
    timing, waits = hurried()
    policy = RetryPolicy(patience=0.3)
    with ScriptedServer(streams(QUEUED, HOLD)) as server:
        async with with_timing(AsyncClient(server.url, retry=policy, answer_timeout=0.1), timing) as client:
            with pytest.raises(SilenceTimeoutError):
                await client.run("count")
    # Each silence lasts 0.125 s, so the third one exceeds the patience.
    assert len(waits) <= 2


async def test_a_job_without_events_is_followed_through_any_number_of_cuts_after_a_ping():
    """As behind a proxy that limits the whole time of a response."""
    cuts = 40
    timing, waits = hurried(clock=lambda: 0.0)
    ping = event({"head": "1-1"}, type="ping")

    def script(_):
        opening = STREAM + hello(retry=1000) + snapshot("1-1", state("a"), columns=[TEXT])
        yield (
            opening + ping
            if len(waits) < cuts
            else opening + done("1-2", [{"status": "running", "value": "a"}])
        )
        yield CLOSE

    with ScriptedServer(script) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            assert await client.job("j1").result() == "a"
    assert len(waits) == cuts
    assert sum(waits) > 2 * RetryPolicy().patience


async def test_a_retry_after_beyond_the_policy_ends_the_attempts_at_once():
    timing, waits = hurried()
    busy = problem(429, "rate_limited", retry_after="3600", retryable=True)
    for ask, error, words in (
        (lambda client: client.discover(), RateLimitError, "told so"),
        (lambda client: client.job("j1").result(), TransportError, "asked to wait 3600 s"),
    ):
        with ScriptedServer(lambda _: iter([busy])) as server:
            async with with_timing(AsyncClient(server.url), timing) as client:
                with pytest.raises(error, match=words):
                    await ask(client)
            assert len(server.requests) == 1
    assert waits == []


# ---- slow responses ----------------------------------------------------------------------------------------------


async def test_a_slowly_arriving_response_is_bounded_by_a_total_time():
    whole = answer(200, discovery("count"))

    def script(_):
        for at in range(len(whole) - 1):
            yield whole[at : at + 1]
        yield HOLD

    timing, _ = hurried(whole_answer_timeout=0.2)
    with ScriptedServer(script) as server:
        async with with_timing(
            AsyncClient(server.url, retry=RetryPolicy(attempts=1), answer_timeout=0.2), timing
        ) as client:
            with pytest.raises(SilenceTimeoutError, match="no complete response within 0.2 s"):
                await client.discover()


@pytest.mark.parametrize("how", ["client", "call"])
async def test_answer_timeout_bounds_one_attempt(how):
    timing, waits = hurried()
    pending = [[HOLD], [answer(200, discovery("count"))]]
    with ScriptedServer(lambda _: iter(pending.pop(0) if len(pending) > 1 else pending[0])) as server:
        options = {"answer_timeout": 0.1} if how == "client" else {}
        async with with_timing(AsyncClient(server.url, **options), timing) as client:
            session_of(client).contacted = True
            view = client if how == "client" else client.with_options(answer_timeout=0.1)
            assert (await view.discover()).endpoints
    assert len(waits) == 1


# ---- timeouts of one call ----------------------------------------------------------------------------------------


async def test_connect_timeout_can_be_set_for_one_call():
    with full_listener() as port:
        async with AsyncClient(f"http://127.0.0.1:{port}") as client:
            with pytest.raises(ConnectTimeoutError, match=r"within 0.2 s"):
                await client.with_options(connect_timeout=0.2).discover()


async def test_a_timeout_during_submit_reports_that_the_job_may_have_started():
    with ScriptedServer(lambda _: [HOLD]) as server:
        async with AsyncClient(server.url, timeout=0.05) as client:
            sent = f"0.05 s passed.*{server.url}.*may or may not have started"
            with pytest.raises(TotalTimeoutError, match=sent):
                await client.run("count")


@pytest.mark.parametrize("call", ["run", "submit", "submit_batch"])
async def test_a_timeout_while_the_server_is_busy_says_why(call):
    busy = problem(503, "overloaded", retryable=True, detail="the queue is full", retry_after="60")
    with ScriptedServer(lambda _: [busy]) as server:
        # On a slow machine, the first response takes longer than a short timeout.
        for timeout in (0.2, 2, 20):
            async with AsyncClient(server.url, timeout=timeout) as client:
                with pytest.raises(TotalTimeoutError) as caught:
                    await getattr(client, call)("count", *([{}],) * (call == "submit_batch"))
            if "may or may not" not in str(caught.value):
                break
    assert re.search(rf"{timeout} s passed; the last attempt failed: .*the queue is full", str(caught.value))


async def test_a_timeout_of_a_cancel_does_not_claim_that_the_job_continues():
    with ScriptedServer(lambda _: [HOLD]) as server:
        async with AsyncClient(server.url, timeout=0.05) as client:
            with pytest.raises(TotalTimeoutError, match="may or may not be cancelled"):
                await client.job("j1").cancel()


async def test_endless_job_pages_end():
    """A page without jobs is the last page.

    Pages that repeat their jobs end at the limit or at the timeout.
    """

    def script(request):
        again = {"next": "/v1/jobs?page=2"}
        if request.headers.get("x-empty"):
            yield answer(200, {"jobs": [], **again})
        elif len(server.requests) < 8:
            yield answer(200, {"jobs": [job()], **again})
        else:
            yield HOLD

    with ScriptedServer(script) as server:
        async with AsyncClient(server.url) as client:
            assert await client.with_options(headers={"X-Empty": "yes"}).jobs() == []
            assert len(await client.jobs(limit=3)) == 3
            with pytest.raises(TotalTimeoutError, match="the timeout of 0.1 s passed"):
                await client.with_options(timeout=0.1).jobs()


# ---- credentials in a URL ----------------------------------------------------------------------------------------


async def test_a_password_in_the_url_becomes_a_header_and_appears_nowhere_else(caplog):
    caplog.set_level(logging.DEBUG)
    with ScriptedServer(streams(QUEUED + RUNNING, CLOSE)) as server:
        url = server.url.replace("http://", "http://us%40er:pa%3Ass@")
        timing, _ = hurried()
        async with with_timing(AsyncClient(url, retry=RetryPolicy(attempts=2)), timing) as client:
            started = await client.submit("count")
            with pytest.raises(Exception, match="gave up") as caught:
                await started.result()
            shown = [repr(client), client.url, str(caught.value), started.checkpoint().to_json(), caplog.text]
        encoded = base64.b64encode(b"us@er:pa:ss").decode()
        assert {request.headers["authorization"] for request in server.requests} == {f"Basic {encoded}"}
    assert not [text for text in shown if "pa%3Ass" in text or "pa:ss" in text or encoded in text]


async def test_an_invalid_url_raises_without_its_password():
    with pytest.raises(ValueError, match="not a valid server URL") as caught:
        AsyncClient("ftp://user:secret@host/")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("call", ["submit", "submit_batch", "describe"])
@pytest.mark.parametrize("endpoint", [None, "nope"])
async def test_one_timeout_covers_all_requests_of_a_call(call, endpoint):
    requests_by_path, deadlines = Counter(), set()

    def busy_at_first(request):
        requests_by_path[request.path] += 1
        if requests_by_path[request.path] == 1:
            yield problem(503, "overloaded", retryable=True, retry_after="1")
        elif request.path == "/v1":
            yield answer(200, discovery("count"))
        else:
            yield problem(404, "endpoint_not_found")

    async def sleep(_seconds):
        deadlines.add(anyio.current_effective_deadline())

    with ScriptedServer(busy_at_first) as server:
        async with with_timing(AsyncClient(server.url, timeout=60), Timing(sleep=sleep)) as client:
            encoded = ([{}],) if call == "submit_batch" else ()
            with pytest.raises(EndpointNotFoundError):
                await getattr(client, call)(endpoint, *encoded)
    # After the 404, the client reads again which endpoints there are.
    reads_again = endpoint is None and call != "describe"
    assert set(requests_by_path.values()) == ({2, 3} if reads_again else {2})
    assert len(requests_by_path) == (1 if (call, endpoint) == ("describe", "nope") else 2)
    assert len(deadlines) == 1
