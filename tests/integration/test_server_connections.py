"""Connections are bounded: each takes a file descriptor, and nobody is known yet who opens them."""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from support.fork_server import Forked
from support.reference_server import eventually
from tidewire_server import Server
from tidewire_server.serving.log_throttle import throttle_accept_errors

BOUND = 20

SERVES = """
import resource

from tidewire_server import Server

resource.setrlimit(resource.RLIMIT_NOFILE, (110, 120))  # the server asks for more, and gets up to the second
Server().run(port=0)
"""


def address_of(url):
    return urlsplit(url).hostname, urlsplit(url).port


def opened(address, number, stack):
    return [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(number)]


def said(connection):
    answer = b""
    while chunk := connection.recv(65536):
        answer += chunk
    return answer


def serves(address):
    try:
        return httpx.get(f"http://{address[0]}:{address[1]}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_past_the_bound_a_connection_is_told_so_and_one_that_goes_makes_room():
    with Server(max_connections=BOUND).running() as url, ExitStack() as stack:
        address = address_of(url)
        idle = opened(address, BOUND, stack)
        (surplus,) = opened(address, 1, stack)
        surplus.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        head, _, body = said(surplus).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert b"\r\nRetry-After: 1\r\n" in head
        found = json.loads(body)
        assert (found["code"], found["retryable"]) == ("unavailable", True)
        assert f"limit of {BOUND} open connections" in found["detail"]
        surplus.close()
        idle[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert said(idle[0]).startswith(b"HTTP/1.1 200")
        eventually(lambda: serves(address))


def test_far_past_the_bound_connections_are_dropped_and_those_within_it_are_served():
    with Server(max_connections=1).running() as url, ExitStack() as stack:
        address = address_of(url)
        (first, *others) = opened(address, 130, stack)
        ends = []
        for each in others:
            try:
                ends.append(said(each)[:12])
            except ConnectionResetError:
                ends.append(b"")
        assert set(ends) == {b"HTTP/1.1 503", b""}
        first.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert first.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
def test_where_the_process_may_open_few_files_there_are_fewer_connections_and_no_end(tmp_path):
    (tmp_path / "few_files.py").write_text(SERVES)
    with Forked(
        "few_files", cwd=tmp_path, env=dict(os.environ), imports=("tidewire_server.serving",)
    ) as server:
        address = address_of(server.stdout.readline().split()[-1])
        with ExitStack() as stack:
            held = opened(address, 60, stack)
            held[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            assert held[0].recv(65536).startswith(b"HTTP/1.1 200")
            assert b"limit of 20 open connections" in said(held[-1])
        eventually(lambda: serves(address))
        server.send_signal(signal.SIGINT)
        _, told = server.communicate(20)
    assert server.returncode == 0
    assert (
        "accepting 20 connections instead of 5000 (max_connections): the process may open only 120 files"
        in told
    )


def test_where_no_descriptor_is_left_the_log_says_so_once(caplog):
    # Functions can take them all, too; and this loop tries, and tells, two thousand times in a second.
    loop, tried = asyncio.SelectorEventLoop(), []
    throttle_accept_errors(loop)
    handle = loop.call_exception_handler
    loop.call_exception_handler = lambda context: (tried.append(context), handle(context))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(False)
        spare = os.dup(listener.fileno())  # the lowest that is free
        os.close(spare)
        server = loop.run_until_complete(
            loop.create_server(asyncio.Protocol, sock=listener, backlog=2048, start_serving=False)
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
        try:
            loop.run_until_complete(server.start_serving())
            eventually(lambda: loop.run_until_complete(asyncio.sleep(0)) or tried)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            server.close()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
    assert tried
    (said,) = caplog.messages
    assert said.startswith("cannot accept connections: Too many open files (ulimit -n)")


def test_a_server_in_the_background_leaves_the_limits_of_its_process_alone():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Server(max_connections=10**9).running():
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
