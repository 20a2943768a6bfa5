"""Delivery of events by direct writes from a commit to a reader's socket.

Readers receive all events in order, and a reader with a full socket falls back to its own task.
"""

import asyncio
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import pytest
import uvicorn
from starlette.types import Message

import tidewire
import tidewire_server
from support.reference_server import QUICK, Fold, Peer, data, eventually, logged, serving
from support.server_address import address_of
from tidewire.protocol.sse import Decoder, Event
from tidewire_server import Server, Stream
from tidewire_server.http.uvicorn.uvicorn_internals import SEND_BUFFER_BYTES, UvicornConnection
from tidewire_server.job_log.commit_schedule import WIDEST
from tidewire_server.serving.listener import bind, url_of

SOURCES = tuple(str(Path(package.__file__ or "").parent) for package in (tidewire, tidewire_server))


def make_server(**settings: object) -> Server:
    server = Server(**(QUICK | {"default_concurrency_limit": None, "merge_window": 0.0} | settings))

    @server.endpoint
    async def many(stream: Stream[str], letters: int) -> None:
        for number in range(letters):
            stream.append("abcdefghij"[number % 10])
            await asyncio.sleep(0)

    @server.endpoint
    async def mixed(stream: Stream[str], rounds: int) -> None:
        for number in range(rounds):
            stream.append(f"{number}")
            if number % 3 == 0:
                await asyncio.sleep(0)
            if number % 7 == 0:
                stream.progress(number)
            if number % 11 == 0:
                stream.note(f"at {number}")
            if number % 13 == 0:
                stream.append("x" * 50_000)
            stream.append("é🎉")

    return server


def contiguous(events: list[Event]) -> bool:
    seqs = [int(event.id.partition("-")[2]) for event in logged(events)]
    return seqs == list(range(seqs[0], seqs[0] + len(seqs)))


@pytest.mark.heavy
def test_readers_that_join_at_different_times_get_each_event_once_in_order():
    with serving(make_server()) as peer:
        job = peer.start("many", {"letters": 3000})
        found: list[list[Event]] = [[] for _ in range(6)]

        def read(into: list[Event], after: str) -> None:
            with Peer(peer.url) as other:
                into.extend(other.events(job, after=after))

        readers = [
            threading.Thread(target=read, args=(into, "1-1" if number % 2 else "0-0"))
            for number, into in enumerate(found)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        whole = logged(peer.events(job, after="0-0"))
    for number, events in enumerate(found):
        got = logged(events)
        if not any(type(data(event)) is dict and "on" in data(event) for event in got):
            assert got == whole[number % 2 :]
        fold = Fold(keep_states=False).take([whole[0], *got] if number % 2 else got)
        assert fold.items == [{"status": "succeeded", "value": "abcdefghij" * 300}]


@pytest.mark.parametrize("window", [0.0, 0.005])
def test_other_changes_keep_their_order_between_appends(window):
    with serving(make_server(merge_window=window)) as peer:
        job = peer.start("mixed", {"rounds": 200})
        events = peer.events(job, after="0-0")
        fold = Fold(keep_states=False).take(logged(events))
        expected_text = "".join(f"{n}" + ("x" * 50_000 if n % 13 == 0 else "") + "é🎉" for n in range(200))
        assert contiguous(events)
        assert fold.items == [{"status": "succeeded", "value": expected_text}]
        assert [note["text"] for note in peer.job(job)["state"]["notes"]] == [
            f"at {n}" for n in range(0, 200, 11)
        ]


@pytest.mark.heavy
def test_a_reader_that_reconnects_after_cuts_loses_no_event():
    with serving(make_server()) as peer:
        job = peer.start("many", {"letters": 20_000})
        cursor, got, cuts = "0-0", [], 0
        while not (got and got[-1].type == "done"):
            with socket.create_connection(address_of(peer.url), timeout=30) as cut:
                request = f"GET /v1/jobs/{job}/events?after={cursor} HTTP/1.1\r\nHost: localhost\r\n\r\n"
                cut.sendall(request.encode())
                received = b""
                while len(received) < 4096 and not received.endswith(b"0\r\n\r\n"):
                    received += cut.recv(977)
            events = logged(Decoder().feed(unchunked(received)))
            assert events, received[:300]
            got += events
            cursor, cuts = events[-1].id, cuts + 1
        assert cuts > 1
        assert len({event.id for event in got}) == len(got)
        whole = logged(peer.events(job, after="0-0"))
        assert Fold(keep_states=False).take(got).items == Fold(keep_states=False).take(whole).items


def unchunked(answer: bytes) -> bytes:
    """Decode the part of a chunked response body that has arrived."""
    _, _, rest = answer.partition(b"\r\n\r\n")
    body = b""
    while b"\r\n" in rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] in {b"", b"\r", b"\r\n"}
        body, rest = body + rest[:length], rest[length + 2 :]
    return body


