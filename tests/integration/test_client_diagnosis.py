"""Errors of a first connection: no server at the address, a silent server, or a server of another kind."""

import contextlib
import itertools
import re
import socket
import ssl
import threading

import pytest
import trustme

from support.client_timing import with_timing
from support.free_port import free_port
from support.full_listener import full_listener
from support.scripted_server import CLOSE, HOLD, RESET, ScriptedServer, answer, hurried, problem
from tidewire import AsyncClient, RetryPolicy
from tidewire.errors import (
    ClientClosedError,
    ConnectTimeoutError,
    JobNotFoundError,
    NotATidewireServerError,
    RequestError,
    SilenceTimeoutError,
    TransportError,
)
from tidewire.following.request_policy import FIRST_ATTEMPTS

pytestmark = pytest.mark.anyio

HTML = b"<!doctype html><title>It works!</title>"


@pytest.fixture(params=["submit", "attach", "discover", "cancel"])
def contact(request):
    async def ask(client):
        if request.param == "submit":
            await client.submit("count")
        elif request.param == "attach":
            await client.job("j1").result()
        elif request.param == "cancel":
            await client.job("j1").cancel()
        else:
            await client.discover()

    return ask


async def test_a_refused_connection_raises_after_a_few_quick_attempts(contact):
    port = free_port()
    timing, waits = hurried()
    async with with_timing(AsyncClient(f"http://127.0.0.1:{port}"), timing) as client:
        with pytest.raises(
            TransportError,
            match=rf"no server is listening at 127.0.0.1:{port} .*Check that the server is running",
        ) as caught:
            await contact(client)
    assert not caught.value.sent
    assert len(waits) == FIRST_ATTEMPTS - 1
    assert sum(waits) < 2


async def test_an_unknown_host_raises_a_transport_error(contact):
    timing, _ = hurried()
    async with with_timing(AsyncClient("http://no-such-host.invalid"), timing) as client:
        with pytest.raises(TransportError, match=r"the host name of http://no-such-host\.invalid"):
            await contact(client)


async def test_a_missing_socket_is_raised_with_advice_about_the_path(tmp_path):
    timing, _ = hurried()
    path = tmp_path / "none"
    async with with_timing(AsyncClient("http://server", uds=str(path)), timing) as client:
        with pytest.raises(TransportError, match=f"no Unix domain socket {path}") as caught:
            await client.discover()
    assert caught.value.advice == "Check that the server is running and that the path of the socket is right."


async def test_a_socket_without_a_server_is_raised_with_advice_about_the_path(tmp_path):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    timing, _ = hurried()
    async with with_timing(AsyncClient("http://server", uds=str(path)), timing) as client:
        with pytest.raises(TransportError, match=f"no server is listening at {path}") as caught:
            await client.discover()
    assert caught.value.advice == "Check that the server is running and that the path of the socket is right."


async def test_an_unanswered_connection_attempt_raises_connect_timeout():
    with full_listener() as port:
        async with AsyncClient(f"http://127.0.0.1:{port}", connect_timeout=0.2) as client:
            with pytest.raises(
                ConnectTimeoutError, match=rf"no connection to 127.0.0.1:{port} within 0.2 s"
            ) as caught:
                await client.discover()
        assert isinstance(caught.value, TimeoutError)


