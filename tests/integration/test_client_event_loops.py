"""An AsyncClient and its jobs belong to the event loop of their first use."""

import gc
import threading
import warnings

import anyio
import anyio.from_thread
import pytest

from support.scripted_server import HOLD, STREAM, ScriptedServer, answer, event, hello, job, state
from tidewire import AsyncClient
from tidewire.errors import ClientClosedError, EventLoopError, TidewireError
from tidewire.testing import FakeServer

TEXT = "/items/0/value"
MESSAGE = r"belongs to another event loop.*Create one AsyncClient per event loop"


def script(request):
    """Script for a job whose stream is silent after one value."""
    if request.method == "POST":
        yield answer(201, job(columns=[TEXT]), Location="/v1/jobs/j1")
    elif not request.path.endswith("/events"):
        yield answer(200, job(state("a"), columns=[TEXT]))
    else:
        yield STREAM + hello() + event([["s", TEXT, "a"]], id="1-2")
        yield HOLD


@pytest.fixture
def server():
    with ScriptedServer(script) as server:
        yield server
        with warnings.catch_warnings():
            # asyncio warns about connections of an ended event loop because nothing can close them any more.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        server.wait_until_none_is_open()


@pytest.mark.parametrize("second", ["asyncio", "trio"])
@pytest.mark.parametrize("first", ["asyncio", "trio"])
def test_every_call_on_another_event_loop_raises(server, first, second):
    auth_calls = []

    def auth():
        auth_calls.append("credentials")
        return {}

    async def begin():
        started = await client.submit("count")
        updates = started.updates()
        return started, updates, (await anext(updates)).value

    async def refused():
        for work in (
            lambda: client.submit("count"),
            started.status,
            started.result,
            lambda: anext(updates),
            lambda: anext(started.updates()),
            started.cancel,
            client.aclose,
        ):
            with pytest.raises(EventLoopError, match=MESSAGE) as caught:
                await work()
            assert isinstance(caught.value, TidewireError)
            assert isinstance(caught.value, RuntimeError)

    client = AsyncClient(server.url, auth=auth, timeout=30, queue_timeout=30)
    started, updates, value = anyio.run(begin, backend=first)
    assert value == "a"
    requests = len(server.requests)
    anyio.run(refused, backend=second)
    assert len(server.requests) == requests
    assert auth_calls == ["credentials"]
    assert started.checkpoint().cursor == "1-2"


def use_an_ended_job_on_another_event_loop(url, backend):
    async def begin():
        started = await client.submit("say")
        assert await started.result() == "ab"
        return started

    async def refused():
        for work in (started.result, started.wait):
            with pytest.raises(EventLoopError, match=MESSAGE):
                await work()

    client = AsyncClient(url)
    started = anyio.run(begin)
    assert started.ended
    anyio.run(refused, backend=backend)


@pytest.mark.parametrize("second", ["asyncio", "trio"])
def test_waiting_for_an_ended_job_on_another_event_loop_raises(second):
    with FakeServer() as server:
        server.endpoint("say").streams(["a", "b"])
        with warnings.catch_warnings():
            # The client cannot be closed, because its event loop has ended.
            warnings.simplefilter("ignore", ResourceWarning)
            use_an_ended_job_on_another_event_loop(server.url, second)
            gc.collect()


def test_using_a_client_of_another_running_event_loop_raises(server):
    with anyio.from_thread.start_blocking_portal() as portal:
        client = AsyncClient(server.url)
        assert portal.call(client.job("j1").status) == "running"
        with pytest.raises(EventLoopError, match=MESSAGE):
            anyio.run(client.job("j1").status)
        assert portal.call(client.job("j1").status) == "running"
        portal.call(client.aclose)


def test_a_client_created_on_one_event_loop_can_be_first_used_on_another(server):
    async def make():
        client = AsyncClient(server.url)
        return client, client.job("j1")

    async def use():
        async with client:
            assert await started.status() == "running"

    client, started = anyio.run(make)
    anyio.run(use, backend="trio")


def test_a_closed_client_can_be_closed_again_on_any_event_loop(server):
    async def use():
        await client.job("j1").status()
        await client.aclose()

    client = AsyncClient(server.url)
    anyio.run(use)
    anyio.run(client.aclose, backend="trio")


def test_a_client_created_in_another_thread_works(server):
    clients = []
    other = threading.Thread(target=lambda: clients.append(AsyncClient(server.url)))
    other.start()
    other.join(30)

    async def use():
        async with clients.pop() as client:
            assert await client.job("j1").status() == "running"
        with pytest.raises(ClientClosedError):
            await client.discover()

    anyio.run(use)
