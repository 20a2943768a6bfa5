"""Many concurrent clients, garbage, and clients that break off.

No event is lost, every job ends, and a concurrent stream is unaffected.
"""

import asyncio
import contextlib
import json
import resource
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from support.reference_server import QUICK, Peer, Reading, data, eventually, serving
from support.server_address import address_of
from tidewire.protocol.sse import Decoder
from tidewire_server import Server, Stream
from tidewire_server.serving.log_format import EVERY

CROWD = 1000
SUBMIT = b"POST /v1/endpoints/say/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def make_server(**settings: float) -> Server:
    server = Server(
        **QUICK,
        **settings,
        heartbeat=0.05,
        default_concurrency_limit=None,
        max_body_bytes=20_000,
        max_queue_size=2 * CROWD,
        max_streams_per_principal=2 * CROWD,
    )

    @server.endpoint
    async def say(stream: Stream[str], name: str = "") -> None:
        for part in ("hello", " ", name):
            stream.append(part)
            await asyncio.sleep(0)

    @server.endpoint
    async def hold() -> None:
        await asyncio.Event().wait()

    return server


@pytest.fixture(scope="module")
def peer():
    with serving(make_server()) as peer:
        yield peer


@pytest.fixture
def address(peer):
    return address_of(peer.url)


@pytest.fixture
def quiet_stream(peer) -> Iterator[None]:
    with concurrent_stream(peer):
        yield


@contextlib.contextmanager
def concurrent_stream(peer: Peer) -> Iterator[None]:
    """Read a quiet stream during the block, and check that it receives pings and the end of its job."""
    job = peer.start("hold")
    pings, ended = [0], []

    def follow() -> None:
        with Peer(peer.url) as other, other.http.stream("GET", f"/v1/jobs/{job}/events") as answer:
            for event in Reading(answer):
                pings[0] += event.type == "ping"
                ended.extend([data(event)["status"]] if event.type == "done" else [])

    thread = threading.Thread(target=follow)
    thread.start()
    eventually(lambda: pings[0])
    yield
    before = pings[0]
    eventually(lambda: pings[0] > before)
    assert peer.value("say", {"name": "neighbour"}) == "hello neighbour"
    peer.http.post(f"/v1/jobs/{job}/cancel")
    thread.join(20)
    assert ended == ["cancelled"]


