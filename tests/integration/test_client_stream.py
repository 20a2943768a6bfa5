"""One job's stream over real sockets: what the shell does at each break, byte by byte from a scripted server."""

import asyncio
import gzip
import itertools
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
    ending,
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
from tidewire.http.fast_body_reader import FastBody
from tidewire.http.response import REFUSAL_BYTES, Connection
from tidewire.protocol.status_table import MAX_SERVER_FAULTS

pytestmark = pytest.mark.anyio

TEXT = "/items/0/value"
FINAL = [{"status": "succeeded", "value": "Hello world"}]
OPENING = hello() + snapshot("1-1", state(None, status="queued"), columns=[TEXT])
FIRST = event([["s", "/items/0/value", "Hel"]], id="1-2") + event("lo", id="1-3")
LAST = event(" world", id="1-4") + event([["s", "/items/0/status", "succeeded"]], id="1-5")
END = done("1-6", FINAL)
REST = STREAM + hello() + LAST + END


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def by_turn(*turns):
    """A script whose n-th stream request is answered by the n-th turn, the last one for all that follow."""
    asked = []

    def script(request):
        if not request.path.endswith("/events"):
            return iter([answer(404)])
        asked.append(request)
        return iter(turns[min(len(asked), len(turns)) - 1])

    return script


async def follow(script, **options):
    """Read job j1 to its end; gives the texts, the cursors asked with, and the waits."""
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
    """A list, and a coroutine that reads the texts of a job into it."""
    texts = []

    async def read():
        async for update in following:
            texts.append(update.text)

    return texts, read()


# ---- cuts --------------------------------------------------------------------------------------------------------


async def test_a_stream_is_read_to_its_end():
    texts, cursors, waits = await follow(by_turn([STREAM + OPENING + FIRST + LAST + END, CLOSE]))
    assert (texts, cursors, waits) == (["Hel", "lo", " world"], [None], [])


async def test_a_stream_over_plain_http_is_read_as_it_comes_from_the_socket():
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, HOLD])) as server:
        async with AsyncClient(server.url) as client:
            async with client.job("j1").updates() as updates:
                assert (await anext(updates)).text == "Hel"
                (connection,) = session_of(client).transport.open
                assert isinstance(connection._body, FastBody)


@pytest.mark.parametrize("size", [1, 7, 1_000])
@pytest.mark.parametrize("quick", [True, False])
async def test_a_stream_in_chunks_is_the_same_where_the_socket_is_out_of_reach(quick, size, monkeypatch):
    asked = []
    if not quick:
        monkeypatch.setattr(tidewire.http.fast_body_reader, "fast_body_of", lambda *_: asked.append(1))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = OPENING + FIRST + b"id:1-4\ndata:"
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in parts)
    texts, cursors, _ = await follow(
        by_turn([head + chunks + b"0\r\nX-Trailer: 1\r\n\r\n", CLOSE], [REST, CLOSE])
    )
    assert (texts, cursors) == (["Hel", "lo", " world"], [None, "1-3"])
    assert len(asked) == (0 if quick else 2)


@pytest.mark.parametrize("how", [RESET, CLOSE])
async def test_resume_after_a_cut_mid_event_repeats_nothing(how):
    # What a reset leaves unread may be lost with it: the server lets the events arrive first.
    unfinished = b'id:1-4\ndata:" wo'
    texts, cursors, waits = await follow(by_turn([STREAM + OPENING + FIRST + unfinished, how], [REST, CLOSE]))
    assert texts[-1] == " world"
    assert cursors[0] is None
    assert cursors[1] in {None, "1-1", "1-2", "1-3"} if how is RESET else cursors[1] == "1-3"
    assert len(waits) == 1


async def test_a_cut_right_after_the_status_line_is_a_cut():
    await follow(by_turn([STREAM, CLOSE], [STREAM + OPENING + FIRST + LAST + END, CLOSE]))


async def test_a_cut_before_the_status_line_is_a_cut():
    await follow(by_turn([CLOSE], [b"HTTP/1.1 20", CLOSE], [STREAM + OPENING + FIRST + LAST + END, CLOSE]))


