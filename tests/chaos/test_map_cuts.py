"""`map` over thousands of inputs through a proxy that keeps cutting connections: each input runs once.

`CHAOS_SEED` repeats a run.
"""

import random

import pytest

from support.random_seed import SEED
from support.sample_server import served
from support.server_address import address_of
from tidewire import AsyncClient, Client, RetryPolicy
from tidewire_conformance.wire.fault_proxy import Cut, FaultProxy

ITEMS = 2_000


@pytest.fixture
def url():
    with served(retry=0.002, merge_window=0, heartbeat=0.2) as url:
        yield url


@pytest.fixture(params=["asyncio"])
def anyio_backend(request):
    return request.param


def cutting_proxy(url, every):
    """Return a proxy that cuts two of three connections within their first `every` bytes."""
    chance = random.Random(SEED)
    return FaultProxy(
        address_of(url),
        plan=lambda number: (
            None
            if number % 3 == 2
            else Cut(after=chance.randrange(1, every), how=chance.choice(["fin", "rst"]))
        ),
    )


def check_runs(url, count):
    with Client(url) as client:
        assert client.run("most_runs_of_an_input") == [count, 1]


PATIENT = RetryPolicy(max_delay=0.01)


def test_each_input_runs_once_despite_cut_connections(url):
    with cutting_proxy(url, 20_000) as proxy, Client(proxy.url, retry=PATIENT) as client:
        values = list(client.map("double", ({"x": x} for x in range(ITEMS)), batch_size=200))
    assert values == [2 * x for x in range(ITEMS)]
    assert len(proxy.cuts) > 5
    check_runs(url, ITEMS)


@pytest.mark.anyio
async def test_async_each_input_runs_once_despite_cut_connections(url):
    with cutting_proxy(url, 5_000) as proxy:
        async with AsyncClient(proxy.url, retry=PATIENT) as client:
            inputs = ({"x": x} for x in range(ITEMS // 4))
            values = [value async for value in client.map("double", inputs, batch_size=50, concurrency=2)]
            assert values == [2 * x for x in range(ITEMS // 4)]
            assert len(proxy.cuts) > 3
            assert await client.run("most_runs_of_an_input") == [ITEMS // 4, 1]


def test_restarted_script_finds_its_jobs_again_by_idempotency_key(url):
    def run(take):
        with Client(url) as client:
            named = client.with_options(headers={"Authorization": "Bearer me"})
            inputs = ({"x": x} for x in range(1000))
            values = named.map("double", inputs, batch_size=100, idempotency_key="tonight")
            return [value for value, _ in zip(values, range(take), strict=False)]

    run(150)
    assert run(1000) == [2 * x for x in range(1000)]
    check_runs(url, 1000)
