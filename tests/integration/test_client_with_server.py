"""The client against the reference server in a separate process."""

import itertools
import subprocess
import sys
from dataclasses import replace

import anyio
import pytest

from support.sample_server import Point, sentence, served
from tidewire import AsyncClient, Checkpoint, Client
from tidewire.errors import (
    EndpointNotFoundError,
    InvalidInputError,
    ItemFailedError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    RequestError,
)


@pytest.fixture(scope="module")
def url():
    with served(retry=0.005, queue_interval=0.0) as url:
        yield url


def covers_each_seq_once(updates):
    return updates[0].first_seq == 1 and all(
        after.first_seq == before.seq + 1 for before, after in itertools.pairwise(updates)
    )


@pytest.mark.anyio
async def test_streamed_text_equals_the_result_and_the_state_on_the_server(url):
    async with AsyncClient(url) as client:
        job = await client.submit("talk", words=40, slow=True)
        updates = [update async for update in job]
        assert "".join(update.text for update in updates) == sentence(40) == await job.result()
        assert covers_each_seq_once(updates)
        held = await job.read()
        assert (held.status, held.state["items"][0]["value"]) == ("succeeded", sentence(40))


@pytest.mark.anyio
async def test_each_update_holds_the_value_at_its_seq(url):
    async with AsyncClient(url) as client:
        updates = [update async for update in await client.submit("grow", steps=9)]
        rows = [update.value["rows"] for update in updates]
        assert rows[-1] == [[at, at / 2] for at in range(9)]
        assert all(rows[-1][: len(some)] == some for some in rows)
        assert covers_each_seq_once(updates)


@pytest.mark.anyio
async def test_text_deltas_with_rollback_add_up_to_the_result(url):
    async with AsyncClient(url) as client:
        job = await client.submit("hesitate", words=5)
        text = ""
        async for delta in job.iter_text_deltas():
            text = text[: len(text) - delta.deleted] + delta.text
        final = "".join([piece async for piece in client.job(job.id).iter_text()])
        assert text == final == await job.result()


@pytest.mark.anyio
async def test_two_readers_of_one_job_hold_equal_values_at_equal_seqs(url):
    async with AsyncClient(url) as client, anyio.create_task_group() as tasks:
        started = await client.submit("grow", steps=12)
        seen = [{}, {}]

        async def read(into):
            async for update in client.job(started.id):
                into[update.seq] = update.value

        for into in seen:
            tasks.start_soon(read, into)
    both = seen[0].keys() & seen[1].keys()
    assert both
    assert all(seen[0][seq] == seen[1][seq] for seq in both)


def test_results_are_validated_and_a_failed_job_raises(url):
    with Client(url) as client:
        assert client.run("point", x=1.5, returns=Point) == Point(x=1.5, label="at 1.5")
        with pytest.raises(JobFailedError, match="no such point"):
            client.run("point", x=1.5, fail=True)


def test_each_invalid_request_raises_a_typed_error(url):
    with Client(url) as client:
        with pytest.raises(InvalidInputError) as caught:
            client.submit("point", x="far")
        assert caught.value.pointer == "/input/x"
        with pytest.raises(InvalidInputError):
            client.submit("point", x=1, colour="red")
        with pytest.raises(EndpointNotFoundError, match="talk"):
            client.submit("tolk")
        with pytest.raises(EndpointNotFoundError, match=r"\d endpoints: count, talk"):
            client.submit()
        with pytest.raises(JobNotFoundError):
            client.job("A" * 22).result()
        with pytest.raises(InvalidInputError):
            client.submit("point", {"x": 1, "label": "x" * 9_000_000})
        assert client.run("count", n=3) == 2


def test_a_checkpoint_used_with_another_server_raises_job_not_found(url):
    with Client(url) as client:
        saved = client.submit("count").checkpoint()
        with served() as other, Client(other) as other_client:
            with pytest.raises(JobNotFoundError):
                other_client.job(checkpoint=replace(saved, url=None)).result()


def test_a_repeated_submit_with_an_idempotency_key_returns_the_same_job(url):
    with Client(url) as client:
        first, second = (client.submit("talk", words=9, idempotency_key="a" * 40) for _ in range(2))
        assert first.id == second.id
        assert "".join(update.text for update in second) == "".join(first.iter_text()) == sentence(9)
        with pytest.raises(RequestError, match="idempotency_key_reused"):
            client.submit("talk", words=10, idempotency_key="a" * 40)


def test_cancelling_a_running_job_raises_with_its_partial_value(url):
    with Client(url) as client:
        job = client.submit("forever")
        for update in job:
            if update.text:
                break
        assert job.cancel() in {"running", "cancelled"}
        with pytest.raises(JobCancelledError) as caught:
            job.result()
        assert caught.value.value.startswith("on and ")
        assert job.status() == "cancelled"


def test_progress_is_available_while_reading(url):
    with Client(url) as client:
        job = client.submit("forever")
        for _ in job:
            if job.progress is not None:
                break
        assert (job.progress.current, job.progress.unit) == (1, "step")
        job.cancel()


def test_batch_items_fail_independently(url):
    with Client(url) as client:
        batch = client.submit_batch("point", [{"x": 1}, {"x": 2, "fail": True}, {"x": 3}], returns=Point)
        ended = dict(batch.as_completed())
        assert (ended[0].x, ended[2].x) == (1, 3)
        assert isinstance(ended[1], ItemFailedError)
        assert [type(result) for result in batch.results(return_exceptions=True)] == [
            Point,
            ItemFailedError,
            Point,
        ]
        with pytest.raises(ItemFailedError, match="item 1 failed: no such point"):
            batch.results()
        assert client.job(batch.id).status() == "partially_failed"


READ_SOME_UPDATES = """
import sys
from tidewire import Checkpoint, Client
url, saved, count = sys.argv[1:]
with Client(url) as client:
    job = client.job(checkpoint=Checkpoint.from_json(saved))
    for taken, update in enumerate(job, 1):
        sys.stdout.write(update.text)
        if taken == int(count):
            break
    sys.stderr.write(job.checkpoint().to_json())
"""


@pytest.mark.heavy
def test_processes_that_resume_from_checkpoints_read_the_whole_text_together(url):
    with Client(url) as client:
        job = client.submit("talk", words=60, slow=True)
        saved = job.checkpoint().to_json()
        text = ""
        for count in (1, 2, 3, 10_000):
            command = [sys.executable, "-W", "error", "-c", READ_SOME_UPDATES, url, saved, str(count)]
            ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
            text += ended.stdout
            saved = ended.stderr
            Checkpoint.from_json(saved)
        assert text == sentence(60)


def test_callers_see_only_their_own_jobs():
    with served(tokens=["ada:secret", "bob:other"]) as url:
        with Client(url, headers={"Authorization": "Bearer secret"}) as ada:
            job = ada.submit("count")
            assert [found.id for found in ada.jobs()] == [job.id]
            with Client(url, auth=lambda: {"Authorization": "Bearer other"}) as bob:
                assert bob.jobs() == []
                with pytest.raises(JobNotFoundError):
                    bob.job(job.id).result()
