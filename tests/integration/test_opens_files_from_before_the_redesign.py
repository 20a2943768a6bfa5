"""The current server and client continue from a log and checkpoints that a commit before the redesign wrote.

`tests/fixtures/before_redesign/` contains the files, the results observed at the time, and a description of
how to create the files.
"""

import json
import shutil
from pathlib import Path

import httpx
import pytest

from fixtures.before_redesign.running import running
from support.received_updates import Run
from tidewire import Checkpoint, Client
from tidewire.errors import ItemFailedError, JobCancelledError, JobExpiredError, JobFailedError, RequestError
from tidewire.protocol.sse import Decoder

FILES = Path(__file__).parents[1] / "fixtures/before_redesign"
EXPECTED = json.loads((FILES / "expected.json").read_text(encoding="utf-8"))
IDS, JOBS, CHECKPOINTS = EXPECTED["ids"], EXPECTED["jobs"], EXPECTED["checkpoints"]
ENDED = [name for name, job in JOBS.items() if "events" in job]
UNFINISHED = [name for name, job in JOBS.items() if "events" not in job]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A server on a copy of the log. With the gate open, jobs that a kill interrupted run to their ends."""
    folder = tmp_path_factory.mktemp("before_redesign")
    shutil.copyfile(FILES / "log.db", folder / "log.db")
    (folder / "gate").touch()
    with running(folder) as server:
        yield server.url


@pytest.fixture
def client(url):
    with Client(url, timeout=30.0) as client:
        yield client


def saved(name, url):
    """Read a checkpoint from its file and set the URL of the current server."""
    members = json.loads((FILES / f"checkpoint_{name}.json").read_text(encoding="utf-8"))
    return Checkpoint.from_json(json.dumps(members | {"url": url}))


def value_of(name, index=0):
    return JOBS[name]["resource"]["state"]["items"][index]["value"]


def events(url, job, after):
    answer = httpx.get(f"{url}/v1/jobs/{job}/events", headers={"last-event-id": after}, timeout=30)
    if answer.status_code == 204:
        return []
    assert answer.status_code == 200, answer.text
    return [[each.id, each.type, each.data] for each in Decoder().feed(answer.content) if each.id]


def seq(cursor):
    return int(cursor.partition("-")[2])


# ---- the log --------------------------------------------------------------------------------------------------------


def test_the_fixtures_contain_every_kind_of_job():
    assert {"text", "value", "batch", "cancelled", "restarted", "keyed"} == set(ENDED)
    assert {"running", "queued", "running_batch", "paying"} == set(UNFINISHED)
    assert EXPECTED["written_by"]["commit"].startswith("fd5c3f5")


@pytest.mark.parametrize("name", ENDED)
def test_the_resource_of_an_ended_job_is_unchanged(url, name):
    found = httpx.get(f"{url}/v1/jobs/{IDS[name]}", timeout=30).json()
    expected = JOBS[name]["resource"]
    assert {member: found.get(member) for member in expected} == expected


@pytest.mark.parametrize("name", ENDED)
def test_replay_of_an_ended_job_is_unchanged_from_each_cursor(url, name):
    expected = JOBS[name]["events"]
    assert events(url, IDS[name], "0-0") == expected
    for read, (cursor, _, _) in enumerate(expected, start=1):
        assert events(url, IDS[name], cursor) == expected[read:], f"after {cursor}"


@pytest.mark.parametrize("name", ["text", "value", "restarted", "keyed"])
def test_results_are_unchanged(client, name):
    assert client.job(IDS[name]).result() == value_of(name)


def test_errors_of_ended_jobs_are_unchanged(client):
    first, failed, last = client.batch_job(IDS["batch"]).results(return_exceptions=True)
    assert (first, last) == ("QUICK", "NÉ")
    assert isinstance(failed, ItemFailedError)
    assert failed.code == "item_refused"
    with pytest.raises(JobCancelledError):
        client.job(IDS["cancelled"]).result()
    with pytest.raises(JobExpiredError):
        client.job(IDS["purged"]).result()


def test_jobs_and_idempotency_keys_are_kept(client):
    assert {job.id for job in client.jobs()} >= set(IDS.values()) - {IDS["purged"]}
    assert client.submit("shout", text="once", idempotency_key="fixture").id == IDS["keyed"]
    with pytest.raises(RequestError) as refused:
        client.submit("shout", text="something else", idempotency_key="fixture")
    assert refused.value.status_code == 422


# ---- jobs that the kill interrupted ---------------------------------------------------------------------------------


def test_an_interrupted_job_continues_its_log_with_a_new_attempt(client, url):
    job = client.job(IDS["running"])
    text = job.result()
    assert text.startswith(value_of("running"))
    assert len(text) > len(value_of("running"))
    assert job.read().attempt == JOBS["running"]["resource"]["attempt"] + 1
    logged = events(url, IDS["running"], "0-0")
    assert [seq(cursor) for cursor, _, _ in logged] == list(range(1, len(logged) + 1))
    cut = seq(JOBS["running"]["resource"]["cursor"])
    assert logged[cut - 1][0] == JOBS["running"]["resource"]["cursor"]
    restart = json.loads(logged[cut][2])
    assert (logged[cut][1], restart["reason"]) == ("snapshot", "restart")


def test_a_queued_job_runs_in_its_first_attempt(client):
    job = client.job(IDS["queued"])
    assert job.result() == "stream of results né 😀 from a GPU"
    assert job.read().attempt == 1


def test_an_interrupted_batch_keeps_ended_items_and_reruns_the_others(client):
    batch = client.batch_job(IDS["running_batch"])
    first, failed, last = batch.results(return_exceptions=True)
    assert (first, failed.code, last) == ("FIRST", "item_refused", "LAST")
    assert batch.read().attempt == 2


def test_an_interrupted_job_that_must_not_be_retried_fails(client):
    job = client.job(IDS["paying"])
    with pytest.raises(JobFailedError) as lost:
        job.result()
    assert lost.value.code == "worker_lost"
    assert job.read().attempt == 1


# ---- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_keeps_its_json(name):
    text = (FILES / f"checkpoint_{name}.json").read_text(encoding="utf-8").strip()
    found = Checkpoint.from_json(text)
    assert (found.job, found.cursor) == (CHECKPOINTS[name]["job"], CHECKPOINTS[name]["cursor"])
    assert json.loads(found.to_json()) == json.loads(text)


@pytest.mark.parametrize("name", ["text", "before_a_rollback", "restarted", "running"])
def test_text_resumes_from_a_checkpoint_without_loss_or_repetition(client, url, name):
    expected = CHECKPOINTS[name]
    job = client.job(checkpoint=saved(name, url))
    run = Run(text=expected["text"])
    for update in job:
        run.take(update)
    first, last = run.assert_whole()
    assert first == seq(expected["cursor"]) + 1
    assert run.text == run.value == job.result()
    # Events after the last value change, such as the item's status and `done`, may have no update.
    later_events = [data for cursor, kind, data in events(url, expected["job"], "0-0") if seq(cursor) > last]
    assert not [data for data in later_events if data.startswith('"')]


def test_a_value_resumes_from_a_checkpoint(client, url):
    job = client.job(checkpoint=saved("value", url))
    run = Run()
    for update in job:
        run.take(update)
    first, _ = run.assert_whole()
    assert first == seq(CHECKPOINTS["value"]["cursor"]) + 1
    assert run.value == job.result() == value_of("value")


def test_a_checkpoint_before_the_first_update_reads_the_whole_job(client, url):
    job = client.job(checkpoint=saved("nothing_read", url))
    run = Run()
    for update in job:
        run.take(update)
    run.assert_whole()
    assert run.text == job.result() == value_of("text")


def test_a_checkpoint_at_the_end_yields_no_text_and_has_the_result(client, url):
    job = client.job(checkpoint=saved("text_ended", url))
    assert [update.text for update in job if update.text or update.deleted] == []
    assert job.result() == value_of("text") == CHECKPOINTS["text_ended"]["text"]


def test_a_batch_resumes_with_the_items_that_had_not_ended(client, url):
    batch = client.batch_job(checkpoint=saved("running_batch", url))
    assert list(batch.as_completed()) == [(2, "LAST")]
    assert CHECKPOINTS["running_batch"]["completed"] == [0, 1]
    assert batch.results(return_exceptions=True)[0] == "FIRST"
