"""The request head is bounded in size and time, because the client is not authenticated yet."""

import asyncio
import json
import re
import socket
import threading
import time

import httpx2
import pytest
from uvicorn.protocols.http import httptools_impl

from support.server_address import address_of
from tidewire_server import Server
from tidewire_server.http.uvicorn.uvicorn_protocol import MAX_HEADERS, MAX_PIPELINED

begun, sent = threading.Event(), threading.Event()


@pytest.fixture(scope="module")
def address():
    server = Server(max_head_bytes=4096, head_timeout=0.5, keep_alive_timeout=1, shutdown_timeout=0.1)

    @server.endpoint
    def double(n: int = 1) -> int:
        return 2 * n

    @server.endpoint
    async def block() -> None:
        """Block the event loop for longer than `head_timeout`."""
        end = time.monotonic() + 1
        begun.set()
        sent.wait(10)
        while time.monotonic() < end:
            time.sleep(0.01)

    @server.endpoint
    async def forever() -> None:
        await asyncio.Event().wait()

    with server.running() as url:
        yield address_of(url)


@pytest.fixture
def created_cycles(monkeypatch):
    """Count the request/response cycles that uvicorn creates."""
    created = []
    cycle = httptools_impl.RequestResponseCycle

    def make(*args, **kwargs):
        created.append(1)
        return cycle(*args, **kwargs)

    monkeypatch.setattr(httptools_impl, "RequestResponseCycle", make)
    return created


def exchange(address, *parts: bytes) -> bytes:
    """Send the parts and read until the server closes the connection."""
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
    """A request whose head has `size` bytes."""
    start = b"GET /v1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: "
    return start + b"x" * (size - len(start) - 4) + b"\r\n\r\n"


def test_a_head_of_max_head_bytes_is_served(address):
    assert exchange(address, head(4096)).startswith(b"HTTP/1.1 200")


def test_a_head_above_max_head_bytes_is_refused_with_the_limit(address):
    assert "4096 bytes" in problem(exchange(address, head(4099)[:-2]))["detail"]


def test_the_number_of_header_lines_is_limited(address):
    """A short line takes many times its size when it is parsed."""
    start = b"GET /v1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    most = start + b"a: b\r\n" * (MAX_HEADERS - 2)
    assert exchange(address, most + b"\r\n").startswith(b"HTTP/1.1 200")
    answer = exchange(address, most + b"a: b\r\n\r\n")
    assert problem(answer)["detail"] == f"the request has more than {MAX_HEADERS} header lines"
    assert answer.count(b"HTTP/1.1") == 1


def test_a_request_with_too_many_header_lines_does_not_end_the_responses_before_it(address):
    lines = b"a: b\r\n" * MAX_HEADERS
    answer = exchange(address, SUBMIT + SUBMIT + b"GET /v1 HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n")
    assert answer.count(b"HTTP/1.1 201") == 2
    assert b"HTTP/1.1 200" not in answer


def test_the_server_closes_the_connection_of_an_endless_head(address):
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(b"GET /v1 HTTP/1.1\r\nX: ")
        with pytest.raises(ConnectionError):
            connection.sendall(b"x" * 50_000_000)


@pytest.mark.parametrize(
    "part", [b"", b"GET /v1 HTTP/1.1\r\nHost: localhost\r\n"], ids=["nothing", "half a head"]
)
def test_an_incomplete_head_times_out_with_408(address, part):
    found = problem(exchange(address, part), 408)
    assert found["detail"] == "the request head did not arrive within 0.5 s (head_timeout)"
    assert found["retryable"] is True


