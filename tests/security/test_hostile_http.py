"""A hostile server at the level of HTTP: informational responses without end, cookies, ids that lead to other paths."""

import httpx2
import pytest

from support.client_timing import with_timing
from support.scripted_server import (
    CLOSE,
    HOLD,
    STREAM,
    ScriptedServer,
    answer,
    discovery,
    done,
    hello,
    job,
    snapshot,
    state,
)
from tidewire import AsyncClient, Checkpoint, Client, RetryPolicy
from tidewire.errors import CheckpointError, ProtocolError, SilenceTimeoutError
from tidewire.http.api_session import Timing

pytestmark = pytest.mark.anyio
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"
ITEMS = [{"status": "succeeded", "value": 7}]
EVENTS = STREAM + hello("j1") + snapshot("1-2", state(7) | {"items": ITEMS}) + done("1-3", ITEMS)


def script(request, before=b""):
    if request.path == "/v1":
        yield before + answer(200, discovery("count"))
    elif request.path.endswith("/events"):
        yield before + EVENTS
        yield CLOSE
    else:
        yield before + answer(201 if request.method == "POST" else 200, job(), Location="/v1/jobs/j1")


# ---- informational responses -------------------------------------------------------------------------------------

CALLS = {
    "GET": lambda client: client.discover(),
    "POST": lambda client: client.submit("count"),
    "stream": lambda client: client.job("j1").result(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", [CONTINUE, EARLY_HINTS])
async def test_informational_responses_are_skipped(call, kind):
    with ScriptedServer(lambda request: script(request, kind * 200)) as server:
        async with AsyncClient(server.url) as client:
            # The second request uses the same connection.
            for _ in range(2):
                assert await CALLS[call](client) is not None


@pytest.mark.parametrize("call", CALLS)
async def test_informational_responses_without_end_raise_within_the_answer_timeout(call):
    """The server never falls silent, so only a limit for the whole wait can end it."""

    def endless(request):
        while True:
            yield CONTINUE

    once = RetryPolicy(attempts=1)
    with ScriptedServer(endless) as server:
        async with with_timing(
            AsyncClient(server.url, answer_timeout=0.2, connect_timeout=0.2, retry=once),
            Timing(hello_timeout=0.2),
        ) as client:
            with pytest.raises(SilenceTimeoutError, match=r"no response (in time|within 0\.2 s)"):
                await CALLS[call](client)
        server.wait_until_none_is_open()


# ---- cookies -----------------------------------------------------------------------------------------------------


async def test_cookies_are_neither_kept_nor_sent():
    def baking(request):
        for part in script(request):
            cookie = b"Set-Cookie: session=1; Path=/\r\nContent-Type"
            yield part if part is CLOSE else part.replace(b"Content-Type", cookie, 1)

    with ScriptedServer(baking) as server:
        async with AsyncClient(server.url) as client:
            assert await client.run("count") == 7
            assert await client.with_options(headers={"Authorization": "Bearer b"}).run("count") == 7
            await client.discover()
        assert len(server.requests) >= 5
        assert [request.headers for request in server.requests if "cookie" in request.headers] == []


async def test_a_cookie_that_the_caller_passes_is_sent():
    with ScriptedServer(script) as server:
        async with AsyncClient(server.url, headers={"Cookie": "a=1"}) as client:
            await client.discover()
        assert server.requests[0].headers["cookie"] == "a=1"


# ---- ids in paths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id_", ["..", "."])
async def test_an_id_that_leads_to_another_path_is_rejected(id_):
    with ScriptedServer(script) as server:
        async with AsyncClient(server.url) as client:
            for made in (client.job, client.batch_job):
                with pytest.raises(ValueError, match=rf"the id of a job must not be '{id_}'"):
                    made(id_)
            with pytest.raises(CheckpointError, match="the checkpoint is not valid"):
                client.job(checkpoint=Checkpoint(job=id_, cursor=None, state=None, columns=()))
            with pytest.raises(ValueError, match=rf"the name of an endpoint must not be '{id_}'"):
                await client.submit(id_)
        with Client(server.url) as client, pytest.raises(ValueError, match="must not be"):
            client.job(id_).cancel()
    assert server.requests == []


@pytest.mark.parametrize("id_", ["..", "."])
async def test_an_id_of_a_server_that_leads_to_another_path_is_a_fault_of_the_server(id_):
    def lying(request):
        if request.path == "/v1":
            yield answer(200, discovery("count"))
        elif "event-stream" in request.headers["accept"]:
            yield STREAM.replace(b"\r\n\r\n", f"\r\nLocation: /v1/jobs/{id_}\r\n\r\n".encode())
            yield HOLD
        else:
            yield answer(201, job(id=id_), Location=f"/v1/jobs/{id_}")

    with ScriptedServer(lying) as server:
        async with AsyncClient(server.url) as client:
            for call in (client.submit("count"), client.submit_batch("count", [1])):
                with pytest.raises(ProtocolError, match=rf"must not be '{id_}'.*may be running"):
                    await call
        assert {request.path for request in server.requests} <= {"/v1", "/v1/endpoints/count/jobs"}


@pytest.mark.parametrize(
    "id_", ["a/../../x", "..%2f..", "%2e%2e", "a?b#c", "\r\nX: y", "\x00", "..\\..", "é\u202e"]
)
async def test_an_id_stays_one_segment_of_the_path(id_):
    with ScriptedServer(script) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(ProtocolError, match="the response is job j1"):
                await client.job(id_).status()
        [request] = server.requests
    assert request.path.startswith("/v1/jobs/")
    segment = request.path.removeprefix("/v1/jobs/")
    assert not set(segment) & set("/\\?#\r\n\x00")
    assert httpx2.URL("http://a").join(request.path).path.removeprefix("/v1/jobs/") == id_


@pytest.mark.parametrize("location", ["http://[", "//", "/v1/jobs/"])
async def test_a_malformed_location_of_a_submitted_stream_is_a_fault_of_the_server(location):
    def lying(request):
        if request.path == "/v1":
            yield answer(200, discovery("count"))
        else:
            yield STREAM.replace(b"\r\n\r\n", f"\r\nLocation: {location}\r\n\r\n".encode())
            yield HOLD

    with ScriptedServer(lying) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(ProtocolError, match="no Location header that names the job"):
                await client.submit("count")
        server.wait_until_none_is_open()
