"""Reading one job's stream over sockets from a scripted server: reconnects, retries, errors and early exits."""

import asyncio
import gzip
import itertools
import math
import re
import threading

import anyio
import anyio.lowlevel
import pytest

import tidewire.http.fast_body_reader
import tidewire.jobs.reconnecting_stream
from support.client_timing import session_of, with_timing
from support.scripted_server import (
    CLOSE,
    HOLD,
    RESET,
    STREAM,
    ScriptedServer,
    answer,
    done,
    event,
    hello,
    hurried,
    problem,
    snapshot,
    state,
)
from tidewire import AsyncClient, Hooks, RetryPolicy
from tidewire.errors import (
    AuthenticationError,
    ConcurrentReadError,
    JobExpiredError,
    JobNotFoundError,
    NotATidewireServerError,
    PermissionDeniedError,
    ProtocolError,
    RateLimitError,
    RequestError,
    SilenceTimeoutError,
    StateTooLargeError,
    TotalTimeoutError,
    TransportError,
    UnsupportedProtocolError,
)
from tidewire.http.api_session import Timing
from tidewire.http.fast_body_reader import FastBody
from tidewire.http.response import REFUSAL_BYTES, Connection

pytestmark = pytest.mark.anyio

TEXT = "/items/0/value"
FINAL = [{"status": "succeeded", "value": "Hello world"}]
AT_FIRST = snapshot("1-1", state(None, status="queued"), columns=[TEXT])
OPENING = hello() + AT_FIRST
FIRST = event([["s", "/items/0/value", "Hel"]], id="1-2") + event("lo", id="1-3")
LAST = event(" world", id="1-4") + event([["s", "/items/0/status", "succeeded"]], id="1-5")
END = done("1-6", FINAL)
REST = STREAM + hello() + LAST + END


def by_turn(*turns):
    """Script that answers the n-th stream request with the n-th turn, and later requests with the last turn."""
    seen_requests = []

    def script(request):
        if not request.path.endswith("/events"):
            return iter([answer(404)])
        seen_requests.append(request)
        return iter(turns[min(len(seen_requests), len(turns)) - 1])

    return script


async def follow(script, **options):
    """Read job j1 to its end; return the texts, the cursors of the stream requests, and the waits."""
    timing, waits = hurried(**options.pop("timing", {}))
    with ScriptedServer(script) as server:
        async with with_timing(AsyncClient(server.url, **options), timing) as client:
            following = client.job("j1")
            texts = [update.text async for update in following]
            assert await following.result() == "Hello world"
        server.wait_until_none_is_open()
        cursors = [request.cursor for request in server.requests if request.path.endswith("/events")]
    assert "".join(texts) == "Hello world"
    return texts, cursors, waits


def read_into(following):
    """Return a list and a coroutine that reads the texts of a job into this list."""
    texts = []

    async def read():
        async for update in following:
            texts.append(update.text)

    return texts, read()


# ---- cuts --------------------------------------------------------------------------------------------------------


async def test_a_stream_is_read_to_its_end():
    texts, cursors, waits = await follow(by_turn([STREAM + OPENING + FIRST + LAST + END, CLOSE]))
    assert (texts, cursors, waits) == (["Hel", "lo", " world"], [None], [])


async def test_a_stream_over_plain_http_is_read_directly_from_the_socket():
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, HOLD])) as server:
        async with AsyncClient(server.url) as client:
            async with client.job("j1").updates() as updates:
                assert (await anext(updates)).text == "Hel"
                (connection,) = session_of(client).transport.open
                assert isinstance(connection.body, FastBody)


@pytest.mark.parametrize("size", [1, 7, 1_000])
@pytest.mark.parametrize("quick", [True, False])
async def test_a_chunked_stream_reads_the_same_with_and_without_the_fast_body(quick, size, monkeypatch):
    seen_requests = []
    if not quick:
        monkeypatch.setattr(
            tidewire.http.fast_body_reader, "fast_body_of", lambda *_: seen_requests.append(1)
        )
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = OPENING + FIRST + b"id:1-4\ndata:"
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in parts)
    texts, cursors, _ = await follow(
        by_turn([head + chunks + b"0\r\nX-Trailer: 1\r\n\r\n", CLOSE], [REST, CLOSE])
    )
    assert (texts, cursors) == (["Hel", "lo", " world"], [None, "1-3"])
    assert len(seen_requests) == (0 if quick else 2)


