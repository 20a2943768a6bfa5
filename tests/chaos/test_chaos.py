"""A campaign of random jobs through networks that break from the first byte: each job ends exactly as without faults.

A campaign runs over each network and each store:

  network   | between the client and the server
  ----------+-----------------------------------------------------------------------------------------------
  tcp       | connections are refused, cut, reset, stalled and slowed, in both directions
  tls       | the same, with TLS from the client to the server, so handshakes break too
  gateway   | an HTTP gateway that breaks responses, and that sends 502, 503 and 504 during a deployment
  buffering | an HTTP gateway that holds back each response until it is complete, behind the network `tcp`

  store     | faults
  ----------+-----------------------------------------------------------------------------------------------
  memory    | the process lives through the campaign
  sqlite    | the process is killed every few seconds; for a deployment, it is stopped and started

The queue of a function is short, and in the long campaigns the limits of jobs and streams are low, so that the server
refuses some requests with 429. Each job ends with its exact value; a job
that the campaign itself makes fail ends with exactly that error. No function runs again except after a restart.

Environment: `CHAOS_JOBS` is the number of jobs of all campaigns together, and `CHAOS_SEED` repeats a run.
"""

import os
import random
import re
import ssl
import threading
from collections import Counter
from contextlib import AsyncExitStack, ExitStack

import anyio
import anyio.to_thread
import httpx2
import pytest
import trustme

from support.client_timing import with_timing
from support.faulty_network import random_faults
from support.faulty_proxy import WEIGHTS, FaultyProxy
from support.killable_server import Killed
from support.random_seed import SEED
from support.received_updates import Run
from support.reference_server import eventually
from support.sample_server import WORDS, sentence, served
from support.server_address import address_of
from tidewire import AsyncClient, Client, Hooks, RetryPolicy
from tidewire.errors import (
    InvalidInputError,
    ItemFailedError,
    JobCancelledError,
    JobFailedError,
    TotalTimeoutError,
)
from tidewire.http.api_session import Timing
from tidewire.protocol.document.digests import digest
from tidewire_conformance.wire.fault_proxy import FaultProxy

QUICK_SEED = 20_260
QUICK_JOBS = 56
JOBS = int(os.environ.get("CHAOS_JOBS", "1000"))
NETWORKS = ("tcp", "tls", "gateway", "buffering")
STORES = ("memory", "sqlite")
KINDS = {
    "talk": 5, "hesitate": 3, "grow": 3, "point": 3, "generate": 4, "batch": 3, "map": 2, "hand over": 3, "blocking": 2,
    "failing": 2, "crashing": 1, "too many": 1, "late": 1, "deadline": 1, "cancel": 2,
}  # fmt: skip
"""Relative frequency of each kind of job."""
GENERATIONS = 4
"""Number of different inputs of `generate`."""
CLIENTS = 4
"""Number of clients that make first contact through the faulty network."""
MAX_INPUTS = 64
LIMITS = {"max_jobs_per_principal": 12, "max_streams_per_principal": 10}
"""Limits of the server in a long campaign. A refusal costs the client several seconds."""
AT_ONCE = 16
"""Number of jobs that are read at the same time; more than the limits allow."""
TIMING = Timing(hello_timeout=1)


class Scale:
    """Times of a quick or of a long campaign, in seconds."""

    def __init__(self, *, quick: bool) -> None:
        self.limits = {"queue_size": 8, "pause": 0.05} if quick else {"queue_size": 40, "pause": 0, **LIMITS}
        self.timing = Timing(hello_timeout=0.4 if quick else 1.0)
        self.answer_timeout = 0.8 if quick else 1.5
        self.connect_timeout = 1.0 if quick else 3.0
        self.retry = RetryPolicy(max_delay=0.05 if quick else 1.0)
        self.between_kills = (1.0, 2.0) if quick else (2.0, 5.0)
        self.deploy = 0.5 if quick else 30.0
        self.job = 120 if quick else 200
        """Time within which each job must end for its reader."""


