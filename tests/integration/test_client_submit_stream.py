"""A submit whose answer is the job's stream: who reads it, who closes it, and when none is asked for."""

import gc

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
    event,
    hello,
    hurried,
    job,
    problem,
    snapshot,
    state,
)
from tidewire import AsyncClient, Client
from tidewire.errors import ProtocolError, TransportError
from tidewire.http.response import UNREAD_STREAMS

pytestmark = pytest.mark.anyio

TEXT = "/items/0/value"
OPENING = hello() + snapshot("1-1", state("", status="running"), columns=[TEXT])
END = event([["s", "/items/0/status", "succeeded"]], id="1-4") + done(
    "1-5", [{"status": "succeeded", "value": "Hello"}]
)
WHOLE = OPENING + event("Hel", id="1-2") + event("lo", id="1-3") + END


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def stream(**headers):
    """The head of a stream that answers a submit."""
    given = {"Location": "/v1/jobs/j1", "Content_Location": "/v1/jobs/j1/events"} | headers
    lines = "".join(f"\r\n{name.replace('_', '-')}: {value}" for name, value in given.items() if value)
    return STREAM.replace(b"\r\n\r\n", lines.encode() + b"\r\n\r\n")


def by_turn(*turns, streams=()):
    """Submits and streams are answered turn by turn, the last for all that follow."""
    posts, gets = [*turns], [*streams]

    def script(request):
        if request.path == "/v1":
            return iter([answer(200, discovery("count"))])
        left = posts if request.method == "POST" else gets
        return iter(left.pop(0) if len(left) > 1 else left[0])

    return script


def asked(server):
    """Which submits asked for a stream."""
    return [
        request.headers["accept"] == "text/event-stream"
        for request in server.requests
        if request.method == "POST"
    ]


async def test_the_answer_of_a_submit_is_read_and_nothing_else_is_asked_for():
    with ScriptedServer(by_turn([stream(), WHOLE])) as server:
        async with AsyncClient(server.url) as client:
            started = await client.submit("count")
            assert started.id == "j1"
            assert [text async for text in started.iter_text_deltas()] == [(0, "Hel"), (0, "lo")]
            assert await started.result() == "Hello"
        [post] = server.requests
        assert post.headers["accept-encoding"] == "identity"


async def test_a_cut_in_that_stream_is_resumed_by_get_with_the_cursor_and_never_by_another_submit():
    cut = [stream() + OPENING + event("Hel", id="1-2") + b"id:1-3\nda", RESET]
    rest = [STREAM + hello() + event("lo", id="1-3") + END]
    timing, _ = hurried()
    with ScriptedServer(by_turn(cut, streams=[rest])) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            texts = [update.text async for update in await client.submit("count")]
        assert "".join(texts) == "Hello"
        assert [(one.method, one.cursor) for one in server.requests] == [("POST", None), ("GET", "1-2")]


@pytest.mark.parametrize("how", [CLOSE, RESET])
async def test_a_submit_cut_before_its_head_is_whole_is_repeated_with_its_key(how):
    timing, _ = hurried()
    with ScriptedServer(by_turn([stream()[:40], how], [stream(), WHOLE])) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            assert await client.run("count") == "Hello"
        posts = [one for one in server.requests if one.method == "POST"]
        assert len({(one.headers["idempotency-key"], one.body) for one in posts}) == 1
        assert len(posts) == 2


async def test_the_job_may_come_in_place_of_its_stream():
    submitted = answer(201, job(state("", status="running"), columns=[TEXT]), Location="/v1/jobs/j1")
    rest = [STREAM + hello() + event("Hel", id="1-2") + event("lo", id="1-3") + END]
    with ScriptedServer(by_turn([submitted], streams=[rest])) as server:
        async with AsyncClient(server.url) as client:
            assert await client.run("count") == "Hello"
        assert [(one.method, one.cursor) for one in server.requests] == [("POST", None), ("GET", "1-1")]


async def test_a_stream_that_nobody_reads_is_closed_with_its_client():
    with ScriptedServer(by_turn([stream(), OPENING, HOLD])) as server:
        async with AsyncClient(server.url) as client:
            await client.submit("count")
            gc.collect()
            assert server.open == 1
        server.wait_until_none_is_open()


def test_a_submit_and_nothing_else_leaves_nothing(nothing_is_left):
    with ScriptedServer(by_turn([stream(), OPENING, HOLD])) as server:
        with Client(server.url) as client:
            started = client.submit("count")
        server.wait_until_none_is_open()
        assert started.id == "j1"


async def test_no_more_than_so_many_streams_stand_open_that_nobody_reads():
    submitted = [answer(201, job(state("", status="running"), columns=[TEXT]))]
    opened = [stream(), OPENING, HOLD]
    script = by_turn(*[opened] * UNREAD_STREAMS, submitted, [stream(), WHOLE], streams=[[STREAM, WHOLE]])
    with ScriptedServer(script) as server:
        async with AsyncClient(server.url) as client:
            started = [await client.submit("count") for _ in range(UNREAD_STREAMS + 1)]
            assert asked(server) == [True] * UNREAD_STREAMS + [False]
            async with started.pop(0).updates() as updates:
                assert (await anext(updates)).value == ""
                assert await client.run("count") == "Hello"
            assert asked(server)[-1]
            await client.submit("count")
            assert asked(server)[-1]


