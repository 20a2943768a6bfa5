"""Errors that name a misconfigured reverse proxy or HTTP proxy, and what to change."""

import logging
import socket

import pytest

from support.client_timing import with_timing
from support.free_port import free_port
from support.full_listener import full_listener
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
    job,
    problem,
    snapshot,
    state,
)
from tidewire import AsyncClient, RetryPolicy
from tidewire.errors import ConnectTimeoutError, JobNotFoundError, ProtocolError, RequestError, TransportError

pytestmark = pytest.mark.anyio

TEXT = "/items/0/value"
OPENING = hello() + snapshot("1-1", state("", status="running"), columns=[TEXT])
FINAL = [{"status": "succeeded", "value": "Hello"}]
REST = event("lo", id="1-3") + event([["s", "/items/0/status", "succeeded"]], id="1-4") + done("1-5", FINAL)
HTML = b"<h1>Not found</h1>"


# ---- redirects ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contacted", [False, True])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirected_submit_names_the_target_and_the_url_to_use(status, contacted):
    target = "https://user:secret@example.com/ai/v1/endpoints/count/jobs"

    def script(request):
        found = discovery("count")
        return iter([answer(200, found) if request.path == "/v1" else answer(status, Location=target)])

    with ScriptedServer(script) as server:
        async with AsyncClient(server.url) as client:
            if contacted:
                await client.discover()
            with pytest.raises(RequestError) as caught:
                await client.submit("count")
        assert len([one for one in server.requests if one.method == "POST"]) == 1
    message = str(caught.value)
    assert "redirects this POST request to https://example.com/ai/v1/endpoints/count/jobs" in message
    assert "Create the client with the URL 'https://example.com/ai'." in message
    assert "secret" not in message


