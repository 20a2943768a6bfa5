"""Bodies that arrive slowly on many connections: their total size is limited."""

import contextlib
import json
import socket
from urllib.parse import urlsplit

import pytest

from support.reference_server import QUICK, eventually, serving
from tidewire_server import Server
from tidewire_server.errors import ProblemError
from tidewire_server.http.body_memory_limit import IncomingBodies

LIMIT = 300_000


@pytest.fixture(scope="module")
def server():
    server = Server(**QUICK, max_incoming_bytes=LIMIT, body_timeout=20)

    @server.endpoint
    def size(text: str) -> int:
        return len(text)

    return server


@pytest.fixture(scope="module")
def peer(server):
    with serving(server) as peer:
        yield peer


@pytest.fixture
def connect(peer):
    """Function that opens a connection to the server."""
    url = urlsplit(peer.url)
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(socket.create_connection((url.hostname, url.port), timeout=20))


@pytest.fixture
def received(server):
    """Function that returns the number of bytes that the server counts."""
    eventually(lambda: server.app.handlers.bodies.total == 0)
    return lambda: server.app.handlers.bodies.total


def submit_request(size: int, headers: bytes = b"") -> tuple[bytes, bytes]:
    """Return a request head, and a body of the given size."""
    text = "x" * (size - len('{"input": {"text": ""}}'))
    head = (
        b"POST /v1/endpoints/size/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        + headers
    )
    return head + b"Content-Length: %d\r\n\r\n" % size, json.dumps({"input": {"text": text}}).encode()


def status(connection: socket.socket) -> bytes:
    return connection.recv(65536).split(b" ", 2)[1]


def test_bodies_up_to_max_incoming_bytes_are_received_and_others_refused(connect, received, peer):
    slow, other = connect(), connect()
    head, body = submit_request(LIMIT)
    slow.sendall(head + body[:-1])
    eventually(lambda: received() == LIMIT - 1)

    head, body = submit_request(200_000)
    other.sendall(head + body[:-1])
    answer = other.recv(65536)
    assert b" 503 " in answer
    assert b"retry-after: 1" in answer.lower()
    assert b"limit of 300000 bytes (max_incoming_bytes)" in answer
    assert peer.value("size", {"text": "small"}) == 5  # A small body that arrives at once is served.

    slow.sendall(submit_request(LIMIT)[1][-1:])
    assert status(slow) == b"201"
    eventually(lambda: received() == 0)


def test_bytes_of_a_disconnected_client_are_no_longer_counted(connect, received):
    slow = connect()
    head, body = submit_request(LIMIT)
    slow.sendall(head + body[:-1])
    eventually(lambda: received() == LIMIT - 1)
    slow.close()
    eventually(lambda: received() == 0)


def test_bytes_are_counted_up_to_the_limit():
    bodies = IncomingBodies(10)
    with bodies.counting("a") as first, bodies.counting("b") as second:
        first(4)
        second(6)
        with pytest.raises(ProblemError) as refused:
            first(1)
        assert (refused.value.problem.status, refused.value.problem.code) == (503, "unavailable")
    with bodies.counting("a") as single:
        single(10)
        single(1)  # A single body is limited by `max_body_bytes`.


def test_a_caller_that_fills_its_share_leaves_the_rest_to_others():
    server = Server(
        **QUICK, max_incoming_bytes=LIMIT, body_timeout=20, tokens=["ann:" + "a" * 32, "bob:" + "b" * 32]
    )

    @server.endpoint
    def size(text: str) -> int:
        return len(text)

    with server.running() as base, contextlib.ExitStack() as stack:
        url = urlsplit(base)

        def send(caller: bytes, size: int) -> socket.socket:
            connection = stack.enter_context(socket.create_connection((url.hostname, url.port), timeout=20))
            head, body = submit_request(size, b"Authorization: Bearer " + caller * 32 + b"\r\n")
            connection.sendall(head + body[:-1])
            return connection

        send(b"a", 100_000)
        eventually(lambda: server.app.handlers.bodies.total == 99_999)
        answer = send(b"a", 100_000).recv(65536)
        assert b" 503 " in answer
        assert b"bodies of this caller" in answer
        assert b"limit of 150000 bytes (max_incoming_bytes, max_share)" in answer
        other = send(b"b", 150_000)
        eventually(lambda: server.app.handlers.bodies.total == 249_998)
        other.sendall(b"}")
        assert status(other) == b"201"
