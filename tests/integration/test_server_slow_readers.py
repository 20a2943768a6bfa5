"""Readers slower than their job receive fewer events and the same state, and do not delay others."""

import asyncio
import contextlib
import gc
import itertools
import select
import socket
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import httpx2
import pytest
from starlette.types import Message

from support.reference_server import QUICK, Fold, Peer, data, eventually, logged, serving
from support.server_address import address_of
from tidewire import Client
from tidewire.protocol.sse import Decoder, Event
from tidewire_server import Server, Stream
from tidewire_server.store.memory.memory_store import MemoryLog


def make_server(**settings: object) -> Server:
    server = Server(**(QUICK | {"default_concurrency_limit": None, "merge_window": 0.0} | settings))

    @server.endpoint
    async def spell(stream: Stream[str], letters: int = 20_000) -> None:
        for number in range(letters):
            stream.append("abcdefghij"[number % 10])
            if number % 16 == 0:
                await asyncio.sleep(0)

    @server.endpoint
    async def paint(frames: int = 200, size: int = 20_000) -> AsyncIterator[str]:
        for number in range(frames):
            yield f"{number % 10}" * size
            await asyncio.sleep(0)

    @server.endpoint
    async def slide(steps: int = 1000, width: int = 10) -> AsyncIterator[list[str]]:
        """Yield a sliding window over texts.

        Each step removes the first text and adds one, so no two changes can be merged.
        """
        for number in range(steps):
            yield [f"{at}-" * 250 for at in range(number, number + width)]
            await asyncio.sleep(0)

    return server