@pytest.mark.parametrize("how", [RESET, CLOSE])
async def test_resume_after_a_cut_within_an_event_repeats_nothing(how):
    # A reset may discard bytes that the client has not read yet, so the cursor is one of several.
    unfinished = b'id:1-4\ndata:" wo'
    texts, cursors, waits = await follow(by_turn([STREAM + OPENING + FIRST + unfinished, how], [REST, CLOSE]))
    assert texts[-1] == " world"
    assert cursors[0] is None
    assert cursors[1] in {None, "1-1", "1-2", "1-3"} if how is RESET else cursors[1] == "1-3"
    assert len(waits) == 1


async def test_an_unfinished_chunk_is_resumed_from_the_cursor():
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = OPENING + FIRST
    chunk = f"{len(body):x}\r\n".encode() + body + b"\r\n"
    _, cursors, _ = await follow(by_turn([head + chunk + b"ff\r\nid:1-4", CLOSE], [REST, CLOSE]))
    assert cursors == [None, "1-3"]


@pytest.mark.parametrize(
    ("rest", "reason"),
    [(b"xx\r\n", "illegal chunk header: .*xx"), (b"0\r\n?\r\n\r\n", r"illegal header line: .*\?")],
)
async def test_an_error_after_valid_chunks_is_named(rest, reason):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = OPENING + FIRST
    chunk = f"{len(body):x}\r\n".encode() + body + b"\r\n"
    reconnects = []
    texts, cursors, _ = await follow(
        by_turn([head, chunk + rest, CLOSE], [REST, CLOSE]), hooks=Hooks(on_reconnect=reconnects.append)
    )
    assert (texts, cursors) == (["Hel", "lo", " world"], [None, "1-3"])
    assert re.search(reason, reconnects[0].why)


async def test_backoff_starts_at_retry_of_the_server_and_resets_on_progress():
    opening = STREAM + hello(retry=100)
    _, _, waits = await follow(
        by_turn(
            [opening + OPENING[len(hello()) :] + FIRST[:40], CLOSE],
            [opening, CLOSE],
            [opening, CLOSE],
            [opening + FIRST, CLOSE],
            [REST, CLOSE],
        ),
        retry=RetryPolicy(jitter=0),
    )
    assert waits == [0.1, 0.2, 0.4, 0.1]


async def test_a_missing_hello_reconnects_even_if_comments_arrive():
    chatter = [STREAM, *([b": still here\n"] * 3), HOLD]
    await follow(
        by_turn(chatter, [STREAM + OPENING + FIRST + LAST + END, CLOSE]), timing={"hello_timeout": 0.1}
    )


async def test_a_server_that_stops_answering_raises_silence_timeout():
    timing, _ = hurried(hello_timeout=0.2)
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, CLOSE], [HOLD])) as server:
        async with with_timing(
            AsyncClient(server.url, retry=RetryPolicy(attempts=3), connect_timeout=0.2), timing
        ) as client:
            following = client.job("j1")
            with pytest.raises(SilenceTimeoutError, match="no response within") as caught:
                await following.result()
            assert isinstance(caught.value, TimeoutError)
            assert caught.value.last_event_id == "1-3"


async def test_reading_can_continue_after_the_client_gave_up():
    timing, _ = hurried()
    turns = [[STREAM + OPENING + FIRST, CLOSE], *([[CLOSE]] * 4), [REST, CLOSE]]
    with ScriptedServer(by_turn(*turns)) as server:
        async with with_timing(AsyncClient(server.url, retry=RetryPolicy(attempts=4)), timing) as client:
            following = client.job("j1")
            texts, into = read_into(following)
            with pytest.raises(TransportError, match="4 failures in a row without progress") as caught:
                await into
            assert caught.value.job_id == "j1"
            assert following.checkpoint().cursor == "1-3"
            async for update in following:
                texts.append(update.text)
    assert texts == ["Hel", "lo", " world"]


