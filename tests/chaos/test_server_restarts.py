"""A server with a log on disk, killed and restarted while jobs run, behind a proxy that injects faults.

The application gets the same results as without kills: values of a `map` in order, complete texts with each seq
covered once, and as many jobs on the server as were submitted. A restarted job repeats the work of its last attempt;
the client cannot prevent that.

Environment: `CHAOS_JOBS` is the number of inputs (`make chaos`: 10,000), and `CHAOS_SEED` repeats a run.
"""

import os
import random
from functools import partial

import anyio
import anyio.to_thread
import pytest

from support.client_timing import with_timing
from support.faulty_proxy import FaultyProxy
from support.killable_server import killed_server, talk_text
from support.received_updates import Run
from tidewire import AsyncClient, RetryPolicy
from tidewire.http.api_session import Timing
from tidewire.protocol.document.digests import digest

SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
INPUTS = int(os.environ.get("CHAOS_JOBS", "200"))
KILLS = max(2, INPUTS // 200)
BATCH = 8
TALKS = 2

RETRY = RetryPolicy(max_delay=0.1)
TIMING = Timing(hello_timeout=2)


@pytest.fixture(autouse=True)
def _seed():
    print(f"CHAOS_SEED={SEED} CHAOS_JOBS={INPUTS}")


async def talk(client, direct_client, words, when_it_runs):
    """Read a text to its end, across restarts that retract part of it."""
    job = await client.submit("talk", words=words)
    run = Run()
    async for update in job:
        run.take(update)
        if len(run.covered) == 3:
            when_it_runs()
    assert run.assert_whole()[0] == 1
    assert run.text == run.value == await job.result() == talk_text(words)
    held = await direct_client.job(job.id).read()
    assert digest(held.state["items"]) == held.done.digest == job._reader._stream.follower.done.digest


async def run_jobs(server, proxy, draw):
    kill_at = sorted(draw.sample(range(1, INPUTS), KILLS - 1))
    values, kill_lock = [], anyio.Lock()

    async def kill():
        async with kill_lock:
            await anyio.to_thread.run_sync(server.again)

    async with (
        AsyncClient(server.url, retry=RETRY) as direct_client,
        with_timing(AsyncClient(proxy.url, retry=RETRY, answer_timeout=2), TIMING) as client,
    ):
        await client.describe("shout")
        proxy.active = True
        async with anyio.create_task_group() as tasks:
            kill_soon = partial(tasks.start_soon, kill)
            for number in range(TALKS):
                words = draw.randrange(200, 300)
                tasks.start_soon(talk, client, direct_client, words, (lambda: None) if number else kill_soon)
            inputs = ({"text": f"word {at}"} for at in range(INPUTS))
            async for value in client.map("shout", inputs, batch_size=BATCH, pause=0.001):
                values.append(value)
                while kill_at and kill_at[0] <= len(values):
                    kill_at.pop(0)
                    kill_soon()
        assert values == [f"WORD {at}" for at in range(INPUTS)]
        assert not kill_at
        jobs = await direct_client.jobs(limit=10 * INPUTS)
        assert len(jobs) == TALKS + -(-INPUTS // BATCH)
        assert {job.status for job in jobs} == {"succeeded"}
        return max(job.attempt for job in jobs)


@pytest.mark.timeout(120 + INPUTS)
@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
def test_jobs_on_a_killed_and_restarted_server_equal_clean_runs(backend):
    draw = random.Random(SEED)
    settings = {"heartbeat": 0.3, "max_queue_size": 100_000, "max_jobs_per_principal": 100_000}
    with killed_server(**settings) as server, FaultyProxy(("127.0.0.1", server.port), SEED) as proxy:
        proxy.active = False
        attempts = anyio.run(run_jobs, server, proxy, draw, backend=backend)
        assert attempts > 1, "no job was interrupted by a kill"
        assert sum(proxy.faults.values()) > 0
