"""Abandoned clients, jobs and loops leave no socket, thread or task behind, on asyncio and trio."""

import asyncio
import gc
import subprocess
import sys
import threading
import warnings

import anyio
import anyio.lowlevel
import pytest

from support.client_timing import session_of
from support.leak_checks import drop
from support.scripted_server import HOLD, STREAM, ScriptedServer, answer, event, hello, job, snapshot, state
from tidewire import AsyncClient, Client, sync
from tidewire.blocking import event_loop_thread
from tidewire.errors import ClientClosedError
from tidewire.jobs.job_reader import BLOCK

pytestmark = pytest.mark.usefixtures("nothing_is_left")

TEXT = "/items/0/value"


@pytest.fixture
def server():
    """A server whose stream sends some text and then stays silent."""

    def script(request):
        if request.method == "POST":
            yield answer(201, job(columns=[TEXT]), Location="/v1/jobs/j1")
            return
        yield STREAM + hello()
        yield snapshot("1-1", state("a"), columns=[TEXT])
        yield b"".join(event("b", id=f"1-{seq}") for seq in range(2, 400))
        yield HOLD

    with ScriptedServer(script) as server:
        yield server
        server.wait_until_none_is_open()


async def leave_loop_by_break(client):
    async with client:
        async for _ in await client.submit("count"):
            break


async def close_iterator(client):
    updates = (await client.submit("count")).updates()
    await anext(updates)
    await updates.aclose()
    await client.aclose()


async def cancel_while_waiting(client):
    async with client:
        with anyio.move_on_after(0.2):
            await client.run("count")


async def close_while_another_task_waits(client):
    async def wait():
        with pytest.raises(ClientClosedError):
            await client.run("count")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        while not session_of(client).transport.open:
            await anyio.sleep(0.01)
        await client.aclose()


async def leave_loop_by_cancel_scope(client):
    async with client:
        with anyio.CancelScope() as scope:
            async for _ in await client.submit("count"):
                scope.cancel()


async def _loop_with_an_error(client):
    async with client:
        async for update in await client.submit("count"):
            raise KeyError(update.id)


async def raise_in_loop(client):
    with pytest.raises(KeyError):
        await _loop_with_an_error(client)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    "abandon",
    [
        leave_loop_by_break,
        close_iterator,
        cancel_while_waiting,
        close_while_another_task_waits,
        leave_loop_by_cancel_scope,
        raise_in_loop,
    ],
)
def test_an_abandoned_async_client_leaves_no_task_or_socket(server, backend, abandon):
    async def main():
        tasks = len(anyio.get_running_tasks())
        await abandon(AsyncClient(server.url))
        with anyio.fail_after(10):
            while len(anyio.get_running_tasks()) > tasks:
                await anyio.sleep(0.01)

    anyio.run(main, backend=backend)


UNCLOSED_CLIENT = """
import sys
import anyio
import anyio.lowlevel
from tidewire import AsyncClient

async def careless():
    client = AsyncClient(sys.argv[1])
    unread, begun = await client.submit("count"), await client.submit("count")
    async for update in (updates := begun.updates()):
        break
    kept.append((client, unread, updates))
    await AsyncClient(sys.argv[1]).submit("count")

kept = []
for backend in "asyncio", "trio":
    anyio.run(careless, backend=backend)
print(len(kept))
"""


@pytest.mark.heavy
def test_a_script_that_closes_nothing_exits_without_output_on_stderr():
    def script(_):
        yield STREAM[:-4] + b"\r\nLocation: /v1/jobs/j1\r\nContent-Location: /v1/jobs/j1/events\r\n\r\n"
        yield hello() + snapshot("1-1", state("a"), columns=[TEXT])
        yield HOLD

    with ScriptedServer(script) as server:
        command = [sys.executable, "-c", UNCLOSED_CLIENT, server.url]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "2\n", "")
        assert len(server.requests) == 6
        server.wait_until_none_is_open()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_garbage_collected_async_client_warns_once_and_closes_its_pool(server, backend):
    async def use():
        client = AsyncClient(server.url)
        # One loop was left by `break`; the other is kept and belongs to another view of the client.
        async for _ in await client.submit("count"):
            break
        updates = (await client.with_options(timeout=30).submit("count")).updates()
        await anext(updates)
        return updates

    async def drop_and_wait(held):
        with anyio.fail_after(10):
            while server.open:
                drop(held)
                await anyio.sleep(0.01)
        drop(held)

    async def main():
        held = [await use()]
        with pytest.warns(ResourceWarning, match="was not closed") as warned:
            await drop_and_wait(held)
        assert [one.category for one in warned] == [ResourceWarning]

    anyio.run(main, backend=backend)