# ---- invalid streams ---------------------------------------------------------------------------------------------


async def test_an_oversized_event_drops_the_cursor_and_keeps_earlier_events(monkeypatch):
    monkeypatch.setattr(tidewire.jobs.reconnecting_stream, "LEAST_EVENT_BYTES", 500)
    huge = STREAM + OPENING + FIRST + event("x" * 1000, id="1-4")
    mended = STREAM + hello() + snapshot("1-3", state("Hello"), columns=[TEXT], reason="compacted")
    texts, cursors, _ = await follow(
        by_turn([huge, HOLD], [mended + LAST + END, CLOSE]), max_state_bytes=1000
    )
    assert (texts, cursors) == (["Hel", "lo", " world"], [None, None])


async def test_an_endlessly_growing_text_raises_at_max_state_bytes():
    def endless(request):
        yield STREAM + OPENING + event([["s", TEXT, ""]], id="1-2")
        for seq in itertools.count(3):
            yield event("x" * 97, id=f"1-{seq}")

    with ScriptedServer(endless) as server:
        async with AsyncClient(server.url) as client:
            following = client.with_options(max_state_bytes=100_000).job("j1")
            texts, into = read_into(following)
            with pytest.raises(StateTooLargeError, match=r"larger than max_state_bytes=100000") as caught:
                await into
            assert 99_000 < len("".join(texts)) < 100_000 * 17 / 16
            assert following.checkpoint().cursor == caught.value.last_event_id
            assert caught.value.job_id == "j1"
            assert "Raise max_state_bytes" in caught.value.advice
            with pytest.raises(StateTooLargeError):
                await following.result()
            assert len((await anext(client.job("j1").iter_text_deltas())).text) < 100
        server.wait_until_none_is_open()


async def test_a_snapshot_above_the_size_limit_raises_and_names_the_setting():
    timing, _ = hurried()
    large = STREAM + hello() + snapshot("1-1", state("x" * 2**20), columns=[TEXT])
    with ScriptedServer(by_turn([large, HOLD])) as server:
        async with with_timing(AsyncClient(server.url, max_state_bytes=1000), timing) as client:
            with pytest.raises(
                StateTooLargeError, match=r"than 1048576 bytes, the limit .*Raise max_state_bytes"
            ):
                await client.job("j1").result()
            assert len(server.requests) == 1


async def test_repeated_protocol_errors_raise():
    timing, _ = hurried()
    with ScriptedServer(by_turn([STREAM + OPENING + event("gap", id="1-7"), CLOSE])) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            with pytest.raises(ProtocolError, match=r"1-7 does not continue from 1-1") as caught:
                await client.job("j1").result()
            assert caught.value.where.url == f"{server.url}/v1/jobs/j1/events"


async def test_another_protocol_version_raises_unsupported_protocol():
    other = event(
        {"protocol": "tidewire/9", "job": "j1", "events": "/", "head": "1-1", "heartbeat_ms": 1}, type="hello"
    )
    with ScriptedServer(by_turn([STREAM + other, HOLD])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(UnsupportedProtocolError, match="tidewire/9"):
                await client.job("j1").result()


async def test_a_stream_of_another_job_raises():
    with ScriptedServer(by_turn([STREAM + hello("j2"), HOLD])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(
                ProtocolError, match="requested job j1, but the server sent the event stream of job j2"
            ):
                await client.job("j1").result()


@pytest.mark.parametrize(
    "fault",
    [
        answer(200, b"<html>", media="text/html"),
        answer(502, b"<html>bad gateway", media="text/html"),
        answer(500, b"", media="text/plain"),
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n"
        + gzip.compress(OPENING),
    ],
)
async def test_a_faulty_response_between_two_streams_is_retried(fault):
    _, cursors, _ = await follow(by_turn([STREAM + OPENING + FIRST, CLOSE], [fault, CLOSE], [REST, CLOSE]))
    assert cursors == [None, "1-3", "1-3"]


async def test_gateway_errors_beyond_the_policy_raise():
    timing, _ = hurried()
    fault = answer(502, b"<html>bad gateway", media="text/html")
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, CLOSE], [fault])) as server:
        async with with_timing(AsyncClient(server.url, retry=RetryPolicy(attempts=5)), timing) as client:
            with pytest.raises(TransportError, match="5 failures in a row without progress") as caught:
                await client.job("j1").result()
        assert isinstance(caught.value.__cause__, RequestError)
        assert caught.value.__cause__.status_code == 502
        assert len(server.requests) == 5


