"""Trailer sections and chunk extensions of request bodies: they are limited in size, and never read as headers."""

import asyncio
import json
import re
import socket

import httpx2
import pytest

from support.server_address import address_of
from tidewire_server import Server
from tidewire_server.http.uvicorn import slow_reader_sender

LIMIT = 2048
HEAD = b"POST /v1/endpoints/double/jobs HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b'c\r\n{"input":{}}\r\n'


@pytest.fixture(scope="module")
def address():
    server = Server(max_head_bytes=LIMIT, tokens=["ann:" + "a" * 32], shutdown_timeout=0.1)

    @server.endpoint
    def double(n: int = 1) -> int:
        return 2 * n

    @server.endpoint
    async def forever() -> None:
        await asyncio.Event().wait()

    with server.running() as url:
        yield address_of(url)


TOKEN = b"Authorization: Bearer " + b"a" * 32 + b"\r\n"


@pytest.fixture
def connection(address):
    with socket.create_connection(address, timeout=10) as connection:
        yield connection


def answer(connection) -> tuple[int, dict]:
    """Read one response with a Content-Length."""
    received = b""
    while not (
        head := re.match(
            rb"HTTP/1.1 (\d+).*?content-length: (\d+).*?\r\n\r\n", received, re.DOTALL | re.IGNORECASE
        )
    ):
        chunk = connection.recv(65536)
        assert chunk, received
        received += chunk
    body = received[head.end() :]
    while len(body) < int(head[2]):
        body += connection.recv(65536)
    return int(head[1]), json.loads(body)


def wait_until_head_is_parsed(connection) -> None:
    """Send the head of a submit request with a body, and wait until the server asks for the body."""
    connection.sendall(HEAD + TOKEN + b"Expect: 100-continue\r\n" + CHUNKED)
    assert connection.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"


def is_closed(connection) -> bool:
    try:
        return connection.recv(65536) == b""
    except ConnectionError:
        return True


def test_trailer_of_max_head_bytes_is_accepted_and_the_connection_stays_usable(connection):
    wait_until_head_is_parsed(connection)
    connection.sendall(BODY)
    end = b"0\r\nX: \r\n"
    connection.sendall(end[:-2] + b"x" * (LIMIT - len(end)) + end[-2:] + b"\r\n")
    assert answer(connection)[0] == 201
    connection.sendall(HEAD + TOKEN + CHUNKED + BODY + b"0\r\n\r\n")
    assert answer(connection)[0] == 201


@pytest.mark.parametrize(
    "end",
    [
        b"0\r\nX: " + b"x" * LIMIT,
        b"0\r\n" + b"a:b\r\n" * (LIMIT // 5 + 1),
        b"1;" + b"x" * LIMIT,
        b"0" * (LIMIT + 16),
    ],
    ids=["long field", "many fields", "chunk extension", "chunk size"],
)
def test_trailer_or_chunk_extension_above_max_head_bytes_is_refused(connection, end):
    wait_until_head_is_parsed(connection)
    connection.sendall(end)
    status, problem = answer(connection)
    assert (status, problem["code"]) == (400, "bad_parameter")
    assert is_closed(connection)


def test_the_refusal_of_a_trailer_names_the_limit(connection):
    wait_until_head_is_parsed(connection)
    connection.sendall(b"0\r\nX: " + b"x" * LIMIT)
    assert f"limit of {LIMIT} bytes (max_head_bytes)" in answer(connection)[1]["detail"]


@pytest.mark.parametrize("earlier", [b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_url_that_cannot_be_parsed_is_refused(connection, earlier):
    connection.sendall(earlier)
    if earlier:
        assert answer(connection)[0] == 200
    connection.sendall(b"GET http://a:b:c/ HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer(connection)[0] == 400


def test_chunk_that_is_not_valid_is_refused_with_a_problem(connection):
    wait_until_head_is_parsed(connection)
    connection.sendall(b"x\r\n")
    status, problem = answer(connection)
    assert (status, problem["code"]) == (400, "bad_parameter")
    assert is_closed(connection)


def test_endless_trailer_of_a_refused_request_gets_a_single_response(connection):
    connection.sendall(HEAD + CHUNKED + b"0\r\nX: ")
    assert answer(connection)[0] == 401
    with pytest.raises(ConnectionError):
        connection.sendall(b"x" * 50_000_000)


@pytest.mark.parametrize("field", [TOKEN, b"Idempotency-Key: a b\r\n", b"Accept: text/event-stream\r\n"])
def test_trailer_fields_are_not_read_as_headers(connection, field):
    credentials = b"" if field is TOKEN else TOKEN
    connection.sendall(HEAD + credentials + CHUNKED + BODY + b"0\r\n" + field + b"\r\n")
    status, body = answer(connection)
    assert status == (401 if field is TOKEN else 201), body


def open_stream(connection, address, endpoint: str) -> None:
    """Open an event stream with a GET request that has a chunked body."""
    url = f"http://{address[0]}:{address[1]}/v1/endpoints/{endpoint}/jobs"
    headers = {"Authorization": "Bearer " + "a" * 32}
    job = httpx2.post(url, json={"input": {}}, headers=headers).json()["id"]
    connection.sendall(f"GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: a\r\n".encode() + TOKEN + CHUNKED)


@pytest.mark.parametrize(
    ("start", "part"),
    [(b"", b"400\r\n" + b"x" * 0x400 + b"\r\n"), (b"0\r\n", b"a:b\r\n" * 200)],
    ids=["body", "trailer"],
)
def test_endless_body_or_trailer_of_a_stream_request_closes_the_connection(connection, address, start, part):
    open_stream(connection, address, "forever")
    connection.sendall(start)
    with pytest.raises(ConnectionError):
        connection.sendall(part * 50_000)


def test_body_of_a_stream_request_is_discarded_up_to_its_limit(connection, address):
    open_stream(connection, address, "double")
    size = slow_reader_sender._MAX_IGNORED_BYTES
    connection.sendall(b"%x\r\n" % size + b"x" * size + b"\r\n0\r\n\r\n")
    received = b""
    while b"event:done" not in received or not received.endswith(b"0\r\n\r\n"):
        chunk = connection.recv(65536)
        assert chunk, received
        received += chunk
