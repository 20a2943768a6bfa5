"""The client and HTTP features: redirects, proxies, media types, content codings, and HTTP/1.0."""

import gzip
import json
import logging
import threading
import tracemalloc

import anyio
import pytest

from support.client_timing import with_timing
from support.scripted_server import (
    CLOSE,
    STREAM,
    ScriptedServer,
    answer,
    discovery,
    done,
    endpoint,
    event,
    hello,
    hurried,
    job,
    snapshot,
    state,
)
from tidewire import AsyncClient, Client
from tidewire.errors import NotATidewireServerError, ProtocolError, RequestError, TransportError
from tidewire.http.transport import REQUESTS_AT_ONCE

OPENING = hello() + snapshot("1-1", state("", status="running"), columns=["/items/0/value"])
HALF = event("Hel", id="1-2")
REST = event("lo", id="1-3") + event([["s", "/items/0/status", "succeeded"]], id="1-4")
END = done("1-5", [{"status": "succeeded", "value": "Hello"}])
CREDENTIALS = {"Authorization": "Bearer secret"}


def impatient_client(url, **arguments):
    timing, _ = hurried()
    return with_timing(Client(url, headers=CREDENTIALS, **arguments), timing)


def with_stream(stream):
    """Script for a submit, and `stream(request)` for each stream request."""

    def script(request):
        if request.method == "POST":
            yield answer(201, job(state("", status="running"), columns=["/items/0/value"]))
        elif request.path.endswith("/count"):
            yield answer(200, endpoint())
        else:
            yield from stream(request)

    return script


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


# ---- redirects ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirected_stream_keeps_cursor_and_credentials_on_the_same_origin(status):
    def moved(request):
        if request.path == "/elsewhere":
            yield STREAM + hello() + HALF + REST + END
            yield CLOSE
        else:
            yield answer(status, Location="/elsewhere")

    with ScriptedServer(with_stream(moved)) as server, impatient_client(server.url) as client:
        assert client.run("count") == "Hello"
        there = server.requests[-1]
        assert (there.path, there.cursor, there.headers["authorization"]) == (
            "/elsewhere",
            "1-1",
            "Bearer secret",
        )


@pytest.mark.parametrize("what", ["stream", "request"])
def test_a_redirect_to_another_origin_raises_without_a_request(what):
    with ScriptedServer(lambda _: [CLOSE]) as other:
        moved = answer(307, Location=f"{other.url}/v1")
        script = with_stream(lambda _: [moved]) if what == "stream" else lambda _: [moved]
        with ScriptedServer(script) as server, impatient_client(server.url) as client:
            with pytest.raises(ProtocolError, match="redirects to .* another origin"):
                client.run("count") if what == "stream" else client.discover()
        assert other.requests == []


def test_links_to_another_port_of_the_host_are_not_followed():
    with ScriptedServer(lambda _: [CLOSE]) as other:

        def script(request):
            if request.method == "POST":
                body = job(state("", status="running"), columns=["/items/0/value"])
                body["links"] = dict.fromkeys(("self", "events", "cancel"), f"{other.url}/trap")
                yield answer(201, body)
            else:
                yield STREAM + OPENING + HALF + REST + END
                yield CLOSE

        with ScriptedServer(script) as server, impatient_client(server.url) as client:
            assert client.run("count") == "Hello"
        assert other.requests == []


def test_an_events_link_of_hello_to_another_origin_is_not_followed():
    with ScriptedServer(lambda _: [CLOSE]) as other:
        away = hello().replace(b'"/v1/jobs/', f'"{other.url}/v1/jobs/'.encode())

        def stream(request):
            yield STREAM + (away + HALF if request.cursor == "1-1" else hello() + REST + END)
            yield CLOSE

        with ScriptedServer(with_stream(stream)) as server, impatient_client(server.url) as client:
            assert client.run("count") == "Hello"
            assert [request.cursor for request in server.requests[1:]] == ["1-1", "1-2"]
        assert other.requests == []


# ---- proxies -----------------------------------------------------------------------------------------------------


