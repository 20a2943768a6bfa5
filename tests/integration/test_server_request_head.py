"""The head of a request is bounded in size and time: nobody is known yet who sends it."""

import asyncio
import json
import socket
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest
from uvicorn.protocols.http import httptools_impl

from tidewire_server import Server
from tidewire_server.http.uvicorn.uvicorn_protocol import MAX_PIPELINED

begun, sent = threading.Event(), threading.Event()


@pytest.fixture(scope="module")
def address():
    server = Server(max_head_bytes=4096, head_timeout=0.5, shutdown_timeout=0.1)

    @server.endpoint
    def double(n: int = 1) -> int:
        return 2 * n

    @server.endpoint
    async def block() -> None:
        """Keeps the event loop for longer than a head may take."""
        until = time.monotonic() + 1
        begun.set()
        sent.wait(10)
        while time.monotonic() < until:
            time.sleep(0.01)

    @server.endpoint
    async def forever() -> None:
        await asyncio.Event().wait()

    with server.running() as url:
        yield urlsplit(url).hostname, urlsplit(url).port


@pytest.fixture
def made_cycles(monkeypatch):
    """What uvicorn makes of each request."""
    made = []
    cycle = httptools_impl.RequestResponseCycle

    def make(*args, **kwargs):
        made.append(1)
        return cycle(*args, **kwargs)

    monkeypatch.setattr(httptools_impl, "RequestResponseCycle", make)
    return made


def say(address, *parts: bytes) -> bytes:
    """Send the parts and read until the server closes."""
    with socket.create_connection(address, timeout=10) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        except ConnectionError:
            return b""
        return answer


def problem(answer: bytes, status: int = 400) -> dict:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d" % status)
    assert b"application/problem+json" in head
    return json.loads(body)


def head(size: int) -> bytes:
    """A request whose head has so many bytes."""
    start = b"GET /v1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX: "
    return start + b"x" * (size - len(start) - 4) + b"\r\n\r\n"


def test_a_head_at_its_bound_is_served(address):
    assert say(address, head(4096)).startswith(b"HTTP/1.1 200")


def test_a_head_that_is_not_whole_at_its_bound_is_refused_by_name(address):
    assert "4096 bytes" in problem(say(address, head(4099)[:-2]))["detail"]


def test_a_head_without_end_is_left_at_its_bound(address):
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(b"GET /v1 HTTP/1.1\r\nX: ")
        with pytest.raises(ConnectionError):
            connection.sendall(b"x" * 50_000_000)


@pytest.mark.parametrize("part", [b"", b"GET /v1 HTTP/1.1\r\nHost: a\r\n"], ids=["nothing", "half a head"])
def test_a_head_that_does_not_come_is_not_waited_for(address, part):
    found = problem(say(address, part), 408)
    assert found["detail"] == "the request head did not arrive within 0.5 s (head_timeout)"
    assert found["retryable"] is True


def test_a_stream_that_lasts_longer_than_a_head_may_take_is_left_alone(address):
    with httpx.Client(base_url=f"http://{address[0]}:{address[1]}") as client:
        for _ in range(2):
            job = client.post("/v1/endpoints/double/jobs", json={"input": {}}).json()["id"]
            assert "done" in client.get(f"/v1/jobs/{job}/events").text
    with socket.create_connection(address, timeout=10) as connection:
        body = json.dumps({"input": {}}).encode()
        connection.sendall(
            b"POST /v1/endpoints/double/jobs HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        connection.settimeout(1.0)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(10)
        connection.sendall(body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 201")


def test_a_head_that_came_while_the_loop_was_blocked_is_served(address):
    with socket.create_connection(address, timeout=10) as connection:
        with httpx.Client(base_url=f"http://{address[0]}:{address[1]}") as client:  # accepted after the other
            client.post("/v1/endpoints/block/jobs", json={"input": {}})
        assert begun.wait(10)
        connection.sendall(head(100))
        sent.set()
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "part",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    ],
    ids=["tls", "a wrong length"],
)
def test_what_is_no_http_is_refused_like_all_else(address, part):
    assert "HTTP" in problem(say(address, part))["detail"]


def greeted(connection, job):
    """Ask for the stream of a job; what has come once its `hello` has."""
    connection.sendall(f"GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    answer = b""
    while b"event:hello" not in answer:
        answer += connection.recv(65536)
    return answer


def test_of_requests_that_come_all_at_once_few_wait_as_more_than_bytes_and_all_are_answered(
    address, made_cycles
):
    count = 2000
    with httpx.Client(base_url=f"http://{address[0]}:{address[1]}") as client:
        job = client.post("/v1/endpoints/forever/jobs", json={"input": {}}).json()["id"]
        with socket.create_connection(address, timeout=30) as connection:
            answer = greeted(connection, job)
            before = len(made_cycles)
            connection.sendall(b"PUT /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * count)
            assert client.get("/healthz").status_code == 200  # behind what the server has read of them
            assert len(made_cycles) - before < MAX_PIPELINED + 16 * 1024 / 30 + 10
            client.post(f"/v1/jobs/{job}/cancel")
            answers = 0
            while answers < count:
                chunk = connection.recv(1 << 20)
                assert chunk
                answer = answer[-20:] + chunk
                answers += answer.count(b"HTTP/1.1 405") - answer[:20].count(b"HTTP/1.1 405")


def test_what_is_no_http_behind_a_request_for_a_stream_puts_nothing_into_the_stream(address):
    with httpx.Client(base_url=f"http://{address[0]}:{address[1]}") as client:
        job = client.post("/v1/endpoints/forever/jobs", json={"input": {}}).json()["id"]
    with socket.create_connection(address, timeout=10) as connection:
        answer = greeted(connection, job)
        connection.sendall(b"\x00\xff\r\n\r\n")
        while chunk := connection.recv(65536):
            answer += chunk
        assert answer.count(b"HTTP/1.1") == 1