async def test_a_body_with_an_unfinished_chunk_is_a_cut():
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = OPENING + FIRST
    chunk = f"{len(body):x}\r\n".encode() + body + b"\r\n"
    _, cursors, _ = await follow(by_turn([head + chunk + b"ff\r\nid:1-4", CLOSE], [REST, CLOSE]))
    assert cursors == [None, "1-3"]


async def test_repeated_events_are_dropped():
    texts, _, _ = await follow(by_turn([STREAM + OPENING + FIRST + FIRST + LAST + END, CLOSE]))
    assert texts == ["Hel", "lo", " world"]


async def test_waits_double_until_there_is_progress_and_begin_with_the_servers_retry():
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


async def test_goaway_is_followed_after_its_wait():
    goaway = event({"reason": "rotate", "retry_ms": 300}, type="goaway")
    _, cursors, waits = await follow(
        by_turn([STREAM + OPENING + FIRST + goaway, HOLD], [REST, CLOSE]), retry=RetryPolicy(jitter=0)
    )
    assert (cursors, waits) == ([None, "1-3"], [0.3])


async def test_done_closes_at_once_without_waiting_for_the_server():
    await follow(by_turn([STREAM + OPENING + FIRST + LAST + END, HOLD]))


async def test_silence_of_two_and_a_half_heartbeats_is_a_cut():
    opening = STREAM + hello(heartbeat_ms=100) + OPENING[len(hello()) :]
    _, cursors, _ = await follow(by_turn([opening + FIRST, HOLD], [REST, CLOSE]))
    assert cursors == [None, "1-3"]


async def test_no_hello_in_time_is_a_cut_even_where_comments_come():
    chatter = [STREAM, *([b": still here\n"] * 3), HOLD]
    await follow(
        by_turn(chatter, [STREAM + OPENING + FIRST + LAST + END, CLOSE]), timing={"hello_timeout": 0.1}
    )


async def test_two_pings_about_events_that_do_not_come_are_a_cut():
    ping = event({"head": "1-9"}, type="ping")
    _, cursors, _ = await follow(by_turn([STREAM + OPENING + FIRST + ping + ping, HOLD], [REST, CLOSE]))
    assert cursors == [None, "1-3"]


async def test_a_server_that_never_answers_is_given_up_with_a_time_out():
    timing, _ = hurried(hello_timeout=0.05)
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, CLOSE], [HOLD])) as server:
        async with with_timing(
            AsyncClient(server.url, retry=RetryPolicy(max_attempts=2), connect_timeout=0.05), timing
        ) as client:
            following = client.job("j1")
            with pytest.raises(SilenceTimeoutError, match="no response within") as caught:
                await following.result()
            assert isinstance(caught.value, TimeoutError)
            assert caught.value.last_event_id == "1-3"


async def test_after_giving_up_the_job_can_be_read_on():
    timing, _ = hurried()
    turns = [[STREAM + OPENING + FIRST, CLOSE], *([[CLOSE]] * 4), [REST, CLOSE]]
    with ScriptedServer(by_turn(*turns)) as server:
        async with with_timing(AsyncClient(server.url, retry=RetryPolicy(max_attempts=3)), timing) as client:
            following = client.job("j1")
            texts, into = read_into(following)
            with pytest.raises(TransportError, match="3 attempts without progress") as caught:
                await into
            assert caught.value.job_id == "j1"
            assert following.checkpoint().cursor == "1-3"
            async for update in following:
                texts.append(update.text)
    assert texts == ["Hel", "lo", " world"]


# ---- what cannot be used -----------------------------------------------------------------------------------------


async def test_a_malformed_event_drops_the_cursor_and_a_snapshot_mends_it():
    broken = STREAM + OPENING + FIRST + event([["a", "/nope", "x"]], id="1-4")
    mended = STREAM + hello() + snapshot("1-4", state("Hello world"), columns=[TEXT], reason="compacted")
    texts, cursors, _ = await follow(
        by_turn([broken, HOLD], [mended + LAST[LAST.index(b"id:1-5") :] + END, CLOSE])
    )
    assert (texts, cursors) == (["Hel", "lo", " world"], [None, None])