async def test_at_the_limit_of_streams_a_job_is_submitted_all_the_same():
    refusal = [problem(429, "too_many_streams", retry_after="5", retryable=True)]
    timing, waits = hurried()
    with ScriptedServer(by_turn(refusal, [answer(201, job())])) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            assert (await client.submit("count")).id == "j1"
        assert (asked(server), waits) == ([True, False], [])
        assert len({one.headers["idempotency-key"] for one in server.requests}) == 1


async def test_a_job_that_ends_when_nobody_reads_it_gets_no_reader_by_its_submit():
    with ScriptedServer(by_turn([answer(201, job())])) as server:
        async with AsyncClient(server.url) as client:
            await client.with_options(on_disconnect="cancel").submit("count")
        assert asked(server) == [False]


async def test_a_stream_with_a_coding_is_left_for_one_without():
    with ScriptedServer(
        by_turn([stream(Content_Encoding="gzip"), HOLD], streams=[[STREAM, WHOLE]])
    ) as server:
        async with AsyncClient(server.url) as client:
            assert await client.run("count") == "Hello"


@pytest.mark.parametrize("place", ["", "/", "https://example.org"])
async def test_a_stream_that_does_not_say_whose_it_is_is_a_fault_of_the_server(place):
    with ScriptedServer(by_turn([stream(Location=place), OPENING, HOLD])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(ProtocolError, match=r"no Location header that names the job.*may be running"):
                await client.submit("count")
            server.wait_until_none_is_open()


async def test_links_to_another_origin_are_not_followed_from_a_head_either():
    head = stream(Location="http://192.0.2.1/v1/jobs/j1", Content_Location="http://192.0.2.1/steal")
    rest = [STREAM + hello() + event("Hel", id="1-2") + event("lo", id="1-3") + END]
    timing, _ = hurried()
    with ScriptedServer(by_turn([head, OPENING, CLOSE], streams=[rest])) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            assert await client.run("count") == "Hello"
        assert server.paths() == ["/v1/jobs/j1/events"]


async def test_a_stream_of_another_job_is_fatal():
    with ScriptedServer(by_turn([stream(), hello("j2")])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(ProtocolError):
                await client.run("count")


async def test_a_submit_that_says_nothing_more_is_not_waited_for_beyond_a_hello(monkeypatch):
    timing, waits = hurried(hello_timeout=0.05)
    with ScriptedServer(by_turn([stream(), HOLD], streams=[[STREAM, WHOLE]])) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            assert await client.run("count") == "Hello"
        assert len(waits) == 1


async def test_credentials_of_a_submit_are_refreshed_for_a_stream_too():
    tokens = iter(["old", "new"])
    with ScriptedServer(by_turn([problem(401, "unauthenticated")], [stream(), WHOLE])) as server:
        auth = lambda: {"Authorization": next(tokens)}  # noqa: E731
        async with AsyncClient(server.url, auth=auth) as client:
            assert await client.run("count") == "Hello"
        assert [one.headers["authorization"] for one in server.requests] == ["old", "new"]


async def test_a_submit_is_not_repeated_where_its_stream_was_lost_and_no_keys_are_kept():
    def script(request):
        if request.path == "/v1":
            return iter([answer(200, discovery("count", capabilities=[]))])
        return iter([CLOSE])

    with ScriptedServer(script) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(TransportError, match="may or may not have started"):
                await client.submit("count")
        assert asked(server) == [True]


# ---- the connection after the end ------------------------------------------------------------------------------------


def chunked(*parts, after=b""):
    """The same stream in chunks, on a connection that may go on; `after` comes once the last chunk has been sent."""
    head = stream().replace(b"Connection: close", b"Transfer-Encoding: chunked")
    return head, b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n" + (
        after or b"\r\n"
    )


async def run_twice(*said):
    with ScriptedServer(by_turn([*said])) as server:
        async with AsyncClient(server.url) as client:
            for _ in range(2):
                async for update in await client.submit("count"):
                    last = update
                assert last.value == "Hello"
        return server.connections


@pytest.mark.parametrize("parts", [(WHOLE,), (OPENING, WHOLE.removeprefix(OPENING))])
async def test_a_stream_that_ended_whole_leaves_its_connection_to_the_next_submit(parts):
    assert await run_twice(*chunked(*parts)) == 1


async def test_a_beginning_that_came_with_the_head_counts_as_part_of_the_body():
    head, body = chunked(OPENING, WHOLE.removeprefix(OPENING))
    assert await run_twice(head + body) == 1
    at = body.index(b"\r\n", len(OPENING)) + 2
    assert await run_twice(head + body[:at], body[at:]) in {1, 2}
    assert await run_twice(head + body[: at + 10], body[at + 10 :]) in {1, 2}


@pytest.mark.parametrize("after", [b"Trailer: here\r\n\r\n", b"\r\nHTTP/1.1 200 OK\r\n\r\n"])
async def test_what_comes_after_the_end_of_a_stream_is_not_taken_for_the_next_answer(after):
    assert await run_twice(*chunked(WHOLE, after=after)) == 2


async def test_a_stream_whose_body_goes_on_after_its_end_is_closed():
    with ScriptedServer(
        by_turn([*chunked(WHOLE)[:1], chunked(WHOLE)[1].removesuffix(b"0\r\n\r\n"), HOLD])
    ) as server:
        async with AsyncClient(server.url) as client:
            assert await (await client.submit("count")).result() == "Hello"
            await client.submit("count")
            server.wait_until(lambda: server.open <= 1)
        assert server.connections == 2