def proxied(request):
    """Script of a proxy for plain HTTP, which receives requests with absolute URLs."""
    assert request.path.startswith("http://server.example/")
    yield from with_stream(lambda _: [STREAM + OPENING + HALF + REST + END, CLOSE])(request)


@pytest.mark.parametrize("by", ["environment", "argument"])
def test_requests_use_the_proxy(by, monkeypatch):
    with ScriptedServer(proxied) as proxy:
        if by == "environment":
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with impatient_client(
            "http://server.example", proxy=proxy.url if by == "argument" else None
        ) as client:
            assert client.run("count") == "Hello"
        assert [request.method for request in proxy.requests] == ["POST", "GET"]
        assert {request.headers["host"] for request in proxy.requests} == {"server.example"}


def test_hosts_in_no_proxy_bypass_the_proxy(monkeypatch):
    with (
        ScriptedServer(proxied) as proxy,
        ScriptedServer(lambda _: [answer(200, discovery("count"))]) as server,
    ):
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with impatient_client(server.url) as client:
            assert client.discover().endpoints[0].name == "count"
        assert proxy.requests == []


def test_an_error_page_of_a_proxy_is_quoted():
    page = answer(407, b"<html>who are you?", media="text/html", Proxy_Authenticate="Basic")
    with (
        ScriptedServer(lambda _: [page]) as proxy,
        impatient_client("http://server.example", proxy=proxy.url) as client,
    ):
        with pytest.raises(RequestError, match="407 text/html.*who are you"):
            client.run("count")


@pytest.mark.parametrize("by", ["environment", "argument"])
def test_diagnosis_of_a_broken_connection_does_not_bypass_the_proxy(by, monkeypatch):
    with ScriptedServer(lambda _: [CLOSE]) as proxy, ScriptedServer(lambda _: [CLOSE]) as server:
        if by == "environment":
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with impatient_client(server.url, proxy=proxy.url if by == "argument" else None) as client:
            with pytest.raises(TransportError, match="the connection broke"):
                client.discover()
        assert proxy.requests
        assert server.requests == []


def test_an_unreachable_proxy_raises_a_transport_error():
    with impatient_client("http://server.example", proxy="http://127.0.0.1:9") as client:
        with pytest.raises(TransportError, match="cannot connect|no server is listening"):
            client.discover()


# ---- media types and codings -------------------------------------------------------------------------------------


def test_the_content_coding_of_a_stream_is_named():
    head = STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    with ScriptedServer(with_stream(lambda _: [head + OPENING, CLOSE])) as server:
        message = "with the content coding gzip, which the client did not request"
        with impatient_client(server.url) as client, pytest.raises(TransportError, match=message):
            client.run("count")


def test_responses_other_than_streams_may_be_compressed():
    body = gzip.compress(json.dumps(discovery("count")).encode())
    with ScriptedServer(lambda _: [answer(200, body, Content_Encoding="gzip")]) as server:
        with impatient_client(server.url) as client:
            assert client.discover().server == "scripted"


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (b"no gzip", "gzip"),
        (gzip.compress(json.dumps(discovery("count")).encode())[:-9], "gzip"),
        (gzip.compress(gzip.compress(b"{}")), "gzip, gzip"),
        (gzip.compress(json.dumps(discovery("count")).encode()) + b"more", "gzip"),
        (b"{}", "zstd"),
    ],
    ids=["none", "cut", "twice", "more", "another"],
)
def test_a_broken_or_unrequested_compressed_body_raises_a_transport_error(body, coding):
    with ScriptedServer(lambda _: [answer(200, body, Content_Encoding=coding)]) as server:
        with impatient_client(server.url) as client, pytest.raises(TransportError, match="content coding"):
            client.discover()
        assert server.requests[0].headers["accept-encoding"] == "gzip"


