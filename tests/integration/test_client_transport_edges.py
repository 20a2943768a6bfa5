"""What stands between a client and its server: redirects, proxies, media types, codings, old HTTP. Real sockets."""

import gzip
import json
import logging
import tracemalloc

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
from tidewire import Client
from tidewire.errors import NotATidewireServerError, ProtocolError, RequestError, TransportError

OPENING = hello() + snapshot("1-1", state("", status="running"), columns=["/items/0/value"])
HALF = event("Hel", id="1-2")
REST = event("lo", id="1-3") + event([["s", "/items/0/status", "succeeded"]], id="1-4")
END = done("1-5", [{"status": "succeeded", "value": "Hello"}])
CREDENTIALS = {"Authorization": "Bearer secret"}


def hurrying(url, **arguments):
    timing, _ = hurried()
    return with_timing(Client(url, headers=CREDENTIALS, **arguments), timing)


def with_stream(stream):
    """A script: a submit, and `stream(request)` for each stream."""

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
def test_a_stream_that_moved_on_its_origin_is_asked_for_there_with_cursor_and_credentials(status):
    def moved(request):
        if request.path == "/elsewhere":
            yield STREAM + hello() + HALF + REST + END
            yield CLOSE
        else:
            yield answer(status, Location="/elsewhere")

    with ScriptedServer(with_stream(moved)) as server, hurrying(server.url) as client:
        assert client.run("count") == "Hello"
        there = server.requests[-1]
        assert (there.path, there.cursor, there.headers["authorization"]) == (
            "/elsewhere",
            "1-1",
            "Bearer secret",
        )


@pytest.mark.parametrize("what", ["stream", "request"])
def test_another_origin_hears_nothing(what):
    with ScriptedServer(lambda _: [CLOSE]) as other:
        moved = answer(307, Location=f"{other.url}/v1")
        script = with_stream(lambda _: [moved]) if what == "stream" else lambda _: [moved]
        with ScriptedServer(script) as server, hurrying(server.url) as client:
            with pytest.raises(ProtocolError, match="redirects to .* another origin"):
                client.run("count") if what == "stream" else client.discover()
        assert other.requests == []


def test_the_same_host_on_another_port_is_another_origin_for_links_too():
    with ScriptedServer(lambda _: [CLOSE]) as other:

        def script(request):
            if request.method == "POST":
                body = job(state("", status="running"), columns=["/items/0/value"])
                body["links"] = dict.fromkeys(("self", "events", "cancel"), f"{other.url}/trap")
                yield answer(201, body)
            else:
                yield STREAM + OPENING + HALF + REST + END
                yield CLOSE

        with ScriptedServer(script) as server, hurrying(server.url) as client:
            assert client.run("count") == "Hello"
        assert other.requests == []


def test_a_hello_that_leads_to_another_origin_is_not_followed():
    with ScriptedServer(lambda _: [CLOSE]) as other:
        away = hello().replace(b'"/v1/jobs/', f'"{other.url}/v1/jobs/'.encode())

        def stream(request):
            yield STREAM + (away + HALF if request.cursor == "1-1" else hello() + REST + END)
            yield CLOSE

        with ScriptedServer(with_stream(stream)) as server, hurrying(server.url) as client:
            assert client.run("count") == "Hello"
            assert [request.cursor for request in server.requests[1:]] == ["1-1", "1-2"]
        assert other.requests == []


# ---- proxies -----------------------------------------------------------------------------------------------------


def proxied(request):
    """A proxy for plain HTTP: it is asked for whole URLs."""
    assert request.path.startswith("http://server.example/")
    yield from with_stream(lambda _: [STREAM + OPENING + HALF + REST + END, CLOSE])(request)


@pytest.mark.parametrize("by", ["environment", "argument"])
def test_requests_go_through_a_proxy(by, monkeypatch):
    with ScriptedServer(proxied) as proxy:
        if by == "environment":
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with hurrying("http://server.example", proxy=proxy.url if by == "argument" else None) as client:
            assert client.run("count") == "Hello"
        assert [request.method for request in proxy.requests] == ["POST", "GET"]
        assert {request.headers["host"] for request in proxy.requests} == {"server.example"}


