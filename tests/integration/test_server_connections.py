"""The limit of open connections, which use file descriptors before a client is authenticated."""

import asyncio
import gc
import json
import os
import re
import resource
import signal
import socket
import sys
from contextlib import ExitStack

import httpx2
import pytest

from proof.forked_process import Forked
from support.killable_server import killed_server
from support.reference_server import eventually
from support.server_address import address_of
from tidewire_server import Server
from tidewire_server.serving.descriptors import throttle_accept_errors

BOUND = 20

FEW_FILES_SERVER = """
import resource

from tidewire_server import Server

resource.setrlimit(resource.RLIMIT_NOFILE, (110, 120))  # the server asks for more, and gets up to the second
Server().run(port=0)
"""


def opened(address, number, stack):
    return [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(number)]


def read_all(connection):
    answer = b""
    while chunk := connection.recv(65536):
        answer += chunk
    return answer


def serves(address):
    try:
        return httpx2.get(f"http://{address[0]}:{address[1]}/healthz").status_code == 200
    except httpx2.TransportError:
        return False


def test_a_connection_above_the_limit_gets_503_until_another_closes():
    with Server(max_connections=BOUND).running() as url, ExitStack() as stack:
        address = address_of(url)
        idle = opened(address, BOUND, stack)
        (surplus,) = opened(address, 1, stack)
        surplus.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head, _, body = read_all(surplus).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert b"\r\nretry-after: 1\r\n" in head
        problem = json.loads(body)
        assert (problem["code"], problem["retryable"]) == ("unavailable", True)
        assert f"limit of {BOUND} open connections" in problem["detail"]
        surplus.close()
        idle[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert read_all(idle[0]).startswith(b"HTTP/1.1 200")
        eventually(lambda: serves(address))
        idle[1].sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert re.search(
            rb'^tidewire_problems_total{code="unavailable"} [1-9]', read_all(idle[1]), re.MULTILINE
        )


def test_connections_far_above_the_limit_are_dropped_and_earlier_ones_served():
    with Server(max_connections=1).running() as url, ExitStack() as stack:
        address = address_of(url)
        (first,) = opened(address, 1, stack)
        others, ends = [], []
        for _ in range(129):
            try:
                others += opened(address, 1, stack)
            except ConnectionResetError:  # The server can drop a connection before `connect` returns.
                ends.append(b"")
        for each in others:
            try:
                ends.append(read_all(each)[:12])
            except ConnectionResetError:
                ends.append(b"")
        assert set(ends) == {b"HTTP/1.1 503", b""}
        first.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert first.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
def test_a_low_limit_of_open_files_lowers_the_connection_limit(tmp_path):
    (tmp_path / "few_files.py").write_text(FEW_FILES_SERVER)
    with Forked("few_files", cwd=tmp_path, env=dict(os.environ)) as server:
        address = address_of(server.stdout.readline().split()[-1])
        with ExitStack() as stack:
            held = opened(address, 60, stack)
            held[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert held[0].recv(65536).startswith(b"HTTP/1.1 200")
            assert b"limit of 20 open connections" in read_all(held[-1])
        eventually(lambda: serves(address))
        server.send_signal(signal.SIGINT)
        _, stderr_text = server.communicate(20)
    assert server.returncode == 0
    assert (
        "accepting 20 connections, and therefore at most 20 streams, instead of 5000 (max_connections): the process may "
        "open only 120 files" in stderr_text
    )
    assert (
        stderr_text.count("rejecting connections: the server has reached its limit of 20 open connections")
        == 1
    )


def test_running_out_of_descriptors_is_logged_once(caplog):
    # Endpoint functions can use up the file descriptors, too. Without throttling, the event loop then logs about
    # 2000 failed accepts a second.
    gc.collect()  # Garbage that is collected later could free a lower descriptor, with which an accept would succeed.
    loop, attempts = asyncio.SelectorEventLoop(), []
    throttle_accept_errors(loop)
    handle = loop.call_exception_handler
    loop.call_exception_handler = lambda context: (attempts.append(context), handle(context))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(False)
        spare = os.dup(listener.fileno())  # The lowest free descriptor.
        os.close(spare)
        server = loop.run_until_complete(
            loop.create_server(asyncio.Protocol, sock=listener, backlog=2048, start_serving=False)
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
        try:
            loop.run_until_complete(server.start_serving())
            eventually(lambda: loop.run_until_complete(asyncio.sleep(0)) or attempts)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            server.close()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
    assert attempts
    (read_all,) = caplog.messages
    assert read_all.startswith("cannot accept connections: Too many open files (ulimit -n)")


def test_a_background_server_does_not_change_process_limits():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Server(max_connections=10**9).running():
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


@pytest.mark.parametrize("dies", [False, True], ids=["closes", "killed"])
def test_a_connection_ends_although_a_forked_child_runs_on(dies):
    """The child inherits the descriptor of the connection. TCP ends a connection when the last copy is closed."""
    with killed_server() as server, ExitStack() as stack:
        [early] = opened(address_of(server.url), 1, stack)
        early.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert early.recv(65536).startswith(b"HTTP/1.1 200")
        child = server.ended(server.submit("fork", input={}).json()["id"])["state"]["items"][0]["value"]
        stack.callback(os.kill, child, signal.SIGKILL)
        if dies:
            server.kill()
        else:
            early.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        read_all(early)  # Raises a TimeoutError if the connection does not end.
        os.kill(child, 0)  # The child is still running.
