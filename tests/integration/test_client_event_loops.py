"""A client outlives the event loop on which it was used: each `asyncio.run` has one of its own."""

import asyncio
import gc
import threading
import warnings

import anyio
import pytest

from support.scripted_server import (
    HOLD,
    STREAM,
    ScriptedServer,
    answer,
    done,
    event,
    hello,
    job,
    problem,
    snapshot,
    state,
)
from tidewire import AsyncClient
from tidewire.errors import TidewireError

TEXT = "/items/0/value"


def script(request):
    """A job whose stream stands after two events, and ends for those who come back."""
    if request.headers.get("authorization") == "Bearer 0" and request.path.endswith("/j1"):
        yield problem(401, "unauthorized")
    elif request.method == "POST":
        yield answer(201, job(columns=[TEXT]), Location="/v1/jobs/j1")
    elif not request.path.endswith("/events"):
        yield answer(200, job(state("a"), columns=[TEXT]))
    elif request.cursor is None:
        yield STREAM + hello() + snapshot("1-1", state("a"), columns=[TEXT])
        yield HOLD
    else:
        yield STREAM + hello() + event([["r", "b"], ["s", "/items/0/status", "succeeded"]], id="1-2")
        yield done("1-3", [{"status": "succeeded", "value": "ab"}])


def live(url, first, second, *, asks):
    async def auth():
        return {"Authorization": f"Bearer {next(tokens)}"}

    async def begin():
        job = await client.submit("count")
        updates = job.updates()
        return job, updates, [(await anext(updates)).text]

    async def go_on():
        assert not asks or await job.status() == "running"
        texts.extend([update.text async for update in updates])
        assert await job.status() == "running"
        return await job.result()

    tokens = iter([0, 1])
    client = AsyncClient(url, auth=auth, timeout=30, queue_timeout=30)
    job, updates, texts = anyio.run(begin, backend=first)
    result = anyio.run(go_on, backend=second)
    anyio.run(client.aclose, backend=second)
    return texts, result


@pytest.mark.parametrize("asks", [True, False], ids=["asks first", "reads on"])
@pytest.mark.parametrize("second", ["asyncio", "trio"])
@pytest.mark.parametrize("first", ["asyncio", "trio"])
def test_a_client_and_its_jobs_go_on_where_the_next_event_loop_runs(first, second, asks):
    with ScriptedServer(script) as server:
        assert live(server.url, first, second, asks=asks) == (["a", "b"], "ab")
        assert len(server.paths("POST")) == 1
        with warnings.catch_warnings():
            # What its loop could have closed and was not told to, Python complains of.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        server.wait_until_none_is_open()


def test_a_client_that_another_event_loop_uses_says_so():
    used, over = threading.Event(), threading.Event()

    async def use():
        async with client:
            await client.job("j1").status()
            used.set()
            await asyncio.to_thread(over.wait)
            await client.job("j1").status()

    with ScriptedServer(script) as server:
        client = AsyncClient(server.url)
        other = threading.Thread(target=asyncio.run, args=(use(),))
        other.start()
        assert used.wait(30)
        with pytest.raises(TidewireError, match="in use on another event loop. Make a client for each"):
            asyncio.run(client.job("j1").status())
        over.set()
        other.join(30)
        assert len(server.requests) == 2
        server.wait_until_none_is_open()
