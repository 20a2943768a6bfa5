"""A job with several items that is read as a job with one item: every way to read it raises the same error."""

import itertools

import pytest

from support.scripted_server import HOLD, STREAM, ScriptedServer, answer, hello, state
from support.scripted_server import job as job_body
from tidewire import AsyncClient, Client
from tidewire.errors import SeveralItemsError
from tidewire.testing import FakeServer

TEXTS = [{"text": "a"}, {"text": "b"}, {"text": "c"}]

READ = {
    "loop": lambda job: [update.text for update in job],
    "iter_text": lambda job: list(job.iter_text()),
    "iter_text_deltas": lambda job: list(job.iter_text_deltas()),
    "tokens": lambda job: list(job.tokens()),
    "logprobs": lambda job: job.logprobs(),
    "result": lambda job: job.result(),
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def server():
    with FakeServer() as server:
        server.endpoint("upper").calls(lambda given: given["text"].upper())
        yield server


@pytest.fixture
def client(server):
    with Client(server.url) as client:
        yield client


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_every_way_to_read_one_of_several_items_raises_the_same_error(client, read, ended):
    batch = client.submit_batch("upper", TEXTS)
    job = client.job(batch.id)
    if ended:
        job.wait()  # only reads the status, so it does not raise
    for _ in range(2):
        with pytest.raises(
            SeveralItemsError, match=r"this job has 3 items, not one.*client\.batch_job\(job\.id\)"
        ):
            read(job)
    assert client.batch_job(job.id).results() == ["A", "B", "C"]


@pytest.mark.anyio
async def test_async_loop_and_result_raise_the_same_error(server):
    async with AsyncClient(server.url) as client:
        batch = await client.submit_batch("upper", TEXTS)
        job = client.job(batch.id)
        with pytest.raises(SeveralItemsError):
            await anext(aiter(job))
        with pytest.raises(SeveralItemsError):
            await job.result()
        assert await client.batch_job(job.id).results() == ["A", "B", "C"]


@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_the_error_does_not_wait_for_the_end_of_the_job(read):
    """The samples of a generation with `n=3` are known as soon as the server has accepted the job."""

    def script(request):
        if request.method == "POST":
            yield answer(201, job_body(state(None, None, None), batch=True))
        else:
            yield STREAM + hello()
            yield HOLD

    with ScriptedServer(script) as server, Client(server.url) as client:
        job = client.submit("generate", n=3)
        with pytest.raises(SeveralItemsError):
            read(job)
        assert server.paths("GET") == []


@pytest.mark.parametrize("taken", [0, 3])
def test_a_checkpoint_of_a_batch_raises_the_same_error(client, taken):
    batch = client.submit_batch("upper", TEXTS)
    list(itertools.islice(batch, taken))
    saved = batch.checkpoint()
    assert not saved.undelivered, "client.job refuses undelivered updates of several items"
    with pytest.raises(SeveralItemsError):
        list(client.job(checkpoint=saved))
    with pytest.raises(SeveralItemsError):
        client.job(checkpoint=saved).result()