@pytest.fixture(scope="module")
def tls_port():
    """Port of a server that accepts TLS, and closes each connection at the first byte that is not TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    if connection.recv(1, socket.MSG_PEEK) == b"\x16":
                        context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


OTHER_SERVERS = {
    "a page": (
        answer(200, HTML, media="text/html"),
        r"200 text/html: 'It works!'",
    ),
    "a page that says 404": (answer(404, HTML, media="text/html"), "404 text/html"),
    "other JSON": (answer(200, {"hello": "world"}), "200 application/json"),
    "other JSON that says 404": (answer(404, {"detail": "Not Found"}), "404 application/json"),
    "a page that says 400": (answer(400, b"", media="text/html"), "400 text/html without a body"),
    "a page that says 405": (answer(405, HTML, media="text/html"), "405 text/html"),
    "a page that says 501": (answer(501, HTML, media="text/html"), "501 text/html"),
    "an empty answer": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "200 without a content type and without a body",
    ),
    "bytes of a picture": (answer(200, b"\x89PNG\r\n\x1a\n\0\xff", media="image/png"), "200 image/png"),
}


@pytest.mark.parametrize("name", OTHER_SERVERS)
async def test_a_response_of_another_kind_of_server_is_quoted_without_retries(contact, name):
    response, message = OTHER_SERVERS[name]
    timing, waits = hurried()
    with ScriptedServer(lambda _: iter([response])) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            with pytest.raises(NotATidewireServerError, match=message) as caught:
                await contact(client)
        assert server.url in str(caught.value)
        assert len(server.requests) == 1
    assert waits == []


async def test_a_proxy_that_requires_a_password_is_named():
    page = b'<!DOCTYPE html PUBLIC "-//W3C//DTD HTML 4.01//EN" "http://www.w3.org/TR/html4/strict.dtd"><TITLE>Access\nDenied</TITLE>'
    with ScriptedServer(lambda _: iter([answer(407, page, media="text/html")])) as proxy:
        async with AsyncClient("http://server.test", proxy=proxy.url) as client:
            with pytest.raises(RequestError, match="407 text/html: 'Access Denied'") as caught:
                await client.discover()
    assert "http://user:password@proxy.example:3128" in caught.value.advice


async def test_a_json_body_that_is_not_valid_is_reported_with_its_fault():
    with ScriptedServer(lambda _: iter([answer(200, {"n": 2**64})])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(NotATidewireServerError, match=rf"\(.*{2**64} is beyond ±2\^53.*\)"):
                await client.discover()


async def test_a_submit_answered_with_204_raises_without_retries():
    timing, waits = hurried()
    with ScriptedServer(lambda _: iter([b"HTTP/1.1 204 No Content\r\n\r\n"])) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            with pytest.raises(NotATidewireServerError, match="204"):
                await client.submit("count")
    assert waits == []


@pytest.mark.parametrize(
    ("response", "quoted"),
    [
        (b"SSH-2.0-OpenSSH_9.9\r\n", "SSH-2.0-OpenSSH_9.9"),
        (b"\x15\x03\x01\x00\x02\x02\x46", ""),
        (b"+OK ready\r\n" * 3, r"\+OK ready"),
    ],
)
async def test_a_server_that_does_not_speak_http_is_quoted(contact, response, quoted):
    timing, _ = hurried()
    with ScriptedServer(lambda _: iter([response, CLOSE])) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            with pytest.raises(
                NotATidewireServerError, match=rf"127.0.0.1:{server.port} does not speak HTTP: .*{quoted}"
            ):
                await contact(client)


async def test_https_to_a_plain_http_server_raises_and_names_the_scheme():
    timing, _ = hurried()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse():
            for _ in range(FIRST_ATTEMPTS):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        listener_port = listener.getsockname()[1]
        url = f"https://127.0.0.1:{listener_port}"
        async with with_timing(AsyncClient(url, verify=ssl.create_default_context()), timing) as client:
            with pytest.raises(TransportError, match=r"TLS with .* failed: ") as caught:
                await client.discover()
        thread.join(5)
    plain_url = f"http://127.0.0.1:{listener_port}"
    assert caught.value.advice == f"If the server does not use TLS, try {plain_url}."


async def test_an_untrusted_certificate_is_raised_with_advice_about_certificates(tls_port):
    timing, _ = hurried()
    async with with_timing(AsyncClient(f"https://127.0.0.1:{tls_port}"), timing) as client:
        with pytest.raises(
            TransportError, match=r"TLS with .* failed: .*CERTIFICATE_VERIFY_FAILED"
        ) as caught:
            await client.discover()
    assert "SSL_CERT_FILE" in caught.value.advice
    assert "http://" not in caught.value.advice


async def test_http_to_a_server_with_tls_raises_and_names_the_scheme(contact, tls_port):
    """Such a server closes the connection without a response, so the client probes it with a TLS handshake."""
    timing, waits = hurried()
    async with with_timing(AsyncClient(f"http://127.0.0.1:{tls_port}"), timing) as client:
        with pytest.raises(
            NotATidewireServerError, match="uses TLS, but the URL begins with http://"
        ) as caught:
            await contact(client)
    assert caught.value.advice == f"Try https://127.0.0.1:{tls_port}."
    assert len(waits) == FIRST_ATTEMPTS - 1


async def test_a_reset_connection_is_raised_with_the_reason_of_the_operating_system():
    with ScriptedServer(lambda _: iter([RESET])) as server:
        async with AsyncClient(server.url, retry=RetryPolicy(attempts=1)) as client:
            with pytest.raises(
                TransportError, match="the connection broke: .*Connection reset by peer"
            ) as caught:
                await client.discover()
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("first", [[HOLD], [CLOSE]])
async def test_a_silent_or_cut_first_response_is_retried_within_the_policy(first):
    def script(_):
        number = next(numbers)
        yield from first if number < 2 * FIRST_ATTEMPTS else [problem(404, "job_not_found")]

    for ask in (lambda job: job.status(), lambda job: job.result()):
        numbers = itertools.count()
        timing, waits = hurried(hello_timeout=0.1)
        with ScriptedServer(script) as server:
            async with with_timing(
                AsyncClient(server.url, connect_timeout=0.1, answer_timeout=0.1), timing
            ) as client:
                with pytest.raises(JobNotFoundError):
                    await ask(client.job("j1"))
        assert len(waits) >= FIRST_ATTEMPTS


async def test_a_silent_server_raises_silence_timeout():
    with ScriptedServer(lambda _: iter([HOLD])) as server:
        timing, _ = hurried(hello_timeout=0.05)
        async with with_timing(
            AsyncClient(server.url, connect_timeout=0.05, answer_timeout=0.05, retry=RetryPolicy(patience=1)),
            timing,
        ) as client:
            with pytest.raises(SilenceTimeoutError):
                await client.job("j1").result()


async def test_gateway_errors_are_retried_while_the_server_starts():
    timing, waits = hurried()
    responses = iter(
        [answer(502, HTML, media="text/html"), answer(503, HTML, media="text/html", Retry_After="2")]
    )

    def script(_):
        yield next(responses, problem(404, "job_not_found"))

    with ScriptedServer(script) as server:
        async with with_timing(AsyncClient(server.url), timing) as client:
            with pytest.raises(Exception, match="job_not_found"):
                await client.job("j1").status()
    assert len(waits) == 2


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "",
        "ftp://host",
        "http://",
        "//host",
        "host",
        "http://[::1",
        "http://host:65536",
        "http://ho\0st",
    ],
)
def test_an_invalid_url_raises_with_an_example(url):
    example = "http://host" if url == "host" else "http://127.0.0.1:8000"
    with pytest.raises(ValueError, match=re.escape(example)):
        AsyncClient(url)


async def test_calls_on_a_closed_client_raise(contact):
    client = AsyncClient("http://127.0.0.1:1")
    await client.aclose()
    with pytest.raises(ClientClosedError, match="was closed"):
        await contact(client)