async def test_an_event_beyond_the_bound_drops_the_cursor_and_what_came_before_it_is_used(monkeypatch):
    monkeypatch.setattr(tidewire.jobs.reconnecting_stream, "LEAST_EVENT_BYTES", 500)
    huge = STREAM + OPENING + FIRST + event("x" * 1000, id="1-4")
    mended = STREAM + hello() + snapshot("1-3", state("Hello"), columns=[TEXT], reason="compacted")
    texts, cursors, _ = await follow(
        by_turn([huge, HOLD], [mended + LAST + END, CLOSE]), max_state_bytes=1000
    )
    assert (texts, cursors) == (["Hel", "lo", " world"], [None, None])


async def test_a_text_that_grows_without_end_is_given_up_at_the_bound():
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


async def test_a_snapshot_that_is_larger_than_may_be_held_says_so():
    timing, _ = hurried()
    large = STREAM + hello() + snapshot("1-1", state("x" * 2**20), columns=[TEXT])
    with ScriptedServer(by_turn([large, HOLD])) as server:
        async with with_timing(AsyncClient(server.url, max_state_bytes=1000), timing) as client:
            with pytest.raises(StateTooLargeError, match=r"max_event_bytes=1048576 .*Raise max_state_bytes"):
                await client.job("j1").result()


async def test_a_server_that_keeps_sending_nonsense_is_given_up():
    timing, _ = hurried()
    with ScriptedServer(by_turn([STREAM + OPENING + event("gap", id="1-7"), CLOSE])) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            with pytest.raises(ProtocolError, match=r"1-7 does not continue from 1-1") as caught:
                await client.job("j1").result()
            assert caught.value.where.url == f"{server.url}/v1/jobs/j1/events"


async def test_a_server_of_another_protocol_version_is_told_apart():
    other = event(
        {"protocol": "tidewire/9", "job": "j1", "events": "/", "head": "1-1", "heartbeat_ms": 1}, type="hello"
    )
    with ScriptedServer(by_turn([STREAM + other, HOLD])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(UnsupportedProtocolError, match="tidewire/9"):
                await client.job("j1").result()


async def test_the_stream_of_another_job_is_refused():
    with ScriptedServer(by_turn([STREAM + hello("j2"), HOLD])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(ProtocolError, match="requested job j1, but the stream is of job j2"):
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
async def test_a_fault_between_is_a_cut(fault):
    _, cursors, _ = await follow(by_turn([STREAM + OPENING + FIRST, CLOSE], [fault, CLOSE], [REST, CLOSE]))
    assert cursors == [None, "1-3", "1-3"]


async def test_faults_between_are_given_up_after_a_bounded_number_in_a_row():
    timing, _ = hurried()
    fault = answer(502, b"<html>bad gateway", media="text/html")
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, CLOSE], [fault])) as server:
        async with with_timing(AsyncClient(server.url, retry=RetryPolicy(max_attempts=50)), timing) as client:
            with pytest.raises(RequestError, match="502 text/html: '<html>bad gateway'") as caught:
                await client.job("j1").result()
            assert caught.value.status_code == 502
        assert len(server.requests) == 1 + MAX_SERVER_FAULTS + 1