def test_a_decompression_bomb_raises_before_it_is_expanded(monkeypatch):
    monkeypatch.setattr("tidewire.http.transport.LEAST_BODY_BYTES", 2**19)
    body = gzip.compress(bytes(2**26))
    with ScriptedServer(lambda _: [answer(200, body, Content_Encoding="gzip")]) as server:
        with impatient_client(server.url, max_state_bytes=2**20) as client:
            tracemalloc.start()
            try:
                with pytest.raises(
                    ProtocolError, match=r"the response has more than 1048576 bytes.*max_state_bytes=…"
                ):
                    client.discover()
                assert tracemalloc.get_traced_memory()[1] < 2**23
            finally:
                tracemalloc.stop()


def test_json_with_another_media_type_is_read():
    with ScriptedServer(lambda _: [answer(200, discovery("count"), media="text/plain")]) as server:
        with impatient_client(server.url) as client:
            assert client.discover().endpoints[0].name == "count"


def test_an_html_page_as_first_response_raises_not_a_tidewire_server():
    with ScriptedServer(lambda _: [answer(200, b"<html>welcome", media="text/html")]) as server:
        with (
            impatient_client(server.url) as client,
            pytest.raises(NotATidewireServerError, match="200 text/html.*welcome"),
        ):
            client.run("count")


# ---- HTTP/1.0 and interim responses ------------------------------------------------------------------------------


def test_an_http_1_0_stream_ends_with_its_connection():
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    with ScriptedServer(with_stream(lambda _: [head + OPENING + HALF + REST + END, CLOSE])) as server:
        with impatient_client(server.url) as client:
            assert client.run("count") == "Hello"


def test_an_http_1_0_stream_that_ends_before_its_job_is_resumed():
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    responses = iter(
        [
            [head + OPENING + HALF[:-4], CLOSE],
            [head + hello() + HALF, CLOSE],
            [head + hello() + REST + END, CLOSE],
        ]
    )
    with (
        ScriptedServer(with_stream(lambda _: next(responses))) as server,
        impatient_client(server.url) as client,
    ):
        assert [*client.submit("count").iter_text()] == ["Hel", "lo"]
        assert [request.cursor for request in server.requests if request.path.endswith("/events")] == [
            "1-1",
            "1-1",
            "1-2",
        ]


def test_an_http_1_0_body_without_a_length_ends_with_its_connection():
    body = (
        b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + json.dumps(discovery("count")).encode()
    )
    with ScriptedServer(lambda _: [body, CLOSE]) as server, impatient_client(server.url) as client:
        assert client.discover().endpoints[0].name == "count"


def test_interim_responses_are_ignored():
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
    script = with_stream(lambda _: [early + STREAM + OPENING + HALF + REST + END, CLOSE])
    with ScriptedServer(script) as server, impatient_client(server.url) as client:
        assert client.run("count") == "Hello"


def test_credentials_appear_in_no_log_and_no_error(caplog):
    caplog.set_level(logging.DEBUG, "tidewire")
    with ScriptedServer(
        lambda _: [answer(403, {"code": "forbidden", "title": "no", "status": 403})]
    ) as server:
        with impatient_client(server.url) as client, pytest.raises(RequestError) as caught:
            client.run("count")
    assert "secret" not in caplog.text
    assert "secret" not in f"{caught.value!r}{caught.value}{caught.value.where}"


# ---- many requests -------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_bounded_number_of_requests_waits_for_a_response_and_all_streams_are_open_at_once():
    respond, end = threading.Event(), threading.Event()

    def script(request):
        respond.wait(30)
        yield STREAM + OPENING + HALF
        end.wait(30)
        yield REST + END
        yield CLOSE

    count = REQUESTS_AT_ONCE + 10
    texts = []

    async def read(client):
        texts.append("".join([piece async for piece in client.job("j1").iter_text()]))

    with ScriptedServer(script) as server:
        async with AsyncClient(server.url) as client, anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(read, client)
            await anyio.to_thread.run_sync(
                server.wait_until, lambda: len(server.requests) == REQUESTS_AT_ONCE
            )
            await anyio.sleep(0.1)  # No condition shows that no further request is sent.
            assert len(server.requests) == REQUESTS_AT_ONCE
            respond.set()
            await anyio.to_thread.run_sync(server.wait_until, lambda: server.open == count)
            end.set()
    assert texts == ["Hello"] * count
