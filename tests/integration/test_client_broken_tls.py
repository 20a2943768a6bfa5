"""TLS connections that break after the handshake are lost connections, and the client retries."""

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import trustme

from support.client_timing import with_timing
from support.scripted_server import (
    CLOSE,
    STREAM,
    ScriptedServer,
    answer,
    discovery,
    done,
    event,
    hello,
    hurried,
    snapshot,
    state,
)
from tidewire import AsyncClient
from tidewire.errors import TransportError
from tidewire.following.request_policy import FIRST_ATTEMPTS

pytestmark = pytest.mark.anyio

DAMAGED_RECORD = b"\x17\x03\x03\x00\x20" + bytes(32)
OPENING = hello() + snapshot("1-1", state("", status="running"), columns=["/items/0/value"])
FINAL = [{"status": "succeeded", "value": "Hello"}]
REST = event("lo", id="1-3") + event([["s", "/items/0/status", "succeeded"]], id="1-4") + done("1-5", FINAL)
AUTHORITY = trustme.CA()


@pytest.fixture
def trust() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


@contextmanager
def tls_listener(serve: Callable[[socket.socket, ssl.SSLContext], None]) -> Iterator[str]:
    """Call a function on a thread for each connection, and yield the URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer_one, args=(connection,), daemon=True).start()

        def answer_one(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                serve(connection, context)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@contextmanager
def with_damage(port: int) -> Iterator[str]:
    """Terminate TLS in front of a server. After its response on the first connection, the client gets a damaged record."""
    damage = [DAMAGED_RECORD]

    def forward(connection: socket.socket, context: ssl.SSLContext) -> None:
        with (
            context.wrap_socket(connection, server_side=True) as client,
            socket.create_connection(("127.0.0.1", port)) as server,
        ):
            server.sendall(client.recv(2**16))
            while data := server.recv(2**16):
                client.sendall(data)
            if damage:
                os.write(client.fileno(), damage.pop())

    with tls_listener(forward) as url:
        yield url


async def test_a_stream_continues_after_a_damaged_tls_record(trust):
    def script(request):
        first = request.cursor is None
        return iter([STREAM + (OPENING + event("Hel", id="1-2") if first else hello() + REST), CLOSE])

    timing, _ = hurried()
    with ScriptedServer(script) as server, with_damage(server.port) as url:
        async with with_timing(AsyncClient(url, verify=trust), timing) as client:
            assert "".join([update.text async for update in client.job("j1")]) == "Hello"
    assert server.requests[-1].cursor == "1-2"


async def test_a_request_is_repeated_after_a_damaged_tls_record(trust):
    script = iter([[CLOSE], [answer(200, discovery("count")), CLOSE]])
    timing, _ = hurried()
    with ScriptedServer(lambda _: next(script)) as server, with_damage(server.port) as url:
        async with with_timing(AsyncClient(url, verify=trust), timing) as client:
            await client.discover()
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("has_certificate", "version", "alert"),
    [
        (False, ssl.TLSVersion.TLSv1_3, "certificate required"),
        (True, ssl.TLSVersion.TLSv1_3, "unknown ca"),
        (True, ssl.TLSVersion.TLSv1_2, "unknown ca"),
    ],
)
async def test_a_refused_client_certificate_ends_the_call_soon_and_is_named(
    trust, has_certificate, version, alert
):
    connections = 0

    def refuse(connection: socket.socket, context: ssl.SSLContext) -> None:
        nonlocal connections
        connections += 1
        context.verify_mode = ssl.CERT_REQUIRED
        with context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as client:
            with contextlib.suppress(ssl.SSLError):
                client.do_handshake()
            while os.read(client.fileno(), 2**16):
                pass

    trust.maximum_version = version
    if has_certificate:
        trustme.CA().issue_cert("client@example.org").configure_cert(trust)
    timing, _ = hurried()
    with tls_listener(refuse) as url:
        async with with_timing(AsyncClient(url, verify=trust), timing) as client:
            with pytest.raises(TransportError, match=alert) as caught:
                await client.discover()
    assert connections == FIRST_ATTEMPTS
    assert not caught.value.sent
    assert "load_cert_chain" in caught.value.advice