async def test_an_endless_html_page_is_not_read_to_its_end():
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<html>"
    with ScriptedServer(by_turn([page + b"x" * (4 * REFUSAL_BYTES), HOLD])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(NotATidewireServerError, match="200 text/html"):
                await client.job("j1").result()


async def test_a_compressed_stream_is_not_decompressed():
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n"
    with ScriptedServer(by_turn([head + gzip.compress(b"\0" * 10**7), CLOSE])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(NotATidewireServerError):
                await client.job("j1").result()
        assert server.requests[0].headers["accept-encoding"] == "identity"


# ---- statuses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (problem(404, "job_not_found"), JobNotFoundError),
        (problem(404, "something_new"), JobNotFoundError),
        (problem(410, "job_expired"), JobExpiredError),
        (problem(400, "bad_parameter"), RequestError),
        (problem(401, "unauthorized"), AuthenticationError),
        (problem(403, "forbidden"), PermissionDeniedError),
        (problem(406, "not_acceptable"), RequestError),
    ],
)
async def test_error_responses_raise_typed_errors_with_details(refusal, error):
    with ScriptedServer(by_turn([refusal])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(error, match="told so") as caught:
                await client.job("j1").result()
    assert caught.value.job_id == "j1"
    assert caught.value.where.method == "GET"
    assert caught.value.code is not None
    assert caught.value.status_code == caught.value.problem.status


async def test_a_job_that_expires_while_read_keeps_received_updates():
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, CLOSE], [problem(410, "job_expired")])) as server:
        timing, _ = hurried()
        async with with_timing(AsyncClient(server.url), timing) as client:
            following = client.job("j1")
            texts, into = read_into(following)
            with pytest.raises(JobExpiredError) as caught:
                await into
            assert (texts, caught.value.last_event_id) == (["Hel", "lo"], "1-3")
            assert not following.ended
            assert following.checkpoint().cursor == "1-3"


async def test_the_advice_differs_for_a_forgotten_job_and_a_wrong_job_id():
    unknown = [problem(404, "job_not_found")]
    for answers, advice in (
        ([unknown], "Check the id"),
        ([[STREAM + OPENING + FIRST, CLOSE], unknown], "Submit the job again"),
    ):
        with ScriptedServer(by_turn(*answers)) as server:
            timing, _ = hurried()
            async with with_timing(AsyncClient(server.url), timing) as client:
                with pytest.raises(JobNotFoundError, match=advice):
                    await client.job("j1").result()


async def test_a_server_that_stays_busy_raises():
    timing, _ = hurried()
    busy = problem(429, "too_many_streams", retry_after="1", retryable=True)
    with ScriptedServer(by_turn([busy])) as server:
        async with with_timing(AsyncClient(server.url, retry=RetryPolicy(attempts=3)), timing) as client:
            with pytest.raises((RateLimitError, TransportError)) as caught:
                await client.job("j1").result()
            assert caught.value.retryable


async def test_rejected_credentials_are_refreshed_once():
    tokens = iter(["old", "new", "newer"])

    async def auth():
        await anyio.sleep(0)
        return {"Authorization": next(tokens)}

    seen = []

    def script(request):
        seen.append(request.headers["authorization"])
        if seen[-1] == "old":
            yield problem(401, "unauthorized")
        else:
            yield STREAM + OPENING + FIRST + LAST + END
            yield CLOSE

    await follow(script, auth=auth)
    assert seen == ["old", "new"]


