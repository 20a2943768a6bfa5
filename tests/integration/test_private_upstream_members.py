"""Private members of uvicorn, httpx2 and httpcore2 that the fast paths of this project use.

Each member has one test on the real object. If a new upstream version drops a member, the test with the
member's name fails. Further tests check that the fast paths run.
"""

import ast
import asyncio
import inspect
import logging
from collections import deque
from pathlib import Path

import h11
import httpcore2
import httpx2
import pytest
import uvicorn
from uvicorn.protocols.http import h11_impl
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from support.reference_server import QUICK
from tidewire import AsyncClient
from tidewire.http import fast_body_reader
from tidewire.http.chunked_coding import ChunkedDecoder
from tidewire_server import Server, Stream
from tidewire_server.http.uvicorn import uvicorn_internals, uvicorn_protocol
from tidewire_server.http.uvicorn.uvicorn_internals import UvicornConnection

MISSING = "no such member"

# Each member and the kind that the code relies on. A function stands for a method that the code calls or
# overrides.
PROTOCOL = {
    "connection_made": inspect.ismethod,
    "connection_lost": inspect.ismethod,
    "data_received": inspect.ismethod,
    "send_400_response": inspect.ismethod,
    "on_message_begin": inspect.ismethod,
    "on_header": inspect.ismethod,
    "on_body": inspect.ismethod,
    "on_headers_complete": inspect.ismethod,
    "on_message_complete": inspect.ismethod,
    "on_response_complete": inspect.ismethod,
    "pause_writing": inspect.ismethod,
    "client": tuple,
    "connections": set,
    "cycle": RequestResponseCycle,
    "flow": FlowControl,
    "headers": list,
    "logger": logging.Logger,
    "loop": asyncio.AbstractEventLoop,
    "pipeline": deque,
    "timeout_keep_alive_task": lambda timer: timer is None or isinstance(timer, asyncio.TimerHandle),
    "transport": asyncio.Transport,
}
CYCLE = {
    "transport": asyncio.Transport,
    "flow": FlowControl,
    "keep_alive": bool,
    "more_body": bool,
    "chunked_encoding": bool,
    "disconnected": bool,
    "response_complete": bool,
    "response_started": bool,
    "conn": MISSING,  # Only the cycle over h11 has `conn`, so the code uses this member to recognize that cycle.
}
FLOW = {"drain": inspect.iscoroutinefunction, "pause_reading": inspect.ismethod}
SERVER = {
    "startup": inspect.iscoroutinefunction,
    "serve": inspect.iscoroutinefunction,
    "capture_signals": inspect.ismethod,
    "config": uvicorn.Config,
    "started": bool,
    "should_exit": bool,
}
CONFIG = {"get_loop_factory": inspect.ismethod}
UVICORN = {"protocol": PROTOCOL, "cycle": CYCLE, "flow": FLOW, "server": SERVER, "config": CONFIG}

LAYERS = [
    ("httpx2 response", "_stream", httpx2.AsyncByteStream),
    ("httpx2 transport", "_httpcore_stream", object),
    ("httpcore2 pool", "_stream", object),
    ("httpcore2 connection", "_connection", httpcore2.AsyncHTTP11Connection),
    ("httpcore2 HTTP/1.1", "_h11_state", h11.Connection),
]
TRACED = ["connection.connect_tcp.complete", "connection.start_tls.failed"]


def is_of_kind(kind, value):
    if kind is MISSING or value is MISSING:
        return value is kind
    return isinstance(value, kind) if isinstance(kind, type) else kind(value)


# ---- uvicorn -----------------------------------------------------------------------------------------------------


async def members_during_a_chunked_body():
    """Read the members of uvicorn's objects while uvicorn sends a chunked body."""
    config = uvicorn.Config("unused:app", http="httptools", ws="none", log_config=None, lifespan="off")
    found, protocols = {}, []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"some", "more_body": True})
        objects = {
            "protocol": protocols[0],
            "cycle": send.__self__,
            "flow": send.__self__.flow,
            "server": uvicorn.Server(config),
            "config": config,
        }
        for owner, members in UVICORN.items():
            for name in members:
                found[owner, name] = getattr(objects[owner], name, MISSING)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def connect():
        protocols.append(HttpToolsProtocol(config=config, server_state=ServerState(), app_state={}))
        return protocols[0]

    config.load_app = lambda: app
    server = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"4\r\nsome\r\n0\r\n\r\n")
        writer.close()
    return found


@pytest.fixture(scope="module")
def uvicorn_members():
    return asyncio.run(members_during_a_chunked_body())


@pytest.mark.parametrize(
    ("owner", "name", "kind"),
    [(owner, name, kind) for owner, members in UVICORN.items() for name, kind in members.items()],
)
def test_a_uvicorn_member_exists_with_its_kind(uvicorn_members, owner, name, kind):
    assert is_of_kind(kind, uvicorn_members[owner, name]), (
        f"uvicorn {uvicorn.__version__}: {owner}.{name} is {uvicorn_members[owner, name]!r}"
    )


def test_uvicorns_h11_cycle_has_the_member_conn():
    assert "conn" in inspect.signature(h11_impl.RequestResponseCycle.__init__).parameters


