"""Cancelling an AsyncClient at any await leaves no open connection.

An interrupt of `asyncio.run` cancels the main task in the same way.
"""

import asyncio
import contextlib
import gc
import types

import anyio
import pytest
from anyio.abc import SocketAttribute

from support.scripted_server import (
    CLOSE,
    STREAM,
    ScriptedServer,
    answer,
    done,
    event,
    hello,
    job,
    snapshot,
    state,
)
from tidewire import AsyncClient

pytestmark = pytest.mark.usefixtures("nothing_is_left")

TEXT = "/items/0/value"
TO_ITSELF = b"\r\nLocation: /v1/jobs/j1\r\nContent-Location: /v1/jobs/j1/events\r\n\r\n"
ENDED = [{"status": "succeeded", "value": "abc"}]


@types.coroutine
def cancel_at(work, await_number, *, too_late, seen):
    """Run a coroutine and cancel its task at the await with this number.

    Args:
        work: The coroutine.
        await_number: The await at which to cancel, counted from 1.
        too_late: Cancel only after the awaited future is done but before the task resumes.
        seen: A list that receives one entry per await.
    """
    error = None
    while True:
        try:
            waits_for = work.send(None) if error is None else work.throw(error)
        except StopIteration as end:
            return end.value
        seen.append(waits_for)
        if len(seen) == await_number:
            cancel = asyncio.current_task().cancel
            if too_late and waits_for is not None:
                waits_for.add_done_callback(lambda _, cancel=cancel: cancel())
            else:
                asyncio.get_running_loop().call_soon(cancel)
        try:
            error = yield waits_for
        except BaseException as thrown:
            error = thrown


def script_of(*, answers_with_stream):
    """Script for a job whose stream breaks twice, so the client connects, reads, waits and reconnects."""

    def script(request):
        if request.method == "POST" and not answers_with_stream:
            yield answer(201, job(columns=[TEXT]), Location="/v1/jobs/j1")
            return
        if request.method == "GET" and not request.path.endswith("/events"):
            yield answer(200, job(state("a"), columns=[TEXT]))
            return
        yield (STREAM[:-4] + TO_ITSELF if request.method == "POST" else STREAM) + hello()
        match request.cursor:
            case None:
                yield snapshot("1-1", state("a"), columns=[TEXT])
            case "1-1":
                yield event("b", id="1-2")
            case "1-2":
                yield event([["r", "c"], ["s", "/items/0/status", "succeeded"]], id="1-3")
                yield done("1-4", ENDED)
        yield CLOSE

    return script


async def run_job(url):
    async with AsyncClient(url, verify=False) as client:
        job = await client.submit("count")
        async for _ in job:
            break
        assert await job.result() == "abc"
        await job.status()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("answers_with_stream", "too_late"),
    [
        (False, False),
        (True, True),
        pytest.param(False, True, marks=pytest.mark.slow),
        pytest.param(True, False, marks=pytest.mark.slow),
    ],
)
def test_cancelling_a_client_at_any_await_leaves_nothing_open(answers_with_stream, too_late):
    async def cancelled(url, number, seen):
        await cancel_at(run_job(url), number, too_late=too_late, seen=seen)

    with ScriptedServer(script_of(answers_with_stream=answers_with_stream)) as server:
        number, seen = 0, []
        while len(seen) >= number:
            number, seen = number + 1, []
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(cancelled(server.url, number, seen))
        # Unclosed resources warn when they are collected, and warnings are errors in tests.
        gc.collect()
        assert number > 20
        server.wait_until_none_is_open()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("address", "proxy"),
    [
        ("https://{}", None),
        pytest.param("https://server.example", "http://{}", id="behind a proxy"),
        pytest.param("http://server.example", "https://{}", id="with a proxy"),
    ],
)
async def test_a_cancelled_tls_or_proxy_handshake_closes_the_connection(address, proxy):
    async def broken_off(connection):
        async with connection:
            if (await connection.receive(7)) == b"CONNECT":
                while not (await connection.receive()).endswith(b"\r\n\r\n"):
                    pass
                await connection.send(b"HTTP/1.1 200 Connected\r\n\r\n")
                await connection.receive(1)
            client_tasks.cancel_scope.cancel()
            async for _ in connection:
                pass
            tasks.cancel_scope.cancel()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        here = f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        async with (
            AsyncClient(
                address.format(here), verify=False, proxy=None if proxy is None else proxy.format(here)
            ) as client,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(listener.serve, broken_off)
            async with anyio.create_task_group() as client_tasks:
                client_tasks.start_soon(client.submit, "count")
            with anyio.fail_after(30):
                await anyio.sleep_forever()
