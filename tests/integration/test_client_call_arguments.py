"""The arguments `timeout=`, `idempotency_key=` and `shared=` of client calls, against a real server."""

import asyncio
import time

import pytest
from pydantic import BaseModel

from support.sample_server import sentence, served
from tidewire import AsyncClient, Client
from tidewire.errors import InvalidInputError, QueueTimeoutError, RequestError, TotalTimeoutError
from tidewire_server import Server

SHORT = 0.2
BEARER = {"Authorization": "Bearer me"}


@pytest.fixture(scope="module")
def url():
    with served() as url:
        yield url


@pytest.fixture(scope="module")
def echo():
    """Start a server whose endpoints have input members named like arguments of the client's calls."""
    server = Server()

    @server.endpoint
    async def echo(returns: str, idempotency_key: str = "", shared: str = "") -> list[str]:
        return [returns, idempotency_key, shared]

    @server.endpoint
    async def sizes(concurrency: int, batch_size: int, progress: str) -> list[str]:
        return [str(concurrency), str(batch_size), progress]

    with server.running() as url:
        yield url


# ---- timeout= ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["result", "wait"])
def test_a_timeout_ends_the_call_but_not_the_job(url, call):
    with Client(url) as client:
        job = client.submit("forever")
        begun = time.monotonic()
        with pytest.raises(TotalTimeoutError, match=r"the timeout of 0.2 s passed.*The job continues"):
            getattr(job, call)(timeout=SHORT)
        assert SHORT <= time.monotonic() - begun < 5
        assert job.status() == "running"
        assert next(iter(job)).text
        job.cancel()
        job.wait(timeout=10)
        assert (job.ended, job.status()) == (True, "cancelled")


@pytest.mark.parametrize("call", ["results", "wait"])
def test_a_timeout_ends_a_call_on_a_batch(url, call):
    with Client(url) as client:
        batch = client.submit_batch("forever", [{}, {}])
        with pytest.raises(TotalTimeoutError, match="the timeout of 0.2 s passed"):
            getattr(batch, call)(timeout=SHORT)
        assert batch.cancel() is not None
        batch.wait(timeout=10)
        assert [error.status for error in batch.results(return_exceptions=True, timeout=5)] == [
            "cancelled"
        ] * 2


@pytest.mark.anyio
async def test_async_calls_accept_a_timeout(url):
    async with AsyncClient(url) as client:
        job = await client.submit("forever")
        with pytest.raises(TotalTimeoutError, match="the timeout of 0.2 s passed"):
            await job.result(timeout=SHORT)
        await job.cancel()
        await job.wait(timeout=10)
        batch = await client.submit_batch("double", [{"x": 1}, {"x": 2}])
        assert await batch.results(timeout=10) == [2, 4]


def test_the_timeout_of_a_call_overrides_the_timeout_of_the_client(url):
    with Client(url, timeout=0.001) as hurried, Client(url) as client:
        job = hurried.job(client.submit("talk", words=2).id)
        assert job.result(timeout=10) == sentence(2)