def used_members(module, *owners):
    """Names of the members that a module accesses on `owners`, as an attribute or with `getattr`."""
    names = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in owners:
            names.add(node.attr)
        calls = isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "hasattr"}
        if calls and ast.unparse(node.args[0]) in owners:
            names.add(node.args[1].value)
    return names


def test_the_tables_list_all_uvicorn_members_in_use():
    tree = ast.parse(Path(uvicorn_protocol.__file__).read_text(encoding="utf-8"))
    [bounded] = [
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "BoundedHttp"
    ]
    overridden = {node.name for node in bounded.body if isinstance(node, ast.FunctionDef)}
    of_protocol = used_members(uvicorn_protocol, "self", "super()") | overridden
    assert {name for name in of_protocol if not name.startswith("_")} == PROTOCOL.keys()
    of_cycle = used_members(uvicorn_protocol, "self.cycle") | used_members(uvicorn_internals, "self._cycle")
    assert of_cycle == CYCLE.keys()
    assert (
        used_members(uvicorn_protocol, "self.flow") | used_members(uvicorn_internals, "self._flow")
        == FLOW.keys()
    )


# ---- httpx2 and httpcore2 --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server_url():
    server = Server(**QUICK)

    @server.endpoint
    async def say(stream: Stream[str], words: int = 20) -> None:
        for _ in range(words):
            stream.append("word ")
            await asyncio.sleep(0)

    with server.running() as url:
        yield url


async def layers_of_a_response(url):
    """The object at each layer and the network stream of a response whose body is unread."""
    found = []
    async with httpx2.AsyncClient() as client, client.stream("GET", f"{url}/healthz") as response:
        layer = response.stream
        for _, name, _ in LAYERS:
            layer = getattr(layer, name, MISSING)
            found.append(layer)
        return found, response.extensions.get("network_stream")


@pytest.fixture(scope="module")
def layers(server_url):
    return asyncio.run(layers_of_a_response(server_url))


@pytest.mark.parametrize("at", range(len(LAYERS)), ids=[f"{owner}.{name}" for owner, name, _ in LAYERS])
def test_a_layer_under_a_response_exists_with_its_kind(layers, at):
    owner, name, kind = LAYERS[at]
    found = layers[0][at]
    assert found is not MISSING, (
        f"httpx2 {httpx2.__version__}, httpcore2 {httpcore2.__version__}: {owner}.{name}"
    )
    assert isinstance(found, kind)


def test_the_network_stream_of_a_response_is_from_httpcore(layers):
    assert isinstance(layers[1], httpcore2.AsyncNetworkStream)


def test_the_table_lists_all_layers_in_use():
    assert [name for _, name, _ in LAYERS] == list(fast_body_reader._LAYERS)


def test_h11_exposes_trailing_data_and_the_state_of_its_peer(server_url):
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    http.send(h11.EndOfMessage())
    http.receive_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nso")
    assert type(http.next_event()) is h11.Response
    assert (http.trailing_data, http.their_state) == ((b"4\r\nso", False), h11.SEND_BODY)


@pytest.mark.parametrize("event", TRACED)
async def test_httpcore_emits_the_trace_event(event):
    traced = {}

    async def trace(name, members):
        traced[name] = members

    async def not_tls(reader, writer):
        await reader.read(1)
        writer.write(b"this is not TLS\r\n")
        writer.close()

    server = await asyncio.start_server(not_tls, "127.0.0.1", 0)
    async with server, httpx2.AsyncClient() as client:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(httpx2.ConnectError):
            await client.get(f"https://127.0.0.1:{port}/", extensions={"trace": trace})
    assert event in traced, f"httpcore2 {httpcore2.__version__}: no trace event {event}, but {list(traced)}"
    if event.endswith(".complete"):
        assert isinstance(traced[event]["return_value"], httpcore2.AsyncNetworkStream)


# ---- the fast paths ------------------------------------------------------------------------------------------------


def follow(url, words):
    """Run a job, follow it, and return its text."""

    async def run():
        async with AsyncClient(url) as client:
            job = await client.submit("say", words=words)
            return "".join([update.text async for update in client.job(job.id)])

    return asyncio.run(run())


def test_the_server_writes_events_of_a_stream_directly_to_the_transport(server_url, monkeypatch):
    written, write_at_once = [], UvicornConnection.write_at_once

    def counted(connection, part):
        written.append(write_at_once(connection, part))
        return written[-1]

    monkeypatch.setattr(UvicornConnection, "write_at_once", counted)
    assert follow(server_url, 200) == "word " * 200
    assert any(written), "no event was written directly: uvicorn's cycle is no longer recognized"


def test_the_client_reads_chunks_of_a_stream_directly_from_the_socket(server_url, monkeypatch):
    decoded, plain = [], ChunkedDecoder.feed

    def counted(chunks, data):
        decoded.append(plain(chunks, data))
        return decoded[-1]

    monkeypatch.setattr(ChunkedDecoder, "feed", counted)
    assert follow(server_url, 200) == "word " * 200
    assert b"event:done" in b"".join(decoded), (
        "no chunk was read directly: the layers of httpcore2 are no longer recognized"
    )
