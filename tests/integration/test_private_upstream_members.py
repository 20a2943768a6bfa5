"""Private members of uvicorn, httpx and httpcore that this project uses: that they exist, and that the fast paths run.

One test for each member, on the real object. A new upstream version that drops one fails the test that names it.
"""

import ast
import asyncio
import inspect
from collections import deque
from pathlib import Path

import h11
import httpcore
import httpx
import pytest
import uvicorn
from uvicorn.protocols.http import h11_impl
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from support.reference_server import QUICK
from tidewire import AsyncClient
from tidewire.http import fast_body_reader, httpx_fixes
from tidewire.http.fast_body_reader import FastBody
from tidewire_server import Server, Stream
from tidewire_server.http.uvicorn import uvicorn_internals, uvicorn_protocol
from tidewire_server.http.uvicorn.uvicorn_internals import UvicornConnection

MISSING = "no such member"

# Each member, and the kind that the code relies on. A function stands for a method: the code calls or overrides it.
PROTOCOL = {
    "connection_made": inspect.ismethod,
    "connection_lost": inspect.ismethod,
    "data_received": inspect.ismethod,
    "send_400_response": inspect.ismethod,
    "on_message_begin": inspect.ismethod,
    "on_headers_complete": inspect.ismethod,
    "on_message_complete": inspect.ismethod,
    "on_response_complete": inspect.ismethod,
    "pause_writing": inspect.ismethod,
    "connections": set,
    "cycle": RequestResponseCycle,
    "flow": FlowControl,
    "loop": asyncio.AbstractEventLoop,
    "pipeline": deque,
    "transport": asyncio.Transport,
}
CYCLE = {
    "transport": asyncio.Transport,
    "flow": FlowControl,
    "more_body": bool,
    "chunked_encoding": bool,
    "disconnected": bool,
    "response_complete": bool,
    "conn": MISSING,  # only the cycle over h11 has it: by this the two are told apart
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
    ("httpx response", "_stream", httpx.AsyncByteStream),
    ("httpx transport", "_httpcore_stream", object),
    ("httpcore pool", "_stream", object),
    ("httpcore connection", "_connection", httpcore.AsyncHTTP11Connection),
    ("httpcore HTTP/1.1", "_h11_state", h11.Connection),
]
TRACED = ["connection.connect_tcp.complete", "connection.start_tls.failed"]


def is_of(kind, value):
    if kind is MISSING or value is MISSING:
        return value is kind
    return isinstance(value, kind) if isinstance(kind, type) else kind(value)


# ---- uvicorn -----------------------------------------------------------------------------------------------------


async def in_the_middle_of_a_chunked_body():
    """Members of uvicorn's objects, as they are while a body in chunks is being sent."""
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
def of_uvicorn():
    return asyncio.run(in_the_middle_of_a_chunked_body())


@pytest.mark.parametrize(
    ("owner", "name", "kind"),
    [(owner, name, kind) for owner, members in UVICORN.items() for name, kind in members.items()],
)
def test_a_member_of_uvicorn_is_there_and_of_its_kind(of_uvicorn, owner, name, kind):
    assert is_of(kind, of_uvicorn[owner, name]), (
        f"uvicorn {uvicorn.__version__}: {owner}.{name} is {of_uvicorn[owner, name]!r}"
    )


def test_the_cycle_of_uvicorn_over_h11_is_known_by_its_member_conn():
    assert "conn" in inspect.signature(h11_impl.RequestResponseCycle.__init__).parameters


def used(module, *owners):
    """Names of the members that a module uses of expressions, by attribute or by `getattr`."""
    names = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in owners:
            names.add(node.attr)
        calls = isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "hasattr"}
        if calls and ast.unparse(node.args[0]) in owners:
            names.add(node.args[1].value)
    return names


def test_these_are_all_members_of_uvicorn_that_the_code_uses():
    tree = ast.parse(Path(uvicorn_protocol.__file__).read_text(encoding="utf-8"))
    [bounded] = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    overridden = {node.name for node in bounded.body if isinstance(node, ast.FunctionDef)}
    of_protocol = used(uvicorn_protocol, "self", "super()") | overridden
    assert {name for name in of_protocol if not name.startswith("_")} == PROTOCOL.keys()
    of_cycle = used(uvicorn_protocol, "self.cycle") | used(uvicorn_internals, "self._cycle")
    assert of_cycle == CYCLE.keys()
    assert used(uvicorn_protocol, "self.flow") | used(uvicorn_internals, "self._flow") == FLOW.keys()


