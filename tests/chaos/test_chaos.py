"""Many jobs through a proxy with faults in most responses: the application gets the same results as without faults.

Two runs are equal if each seq is covered by exactly one update and the joined texts, the final states and the digests
are equal. Each job must end within `PATIENCE` seconds, with its value or with its expected error.

Environment: `CHAOS_JOBS` is the number of jobs (`make chaos`: 10,000), and `CHAOS_SEED` repeats a run.
"""

import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import anyio
import pytest

from support.client_timing import with_timing
from support.faulty_proxy import WEIGHTS, FaultyProxy
from support.received_updates import Run
from support.sample_server import sentence, served
from tidewire import AsyncClient, Client, RetryPolicy
from tidewire.errors import ItemFailedError, JobCancelledError, JobFailedError, TotalTimeoutError
from tidewire.http.api_session import Timing
from tidewire.protocol.document.digests import digest

SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
JOBS = int(os.environ.get("CHAOS_JOBS", "200"))
AT_ONCE = 20
PATIENCE = 60
"""Seconds within which each job must end for its reader; a job without faults takes well under a second."""

RETRY = RetryPolicy(max_delay=0.05)
TIMING = Timing(hello_timeout=1)


@pytest.fixture(autouse=True)
def _seed():
    print(f"CHAOS_SEED={SEED} CHAOS_JOBS={JOBS}")


@pytest.fixture(scope="module")
def url():
    with served(retry=0.005, heartbeat=0.2, merge_window=0.002, max_queue_size=100_000) as url:
        yield url


@pytest.fixture
def proxy(url):
    """The server behind a faulty proxy. A client must have called it once before the faults are enabled."""
    parts = urlsplit(url)
    with FaultyProxy((parts.hostname, parts.port), SEED) as proxy:
        yield proxy


