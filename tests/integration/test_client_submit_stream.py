"""A submit whose response is the job's stream: when the client asks for it, reads it and closes it."""

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


def stream(**headers):
    """The response head of a stream that answers a submit."""
    fields = {"Location": "/v1/jobs/j1", "Content_Location": "/v1/jobs/j1/events"} | headers
    lines = "".join(f"\r\n{name.replace('_', '-')}: {value}" for name, value in fields.items() if value)
    return STREAM.replace(b"\r\n\r\n", lines.encode() + b"\r\n\r\n")


def by_turn(*turns, streams=()):
    """Script with answers for submits (`turns`) and for `streams`; the last answer of each list repeats."""
    posts, gets = [*turns], [*streams]

    def script(request):
        if request.path == "/v1":
            return iter([answer(200, discovery("count"))])
        left = posts if request.method == "POST" else gets
        return iter(left.pop(0) if len(left) > 1 else left[0])

    return script


def stream_requested(server):
    """For each submit, whether its `Accept` header asked for a stream."""
    return [
        request.headers["accept"] == "text/event-stream"
        for request in server.requests
        if request.method == "POST"
    ]


async def test_the_stream_in_the_response_to_a_submit_is_read_without_another_request():
    with ScriptedServer(by_turn([stream(), WHOLE])) as server:
        async with AsyncClient(server.url) as client:
            started = await client.submit("count")
            assert started.id == "j1"
            assert [text async for text in started.iter_text_deltas()] == [(0, "Hel"), (0, "lo")]
            assert await started.result() == "Hello"
        [post] = server.requests
        assert post.headers["accept-encoding"] == "identity"


async def test_a_cut_submit_stream_is_resumed_by_get_with_the_cursor():
    cut = [stream() + OPENING + event("Hel", id="1-2") + b"id:1-3\nda", RESET]
    rest = [STREAM + hello() + event("lo", id="1-3") + END]
    timing, _ = hurried()
    with ScriptedServer(by_turn(cut, streams=[rest])) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            texts = [update.text async for update in await client.submit("count")]
        assert "".join(texts) == "Hello"
        assert [(one.method, one.cursor) for one in server.requests] == [("POST", None), ("GET", "1-2")]


async def test_a_server_may_answer_with_the_job_instead_of_the_stream():
    submitted = answer(201, job(state("", status="running"), columns=[TEXT]), Location="/v1/jobs/j1")
    rest = [STREAM + hello() + event("Hel", id="1-2") + event("lo", id="1-3") + END]
    with ScriptedServer(by_turn([submitted], streams=[rest])) as server:
        async with AsyncClient(server.url) as client:
            assert await client.run("count") == "Hello"
        assert [(one.method, one.cursor) for one in server.requests] == [("POST", None), ("GET", "1-1")]


async def test_closing_the_client_closes_an_unread_submit_stream():
    with ScriptedServer(by_turn([stream(), OPENING, HOLD])) as server:
        async with AsyncClient(server.url) as client:
            await client.submit("count")
            gc.collect()
            assert server.open == 1
        server.wait_until_none_is_open()


def test_a_blocking_submit_without_reading_leaves_no_connection(nothing_is_left):
    with ScriptedServer(by_turn([stream(), OPENING, HOLD])) as server:
        with Client(server.url) as client:
            started = client.submit("count")
        server.wait_until_none_is_open()
        assert started.id == "j1"


async def test_the_number_of_unread_submit_streams_is_bounded():
    submitted = [answer(201, job(state("", status="running"), columns=[TEXT]))]
    opened = [stream(), OPENING, HOLD]
    script = by_turn(*[opened] * UNREAD_STREAMS, submitted, [stream(), WHOLE], streams=[[STREAM, WHOLE]])
    with ScriptedServer(script) as server:
        async with AsyncClient(server.url) as client:
            started = [await client.submit("count") for _ in range(UNREAD_STREAMS + 1)]
            assert stream_requested(server) == [True] * UNREAD_STREAMS + [False]
            async with started.pop(0).updates() as updates:
                assert (await anext(updates)).value == ""
                assert await client.run("count") == "Hello"
            assert stream_requested(server)[-1]
            await client.submit("count")
            assert stream_requested(server)[-1]


async def test_submit_refused_with_too_many_streams_is_repeated_without_a_stream():
    refusal = [problem(429, "too_many_streams", retry_after="5", retryable=True)]
    timing, waits = hurried()
    with ScriptedServer(by_turn(refusal, [answer(201, job())])) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            assert (await client.submit("count")).id == "j1"
        assert (stream_requested(server), waits) == ([True, False], [])
        assert len({one.headers["idempotency-key"] for one in server.requests}) == 1


async def test_submit_with_on_disconnect_cancel_asks_for_no_stream():
    with ScriptedServer(by_turn([answer(201, job())])) as server:
        async with AsyncClient(server.url) as client:
            await client.with_options(on_disconnect="cancel").submit("count")
        assert stream_requested(server) == [False]