def test_what_the_environment_exempts_does_not_go_through_its_proxy(monkeypatch):
    with (
        ScriptedServer(proxied) as proxy,
        ScriptedServer(lambda _: [answer(200, discovery("count"))]) as server,
    ):
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with hurrying(server.url) as client:
            assert client.discover().endpoints[0].name == "count"
        assert proxy.requests == []


def test_a_proxy_that_refuses_is_told_as_what_it_said():
    page = answer(407, b"<html>who are you?", media="text/html", Proxy_Authenticate="Basic")
    with (
        ScriptedServer(lambda _: [page]) as proxy,
        hurrying("http://server.example", proxy=proxy.url) as client,
    ):
        with pytest.raises(RequestError, match="407 text/html.*who are you"):
            client.run("count")


@pytest.mark.parametrize("by", ["environment", "argument"])
def test_a_server_behind_a_proxy_is_not_spoken_to_past_it_to_hear_what_it_is(by, monkeypatch):
    with ScriptedServer(lambda _: [CLOSE]) as proxy, ScriptedServer(lambda _: [CLOSE]) as server:
        if by == "environment":
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with hurrying(server.url, proxy=proxy.url if by == "argument" else None) as client:
            with pytest.raises(TransportError, match="the connection broke"):
                client.discover()
        assert proxy.requests
        assert server.requests == []


def test_a_proxy_that_is_not_there_is_told():
    with hurrying("http://server.example", proxy="http://127.0.0.1:9") as client:
        with pytest.raises(TransportError, match="cannot connect|no server is listening"):
            client.discover()


def test_a_gateways_page_in_the_middle_of_a_stream_is_as_a_cut():
    turns = iter(
        [
            [STREAM + OPENING + HALF, CLOSE],
            [answer(502, b"<html>bad gateway", media="text/html"), CLOSE],
            [answer(200, b"<html>log in to the hotel", media="text/html"), CLOSE],
            [STREAM + hello() + REST + END, CLOSE],
        ]
    )
    with ScriptedServer(with_stream(lambda _: next(turns))) as server, hurrying(server.url) as client:
        assert [*client.submit("count").iter_text()] == ["Hel", "lo"]
        assert [request.cursor for request in server.requests if request.path.endswith("/events")] == [
            "1-1",
            "1-2",
            "1-2",
            "1-2",
        ]


# ---- media types and codings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "media",
    ["text/event-stream", "Text/Event-Stream", "text/event-stream;charset=utf-8", "text/event-stream ; x=y"],
)
def test_a_stream_is_known_by_its_media_type_however_it_is_written(media):
    head = STREAM.replace(b"text/event-stream; charset=utf-8", media.encode())
    script = with_stream(lambda _: [head + OPENING + HALF + REST + END, CLOSE])
    with ScriptedServer(script) as server, hurrying(server.url) as client:
        assert client.run("count") == "Hello"


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
def test_a_stream_with_a_coding_is_asked_for_again_and_then_told(coding):
    head = STREAM.replace(b"\r\n\r\n", f"\r\nContent-Encoding: {coding}\r\n\r\n".encode())
    # Nothing is read of it, whatever it holds: here, what would do without the coding.
    with ScriptedServer(with_stream(lambda _: [head + OPENING + HALF + REST + END, CLOSE])) as server:
        with hurrying(server.url) as client, pytest.raises((RequestError, TransportError, ProtocolError)):
            client.run("count")
        streams = [request for request in server.requests if request.path.endswith("/events")]
        assert 2 <= len(streams) <= 11
        assert {request.headers["accept-encoding"] for request in streams} == {"identity"}