async def test_an_endless_page_where_a_stream_should_be_is_not_read_for_ever():
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<html>"
    with ScriptedServer(by_turn([page + b"x" * (4 * REFUSAL_BYTES), HOLD])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(NotATidewireServerError, match="200 text/html"):
                await client.job("j1").result()


async def test_an_unbounded_compressed_stream_is_not_unpacked():
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n"
    with ScriptedServer(by_turn([head + gzip.compress(b"\0" * 10**7), CLOSE])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(NotATidewireServerError):
                await client.job("j1").result()
        assert server.requests[0].headers["accept-encoding"] == "identity"


# ---- statuses ----------------------------------------------------------------------------------------------------


async def test_204_delivers_the_ended_job():
    ended = job(state("Hello world", status="succeeded"), cursor="1-6", columns=[TEXT], ended=ending(FINAL))

    def script(request):
        yield answer(204) if request.path.endswith("/events") else answer(200, ended)

    texts, _, _ = await follow(script)
    assert texts == ["Hello world"]


async def test_204_for_a_job_that_still_runs_is_a_cut_without_a_cursor():
    head = STREAM + hello() + snapshot("1-3", state("Hello"), columns=[TEXT], reason="compacted")
    turns = by_turn([STREAM + OPENING + FIRST, CLOSE], [answer(204)], [head + LAST + END, CLOSE])

    def script(request):
        return (
            turns(request)
            if request.path.endswith("/events")
            else iter([answer(200, job(state("Hello"), cursor="1-3"))])
        )

    _, cursors, _ = await follow(script)
    assert cursors == [None, "1-3", None]


async def test_400_on_a_cursor_asks_without_one():
    whole = STREAM + hello() + snapshot("1-4", state("Hello world"), columns=[TEXT], reason="compacted")
    _, cursors, _ = await follow(
        by_turn(
            [STREAM + OPENING + FIRST, CLOSE],
            [problem(400, "bad_cursor")],
            [whole + LAST[LAST.index(b"id:1-5") :] + END, CLOSE],
        )
    )
    assert cursors == [None, "1-3", None]


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
async def test_refusals_are_typed_and_carry_their_evidence(refusal, error):
    with ScriptedServer(by_turn([refusal])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(error, match="told so") as caught:
                await client.job("j1").result()
    assert caught.value.job_id == "j1"
    assert caught.value.where.method == "GET"
    assert caught.value.code is not None
    assert caught.value.status_code == caught.value.problem.status


async def test_a_job_that_expires_midway_keeps_what_was_received():
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


async def test_a_job_that_a_server_has_forgotten_midway_is_told_from_an_id_that_is_wrong():
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


@pytest.mark.parametrize(("status", "code"), [(429, "too_many_streams"), (503, "unavailable")])
async def test_a_busy_server_is_waited_for_as_long_as_it_says(status, code):
    busy = problem(status, code, retry_after="7", retryable=True)
    _, cursors, waits = await follow(by_turn([busy], [STREAM + OPENING + FIRST + LAST + END, CLOSE]))
    assert cursors == [None, None]
    assert 7 <= waits[0] <= 7 * 1.5


async def test_a_server_that_stays_busy_is_given_up():
    timing, _ = hurried()
    busy = problem(429, "too_many_streams", retry_after="1", retryable=True)
    with ScriptedServer(by_turn([busy])) as server:
        async with with_timing(AsyncClient(server.url, retry=RetryPolicy(max_attempts=2)), timing) as client:
            with pytest.raises((RateLimitError, TransportError)) as caught:
                await client.job("j1").result()
            assert caught.value.retryable


async def test_refused_credentials_are_refreshed_once():
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


async def test_credentials_that_are_refused_again_are_fatal():
    given = []

    def auth():
        given.append(1)
        return {"Authorization": "bad"}

    with ScriptedServer(by_turn([problem(403, "forbidden")])) as server:
        async with AsyncClient(server.url, auth=auth) as client:
            with pytest.raises(PermissionDeniedError):
                await client.job("j1").result()
        assert (len(server.requests), len(given)) == (2, 2)


async def test_redirects_on_the_same_origin_are_followed():
    def script(request):
        if request.path == "/v1/jobs/j1/events":
            yield answer(307, Location="/moved")
        else:
            assert request.path == "/moved"
            yield STREAM + OPENING + FIRST + LAST + END
            yield CLOSE

    with ScriptedServer(script) as server:
        async with AsyncClient(server.url) as client:
            assert await client.job("j1").result() == "Hello world"


async def test_endless_redirects_are_given_up():
    with ScriptedServer(by_turn([answer(302, Location="/v1/jobs/j1/events")])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(ProtocolError, match="redirects"):
                await client.job("j1").result()
        assert len(server.requests) < 10


async def test_credentials_never_leave_their_origin():
    with ScriptedServer(lambda _: iter([HOLD])) as stranger:
        with ScriptedServer(by_turn([answer(302, Location=f"{stranger.url}/v1/jobs/j1/events")])) as server:
            async with AsyncClient(server.url, headers={"Authorization": "secret"}) as client:
                with pytest.raises(ProtocolError, match="another origin"):
                    await client.job("j1").result()
        assert stranger.requests == []


# ---- leaving -----------------------------------------------------------------------------------------------------


def in_two_parts(resume):
    """A stream that is silent in the middle until an event is set."""

    def script(_):
        yield STREAM + OPENING + FIRST
        assert resume.wait(30)
        yield LAST + END
        yield CLOSE

    return script


async def test_leaving_the_loop_early_closes_the_socket_at_once():
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, HOLD])) as server:
        async with AsyncClient(server.url) as client:
            following = client.job("j1")
            async for update in following:
                assert update.text == "Hel"
                break
            await anyio.to_thread.run_sync(server.wait_until_none_is_open)


async def test_a_loop_that_was_left_goes_on_where_it_stopped():
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, HOLD], [REST, CLOSE])) as server:
        async with AsyncClient(server.url) as client:
            following = client.job("j1")
            texts = []
            async for update in following:
                texts.append(update.text)
                break
            texts += [update.text async for update in following]
            assert texts == ["Hel", "lo", " world"]


