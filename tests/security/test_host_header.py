"""Requests without a Host header, or with two, are refused (RFC 9112, section 3.2)."""

import json
import socket

import pytest

from support.reference_server import QUICK, serving
from support.server_address import address_of
from tidewire_server import Server


@pytest.fixture(scope="module")
def address():
    with serving(Server(**QUICK)) as peer:
        yield address_of(peer.url)


def exchange(address, head: bytes) -> tuple[int, bytes]:
    """Send a request, and return the status and the body of its response."""
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(head + b"Connection: close\r\n\r\n")
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("path", [b"/v1", b"/healthz", b"/nowhere", b"/v1/jobs/a/events?errors=inband"])
@pytest.mark.parametrize("hosts", [b"", b"Host: a\r\nHost: a\r\n", b"Host: a\r\nX: y\r\nHOST: b\r\n"])
def test_request_without_exactly_one_host_is_refused(address, path, hosts):
    status, body = exchange(address, b"GET %b HTTP/1.1\r\n%b" % (path, hosts))
    problem = json.loads(body)
    assert (status, problem["status"], problem["code"]) == (400, 400, "bad_parameter")
    assert "exactly one Host header" in problem["detail"]