async def test_a_submit_stream_with_a_content_coding_is_replaced_by_get():
    with ScriptedServer(
        by_turn([stream(Content_Encoding="gzip"), HOLD], streams=[[STREAM, WHOLE]])
    ) as server:
        async with AsyncClient(server.url) as client:
            assert await client.run("count") == "Hello"


@pytest.mark.parametrize("place", ["", "/", "https://example.org"])
async def test_a_submit_stream_without_a_job_location_raises(place):
    with ScriptedServer(by_turn([stream(Location=place), OPENING, HOLD])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(ProtocolError, match=r"no Location header that names the job.*may be running"):
                await client.submit("count")
            server.wait_until_none_is_open()


async def test_header_links_to_another_origin_are_not_followed():
    head = stream(Location="http://192.0.2.1/v1/jobs/j1", Content_Location="http://192.0.2.1/steal")
    rest = [STREAM + hello() + event("Hel", id="1-2") + event("lo", id="1-3") + END]
    timing, _ = hurried()
    with ScriptedServer(by_turn([head, OPENING, CLOSE], streams=[rest])) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            assert await client.run("count") == "Hello"
        assert server.paths() == ["/v1/jobs/j1/events"]


async def test_a_submit_stream_of_another_job_raises():
    with ScriptedServer(by_turn([stream(), hello("j2")])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(ProtocolError):
                await client.run("count")


async def test_a_submit_stream_without_hello_is_replaced_by_get_after_the_timeout(monkeypatch):
    timing, waits = hurried(hello_timeout=0.05)
    with ScriptedServer(by_turn([stream(), HOLD], streams=[[STREAM, WHOLE]])) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            assert await client.run("count") == "Hello"
        assert len(waits) == 1


async def test_rejected_credentials_of_a_submit_with_stream_are_refreshed():
    tokens = iter(["old", "new"])
    with ScriptedServer(by_turn([problem(401, "unauthenticated")], [stream(), WHOLE])) as server:
        auth = lambda: {"Authorization": next(tokens)}  # noqa: E731
        async with AsyncClient(server.url, auth=auth) as client:
            assert await client.run("count") == "Hello"
        assert [one.headers["authorization"] for one in server.requests] == ["old", "new"]


async def test_a_lost_submit_stream_is_not_retried_if_the_server_keeps_no_keys():
    def script(request):
        if request.path == "/v1":
            return iter([answer(200, discovery("count", capabilities=[]))])
        return iter([CLOSE])

    with ScriptedServer(script) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(TransportError, match="may or may not have started"):
                await client.submit("count")
        assert stream_requested(server) == [True]


# ---- connection reuse after the end of a stream ----------------------------------------------------------------------


def chunked(*parts, after=b""):
    """The stream in chunks on a persistent connection; `after` replaces the bytes after the last chunk."""
    head = stream().replace(b"Connection: close", b"Transfer-Encoding: chunked")
    return head, b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n" + (
        after or b"\r\n"
    )


async def run_twice(*sent):
    with ScriptedServer(by_turn([*sent])) as server:
        async with AsyncClient(server.url) as client:
            for _ in range(2):
                async for update in await client.submit("count"):
                    last = update
                assert last.value == "Hello"
        return server.connections


@pytest.mark.parametrize("parts", [(WHOLE,), (OPENING, WHOLE.removeprefix(OPENING))])
async def test_a_completed_submit_stream_leaves_its_connection_for_reuse(parts):
    assert await run_twice(*chunked(*parts)) == 1


async def test_body_bytes_received_with_the_head_count_for_connection_reuse():
    head, body = chunked(OPENING, WHOLE.removeprefix(OPENING))
    assert await run_twice(head + body) == 1
    at = body.index(b"\r\n", len(OPENING)) + 2
    assert await run_twice(head + body[:at], body[at:]) in {1, 2}
    assert await run_twice(head + body[: at + 10], body[at + 10 :]) in {1, 2}


@pytest.mark.parametrize("after", [b"Trailer: here\r\n\r\n", b"\r\nHTTP/1.1 200 OK\r\n\r\n"])
async def test_a_connection_with_bytes_after_the_last_chunk_is_not_reused(after):
    assert await run_twice(*chunked(WHOLE, after=after)) == 2


async def test_a_submit_stream_without_its_last_chunk_is_closed():
    with ScriptedServer(
        by_turn([*chunked(WHOLE)[:1], chunked(WHOLE)[1].removesuffix(b"0\r\n\r\n"), HOLD])
    ) as server:
        async with AsyncClient(server.url) as client:
            assert await (await client.submit("count")).result() == "Hello"
            await client.submit("count")
            server.wait_until(lambda: server.open <= 1)
        assert server.connections == 2