async def test_a_cancelled_wait_keeps_the_iterator_and_its_connection():
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


def test_wait_for_of_asyncio_may_time_out_any_number_of_times_in_a_loop():
    resume = threading.Event()

    async def live(url):
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
        texts, timeouts = asyncio.run(live(server.url))
        assert texts == ["Hel", "lo", " world"]
        assert timeouts >= 3
        assert len(server.requests) == 1


async def test_waits_that_are_cancelled_again_and_again_see_a_silent_connection_all_the_same():
    opening = hello(heartbeat_ms=1000) + OPENING.removeprefix(hello())
    timing, waits = hurried()
    with ScriptedServer(by_turn([STREAM + opening + FIRST, HOLD], [REST, CLOSE])) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            updates = client.job("j1").updates()
            texts = []
            with anyio.fail_after(20):
                while len(texts) < 3:
                    with anyio.move_on_after(0.1):
                        texts.append((await anext(updates)).text)
            assert texts == ["Hel", "lo", " world"]
            await updates.aclose()
        assert waits
        assert len(server.requests) == 2


async def test_a_result_whose_wait_is_cancelled_closes_its_connection():
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, HOLD])) as server:
        async with AsyncClient(server.url) as client:
            following = client.job("j1")
            with anyio.move_on_after(0.2):
                await following.result()
            await anyio.to_thread.run_sync(server.wait_until_none_is_open)


async def test_a_loop_that_was_cancelled_makes_way_while_its_error_is_handled():
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


async def test_a_loop_that_was_left_cannot_go_on_beside_another():
    with ScriptedServer(by_turn([STREAM + OPENING + FIRST, HOLD], [REST, CLOSE])) as server:
        async with AsyncClient(server.url) as client:
            following = client.job("j1")
            updates = following.updates()
            assert (await anext(updates)).text == "Hel"
            await updates.aclose()
            with pytest.raises(ConcurrentReadError, match="was closed"):
                await anext(updates)
            assert [update.text async for update in following] == ["lo", " world"]


async def test_what_comes_after_the_end_is_not_taken():
    too_late = event([["s", TEXT, "not this"]], id="1-7") + event("nor this", id="1-8")
    texts, _, _ = await follow(by_turn([STREAM + OPENING + FIRST + LAST + END + too_late, HOLD]))
    assert texts == ["Hel", "lo", " world"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_cancellation_while_the_ended_stream_is_closed_loses_no_update(monkeypatch):
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


async def test_the_total_timeout_ends_a_loop_and_leaves_the_job():
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