@contextlib.contextmanager
def open_files(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"needs {count} open files, the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def request(body: bytes, *headers: bytes) -> bytes:
    head = [SUBMIT + b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def talk(address: tuple[str, int], *parts: bytes) -> bytes:
    """Send the parts and read until the server closes the connection."""
    with socket.create_connection(address, timeout=20) as connection:
        answer = b""
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
            while chunk := connection.recv(65536):
                answer += chunk
        return answer


def jobs_of(peer: Peer) -> int:
    return int(peer.metrics().get('tidewire_jobs_submitted_total{endpoint="say"}', 0))


@pytest.mark.heavy
@pytest.mark.usefixtures("quiet_stream")
async def test_a_thousand_concurrent_clients_each_get_their_response(address):
    async def one(name: str) -> str:
        reader, writer = await asyncio.open_connection(*address)
        body = json.dumps({"input": {"name": name}}).encode()
        writer.write(request(body, b"Accept: text/event-stream", b"Connection: close"))
        events = Decoder().feed((await reader.read()).partition(b"\r\n\r\n")[2])
        writer.close()
        # The chunk-size lines begin no known field, so the decoder ignores them.
        texts = [data(event) for event in events if event.type == "message"]
        assert events[-1].type == "done", events
        return "".join(text for text in texts if type(text) is str)

    with open_files(3 * CROWD):
        answers = await asyncio.gather(*(one(f"client {number}") for number in range(CROWD)))
    assert answers == [f"hello client {number}" for number in range(CROWD)]


def test_slowly_arriving_requests_time_out_without_delaying_others():
    with serving(make_server(head_timeout=0.5, body_timeout=0.5)) as peer, concurrent_stream(peer):
        heads = [socket.create_connection(address_of(peer.url), timeout=20) for _ in range(30)]
        bodies = [socket.create_connection(address_of(peer.url), timeout=20) for _ in range(30)]
        for slow in heads:
            slow.sendall(b"GET /v1 HTTP/1.1\r\n")
        for slow in bodies:
            slow.sendall(SUBMIT + b"Content-Length: 1000\r\n\r\n")
        waiting = dict.fromkeys(heads, b"X: y\r\n") | dict.fromkeys(bodies, b" ")
        while waiting:
            for slow, more in tuple(waiting.items()):
                slow.settimeout(0.01)
                try:
                    slow.sendall(more)
                    response = slow.recv(1000)
                except TimeoutError:
                    continue
                except ConnectionError:
                    response = b""
                assert not response or response.startswith(b"HTTP/1.1 408"), response
                del waiting[slow]
        for slow in heads + bodies:
            slow.close()
        assert jobs_of(peer) == 0


@pytest.mark.usefixtures("quiet_stream")
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (SUBMIT + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", {400}),
        (SUBMIT + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}", {400}),
        (SUBMIT + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n", {400}),
        (
            SUBMIT
            + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\nTrailer: x\r\n\r\n",
            {400, 422},
        ),
        (
            SUBMIT
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + b"400\r\n"
            + b" " * 1024
            + b"\r\n" * 1
            + b"1\r\n \r\n" * 30_000,
            {413},
        ),
        (SUBMIT + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", {400, 422}),
        (SUBMIT + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", {400}),
        (SUBMIT + b"Content-Length: -2\r\n\r\n{}", {400}),
        (SUBMIT + b"Content-Length: 2x\r\n\r\n{}", {400}),
        (SUBMIT + b"Content-Length: 99999999999999999999\r\n\r\n{}", {400, 413}),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300), {400}),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), {400, 404, 405}),
        (b"GET /v1\x00/x HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
        (b"GET /v1 HTTP/1.1\r\nHost: localhost\r\nBad Name: x\r\n\r\n", {400}),
        (b"GET http://evil.example/v1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", {200, 404}),
    ],
)
def test_garbage_is_answered_or_dropped_and_starts_no_job(peer, address, sent, status):
    before = jobs_of(peer)
    answer = talk(address, sent)
    assert not answer or int(answer.split(b" ", 2)[1]) in status, answer
    assert jobs_of(peer) == before


def test_repeated_garbage_is_logged_at_a_limited_rate(peer, address, caplog):
    for _ in range(EVERY):
        talk(address, b"GARBAGE\r\n\r\n")
    messages = [record.getMessage() for record in caplog.records if record.name == "uvicorn.error"]
    assert 1 <= len(messages) <= 2
    assert messages[-1] == f"Invalid HTTP request received. ({EVERY} times so far; logged once in {EVERY})"


@pytest.mark.usefixtures("quiet_stream")
def test_resets_during_a_submit_do_not_affect_others(peer, address):
    before = jobs_of(peer)
    whole = request(b'{"input": {"name": "x"}}', b"Accept: text/event-stream")
    cuts = range(1, len(whole) + 1, 3)
    for cut in cuts:
        with socket.create_connection(address, timeout=20) as rude:
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            rude.sendall(whole[:cut])
    with socket.create_connection(address, timeout=20) as rude:
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        rude.sendall(whole)
        assert rude.recv(12) == b"HTTP/1.1 200"
    # Only complete submits may start jobs, and each started job ends.
    assert jobs_of(peer) - before <= 2
    eventually(lambda: peer.metrics()["tidewire_open_streams"] == 1)

    def ended() -> bool:
        listed = peer.http.get("/v1/jobs?limit=5").json()["jobs"]
        return {job["status"] for job in listed if job["endpoint"] == "say"} <= {"succeeded"}

    eventually(ended)


@pytest.mark.usefixtures("quiet_stream")
@pytest.mark.parametrize("count", [3_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_pipelined_requests_are_answered_in_order(address, count):
    pipelined = b"".join(
        b"GET /v1/jobs/n%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number for number in range(count)
    )
    with socket.create_connection(address, timeout=60) as connection:
        threading.Thread(target=connection.sendall, args=(pipelined,), daemon=True).start()
        received = bytearray()
        while received.count(b"HTTP/1.1 404") < count:
            chunk = connection.recv(1 << 20)
            assert chunk
            received += chunk
    answered = [
        int(line.partition(b"'n")[2].partition(b"'")[0]) for line in received.split(b"HTTP/1.1 404")[1:]
    ]
    assert answered == list(range(count))


@pytest.mark.usefixtures("quiet_stream")
def test_pipelined_submits_each_start_a_job(peer, address):
    before = jobs_of(peer)
    submits = [request(json.dumps({"input": {"name": str(number)}}).encode()) for number in range(50)]
    answer = talk(address, *submits, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 201") == 50
    assert jobs_of(peer) - before == 50
    ids = [
        line.split(b"/")[-1].strip().decode()
        for line in answer.split(b"\r\n")
        if line.startswith(b"location:")
    ]
    assert [peer.ended(job)["state"]["items"][0]["value"] for job in ids[::10]] == [
        f"hello {number}" for number in range(0, 50, 10)
    ]


@pytest.mark.usefixtures("quiet_stream")
def test_truncated_bodies_start_no_job(peer, address):
    before = jobs_of(peer)
    body = b'{"input": {"name": "cut"}}'
    chunked = SUBMIT + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    for whole in (request(body), chunked):
        for cut in range(len(whole) - len(body), len(whole)):
            with socket.create_connection(address, timeout=20) as connection:
                connection.sendall(whole[:cut])
                connection.shutdown(socket.SHUT_WR)
                assert not connection.recv(1000).startswith(b"HTTP/1.1 20")
    assert jobs_of(peer) == before