class Chaos:
    """Draws random jobs, reads each in the way of its kind, and compares the result with the server's state."""

    def __init__(self, seed, direct_client, mapped):
        self.mapped = mapped
        self.draw = random.Random(seed)
        self.direct_client = direct_client
        self.ended = Counter()

    def next(self):
        kinds = {
            "talk": 6,
            "hesitate": 3,
            "grow": 3,
            "point": 3,
            "batch": 2,
            "cancel": 2,
            "hand over": 2,
            "late": 1,
            "map": 1,
        }
        [kind] = self.draw.choices(list(kinds), list(kinds.values()))
        return kind, self.draw.randrange(4, 60)

    async def follow(self, client, kind, size):
        with anyio.fail_after(PATIENCE):
            await getattr(self, kind.replace(" ", "_"))(client, size)
        self.ended[kind] += 1

    async def compare(self, job, run, text=None):
        assert run.assert_whole()[0] == 1
        held = await self.direct_client.job(job.id).read()
        [item] = held.state["items"]
        assert run.value == item["value"] == await job.result()
        assert digest(held.state["items"]) == held.done.digest == job._reader._stream.follower.done.digest
        if text is not None:
            assert run.text == run.value == text

    async def talk(self, client, size):
        job, run = await client.submit("talk", words=size, slow=True), Run()
        async for update in job:
            run.take(update)
        await self.compare(job, run, sentence(size))

    async def hesitate(self, client, size):
        job, run = await client.submit("hesitate", words=size // 4), Run()
        async for update in job:
            run.take(update)
        await self.compare(job, run)
        assert run.text == run.value

    async def grow(self, client, size):
        job, run = await client.submit("grow", steps=size), Run()
        async for update in job:
            run.take(update)
        await self.compare(job, run)

    async def point(self, client, size):
        if size % 3:
            assert await client.run("point", x=size) == {"x": float(size), "label": f"at {size}"}
        else:
            with pytest.raises(JobFailedError, match="no such point"):
                await client.run("point", x=size, fail=True)

    async def batch(self, client, size):
        inputs = [{"x": at, "fail": at % 3 == 1} for at in range(size // 4 + 2)]
        batch = await client.submit_batch("point", inputs)
        results = await batch.results(return_exceptions=True)
        for at, result in enumerate(results):
            if at % 3 == 1:
                assert isinstance(result, ItemFailedError)
            else:
                assert result == {"x": float(at), "label": f"at {at}"}
        assert len(results) == len(inputs)

    async def cancel(self, client, size):
        job, run = await client.submit("forever"), Run()
        with pytest.raises(JobCancelledError):  # noqa: PT012 - it is the loop that raises
            async for update in job:
                run.take(update)
                if len(run.covered) == 5:
                    await job.cancel()
        assert run.assert_whole()[0] == 1
        assert ("on and " * (len(run.text) // 7 + 1)).startswith(run.text)

    async def hand_over(self, client, size):
        """Read a job with several readers; each continues from the checkpoint of the one before."""
        job, run = await client.submit("talk", words=size, slow=True), Run()
        while True:
            async for update in job:
                run.take(update)
                if len(run.covered) % 3 == 0:
                    break
            else:
                break
            job = client.job(checkpoint=type(job.checkpoint()).from_json(job.checkpoint().to_json()))
        await self.compare(job, run, sentence(size))

    async def map(self, client, size):
        """Map over distinct inputs; the server counts the runs of each input."""
        xs = range(self.mapped, self.mapped + size)
        self.mapped += size
        values = client.map("double", ({"x": x} for x in xs), batch_size=7, concurrency=3)
        assert [value async for value in values] == [2 * x for x in xs]

    async def late(self, client, size):
        job = await client.submit("forever")
        with pytest.raises(TotalTimeoutError):
            async for _ in client.with_options(timeout=0.2).job(job.id):
                pass
        await job.cancel()
        with pytest.raises(JobCancelledError):
            await job.result()


async def run_jobs(url, proxy, count, seed):
    async with (
        AsyncClient(url) as direct_client,
        with_timing(AsyncClient(proxy.url, retry=RETRY, answer_timeout=1), TIMING) as client,
    ):
        mapped, _ = await direct_client.run("most_runs_of_an_input")
        chaos = Chaos(seed, direct_client, mapped)
        before = await direct_client.run("starts_so_far")
        proxy.active = False
        await client.describe("talk")
        proxy.active = True
        send, receive = anyio.create_memory_object_stream[tuple[str, int]](0)

        async def worker(source):
            async with source:
                async for kind, size in source:
                    await chaos.follow(client, kind, size)

        async with anyio.create_task_group() as tasks, send:
            for _ in range(AT_ONCE):
                tasks.start_soon(worker, receive.clone())
            receive.close()
            for _ in range(count):
                await send.send(chaos.next())
        assert sum(chaos.ended.values()) == count
        # Lost requests and responses did not start any job twice.
        assert (
            await direct_client.run("starts_so_far") - before
            == chaos.ended["talk"] + chaos.ended["hand over"]
        )
        assert await direct_client.run("most_runs_of_an_input") in ([chaos.mapped, 1], [0, 0])


@pytest.mark.timeout(60 + JOBS)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_jobs_through_a_faulty_network_equal_clean_runs(url, proxy, backend):
    anyio.run(run_jobs, url, proxy, JOBS * 2 // 5, SEED + (backend == "trio"), backend=backend)
    assert sum(proxy.faults.values()) >= JOBS // 5


@pytest.mark.timeout(60 + JOBS)
def test_blocking_client_in_many_threads_equals_clean_runs(url, proxy):
    draw = random.Random(SEED)
    sizes = [draw.randrange(4, 60) for _ in range(JOBS // 5)]
    with with_timing(Client(proxy.url, retry=RETRY, answer_timeout=1), TIMING) as client:
        proxy.active = False
        client.describe("talk")
        proxy.active = True

        def follow(size):
            run, job = Run(), client.submit("talk", words=size, slow=True)
            for update in job:
                run.take(update)
            assert run.assert_whole()[0] == 1
            assert run.text == run.value == job.result() == sentence(size)
            return "".join(client.submit("talk", words=size, slow=True).iter_text()) == sentence(size)

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(follow, sizes, timeout=60 + JOBS))


@pytest.mark.parametrize("fault", [name for name in WEIGHTS if name != "none"])
def test_each_fault_of_the_proxy_occurs_and_is_survived(url, fault):
    """Check that every fault occurs at all; the other tests prove nothing about a fault that never occurs."""
    parts = urlsplit(url)
    weights = {"none": 1, fault: 1}
    with FaultyProxy((parts.hostname, parts.port), SEED, weights=weights, reach=600) as proxy:

        async def some():
            async with with_timing(AsyncClient(proxy.url, retry=RETRY, answer_timeout=1), TIMING) as client:
                proxy.active = False
                await client.describe("talk")
                proxy.active = True
                for _ in range(100):
                    assert await client.run("talk", words=30) == sentence(30)
                    if proxy.faults[fault]:
                        return

        anyio.run(some)
        assert proxy.faults[fault]
