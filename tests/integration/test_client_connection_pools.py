"""A request costs the same, however many event streams the client has open."""

import asyncio
from collections import Counter

import anyio
import httpcore
import pytest

from support.reference_server import QUICK
from tidewire import AsyncClient
from tidewire.http.transport import STREAMS_PER_POOL
from tidewire_server import Server, Stream

pytestmark = pytest.mark.anyio
STREAMS = 3 * STREAMS_PER_POOL


@pytest.fixture
def url():
    server = Server(**QUICK, default_concurrency_limit=None, max_share=1.0)

    @server.endpoint
    async def idle(stream: Stream[str]) -> None:
        stream.append("x")
        await asyncio.sleep(600)

    @server.endpoint
    async def double(x: int) -> int:
        return 2 * x

    with server.running() as url:
        yield url


async def test_a_request_does_not_look_at_the_connections_of_all_open_streams(url, monkeypatch):
    looks = Counter()
    has_expired = httpcore.AsyncHTTPConnection.has_expired

    def counted(connection):
        looks["connections"] += 1
        return has_expired(connection)

    async with AsyncClient(url) as client:
        pools = client._starter.session.transport._pools
        loops = []

        async def open_one():
            updates = (await client.submit("idle")).updates()
            await anext(updates)
            loops.append(updates)

        async with anyio.create_task_group() as tasks:
            for _ in range(STREAMS):
                tasks.start_soon(open_one)
        assert await client.run("double", x=1) == 2
        assert sum(pool.streams for pool in pools) == STREAMS
        monkeypatch.setattr(httpcore.AsyncHTTPConnection, "has_expired", counted)
        for number in range(5):
            assert await client.run("double", x=number) == 2 * number
            await client.jobs(limit=1)
        requests = 10
        # httpcore looks at a pool once when a request begins, and once when it ends.
        assert looks["connections"] <= requests * 2 * (STREAMS_PER_POOL + 2)
        for updates in loops:
            await updates.aclose()
        assert [pool.streams for pool in pools if pool.streams] == []
        assert len(pools) <= 2


async def test_streams_that_cannot_be_opened_leave_their_pool():
    async with AsyncClient("http://127.0.0.1:9", connect_timeout=1.0) as client:
        transport = client._starter.session.transport
        for _ in range(2 * STREAMS_PER_POOL):
            with pytest.raises(Exception, match="no server is listening"):
                await transport.open_stream("http://127.0.0.1:9/", headers={}, answer_timeout=5.0)
        assert [pool.streams for pool in transport._pools] == [0]


async def test_closing_a_stream_twice_releases_its_pool_once(url):
    async with AsyncClient(url) as client:
        updates = (await client.submit("idle")).updates()
        await anext(updates)
        transport = client._starter.session.transport
        (connection,) = transport.open
        for _ in range(2):
            await connection.aclose()
        assert [pool.streams for pool in transport._pools] == [0]
        await updates.aclose()
        assert [pool.streams for pool in transport._pools] == [0]