async def test_credentials_rejected_after_a_refresh_raise():
    auth_calls = []

    def auth():
        auth_calls.append(1)
        return {"Authorization": "bad"}

    with ScriptedServer(by_turn([problem(403, "forbidden")])) as server:
        async with AsyncClient(server.url, auth=auth) as client:
            with pytest.raises(PermissionDeniedError):
                await client.job("j1").result()
        assert (len(server.requests), len(auth_calls)) == (2, 2)


async def test_endless_redirects_raise():
    with ScriptedServer(by_turn([answer(302, Location="/v1/jobs/j1/events")])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(ProtocolError, match="redirects"):
                await client.job("j1").result()
        assert len(server.requests) < 10


# ---- leaving a loop early ----------------------------------------------------------------------------------------


def in_two_parts(resume):
    """Script for a stream that stays silent in the middle until `resume` is set."""

    def script(_):
        yield STREAM + OPENING + FIRST
        assert resume.wait(30)
        yield LAST + END
        yield CLOSE

    return script


async def test_leaving_the_loop_early_closes_the_socket():
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, HOLD])) as server:
        async with AsyncClient(server.url) as client:
            following = client.job("j1")
            async for update in following:
                assert update.text == "Hel"
                break
            await anyio.to_thread.run_sync(server.wait_until_none_is_open)


async def test_a_second_loop_continues_where_the_first_stopped():
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, HOLD], [REST, CLOSE])) as server:
        async with AsyncClient(server.url) as client:
            following = client.job("j1")
            texts = []
            async for update in following:
                texts.append(update.text)
                break
            texts += [update.text async for update in following]
            assert texts == ["Hel", "lo", " world"]


async def test_cancelling_anext_keeps_the_iterator_and_its_connection():
    resume = threading.Event()
    with ScriptedServer(in_two_parts(resume)) as server:
        async with AsyncClient(server.url) as client:
            updates = client.job("j1").updates()
            texts = []
            for _ in range(3):
                with anyio.move_on_after(0.1):
                    while True:
                        texts.append((await anext(updates)).text)
            assert texts == ["Hel", "lo"]
            resume.set()
            texts += [update.text async for update in updates]
            assert texts == ["Hel", "lo", " world"]
        assert len(server.requests) == 1


def test_asyncio_wait_for_around_anext_may_time_out_repeatedly():
    resume = threading.Event()

    async def main(url):
        texts, timeouts = [], 0
        async with AsyncClient(url) as client:
            updates = client.job("j1").updates()
            while True:
                try:
                    texts.append((await asyncio.wait_for(anext(updates), 0.1)).text)
                except TimeoutError:
                    timeouts += 1
                    if timeouts == 3:
                        resume.set()
                except StopAsyncIteration:
                    return texts, timeouts

    with ScriptedServer(in_two_parts(resume)) as server:
        texts, timeouts = asyncio.run(main(server.url))
        assert texts == ["Hel", "lo", " world"]
        assert timeouts >= 3
        assert len(server.requests) == 1


async def test_repeatedly_cancelled_anext_still_detects_a_silent_connection():
    opening = hello(heartbeat_ms=1000) + OPENING.removeprefix(hello())
    waits, scope = [], anyio.CancelScope()

    async def sleep(seconds):
        # The wait in which the client reconnects is not cancelled, so that it opens only one connection.
        scope.deadline = math.inf
        waits.append(seconds)
        await anyio.sleep(0)

    with ScriptedServer(by_turn([STREAM + opening + FIRST, HOLD], [REST, CLOSE])) as server:
        async with with_timing(AsyncClient(server.url), Timing(sleep=sleep)) as client:
            updates = client.job("j1").updates()
            texts = []
            with anyio.fail_after(20):
                while len(texts) < 3:
                    with anyio.move_on_after(0.1) as scope:
                        texts.append((await anext(updates)).text)
            assert texts == ["Hel", "lo", " world"]
            await updates.aclose()
        assert waits
        assert len(server.requests) == 2