def test_a_timeout_while_the_job_is_queued_raises_queue_timeout():
    server = Server(default_concurrency_limit=1)

    @server.endpoint
    async def hold(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    with server.running() as url, Client(url) as client:
        first = client.submit("hold", seconds=3600)
        waiting = client.submit("hold", seconds=0)
        with pytest.raises(QueueTimeoutError, match="the timeout of 0.1 s passed while the job waited"):
            waiting.result(timeout=0.1)
        first.cancel()
        assert waiting.result(timeout=10) == 0


@pytest.mark.parametrize("wrong", [0, -1, "5", True])
@pytest.mark.parametrize("ended", [False, True])
def test_an_invalid_timeout_raises(url, wrong, ended):
    with Client(url) as client:
        job = client.submit("talk", words=1)
        if ended:
            job.wait()
        for call in (job.result, job.wait):
            with pytest.raises((TypeError, ValueError), match="timeout must be"):
                call(timeout=wrong)


def test_wait_neither_raises_for_a_failed_job_nor_consumes_updates(url):
    with Client(url) as client:
        failed = client.submit("point", x=1, fail=True)
        assert failed.wait() is None
        assert failed.status() == "failed"
        job = client.submit("talk", words=3)
        job.wait()
        assert "".join(update.text for update in job) == sentence(3)


def test_wait_on_an_ended_job_needs_no_connection(url):
    client = Client(url)
    job = client.submit("talk", words=1)
    job.wait()
    client.close()
    job.wait(timeout=1)
    assert job.result(timeout=1) == sentence(1)


# ---- idempotency_key= --------------------------------------------------------------------------------------------


def test_an_idempotency_key_applies_to_one_submit_only(url):
    with Client(url, headers=BEARER) as client:
        first = client.submit("talk", words=2, idempotency_key="one")
        assert client.submit("talk", words=2, idempotency_key="one").id == first.id
        assert client.submit("talk", words=2).id != first.id
        with pytest.raises(RequestError, match="idempotency_key_reused"):
            client.submit("talk", words=3, idempotency_key="one")


def test_run_and_submit_batch_accept_an_idempotency_key(url):
    with Client(url, headers=BEARER) as client:
        before = client.run("starts_so_far")
        for _ in range(2):
            assert client.run("talk", words=2, idempotency_key="run") == sentence(2)
        assert client.run("starts_so_far") == before + 1
        batches = [client.submit_batch("double", [{"x": 1}], idempotency_key="batch") for _ in range(2)]
        assert batches[0].id == batches[1].id


@pytest.mark.anyio
async def test_async_calls_accept_an_idempotency_key(url):
    async with AsyncClient(url, headers=BEARER) as client:
        jobs = [await client.submit("talk", words=2, idempotency_key="async") for _ in range(2)]
        assert jobs[0].id == jobs[1].id
        assert await client.run("talk", words=2, idempotency_key="async") == sentence(2)


def test_one_idempotency_key_covers_all_jobs_of_a_map(url):
    inputs = [{"x": x} for x in range(1000, 1012)]
    with Client(url, headers=BEARER) as client:
        known = len(client.jobs())
        for _ in range(2):
            values = client.map("double", inputs, batch_size=5, idempotency_key="night")
            assert list(values) == [2 * one["x"] for one in inputs]
        assert len(client.jobs()) == known + 3
        assert list(client.map("double", inputs, batch_size=5, idempotency_key="day")) == [
            *range(2000, 2024, 2)
        ]
        assert len(client.jobs()) == known + 6


# ---- shared= and members named like arguments of a call ------------------------------------------------------------


def test_shared_members_are_a_mapping_or_keywords_or_both(url):
    with Client(url) as client:
        for passed in ({"shared": {"x": 2, "fail": False}}, {"shared": {"x": 2}, "fail": False}, {"x": 2}):
            batch = client.submit_batch("point", [{}, {"x": 1}], **passed)
            assert [value["x"] for value in batch.results()] == [2, 1]
            values = client.map("point", [{}, {"x": 1}], **passed)
            assert [value["x"] for value in values] == [2, 1]


@pytest.mark.parametrize("call", ["submit_batch", "map"])
def test_invalid_shared_members_raise(url, call):
    with Client(url) as client:
        with pytest.raises(TypeError, match="shared must be a mapping"):
            getattr(client, call)("point", [{}], shared=[("x", 2)])
        with pytest.raises(TypeError, match="both in shared and by keyword: x"):
            getattr(client, call)("point", [{}], shared={"x": 2}, x=3)


def test_input_members_may_be_named_like_arguments(echo):
    with Client(echo) as client:
        value = {"returns": "a", "idempotency_key": "b", "shared": "c"}
        assert client.run("echo", value) == ["a", "b", "c"]
        assert client.run("echo", value, returns=list[str]) == ["a", "b", "c"]
        # `submit` has no argument `shared`, so this `shared` is a member of the input.
        with pytest.raises(InvalidInputError, match="returns"):
            client.run("echo", shared="c")


def test_shared_members_may_be_named_like_arguments(echo):
    with Client(echo) as client:
        members = {"returns": "a", "idempotency_key": "b", "shared": "c"}
        assert client.submit_batch("echo", [{}, {"shared": "d"}], shared=members).results() == [
            ["a", "b", "c"],
            ["a", "b", "d"],
        ]
        sizes = {"concurrency": 1, "batch_size": 2, "progress": "p"}
        assert list(client.map("sizes", [{}], shared=sizes)) == [["1", "2", "p"]]


class Caption(BaseModel):
    x: float


def test_returns_and_timeout_can_be_combined(url):
    with Client(url) as client:
        assert client.submit("point", {"x": 1}, returns=Caption).result(timeout=10) == Caption(x=1)