@pytest.mark.heavy
@pytest.mark.parametrize("letters", [20_000, pytest.param(60_000, marks=pytest.mark.slow)])
def test_a_reader_with_a_full_socket_catches_up_without_delaying_others(letters):
    with serving(make_server()) as peer:
        job = peer.start("many", {"letters": letters})
        with socket.socket() as stuck_socket:
            stuck_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck_socket.connect(address_of(peer.url))
            stuck_socket.sendall(
                f"GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            )
            # The stuck reader reads nothing until the job has ended. The server neither keeps copies for it
            # nor loses events.
            whole = peer.events(job, after="0-0")
            stuck_socket.settimeout(30)
            received = b""
            while piece := stuck_socket.recv(65536):
                received += piece
        events = logged(Decoder().feed(unchunked(received)))
    assert events[-1].type == "done"
    assert len(events) < len(logged(whole))
    assert Fold(keep_states=False).take(events).items == Fold(keep_states=False).take(logged(whole)).items


def test_uvicorn_with_h11_serves_the_same_events():
    server = make_server()
    listener = bind("127.0.0.1", 0)
    config = uvicorn.Config(server, http="h11", lifespan="on", ws="none", log_config=None)
    body = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(body.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        eventually(lambda: body.started)
        with Peer(url_of(listener)) as peer:
            job = peer.start("many", {"letters": 300})
            events = peer.events(job, after="0-0")
            assert contiguous(events)
            fold = Fold(keep_states=False).take(logged(events))
            assert fold.items == [{"status": "succeeded", "value": "abcdefghij" * 30}]
    finally:
        body.should_exit = True
        thread.join()
        listener.close()


async def test_stream_connections_have_small_send_buffers():
    class Cycle:
        def __init__(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        async def send(self, message: Message) -> None:
            """Discard the message; the test examines only the transport."""

    listener = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    async with listener:
        _, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        UvicornConnection(Cycle(writer.transport).send).limit_buffering()
        sock = writer.get_extra_info("socket")
        # Linux reports twice the requested buffer size.
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * SEND_BUFFER_BYTES
        assert writer.transport.get_write_buffer_limits() == (0, 1)
        writer.close()


def test_an_append_after_a_pause_is_sent_without_a_further_append():
    server = make_server(merge_window=0.005)
    pieces: asyncio.Queue[str | None] = asyncio.Queue()
    loops: list[asyncio.AbstractEventLoop] = []

    @server.endpoint
    async def say(stream: Stream[str]) -> None:
        loops.append(asyncio.get_running_loop())
        while (piece := await pieces.get()) is not None:
            stream.append(piece)

    with serving(server) as peer:
        job = peer.start("say")
        loop = eventually(lambda: loops)[0]
        with peer.stream(job) as reading:
            for number in range(5):
                loop.call_soon_threadsafe(pieces.put_nowait, f"<{number}>")
                assert data(reading.until_text(f"<{number}>")) == f"<{number}>"
            loop.call_soon_threadsafe(pieces.put_nowait, None)
            assert reading.until("done")


def test_an_isolated_token_reaches_the_socket_of_a_caught_up_reader_in_fourteen_calls():
    """The calls of functions of the project, from `Stream.append` to `transport.write`. Five of them follow the commit."""
    server = make_server(merge_window=1e-6)
    pieces: asyncio.Queue[str | None] = asyncio.Queue()
    loops: list[asyncio.AbstractEventLoop] = []
    passes: list[list[str]] = []

    def count(frame: FrameType, event: str, _argument: object) -> None:
        name = frame.f_code.co_qualname
        if event == "call" and frame.f_code.co_filename.startswith(SOURCES):
            if name == "Stream.append":
                passes.append([])
            if passes:
                passes[-1].append(name)
        elif event == "c_call" and passes and name == "UvicornConnection.write_at_once":
            passes[-1].append("C")

    @server.endpoint
    async def say(stream: Stream[str]) -> None:
        loops.append(asyncio.get_running_loop())
        sys.setprofile(count)
        try:
            while (piece := await pieces.get()) is not None:
                stream.append(piece)
        finally:
            sys.setprofile(None)

    with serving(server) as peer:
        job = peer.start("say")
        loop = eventually(lambda: loops)[0]
        with peer.stream(job) as reading:
            for number in range(10):
                time.sleep(WIDEST)  # Even a server that was busy merges no tokens that are this far apart.
                loop.call_soon_threadsafe(pieces.put_nowait, f"<{number}>")
                reading.until_text(f"<{number}>")
            loop.call_soon_threadsafe(pieces.put_nowait, None)
            reading.until("done")
    direct = [each[: each.index("C")] for each in passes if "C" in each]
    # A token that follows the commit of another too soon waits for a timer, which takes more calls.
    token = min(direct, key=len)
    assert len(token) <= 14, "\n".join(token)
    assert all(len(each) - each.index("MemoryLog.append_at_once") <= 5 for each in direct), direct