async def test_cancelling_result_closes_its_connection():
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, HOLD])) as server:
        async with AsyncClient(server.url) as client:
            following = client.job("j1")
            with anyio.move_on_after(0.2):
                await following.result()
            await anyio.to_thread.run_sync(server.wait_until_none_is_open)


async def test_a_new_loop_may_start_while_the_cancellation_of_another_is_handled():
    resume = threading.Event()
    with ScriptedServer(in_two_parts(resume)) as server:
        async with AsyncClient(server.url) as client:
            following = client.job("j1")
            texts, into = read_into(following)
            try:
                with anyio.fail_after(0.3):
                    await into
            except TimeoutError:
                resume.set()
                texts += [update.text async for update in following]
            assert texts == ["Hel", "lo", " world"]
        assert len(server.requests) == 1


async def test_a_closed_iterator_cannot_be_resumed():
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, HOLD], [REST, CLOSE])) as server:
        async with AsyncClient(server.url) as client:
            following = client.job("j1")
            updates = following.updates()
            assert (await anext(updates)).text == "Hel"
            await updates.aclose()
            with pytest.raises(ConcurrentReadError, match="was closed"):
                await anext(updates)
            assert [update.text async for update in following] == ["lo", " world"]


async def test_events_after_done_are_ignored():
    too_late = event([["s", TEXT, "not this"]], id="1-7") + event("nor this", id="1-8")
    texts, _, _ = await follow(by_turn([STREAM + OPENING + FIRST + LAST + END + too_late, HOLD]))
    assert texts == ["Hel", "lo", " world"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_cancellation_while_the_ended_stream_closes_loses_no_update(monkeypatch):
    close = Connection.aclose

    async def closed_as_the_task_is_cancelled(self):
        monkeypatch.setattr(Connection, "aclose", close)
        asyncio.current_task().cancel()
        await close(self)
        await anyio.lowlevel.checkpoint()

    def script(request):
        yield STREAM + hello()
        if request.cursor is None:
            yield snapshot("1-1", state(None)) + event([["s", "/items/0/status", "succeeded"]], id="1-2")
            yield CLOSE
        monkeypatch.setattr(Connection, "aclose", closed_as_the_task_is_cancelled)
        yield done("1-3", [{"status": "succeeded"}])
        yield HOLD

    with ScriptedServer(script) as server:
        async with AsyncClient(server.url) as client:
            following = client.job("j1")
            with pytest.raises(asyncio.CancelledError):
                await anext(following.updates())
            assert [update.seq async for update in following] == [3]


async def test_closing_the_client_closes_its_streams():
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, HOLD])) as server:
        async with AsyncClient(server.url) as client:
            updates = client.job("j1").updates()
            await anext(updates)
        await anyio.to_thread.run_sync(server.wait_until_none_is_open)


async def test_the_total_timeout_ends_a_loop_but_not_the_job():
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, HOLD])) as server:
        async with AsyncClient(server.url, timeout=0.3) as client:
            following = client.job("j1")
            texts, into = read_into(following)
            with pytest.raises(TotalTimeoutError, match=r"timeout of 0.3 s") as caught:
                await into
            assert texts == ["Hel", "lo"]
            assert isinstance(caught.value, TimeoutError)
            await anyio.to_thread.run_sync(server.wait_until_none_is_open)
        assert [request.method for request in server.requests] == ["GET"]


async def test_hundreds_of_streams_share_one_client():
    with ScriptedServer(lambda _: iter([STREAM + OPENING + FIRST + LAST + END, CLOSE])) as server:
        async with AsyncClient(server.url) as client, anyio.create_task_group() as tasks:
            results = []

            async def read():
                results.append(await client.job("j1").result())

            for _ in range(150):
                tasks.start_soon(read)
    assert results == ["Hello world"] * 150