# ---- httpx and httpcore --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answering():
    server = Server(**QUICK)

    @server.endpoint
    async def say(stream: Stream[str], words: int = 20) -> None:
        for _ in range(words):
            stream.append("word ")
            await asyncio.sleep(0)

    with server.running() as url:
        yield url


async def layers_of_a_response(url):
    """The object at each layer, and the network stream, of an answer whose body was not read."""
    found = []
    async with httpx.AsyncClient() as client, client.stream("GET", f"{url}/healthz") as response:
        layer = response.stream
        for _, name, _ in LAYERS:
            layer = getattr(layer, name, MISSING)
            found.append(layer)
        return found, response.extensions.get("network_stream")


@pytest.fixture(scope="module")
def of_httpx(answering):
    return asyncio.run(layers_of_a_response(answering))


@pytest.mark.parametrize("at", range(len(LAYERS)), ids=[f"{owner}.{name}" for owner, name, _ in LAYERS])
def test_a_layer_under_an_httpx_response_is_there_and_of_its_kind(of_httpx, at):
    owner, name, kind = LAYERS[at]
    found = of_httpx[0][at]
    assert found is not MISSING, f"httpx {httpx.__version__}, httpcore {httpcore.__version__}: {owner}.{name}"
    assert isinstance(found, kind)


def test_the_network_stream_of_an_httpx_response_is_that_of_httpcore(of_httpx):
    assert isinstance(of_httpx[1], httpcore.AsyncNetworkStream)


def test_these_are_all_layers_that_the_code_looks_through():
    assert [name for _, name, _ in LAYERS] == list(fast_body_reader._LAYERS)


def test_h11_says_what_came_with_the_head_and_where_its_peer_stands(answering):
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    http.send(h11.EndOfMessage())
    http.receive_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nso")
    assert type(http.next_event()) is h11.Response
    assert (http.trailing_data, http.their_state) == ((b"4\r\nso", False), h11.SEND_BODY)


@pytest.mark.parametrize("event", TRACED)
def test_httpcore_traces_a_connection_by_this_name(event):
    told = {}

    async def trace(name, members):
        told[name] = members

    async def not_tls(reader, writer):
        await reader.read(1)
        writer.write(b"this is not TLS\r\n")
        writer.close()

    async def connect():
        server = await asyncio.start_server(not_tls, "127.0.0.1", 0)
        async with server, httpx.AsyncClient() as client:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(httpx.ConnectError):
                await client.get(f"https://127.0.0.1:{port}/", extensions={"trace": trace})

    asyncio.run(connect())
    assert event in told, f"httpcore {httpcore.__version__}: no trace event {event}, but {list(told)}"
    if event.endswith(".complete"):
        assert isinstance(told[event]["return_value"], httpcore.AsyncNetworkStream)


def test_httpx_opens_a_stream_through_the_method_that_is_replaced():
    assert inspect.isfunction(httpx.AsyncClient.stream)
    wanted = inspect.signature(httpx.AsyncClient.stream).parameters
    assert list(wanted)[:3] == list(inspect.signature(httpx_fixes.Pool.stream).parameters)[:3]


# ---- the fast paths ------------------------------------------------------------------------------------------------


def follow(url, words):
    """Run a job and follow it; returns its text."""

    async def run():
        async with AsyncClient(url) as client:
            job = await client.submit("say", words=words)
            return "".join([update.text async for update in client.job(job.id)])

    return asyncio.run(run())


def test_the_server_writes_events_of_a_stream_directly_to_the_transport(answering, monkeypatch):
    taken, write_at_once = [], UvicornConnection.write_at_once

    def counted(connection, part):
        taken.append(write_at_once(connection, part))
        return taken[-1]

    monkeypatch.setattr(UvicornConnection, "write_at_once", counted)
    assert follow(answering, 200) == "word " * 200
    assert any(taken), "no event was written directly: uvicorn's cycle is no longer recognized"


def test_the_client_reads_chunks_of_a_stream_directly_from_the_socket(answering, monkeypatch):
    decoded, plain = [], FastBody._decode_chunks

    def counted(body, chunks):
        decoded.append(plain(body, chunks))
        return decoded[-1]

    monkeypatch.setattr(FastBody, "_decode_chunks", counted)
    assert follow(answering, 200) == "word " * 200
    assert b"event:done" in b"".join(decoded), (
        "no chunk was read directly: httpx's layers are no longer recognized"
    )