async def test_a_redirected_cancel_names_the_target():
    with ScriptedServer(lambda _: iter([answer(307, Location="/login")])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(
                RequestError, match=f"to {server.url}/login .*Create a client with the new URL"
            ):
                await client.job("j1").cancel()


@pytest.mark.parametrize("target", ["/v1/endpoints/count/jobs/", "/ai/v1/endpoints/count/jobs"])
async def test_a_submit_that_is_redirected_to_its_own_path_names_the_server_as_the_cause(target):
    base = "" if target.endswith("/") else "/ai"
    with ScriptedServer(lambda _: iter([answer(307, Location=target)])) as server:
        async with AsyncClient(server.url + base) as client:
            with pytest.raises(RequestError) as caught:
                await client.submit("count")
        message = str(caught.value)
        assert f"redirects this POST request to {server.url}{target}" in message
    assert "Another URL for the client does not help" in message
    assert "Correct the routing there" in message
    assert "Create" not in message


async def test_a_get_that_is_redirected_to_another_origin_names_the_url_to_use():
    with ScriptedServer(lambda _: iter([answer(308, Location="https://example.com/v1")])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(ProtocolError, match=r"Create the client with the URL 'https://example.com'"):
                await client.discover()


async def test_a_redirect_without_a_target_raises():
    with ScriptedServer(lambda _: iter([answer(307)])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(RequestError, match="does not say where to"):
                await client.submit("count")


# ---- a proxy that removes a path prefix --------------------------------------------------------------------------


def stripped(after_cut, *, prefix="/ai"):
    """Script of a server behind a proxy that removes `prefix`, whose links therefore lack the prefix."""

    def script(request):
        if not request.path.startswith(prefix):
            return iter(after_cut)
        links = b"Location: /v1/jobs/j1\r\nContent-Location: /v1/jobs/j1/events\r\n\r\n"
        head = STREAM.removesuffix(b"\r\n") + links
        return iter([head + OPENING + event("Hel", id="1-2"), CLOSE])

    return script


@pytest.mark.parametrize(
    ("after_cut", "kind"),
    [
        ([answer(404, HTML, media="text/html")], RequestError),
        ([answer(404, {"detail": "Not Found"})], RequestError),
        ([problem(404, "job_not_found")], JobNotFoundError),
        ([answer(200, HTML, media="text/html")], TransportError),
    ],
)
async def test_a_removed_prefix_is_named_when_the_stream_cannot_be_resumed(after_cut, kind, caplog):
    timing, _ = hurried()
    with ScriptedServer(stripped(after_cut)) as server, caplog.at_level(logging.WARNING, "tidewire"):
        root, url = server.url, f"{server.url}/ai"
        async with with_timing(AsyncClient(url, retry=RetryPolicy(attempts=4)), timing) as client:
            with pytest.raises(kind) as caught:
                await client.run("count")
    message = str(caught.value)
    assert f"Location or link pointed to {root}/v1/jobs/j1/events" in message
    assert "set root_path on the server" in message
    assert "keep the prefix in the proxy" in message
    [warning] = [record.message for record in caplog.records if "times in a row" not in record.message]
    assert f"outside the base path {url}" in warning


async def test_a_link_outside_the_base_path_is_followed_with_one_warning(caplog):
    timing, _ = hurried()
    with (
        ScriptedServer(stripped([STREAM + hello() + REST])) as server,
        caplog.at_level(logging.WARNING, "tidewire"),
    ):
        async with with_timing(AsyncClient(f"{server.url}/ai"), timing) as client:
            assert [await client.run("count") for _ in range(2)] == ["Hello", "Hello"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("base", ["", "/ai", "/a%20b"])
async def test_links_under_the_base_path_cause_no_warning(base, caplog):
    submitted = job(columns=[TEXT])
    submitted["links"]["events"] = f"{base}/v1/jobs/j1/events"
    with (
        ScriptedServer(lambda _: iter([answer(201, submitted)])) as server,
        caplog.at_level(logging.WARNING, "tidewire"),
    ):
        async with AsyncClient(server.url + base) as client:
            await client.submit("count")
    assert caplog.records == []


# ---- an HTTP proxy -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["argument", "environment"])
def proxied(request, monkeypatch):
    def client(url, proxy, **options):
        for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        if request.param == "argument":
            return AsyncClient(url, proxy=proxy, **options)
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("https_proxy", proxy)
        return AsyncClient(url, **options)

    return client


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_is_not_there_is_named_instead_of_the_server(proxied, scheme):
    timing, _ = hurried()
    port = free_port()
    client = proxied(f"{scheme}://server.example", f"http://user:secret@127.0.0.1:{port}")
    async with with_timing(client, timing):
        with pytest.raises(
            TransportError, match=f"cannot connect to the proxy http://127.0.0.1:{port}: no proxy is"
        ) as caught:
            await client.discover()
    assert "Check the argument proxy=" in caught.value.advice
    assert "secret" not in str(caught.value)


async def test_an_unknown_proxy_host_is_named(proxied):
    timing, _ = hurried()
    async with with_timing(
        proxied("http://server.example", "http://no-such-host.invalid:3128"), timing
    ) as client:
        with pytest.raises(
            TransportError, match=r"the proxy http://no-such-host\.invalid:3128: its host name"
        ):
            await client.discover()


async def test_a_proxy_that_refuses_to_connect_is_named(proxied):
    timing, _ = hurried()
    with ScriptedServer(lambda _: iter([answer(403, b"no"), CLOSE])) as proxy:
        async with with_timing(proxied("https://server.example", proxy.url), timing) as client:
            with pytest.raises(
                TransportError, match=f"the proxy {proxy.url} did not connect to server.example:443: 403"
            ):
                await client.discover()


async def test_a_proxy_that_does_not_accept_the_connection_is_named(proxied):
    with full_listener() as port:
        async with proxied(
            "http://server.example", f"http://127.0.0.1:{port}", connect_timeout=0.2
        ) as client:
            with pytest.raises(
                ConnectTimeoutError, match=f"no connection to the proxy http://127.0.0.1:{port}"
            ):
                await client.discover()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_never_answers_is_named(proxied, scheme):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        options = {"answer_timeout": 0.1, "retry": RetryPolicy(patience=0.3)}
        async with proxied(f"{scheme}://server.example", f"http://127.0.0.1:{port}", **options) as client:
            with pytest.raises(TransportError, match=f"through the proxy http://127.0.0.1:{port}"):
                await client.discover()