def test_a_body_that_is_no_stream_may_be_compressed():
    body = gzip.compress(json.dumps(discovery("count")).encode())
    with ScriptedServer(lambda _: [answer(200, body, Content_Encoding="gzip")]) as server:
        with hurrying(server.url) as client:
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
def test_a_compressed_body_that_is_broken_or_was_not_asked_for_is_an_error_of_ours(body, coding):
    with ScriptedServer(lambda _: [answer(200, body, Content_Encoding=coding)]) as server:
        with hurrying(server.url) as client, pytest.raises(TransportError, match="content coding"):
            client.discover()
        assert server.requests[0].headers["accept-encoding"] == "gzip"


def test_a_small_body_that_stands_for_a_large_one_is_given_up_before_it_is_unpacked(monkeypatch):
    monkeypatch.setattr("tidewire.http.transport.LEAST_BODY_BYTES", 2**19)
    body = gzip.compress(bytes(2**26))
    with ScriptedServer(lambda _: [answer(200, body, Content_Encoding="gzip")]) as server:
        with hurrying(server.url, max_state_bytes=2**20) as client:
            tracemalloc.start()
            try:
                with pytest.raises(
                    ProtocolError, match=r"the response has more than 1048576 bytes.*max_state_bytes=…"
                ):
                    client.discover()
                assert tracemalloc.get_traced_memory()[1] < 2**23
            finally:
                tracemalloc.stop()


def test_json_by_another_name_is_read_as_it_is():
    with ScriptedServer(lambda _: [answer(200, discovery("count"), media="text/plain")]) as server:
        with hurrying(server.url) as client:
            assert client.discover().endpoints[0].name == "count"


def test_a_page_where_the_first_answer_should_be_is_another_server():
    with ScriptedServer(lambda _: [answer(200, b"<html>welcome", media="text/html")]) as server:
        with (
            hurrying(server.url) as client,
            pytest.raises(NotATidewireServerError, match="200 text/html.*welcome"),
        ):
            client.run("count")


# ---- old HTTP ----------------------------------------------------------------------------------------------------


def test_a_stream_by_http_1_0_ends_with_its_connection():
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    with ScriptedServer(with_stream(lambda _: [head + OPENING + HALF + REST + END, CLOSE])) as server:
        with hurrying(server.url) as client:
            assert client.run("count") == "Hello"


def test_a_stream_by_http_1_0_that_ends_before_its_job_is_a_cut():
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    turns = iter(
        [
            [head + OPENING + HALF[:-4], CLOSE],
            [head + hello() + HALF, CLOSE],
            [head + hello() + REST + END, CLOSE],
        ]
    )
    with ScriptedServer(with_stream(lambda _: next(turns))) as server, hurrying(server.url) as client:
        assert [*client.submit("count").iter_text()] == ["Hel", "lo"]
        assert [request.cursor for request in server.requests if request.path.endswith("/events")] == [
            "1-1",
            "1-1",
            "1-2",
        ]


def test_a_body_by_http_1_0_without_a_length_ends_with_its_connection():
    body = (
        b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + json.dumps(discovery("count")).encode()
    )
    with ScriptedServer(lambda _: [body, CLOSE]) as server, hurrying(server.url) as client:
        assert client.discover().endpoints[0].name == "count"


def test_interim_answers_are_passed_over():
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
    script = with_stream(lambda _: [early + STREAM + OPENING + HALF + REST + END, CLOSE])
    with ScriptedServer(script) as server, hurrying(server.url) as client:
        assert client.run("count") == "Hello"


def test_credentials_stand_in_no_log_and_no_error(caplog):
    caplog.set_level(logging.DEBUG, "tidewire")
    with ScriptedServer(
        lambda _: [answer(403, {"code": "forbidden", "title": "no", "status": 403})]
    ) as server:
        with hurrying(server.url) as client, pytest.raises(RequestError) as caught:
            client.run("count")
    assert "secret" not in caplog.text
    assert "secret" not in f"{caught.value!r}{caught.value}{caught.value.where}"
