"""`Shutdown`: the bounds of its waits, without jobs. The tests of whole servers are in tests/integration."""

import asyncio
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry, Gauge

from tidewire_server.jobs import shutdown
from tidewire_server.jobs.admission.stream_limit_and_unread_jobs import StreamReaders
from tidewire_server.jobs.shutdown import Shutdown


@dataclass(eq=False)
class Stream:
    """An open stream whose reader accepts nothing."""

    job_id: str = "a"
    goaways: list[bool] = field(default_factory=list)

    def go_away(self, *, spread: float = 0.0, even_if_ended: bool = False) -> None:
        self.goaways.append(even_if_ended)


def make_shutdown(*, durable: bool) -> Shutdown:
    gauge = Gauge("open_streams", "Open streams.", registry=CollectorRegistry())
    return Shutdown({}, StreamReaders(10, gauge), lambda: None, durable=durable, retry=60.0)


def test_a_server_without_readers_does_not_wait():
    async def drain() -> None:
        server = make_shutdown(durable=False)
        server.expected.submitted("a")
        server.expected.came("a")
        await server.drain(60.0)

    asyncio.run(asyncio.wait_for(drain(), 30.0))


async def test_the_wait_for_expected_readers_ends_after_the_timeout_and_the_last_seconds(monkeypatch):
    monkeypatch.setattr(shutdown, "LAST_SECONDS", 0.02)
    server, loop = make_shutdown(durable=False), asyncio.get_running_loop()
    server.expected.submitted("a")
    await server.drain(0.0)
    assert server.expected.until() > loop.time()  # the reader would have been expected for longer


def test_a_server_with_a_durable_log_expects_no_reader():
    async def drain() -> None:
        server = make_shutdown(durable=True)
        server.expected.submitted("a")
        server.stream_opened(stream := Stream())
        server.stream_closed(stream)
        assert server.expected.until() == 0
        await server.drain(60.0)

    asyncio.run(asyncio.wait_for(drain(), 30.0))


@pytest.mark.parametrize("durable", [False, True])
def test_the_wait_for_a_stalled_reader_ends_after_the_last_seconds(monkeypatch, durable):
    monkeypatch.setattr(shutdown, "LAST_SECONDS", 0.02)

    async def drain() -> Stream:
        server = make_shutdown(durable=durable)
        server.stream_opened(stream := Stream())
        await server.drain(60.0)
        await server.close_streams()
        return stream

    stream = asyncio.run(asyncio.wait_for(drain(), 30.0))
    assert stream.goaways[-1] is True


def test_the_wait_ends_when_the_last_stream_and_the_last_expected_reader_are_served():
    async def drain() -> None:
        server = make_shutdown(durable=False)
        server.stream_opened(lost := Stream())
        draining = asyncio.create_task(server.drain(60.0))
        await asyncio.sleep(0)
        server.stream_closed(lost)
        server.stream_opened(again := Stream())
        server.stream_closed(again)
        server.expected.answered(again.job_id)
        await draining

    asyncio.run(asyncio.wait_for(drain(), 30.0))