def leave_idle(_):
    # The response has a length, so the connection stays open for the next request.
    yield answer(200, {"jobs": []})
    yield HOLD


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("dropped", ["inside the loop", "after the loop"])
def test_a_garbage_collected_async_client_with_an_idle_connection_warns_once(backend, dropped):
    def drop_with_one_warning(held):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            drop(held)
        messages = [str(one.message) for one in warned]
        assert len(messages) == 1, messages
        assert "tidewire client was not closed" in messages[0]

    with ScriptedServer(leave_idle) as server:

        async def main():
            client = AsyncClient(server.url)
            await client.jobs()
            # The garbage collector finalizes the objects of a reference cycle, and all that only they refer to, in any
            # order.
            held = [[client]]
            held[0].append(held[0])
            del client
            if dropped == "inside the loop":
                drop_with_one_warning(held)
                await anyio.to_thread.run_sync(server.wait_until_none_is_open)
            return held

        held = anyio.run(main, backend=backend)
        if held:
            drop_with_one_warning(held)
        server.wait_until_none_is_open()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_cancelled_close_closes_idle_connections_without_a_warning(backend, calls):
    with ScriptedServer(leave_idle) as server:

        async def main():
            client = AsyncClient(server.url)
            await client.jobs()
            async with anyio.create_task_group() as tasks:
                for _ in range(calls):
                    tasks.start_soon(client.aclose)
                tasks.cancel_scope.cancel()
            del client
            gc.collect()
            await anyio.to_thread.run_sync(server.wait_until_none_is_open)

        anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_unused_async_client_is_collected_without_a_warning(backend):
    async def main():
        AsyncClient("http://127.0.0.1:1").job("j1")
        gc.collect()

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_loops_left_by_break_close_their_sockets_before_the_client_closes(server, backend):
    async def main():
        async with AsyncClient(server.url) as client:
            for _ in range(5):
                async for _ in client.job("j1"):
                    break
            with anyio.fail_after(10):
                while session_of(client).transport.open or server.open:
                    await anyio.sleep(0.01)

    anyio.run(main, backend=backend)


def test_an_iterator_collected_in_another_thread_closes_its_connection(server):
    async def main():
        async with AsyncClient(server.url) as client:
            held = [client.job("j1").updates()]
            await anext(held[0])
            await anyio.to_thread.run_sync(held.clear)
            await anyio.to_thread.run_sync(server.wait_until_none_is_open)
            assert not session_of(client).transport.open

    anyio.run(main)


def test_asyncio_timeout_leaves_no_task_or_socket(server):
    async def main():
        async with AsyncClient(server.url) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await client.run("count")
            assert len(asyncio.all_tasks()) == 1
            # The client stays usable after the timeout.
            assert (await client.submit("count")).id == "j1"

    asyncio.run(main())


def interrupt_in_wait(waits_in, work, *args):
    """Call a function and raise KeyboardInterrupt in it while `waits_in` waits for a `threading.Event`."""
    hits = []

    def watch(frame, what, _):
        called = (frame.f_code, frame.f_back and frame.f_back.f_code)
        if what == "call" and not hits and called == (threading.Event.wait.__code__, waits_in.__code__):
            hits.append(called)
            raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        with pytest.raises(KeyboardInterrupt):
            work(*args)
    finally:
        sys.setprofile(None)
    assert hits


def test_an_interrupt_while_the_event_loop_thread_starts_keeps_the_client_usable(server):
    with Client(server.url) as client:
        interrupt_in_wait(threading.Thread.start, client.submit, "count")
        assert client.submit("count").id == "j1"


def test_a_client_interrupted_while_its_thread_starts_can_be_closed(server):
    client = Client(server.url)
    interrupt_in_wait(threading.Thread.start, client.submit, "count")
    client.close()


def test_close_can_be_repeated_after_an_interrupt_at_any_point(server):
    files, at, hit = {sync.__file__, event_loop_thread.__file__, threading.__file__}, 0, True

    def watch(frame, what, called):
        # The interpreter checks for signals after each call, except for the `__enter__` of a lock. Python 3.14 checks there, too,
        # and may leave the lock held, which no program can prevent (github.com/python/cpython/issues/148874).
        nonlocal passed, hit
        if getattr(called, "__name__", None) == "__enter__":
            return
        if what in {"call", "c_return"} and frame.f_code.co_filename in files:
            passed += 1
            if passed == at:
                hit = True
                raise KeyboardInterrupt

    while hit:
        at, hit = at + 1, False
        client = Client(server.url)
        client.submit("count")
        for _ in range(1 + at % 2):
            passed = 0
            sys.setprofile(watch)
            try:
                client.close()
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
        with warnings.catch_warnings():
            # An interrupt before the first step of `close` leaves the client unclosed, which causes this warning.
            warnings.simplefilter("ignore", ResourceWarning)
            del client
    assert at > 15  # From Python 3.13 on, a part of `threading` is written in C.


@pytest.mark.heavy
def test_a_slow_blocking_reader_receives_at_most_one_block_ahead():
    many = 8 * BLOCK

    def script(request):
        if request.method == "POST":
            yield answer(201, job(columns=[TEXT]), Location="/v1/jobs/j1")
        elif not request.path.endswith("/events"):
            yield answer(200, job(state("a")))
        else:
            yield STREAM + hello() + snapshot("1-1", state(""), columns=[TEXT])
            yield b"".join(event("b", id=f"1-{seq}") for seq in range(2, many + 2))
            yield HOLD

    with ScriptedServer(script) as server, Client(server.url) as client:
        reading = client.submit("count")
        updates = iter(reading)
        follower = reading._inner[1]._reader._stream.follower
        for number in range(1, many + 1):
            next(updates)
            # This call runs on the event-loop thread and would alternate with reading ahead.
            reading.status()
            assert follower.cursor.seq <= number + 2 * BLOCK
