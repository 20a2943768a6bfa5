"""Connections cut at many bytes of short streams and at random bytes of long streams: nothing is lost or repeated.

Two runs are equal if each seq is covered by exactly one update and the joined texts, the final states and the digests
are equal. `CHAOS_SEED` repeats a run.
"""

import random
import socket
from dataclasses import dataclass, field

import anyio
import httpx2
import pytest

from support.client_timing import with_timing
from support.random_seed import SEED
from support.received_updates import Run
from support.sample_server import sentence, served
from support.scripted_server import hurried
from support.server_address import address_of
from tidewire import AsyncClient, Checkpoint, Client, RetryPolicy
from tidewire.following.follower import Follower, Ignored
from tidewire.http.api_session import Timing
from tidewire.protocol.document.digests import digest
from tidewire.protocol.messages import LOGGED
from tidewire.protocol.sse import Decoder
from tidewire_conformance.wire.fault_proxy import Cut, FaultProxy


@pytest.fixture(scope="module")
def url():
    # Settings for fast tests: unmerged events, waits of milliseconds, and fast detection of silence.
    with served(retry=0.002, merge_window=0, heartbeat=0.1) as url:
        yield url


@dataclass
class CutPlan:
    """Cut plan for the proxy: one requested cut per connection, in order, and then no more cuts."""

    cuts: list[Cut] = field(default_factory=list)

    def __call__(self, _: int) -> Cut | None:
        return self.cuts.pop(0) if self.cuts else None


def checkpoint_at_start(url, job):
    """Return a checkpoint before the first event of an ended job, and the size of the stream from there in bytes."""
    with httpx2.stream("GET", f"{url}/v1/jobs/{job}/events", params={"after": "0-0"}) as answer:
        events = Decoder().feed(answer.read())
    snapshot = next(event for event in events if event.type == "snapshot")
    saved = Checkpoint.from_json(
        f'{{"job":"{job}","cursor":"{snapshot.id}",'
        + snapshot.data.removeprefix("{").replace(',"reason":"start"', "")
    )
    with socket.create_connection(address_of(url)) as raw:
        raw.sendall(
            f"GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {snapshot.id}\r\n\r\n".encode()
        )
        raw.settimeout(5)
        size = 0
        while chunk := raw.recv(65536):
            size += len(chunk)
            if chunk.endswith(b"0\r\n\r\n"):
                break
    return saved, size


async def read(client, saved):
    job = client.job(checkpoint=saved)
    run = Run()
    async for update in job:
        run.take(update)
    return run, job


@pytest.mark.heavy
@pytest.mark.anyio
@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.slow)])
async def test_short_job_cut_at_each_byte_is_read_completely(url, anyio_backend, step):
    """With a step of 10, the cuts are at every tenth byte, from a random one on."""
    first = random.Random(SEED).randrange(step)
    timing, _ = hurried()
    cut_plan = CutPlan()
    with FaultProxy(address_of(url), cut_plan) as proxy:
        async with AsyncClient(url) as direct_client, with_timing(AsyncClient(proxy.url), timing) as client:
            job = await direct_client.submit("talk", words=3)
            final = await job.result()
            saved, size = checkpoint_at_start(url, job.id)
            clean, _ = await read(direct_client, saved)
            assert clean.text == final == sentence(3)
            for at in range(first, size + 1, step):
                # Over both event loops, each byte is cut in both ways.
                how = "fin" if (at + len(anyio_backend)) % 2 else "rst"
                cut_plan.cuts = [Cut(after=at, how=how)]
                run, reader = await read(client, saved)
                assert run == clean, f"cut by {how} after {at} bytes"
                assert (
                    reader._reader._stream.follower.document.value()
                    == job._reader._stream.follower.document.value()
                )
        # The client closes the connection at `done`, possibly before the last few bytes are sent.
        assert len(proxy.cuts) >= (size - 10) // step


@pytest.mark.anyio
async def test_submit_cut_at_random_bytes_starts_one_job(url):
    rng = random.Random(SEED)
    timing, _ = hurried()
    cut_plan = CutPlan()
    with FaultProxy(address_of(url), cut_plan) as proxy:
        before = await starts(url)
        for _ in range(25):
            # Use a new connection each time, because the byte count of a cut refers to the whole connection.
            async with with_timing(AsyncClient(proxy.url), timing) as client:
                # At most two cuts: a submit is attempted four times.
                cut_plan.cuts = [
                    Cut(after=rng.randrange(1000), how=rng.choice(["fin", "rst"]))
                    for _ in range(rng.randrange(3))
                ]
                assert await client.run("talk", words=3) == sentence(3)
        assert await starts(url) == before + 25


async def starts(url):
    async with AsyncClient(url) as client:
        return await client.run("starts_so_far")


@pytest.mark.heavy
@pytest.mark.anyio
async def test_long_jobs_cut_at_random_bytes_are_read_completely(url, monkeypatch):
    rng = random.Random(SEED)

    def cut_plan(connection):
        if connection > 10 and rng.random() < 0.15:
            return None
        how = rng.choices(["fin", "rst", "stall"], [6, 6, 1])[0]
        return Cut(after=rng.randrange(300, 4000), how=how)

    async def follow(client, endpoint, **members):
        job = await client.submit(endpoint, **members)
        run = Run()
        async for update in job:
            run.take(update)
        first, _ = run.assert_whole()
        assert first == 1
        held = await direct_client.job(job.id).read()
        [item] = held.state["items"]
        assert run.value == item["value"] == await job.result()
        assert digest(held.state["items"]) == held.done.digest == job._reader._stream.follower.done.digest
        if endpoint == "talk":
            assert run.text == sentence(members["words"])

    receive, ignored = Follower.receive, []

    def receive_and_record(follower, event):
        outcome = receive(follower, event)
        if isinstance(outcome, Ignored) and event.type in LOGGED:
            ignored.append(event.id)
        return outcome

    monkeypatch.setattr(Follower, "receive", receive_and_record)
    patient = RetryPolicy(max_delay=0.1)
    soon = Timing(hello_timeout=0.5)
    with FaultProxy(address_of(url), cut_plan) as proxy:
        async with (
            AsyncClient(url) as direct_client,
            with_timing(AsyncClient(proxy.url, retry=patient, answer_timeout=0.5), soon) as client,
            anyio.create_task_group() as tasks,
        ):
            for _ in range(3):
                tasks.start_soon(lambda: follow(client, "talk", words=250, slow=True))
            tasks.start_soon(lambda: follow(client, "hesitate", words=80))
            tasks.start_soon(lambda: follow(client, "grow", steps=150))
        assert len(proxy.cuts) >= 5
    assert ignored == []  # The server sends no event again that the client has applied.


def test_blocking_client_reads_jobs_completely_despite_cuts(url):
    rng = random.Random(SEED)
    with FaultProxy(
        address_of(url), lambda n: Cut(after=rng.randrange(400, 3000)) if n % 4 else None
    ) as proxy:
        with Client(proxy.url, retry=RetryPolicy(max_delay=0.1)) as client:
            run = Run()
            for update in client.submit("talk", words=150, slow=True):
                run.take(update)
            assert run.assert_whole()[0] == 1
            assert run.text == sentence(150)
            assert "".join(client.submit("talk", words=80, slow=True).iter_text()) == sentence(80)
