"""Tests of the guard for unit tests: connections and threads are refused, and event loops work."""

import asyncio
import concurrent.futures
import contextlib
import socket
import socketserver
import threading

import pytest
import trio

from support.unit_guard import NotInUnitTestsError, fail_if_any


@pytest.fixture
def refusal(refused_calls):
    """Return a context manager that expects a refused call and clears it, so that the test does not fail."""

    @contextlib.contextmanager
    def expected():
        with pytest.raises(NotInUnitTestsError, match="move this test to tests/integration"):
            yield
        assert refused_calls
        refused_calls.clear()

    return expected


def nothing() -> None:
    raise AssertionError("a thread ran")


@pytest.mark.parametrize("call", ["connect", "connect_ex", "bind"])
@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, ("127.0.0.1", 0)),
        (socket.AF_INET6, ("::1", 0)),
        (socket.AF_UNIX, "/nowhere/socket"),
    ],
)
def test_socket_cannot_connect_or_bind(refusal, family, address, call):
    with socket.socket(family) as one, refusal():
        getattr(one, call)(address)


def test_thread_cannot_start(refusal):
    with refusal():
        threading.Thread(target=nothing).start()


def test_timer_cannot_start(refusal):
    with refusal():
        threading.Timer(60, nothing).start()


def test_executor_cannot_start(refusal):
    pool = concurrent.futures.ThreadPoolExecutor()
    with refusal():
        pool.submit(nothing)


def test_socketserver_cannot_bind(refusal):
    with refusal():
        socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)


async def connect_by_asyncio() -> None:
    with socket.socket() as one:
        one.setblocking(False)
        await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", 9))


async def listen_by_asyncio() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        await asyncio.start_server(lambda _reader, _writer: None, sock=one)


async def run_in_a_thread_of_asyncio() -> None:
    await asyncio.to_thread(nothing)


@pytest.mark.parametrize("work", [connect_by_asyncio, listen_by_asyncio, run_in_a_thread_of_asyncio])
def test_asyncio_cannot_connect_or_start_a_thread(refusal, work):
    with refusal():
        asyncio.run(work())


async def connect_by_trio() -> None:
    with trio.socket.socket() as one:
        await one.connect(("127.0.0.1", 9))


async def run_in_a_thread_of_trio() -> None:
    await trio.to_thread.run_sync(nothing)


@pytest.mark.parametrize("work", [connect_by_trio, run_in_a_thread_of_trio])
def test_trio_cannot_connect_or_start_a_thread(refusal, work):
    with refusal():
        trio.run(work)


def test_event_loops_work():
    async def three() -> int:
        await asyncio.sleep(0)
        return 3

    async def four() -> int:
        await trio.lowlevel.checkpoint()
        return 4

    assert (asyncio.run(three()), trio.run(four)) == (3, 4)


def test_caught_refusal_fails_its_own_test_and_not_the_next(refused_calls):
    with contextlib.suppress(NotInUnitTestsError):
        threading.Thread(target=nothing).start()
    with pytest.raises(pytest.fail.Exception, match=r"this one tried Thread.start"):
        fail_if_any(refused_calls)
    fail_if_any(refused_calls)