class Campaign:
    """Draws random jobs, reads each in the way of its kind, and compares the result with the server's state."""

    def __init__(self, draw, blocking_client, patience):
        self.draw = draw
        self.blocking_client = blocking_client
        self.patience = patience
        self.direct_client = None
        self.clients = []
        self.ended = Counter()
        self.wrong = []
        self.restarted = 0
        """Number of jobs that a kill interrupted and that ran again."""
        self.jobs = 0
        """Number of jobs that the server must have."""
        self.tags = 0
        """Number of tags used. Each run of a function has a tag, and a tag belongs to one item."""

    def next(self):
        [kind] = self.draw.choices(list(KINDS), list(KINDS.values()))
        return kind, self.draw.choice(self.clients), self.draw.randrange(4, 60)

    async def follow(self, kind, client, size):
        try:
            with anyio.fail_after(self.patience):
                await getattr(self, kind.replace(" ", "_"))(client, size)
        except Exception as error:
            self.wrong.append((kind, error))
        self.ended[kind] += 1

    def tag(self):
        self.tags += 1
        return self.tags

    async def submit(self, client, endpoint, **members):
        self.jobs += 1
        return await client.submit(endpoint, tag=self.tag(), **members)

    async def compare(self, job, run, expected):
        assert run.assert_whole()[0] == 1
        held = await self.direct_client.job(job.id).read()
        [item] = held.state["items"]
        assert run.value == item["value"] == await job.result() == expected
        assert digest(held.state["items"]) == held.done.digest == job._reader._stream.follower.done.digest

    # ---- jobs that end with a value ------------------------------------------------------------------------------

    async def talk(self, client, size):
        job, run = await self.submit(client, "talk", words=size), Run()
        async for update in job:
            run.take(update)
        await self.compare(job, run, sentence(size))
        assert run.text == run.value

    async def hesitate(self, client, size):
        words = size // 4
        job, run = await self.submit(client, "hesitate", words=words), Run()
        async for update in job:
            run.take(update)
        await self.compare(job, run, "".join(WORDS[at % len(WORDS)] + " " for at in range(words)))
        assert run.text == run.value

    async def grow(self, client, size):
        job, run = await self.submit(client, "grow", steps=size), Run()
        async for update in job:
            run.take(update)
        await self.compare(job, run, list(range(size)))

    async def point(self, client, size):
        self.jobs += 1
        tag = self.tag()
        assert await client.run("point", tag=tag) == {"x": float(tag), "label": f"at {tag}"}

    async def generate(self, client, size):
        """Generate the text that an idle server generates without faults. Batches change the last digit of numbers."""
        seed = size % GENERATIONS
        self.jobs += 1
        job, run = await client.submit("generate", **generation(seed)), Run()
        async for update in job:
            run.take(update)
        expected = GENERATED[seed]
        names = ("text", "token_ids", "top_ids", "finish_reason")
        assert [run.value[name] for name in names] == [expected[name] for name in names]
        assert run.value["logprobs"] == pytest.approx(expected["logprobs"], abs=0.001)
        await self.compare(job, run, run.value)

    async def batch(self, client, size):
        tags = [self.tag() for _ in range(size // 4 + 2)]
        self.jobs += 1
        batch = await client.submit_batch("point", [{"tag": tag, "fail": tag % 3 == 1} for tag in tags])
        results = await batch.results(return_exceptions=True)
        for tag, result in zip(tags, results, strict=True):
            if tag % 3 == 1:
                assert isinstance(result, ItemFailedError)
                assert "no such point" in str(result)
            else:
                assert result == {"x": float(tag), "label": f"at {tag}"}

    async def map(self, client, size):
        tags = [self.tag() for _ in range(size)]
        self.jobs += -(-size // 7)
        values = client.map("double", ({"tag": tag} for tag in tags), batch_size=7, concurrency=3)
        assert [value async for value in values] == [2 * tag for tag in tags]

    async def hand_over(self, client, size):
        """Read a job with several readers; each continues from the checkpoint of the one before."""
        job, run = await self.submit(client, "talk", words=size), Run()
        while True:
            async for update in job:
                run.take(update)
                if len(run.covered) % 3 == 0:
                    break
            else:
                break
            client = self.draw.choice(self.clients)
            job = client.job(checkpoint=type(job.checkpoint()).from_json(job.checkpoint().to_json()))
        await self.compare(job, run, sentence(size))

    async def blocking(self, client, size):
        tag = self.tag()
        self.jobs += 1

        def read():
            job, run = self.blocking_client.submit("talk", tag=tag, words=size), Run()
            for update in job:
                run.take(update)
            assert run.assert_whole()[0] == 1
            assert run.text == run.value == job.result() == sentence(size)

        await anyio.to_thread.run_sync(read)

    # ---- jobs that the campaign makes fail -----------------------------------------------------------------------

    async def failing(self, client, size):
        job = await self.submit(client, "point", fail=True)
        with pytest.raises(JobFailedError, match="no such point"):
            await job.result()

    async def crashing(self, client, size):
        job = await self.submit(client, "crash")
        with pytest.raises(JobFailedError) as caught:
            await job.result()
        assert caught.value.code == "internal"

    async def too_many(self, client, size):
        with pytest.raises(InvalidInputError) as caught:
            await client.submit_batch("point", [{"tag": 0}] * (MAX_INPUTS + 1))
        assert caught.value.code == "batch_too_large"

    async def late(self, client, size):
        job = await self.submit(client, "forever")
        with pytest.raises(TotalTimeoutError):
            async for _ in client.with_options(timeout=0.2).job(job.id):
                pass
        await job.cancel()
        with pytest.raises(JobCancelledError):
            await job.result()

    async def deadline(self, client, size):
        job = await self.submit(client.with_options(deadline=0.3), "forever")
        with pytest.raises(JobFailedError) as caught:
            await job.result()
        assert caught.value.code == "deadline_exceeded"

    async def cancel(self, client, size):
        job, run, asked = await self.submit(client, "forever"), Run(), False
        with pytest.raises(JobCancelledError):  # noqa: PT012 - it is the loop that raises
            async for update in job:
                run.take(update)
                # Once, because an answered cancel is recorded [TW-JOB-086], also if the server is killed afterwards.
                if not asked and len(run.covered) >= 5:
                    asked = True
                    await job.cancel()
        assert run.assert_whole()[0] == 1
        assert ("on and " * (len(run.text) // 7 + 1)).startswith(run.text)

    # ---- after the campaign --------------------------------------------------------------------------------------

    async def check_server(self, journal, restarts):
        """Check that the server has each job once, and that no function ran again except after a restart."""
        jobs = await self.direct_client.jobs(limit=10 * self.jobs)
        assert len(jobs) == self.jobs
        assert {job.status for job in jobs} <= {"succeeded", "partially_failed", "failed", "cancelled"}
        assert max(job.attempt for job in jobs) <= 1 + restarts
        self.restarted = sum(job.attempt > 1 for job in jobs)
        runs = Counter(journal.read_text().splitlines())
        assert len(runs) > 0
        assert max(runs.values()) == 1, "a function ran twice for one item in one process"


def generation(seed):
    return {"prompt": "def f", "max_tokens": 4 + 5 * seed, "seed": seed, "top_logprobs": 2}


class Disturbances:
    """Restarts of the server, and the deployment of a gateway, while jobs run."""

    def __init__(self, server, gateway, scale, draw, *, kills):
        self.server = server
        self.gateway = gateway
        self.scale = scale
        self.draw = draw
        self.kills = kills
        self.counts = Counter()

    @property
    def restarts(self):
        return self.counts["kill -9"] + self.counts["restart"]

    async def run(self):
        if self.gateway is not None:
            await anyio.sleep(self.draw.uniform(0, 0.5))
            await self.deploy()
        while self.kills:
            soon = (0, 0.5) if not self.restarts else self.scale.between_kills
            await anyio.sleep(self.draw.uniform(*soon))
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self.server.again)
            self.counts["kill -9"] += 1

    async def deploy(self):
        self.counts["deployment"] += 1
        self.gateway.deploying = True
        self.gateway.break_all()
        with anyio.CancelScope(shield=True):
            if self.kills:
                await anyio.to_thread.run_sync(self.server.stop)
            await anyio.sleep(self.scale.deploy)
            if self.kills:
                await anyio.to_thread.run_sync(self.server.start)
                self.counts["restart"] += 1
            self.gateway.deploying = False


class Observed:
    """What the clients met in a campaign."""

    def __init__(self):
        self.responses = Counter()
        self.reconnects = Counter()
        self.hooks = Hooks(
            on_request=lambda event: self.responses.update([event.status or "none"]),
            on_reconnect=lambda event: self.reconnects.update([event.cause]),
        )


def report(name, counts):
    """Print counts in one line."""
    print(f"  {name}: " + (", ".join(f"{key} {counts[key]}" for key in sorted(counts, key=str)) or "none"))


GENERATED = []
"""Value of each `generation`, from a server without other jobs, through a network without faults."""


async def run_jobs(campaign, open_client, open_direct_client, disturbances, count, journal):
    tasks_before = len(anyio.get_running_tasks())
    async with AsyncExitStack() as stack:
        campaign.direct_client = direct = await stack.enter_async_context(open_direct_client())
        while len(GENERATED) < GENERATIONS:
            GENERATED.append(await direct.run("generate", **generation(len(GENERATED))))
        campaign.jobs = len(await direct.jobs())
        campaign.clients = [await stack.enter_async_context(open_client()) for _ in range(CLIENTS)]
        drawn_jobs = [campaign.next() for _ in range(count)]
        send, receive = anyio.create_memory_object_stream[tuple](0)

        async def worker(source):
            async with source:
                async for kind, client, size in source:
                    await campaign.follow(kind, client, size)

        async with anyio.create_task_group() as disturbing:
            disturbing.start_soon(disturbances.run)
            async with anyio.create_task_group() as tasks, send:
                for _ in range(AT_ONCE):
                    tasks.start_soon(worker, receive.clone())
                receive.close()
                for drawn in drawn_jobs:
                    await send.send(drawn)
            disturbing.cancel_scope.cancel()
        if not campaign.wrong:
            await campaign.check_server(journal, disturbances.restarts)
    assert len(anyio.get_running_tasks()) == tasks_before


def open_streams(url, verify):
    metrics = httpx2.get(f"{url}/metrics", verify=verify, timeout=20).text
    return float(re.search(r"^tidewire_open_streams (.*)$", metrics, re.MULTILINE)[1])


def run_campaign(network, store, count, seed, scale, folder, authority):
    seed += 10 * NETWORKS.index(network) + STORES.index(store)
    settings = scale.limits | {
        "max_inputs": MAX_INPUTS,
        "journal": str(folder / "journal"), "heartbeat": 0.3, "cancel_timeout": 0.1, "shutdown_timeout": 0.1, "single_user": True,
    }  # fmt: skip
    scheme, verify, proxies, gateway = "http", True, [], None
    if network == "tls":
        scheme, verify = "https", ssl.create_default_context()
        authority.configure_trust(verify)
        certificate = str(folder / "certificate.pem")
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
        settings["uvicorn"] = {"ssl_certfile": certificate}
    if store == "memory":
        settings["log"] = "memory"
    observed = Observed()
    with ExitStack() as stack:
        server = stack.enter_context(
            Killed(folder, function="support.campaign_server:campaign_server", **settings)
        )
        upstream = ("127.0.0.1", server.port)
        if network in {"gateway", "buffering"}:
            weights = WEIGHTS if network == "gateway" else {"buffer": 1}
            proxies.append(stack.enter_context(FaultyProxy(upstream, seed, weights=weights)))
            upstream = proxies[-1].address
        if network == "gateway":
            [gateway] = proxies
        else:
            proxies.append(stack.enter_context(FaultProxy(upstream, random_faults(seed))))
            upstream = proxies[-1].address
        options = {
            "retry": scale.retry,
            "answer_timeout": scale.answer_timeout,
            "connect_timeout": scale.connect_timeout,
            "verify": verify,
        }
        options["hooks"] = observed.hooks
        url = f"{scheme}://127.0.0.1:{upstream[1]}"
        direct_url = f"{scheme}://127.0.0.1:{server.port}"
        disturbances = Disturbances(server, gateway, scale, random.Random(seed + 1), kills=store == "sqlite")
        with with_timing(Client(url, **options), scale.timing) as blocking_client:
            campaign = Campaign(random.Random(seed), blocking_client, scale.job)
            anyio.run(
                run_jobs,
                campaign,
                lambda: with_timing(AsyncClient(url, **options), scale.timing),
                lambda: AsyncClient(direct_url, retry=scale.retry, verify=verify),
                disturbances,
                count,
                folder / "journal",
                backend="asyncio" if store == "memory" else "trio",
            )
        eventually(lambda: not open_streams(direct_url, verify), within=20)
    faults = sum((proxy.faults for proxy in proxies), Counter())
    print(
        f"{network}, {store}: {campaign.ended.total()} jobs, {campaign.restarted} restarted, {len(campaign.wrong)} ended wrongly"
    )
    report("jobs", campaign.ended)
    report("faults", faults)
    report("disturbances", disturbances.counts)
    report("responses by status", observed.responses)
    report("reconnects", observed.reconnects)
    for kind, error in campaign.wrong:
        print(f"  WRONG {kind}: {error!r}")
    assert not campaign.wrong
    assert campaign.ended.total() == count
    assert faults.total() > 0
    assert (store == "memory") == (disturbances.restarts == 0)
    assert (gateway is None) == (disturbances.counts["deployment"] == 0)


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


# A campaign takes 5 to 10 seconds. The limit is longer than the sum of all limits in it, so that an overloaded machine never
# interrupts it in its teardown.
@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize(
    ("network", "store"),
    [
        ("tls", "memory"),
        ("gateway", "sqlite"),
        pytest.param("tcp", "sqlite", marks=pytest.mark.slow),
        pytest.param("buffering", "memory", marks=pytest.mark.slow),
    ],
)
def test_quick_campaign(network, store, tmp_path, authority):
    run_campaign(network, store, QUICK_JOBS // 4, QUICK_SEED, Scale(quick=True), tmp_path, authority)


@pytest.mark.slow
@pytest.mark.timeout(900 + JOBS)
@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("network", NETWORKS)
def test_campaign(network, store, tmp_path, authority):
    print(f"CHAOS_JOBS={JOBS}")
    count = -(-JOBS // (len(NETWORKS) * len(STORES)))
    run_campaign(network, store, count, SEED, Scale(quick=False), tmp_path, authority)


@pytest.fixture(scope="module")
def url():
    with served(retry=0.005, heartbeat=0.2, merge_window=0.002) as url:
        yield url


@pytest.mark.parametrize("fault", [*(name for name in WEIGHTS if name != "none"), "buffer"])
def test_each_fault_of_the_proxy_occurs_and_is_survived(url, fault):
    """Check that every fault occurs at all; the campaigns prove nothing about a fault that never occurs."""
    weights = {"none": 1, fault: 1}
    with FaultyProxy(address_of(url), QUICK_SEED, weights=weights, reach=600) as proxy:

        async def some():
            retry = RetryPolicy(max_delay=0.05)
            async with with_timing(AsyncClient(proxy.url, retry=retry, answer_timeout=1), TIMING) as client:
                for _ in range(100):
                    assert await client.run("talk", words=30) == sentence(30)
                    if proxy.faults[fault]:
                        return

        anyio.run(some)
        assert proxy.faults[fault]


# ---- generation that continues -----------------------------------------------------------------------------------


KILLS = 2
GREEDY = {"prompt": "class Stack:\n    def push(self, item):", "max_tokens": 60, "temperature": 0.0}
SAMPLED = GREEDY | {"seed": 11, "temperature": 0.8, "top_p": 0.95, "echo": True}


def tokens_of(found):
    return len(found["state"]["items"][0]["value"]["token_ids"])


@pytest.mark.heavy
def test_a_continued_text_is_the_same_as_without_kills_at_random_tokens(tmp_path):
    draw, updates = random.Random(SEED), []
    with (
        Killed(tmp_path, function="support.campaign_server:campaign_server", on_restart="continue") as server,
        Client(server.url, retry=RetryPolicy(max_delay=0.1)) as client,
    ):
        greedy, sampled = [client.run("generate", members) for members in (GREEDY, SAMPLED)]
        text = sampled["text"]
        stop = text[-(len(text) // 4) :][:9]
        stopped = {"text": text[: text.index(stop, len(GREEDY["prompt"]))], "finish_reason": "stop"}
        inputs = [GREEDY, SAMPLED, SAMPLED | {"stop": [stop, "no such text"]}]
        jobs = [client.submit("generate", members) for members in inputs]
        reader = threading.Thread(target=lambda: updates.extend(jobs[1]), daemon=True)
        reader.start()
        for _ in range(KILLS):
            aim = tokens_of(server.job(jobs[0].id)) + draw.randint(1, 25)
            server.until(jobs[0].id, lambda found, aim=aim: found["done"] or tokens_of(found) >= aim)
            server.kill()
            server.start()
        for job, expected in zip(jobs, (greedy, sampled, stopped), strict=True):
            found = job.result(timeout=50)
            assert (found["text"], found["finish_reason"]) == (expected["text"], expected["finish_reason"])
            assert server.job(job.id)["done"]["usage"]["completion_tokens"] == len(found["token_ids"])
        reader.join(50)
        assert server.job(jobs[0].id)["attempt"] > 1
    assert {update.deleted for update in updates} == {0}
    assert "".join(update.text for update in updates) == text
