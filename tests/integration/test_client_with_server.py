"""The client against the reference server in a separate process."""

import subprocess
import sys
from dataclasses import replace

import pytest

from support.late_body_proxy import LateBodyProxy
from support.sample_server import sentence, served
from support.server_address import address_of
from tidewire import Checkpoint, Client
from tidewire.errors import (
    EndpointNotFoundError,
    InvalidInputError,
    JobCancelledError,
    JobNotFoundError,
)


@pytest.fixture(scope="module")
def url():
    with served(retry=0.005, queue_interval=0.0) as url:
        yield url


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


def test_a_submit_whose_body_arrives_too_late_is_repeated_and_starts_one_job():
    with (
        served(body_timeout=0.1) as url,
        LateBodyProxy(address_of(url)) as proxy,
        Client(proxy.url) as client,
    ):
        job = client.submit("talk", words=3)
        assert job.result() == sentence(3)
        assert proxy.faults["late body"] == 1
        assert [each.id for each in client.jobs()] == [job.id]


def test_a_checkpoint_used_with_another_server_raises_job_not_found(url):
    with Client(url) as client:
        saved = client.submit("count").checkpoint()
        with served() as other, Client(other) as other_client:
            with pytest.raises(JobNotFoundError):
                other_client.job(checkpoint=replace(saved, url=None)).result()


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