class SlowReader:
    """A reader with a small receive buffer that reads only when a test calls `take` or `rest`."""

    def __init__(self, peer: Peer, job: str, query: str = "") -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(address_of(peer.url))
        self.socket.settimeout(30)
        self.socket.sendall(f"GET /v1/jobs/{job}/events{query} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        self._decoder = Decoder()
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.socket.recv(1)
        assert b" 200 " in head.partition(b"\r\n")[0]

    def take(self, size: int) -> list[Event]:
        """Read at most `size` bytes and decode their events."""
        return self._decoder.feed(self.socket.recv(size))

    def read_to_end(self) -> list[Event]:
        """Read all events until the server closes the connection."""
        events = []
        while chunk := self.socket.recv(4096):
            events += self._decoder.feed(chunk)
        return events


@contextmanager
def slow(peer: Peer, job: str, query: str = "") -> Iterator[SlowReader]:
    reader = SlowReader(peer, job, query)
    with reader.socket:
        yield reader


def merge_bases(events: list[Event]) -> list[int]:
    contents = [data(event) for event in logged(events) if event.type == "message"]
    return [content["on"] for content in contents if type(content) is dict and "on" in content]


def state_at(events: list[Event], last: str) -> object:
    ids = [event.id for event in logged(events)]
    return Fold(keep_states=False).take(logged(events)[: ids.index(last) + 1]).items


@pytest.mark.heavy
def test_a_slow_reader_gets_fewer_events_and_the_same_state():
    with serving(make_server()) as peer:
        job = peer.start("spell")
        with slow(peer, job, "?after=1-1") as reader:
            whole = logged(peer.events(job, after="0-0"))
            fold = Fold(keep_states=False).take([whole[0], *(events := reader.read_to_end())])
        assert merge_bases(events)
        assert len(logged(events)) < len(whole) * 2 / 3
        ids = {event.id for event in logged(events)}
        sampled = [event for event in whole if event.id in ids][:: len(ids) // 20]
        states = [state_at(whole, event.id) for event in sampled]
        assert states == [state_at([whole[0], *events], event.id) for event in sampled]
        assert fold.items == [{"status": "succeeded", "value": "abcdefghij" * 2000}]
        assert peer.metrics()["tidewire_events_merged_total"] > 1000


def test_a_slow_reader_of_changing_values_skips_some_of_them():
    with serving(make_server()) as peer:
        job = peer.start("paint", {"frames": 300})
        with slow(peer, job) as reader:
            whole = Fold(keep_states=False).take(peer.events(job, after="0-0"))
            fold = Fold(keep_states=False).take(events := reader.read_to_end())
        assert fold.items == whole.items
        assert sum(len(event.data) for event in logged(events)) < 300 * 20_000 / 3


def test_a_slow_reader_of_the_whole_log_gets_each_event_unmerged():
    with serving(make_server()) as peer:
        job = peer.start("spell")
        with slow(peer, job, "?after=0-0") as reader:
            whole = logged(peer.events(job, after="0-0"))
            assert logged(reader.read_to_end()) == whole
        assert not merge_bases(whole)


def test_a_reader_far_behind_gets_a_snapshot_if_it_is_smaller():
    with serving(make_server()) as peer:
        job = peer.start("slide", {"steps": 400})
        whole = peer.events(job, after="0-0")
        # The reader connects after the end of the job, so its distance does not depend on timing.
        with slow(peer, job, "?after=1-1") as reader:
            fold = Fold(keep_states=False).take([logged(whole)[0], *(events := reader.read_to_end())])
        assert fold.items == Fold(keep_states=False).take(whole).items
        assert [data(event)["reason"] for event in events if event.type == "snapshot"] == ["compacted"]


def test_stuck_readers_delay_neither_the_job_nor_other_readers():
    with serving(make_server(stall_timeout=60.0)) as peer:
        # The values exceed what the buffers on the way can hold, even after merging.
        job = peer.start("paint", {"frames": 20, "size": 1_000_000})
        stuck = [SlowReader(peer, job) for _ in range(20)]
        try:
            folds: list[Fold] = []

            def read() -> None:
                with Peer(peer.url) as other:
                    folds.append(Fold(keep_states=False).take(other.events(job)))

            threads = [threading.Thread(target=read) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [len(fold.items[0]["value"]) for fold in folds] == [1_000_000] * 3
            assert peer.metrics()["tidewire_open_streams"] == 20
        finally:
            for reader in stuck:
                reader.socket.close()
        eventually(lambda: peer.metrics()["tidewire_open_streams"] == 0)


def test_a_slow_reader_that_makes_progress_is_not_closed():
    with serving(make_server(stall_timeout=1.5)) as peer:
        job = peer.start("spell")
        peer.ended(job)
        with slow(peer, job, "?after=0-0") as reader:
            events, begun = [], time.monotonic()
            # The reads total less than what makes the kernel request more data, and take longer than
            # `stall_timeout`.
            while time.monotonic() - begun < 2.0:
                events += reader.take(1024)
                time.sleep(0.1)
            fold = Fold(keep_states=False).take(events + reader.read_to_end())
        assert len(fold.items[0]["value"]) == 20_000
        assert peer.metrics()["tidewire_streams_stalled_total"] == 0


@pytest.mark.slow
def test_an_endless_job_with_a_stuck_reader_does_not_grow_memory(caplog):
    server = make_server(max_log_bytes=64 * 1024, stall_timeout=60.0)

    @server.endpoint
    async def forever() -> AsyncIterator[str]:
        for number in itertools.count():
            yield f"{number} " + "x" * 4000
            await asyncio.sleep(0)

    with serving(server) as peer, Client(peer.url) as client:
        job = client.submit("forever")
        updates = iter(job)
        held = []
        with slow(peer, job.id), measured_allocations() as bytes_held:
            for _ in range(5):
                for _ in range(250):
                    next(updates)
                held.append(bytes_held())
            log = asyncio.run(server.app.service.store.jobs.log(job.id))
            assert isinstance(log, MemoryLog)
            assert log.size <= 64 * 1024
            job.cancel()
        # About 750 events of 4 kB followed the second measurement. The data buffered between server and
        # client, about a megabyte, differs each time.
        assert max(held[2:]) - held[1] < 2_000_000
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@contextmanager
def measured_allocations() -> Iterator[Callable[[], int]]:
    """Yields a function that returns the number of bytes allocated since the block began."""
    tracemalloc.start()

    def held() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    try:
        yield held
    finally:
        tracemalloc.stop()


def test_snapshots_only_streams_adapt_to_a_slow_reader():
    with serving(make_server()) as peer:
        job = peer.start("paint", {"frames": 300})
        with slow(peer, job, "?diffs=0") as reader:
            whole = Fold(keep_states=False).take(peer.events(job))
            events = logged(reader.read_to_end())
        assert {event.type for event in events[:-1]} == {"snapshot"}
        assert events[-1].type == "done"
        assert len({event.id for event in events}) == len(events) < 100
        assert Fold(keep_states=False).take(events).items == whole.items


def test_the_connection_of_an_unread_response_is_reset():
    with serving(make_server(stall_timeout=1.5)) as peer, contextlib.ExitStack() as open_sockets:
        small = peer.run("spell", {"letters": 1})["id"]
        big = peer.run("paint", {"frames": 1, "size": 600_000})["id"]
        polls = []
        for close in (b"", b"Connection: close\r\n"):
            stuck = open_sockets.enter_context(socket.socket())
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect(address_of(peer.url))
            stuck.sendall(b"GET /v1/jobs/%b HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % (big.encode(), close))
            polls.append(select.poll())
            polls[-1].register(stuck, 0)
        # The poll mask is empty, so only errors such as a reset are reported.
        eventually(lambda: all(poll.poll(0) for poll in polls), within=30)
        assert peer.job(small)["status"] == "succeeded"


async def test_a_stalled_stream_that_is_cancelled_while_its_connection_is_aborted_counts_as_stalled():
    class Transport:
        """Transport of a client that accepts no byte."""

        aborted = asyncio.Event()

        def get_extra_info(self, _name: str) -> None:
            return None

        def get_write_buffer_size(self) -> int:
            return 1

        def set_write_buffer_limits(self, **_limits: int) -> None:
            pass

        def is_closing(self) -> bool:
            return False

        def write(self, _data: bytes) -> None:
            pass

        def abort(self) -> None:
            self.aborted.set()

    class Cycle:
        """The part of uvicorn's object for a request that the server uses."""

        transport, flow = Transport(), None
        sent = 0

        async def send(self, _message: Message) -> None:
            self.sent += 1
            if self.sent > 2:  # after the head and the first part of the body
                await asyncio.Event().wait()

        async def receive(self) -> Message:
            return await asyncio.get_running_loop().create_future()

    server = make_server(stall_timeout=0.05, heartbeat=0.1)
    await server.app.start()
    try:
        transport = httpx2.ASGITransport(server.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            submitted = await http.post("/v1/endpoints/spell/jobs", json={"input": {}})
            cycle = Cycle()
            path = f"/v1/jobs/{submitted.json()['id']}/events"
            scope = {
                "type": "http",
                "method": "GET",
                "path": path,
                "raw_path": path.encode(),
                "root_path": "",
            }
            scope |= {
                "http_version": "1.1",
                "scheme": "http",
                "query_string": b"",
                "client": ("127.0.0.1", 9),
            }
            scope |= {"headers": [(b"host", b"localhost")], "server": ("localhost", 80)}
            stream = asyncio.create_task(server.app(scope, cycle.receive, cycle.send))
            await asyncio.wait_for(cycle.transport.aborted.wait(), 10)
            stream.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stream
            assert "tidewire_streams_stalled_total 1" in (await http.get("/metrics")).text
    finally:
        await server.app.close()