@pytest.mark.heavy
@pytest.mark.parametrize(
    "parts",
    [
        [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\r\n"],
        [b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{", b"}"],
        # The parser gets this body in slices of 16 KiB, as if they arrived one after the other.
        [b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40000\r\n\r\n{", b"}" * 39_999],
    ],
    ids=["an empty line", "the end of a body", "the end of a body in several slices"],
)
def test_bytes_that_begin_no_request_do_not_keep_an_idle_connection_open(address, parts):
    first, last = parts
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(first)
        answer = b""
        while not answer.endswith(b"}"):
            answer += connection.recv(65536)
        connection.sendall(last)
        assert connection.recv(65536) == b""


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_the_connection_of_a_refused_body_is_not_reset_while_the_body_arrives(address, version):
    """A proxy that sends `Connection: close` would otherwise lose the response, and send 502 in its place."""
    start = b"POST /v1/endpoints/double/jobs HTTP/%b\r\nHost: localhost\r\nConnection: close\r\n" % version
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(start + b"Content-Type: application/json\r\nContent-Length: 10000000\r\n\r\n")
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
        assert problem(answer, 413)["code"] == "body_too_large"
        assert b"\r\nconnection: close\r\n" in answer
        for _ in range(100):
            connection.sendall(b"x" * 100_000)


def test_head_timeout_does_not_apply_to_streams_and_bodies(address):
    with httpx2.Client(base_url=f"http://{address[0]}:{address[1]}") as client:
        for _ in range(2):
            job = client.post("/v1/endpoints/double/jobs", json={"input": {}}).json()["id"]
            assert "done" in client.get(f"/v1/jobs/{job}/events").text
    with socket.create_connection(address, timeout=10) as connection:
        body = json.dumps({"input": {}}).encode()
        connection.sendall(
            b"POST /v1/endpoints/double/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        connection.settimeout(1.0)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(10)
        connection.sendall(body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 201")


def test_a_head_that_arrived_while_the_event_loop_was_blocked_is_served(address):
    with socket.create_connection(address, timeout=10) as connection:
        with httpx2.Client(
            base_url=f"http://{address[0]}:{address[1]}"
        ) as client:  # The client's connection is accepted after the first connection.
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
def test_bytes_that_are_not_http_are_refused_with_a_problem(address, part):
    assert "HTTP" in problem(exchange(address, part))["detail"]


def open_stream(connection, job):
    """Request the stream of a job and return the bytes received up to and including its `hello`."""
    connection.sendall(f"GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answer = b""
    while b"event:hello" not in answer:
        answer += connection.recv(65536)
    return answer


def test_pipelined_requests_are_parsed_in_small_numbers_and_all_answered(address, created_cycles):
    count = 2000
    with httpx2.Client(base_url=f"http://{address[0]}:{address[1]}") as client:
        job = client.post("/v1/endpoints/forever/jobs", json={"input": {}}).json()["id"]
        with socket.create_connection(address, timeout=30) as connection:
            answer = open_stream(connection, job)
            before = len(created_cycles)
            connection.sendall(b"PUT /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * count)
            assert (
                client.get("/healthz").status_code == 200
            )  # The server has read at least a part of the pipelined requests by the time it answers this request.
            assert len(created_cycles) - before < MAX_PIPELINED + 16 * 1024 / 30 + 10
            # Meanwhile, the server does not read the rest of a head, which is therefore not late like that of another client.
            assert b"request.late" in exchange(address, b"GET / HTTP/1.1\r\nHost")
            client.post(f"/v1/jobs/{job}/cancel")
            answers = 0
            while answers < count:
                chunk = connection.recv(1 << 20)
                assert chunk
                answer = answer[-20:] + chunk
                answers += answer.count(b"HTTP/1.1 405") - answer[:20].count(b"HTTP/1.1 405")


def test_garbage_after_a_stream_request_does_not_end_or_enter_the_stream(address):
    with httpx2.Client(base_url=f"http://{address[0]}:{address[1]}") as client:
        job = client.post("/v1/endpoints/forever/jobs", json={"input": {}}).json()["id"]
        with socket.create_connection(address, timeout=10) as connection:
            answer = open_stream(connection, job)
            connection.sendall(b"\x00\xff\r\n\r\n")
            client.post(f"/v1/jobs/{job}/cancel")
            while chunk := connection.recv(65536):
                answer += chunk
    assert answer.count(b"HTTP/1.1") == 1
    assert b"event:done" in answer


SUBMIT = (
    b"POST /v1/endpoints/double/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Content-Length: 19\r\n\r\n{"input": {"n": 1}}'
)
BAD_CHUNK = (
    b"POST /v1/endpoints/double/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nno length\r\n"
)


@pytest.mark.parametrize(
    "after",
    [b"}}", b"\x00\xff\r\n\r\n", b"GET /v1 HTTP/1.1\r\nHost: lo"],
    ids=["a longer body", "not HTTP", "half a head"],
)
def test_requests_before_invalid_bytes_are_answered(address, after):
    answer = exchange(address, SUBMIT + SUBMIT + after)
    assert answer.count(b"HTTP/1.1 201") == 2


def test_a_pipelined_request_with_an_invalid_body_is_refused_in_its_turn(address):
    answer = exchange(address, SUBMIT + BAD_CHUNK)
    assert answer.startswith(b"HTTP/1.1 201")
    assert (
        problem(answer[answer.index(b"HTTP/1.1 400") :])["detail"]
        == "the data is not a valid HTTP/1.1 request"
    )


def test_a_connection_is_closed_after_invalid_bytes(address):
    """The requests behind the invalid bytes are not served: where they begin is not known."""
    answer = exchange(address, SUBMIT + b"}}" + SUBMIT, SUBMIT)
    assert answer.count(b"HTTP/1.1 201") == 1


def test_refused_requests_are_counted_like_other_problems(address):
    def count(code: str) -> float:
        page = httpx2.get("http://{}:{}/metrics".format(*address)).text
        return float(re.search(f'^tidewire_problems_total{{code="{code}"}} (.*)$', page, re.MULTILINE)[1])

    exchange(address, b"GET / HTTP/1.1\r\nHost")
    exchange(address, b"\0\0\r\n\r\n")
    before = {code: count(code) for code in ("request.late", "bad_parameter")}
    exchange(address, b"GET / HTTP/1.1\r\nHost")
    exchange(address, b"\0\0\r\n\r\n")
    # A request whose body is not valid gets its response in its turn.
    exchange(
        address,
        b"POST /v1/endpoints/double/jobs HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    )
    assert count("request.late") == before["request.late"] + 1
    assert count("bad_parameter") == before["bad_parameter"] + 2
