"""The server and the client read a log file and a checkpoint that an earlier commit wrote.

`tests/fixtures/log.db` is the log of a server with running jobs, and `tests/fixtures/checkpoint.json` a checkpoint of one
of its ended jobs. They stay as they are when the formats change, so that these tests show that old files can be read. To
add files of a later format, call `write_files` with another folder.
"""

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from support.received_updates import Run
from support.reference_server import QUICK, Fold, Peer, eventually
from tidewire import Checkpoint, Client
from tidewire.errors import ItemFailedError, JobCancelledError, JobFailedError, RequestError
from tidewire_server import ItemError, Server, Stream

FILES = Path(__file__).parents[1] / "fixtures"
CENTURY = 100 * 365 * 86_400.0
"""Retention in seconds. Expiry times are stored when a job ends, so the server that writes the file decides."""
RETENTION = dict.fromkeys(("log_ttl", "state_ttl", "tombstone_ttl", "idempotency_ttl"), CENTURY)
TEXT = "results né 😀 from a GPU"
ENDED = ["text", "failed-item", "cancelled"]


def server_of(log: Path, gate: Event) -> Server:
    """Return the server that wrote the file. Functions that read `gate` wait until it is set."""
    server = Server(log=f"sqlite:///{log}", merge_window=0.0, **(QUICK | RETENTION))

    @server.endpoint(capabilities={"rollback": True}, concurrency_limit=None)
    async def talk(stream: Stream[str]) -> None:
        stream.append("wrong")
        stream.truncate(5)
        for letter in TEXT:
            stream.append(letter)
        stream.note("said it all")
        stream.usage(characters=len(TEXT))

    @server.endpoint(concurrency_limit=1)
    async def halt(stream: Stream[str]) -> None:
        stream.append(TEXT[:9])
        while not gate.is_set():
            await asyncio.sleep(0.005)
        stream.append(TEXT[9:])

    @server.endpoint(concurrency_limit=None)
    async def shout(text: str) -> str:
        if not text:
            raise ItemError("nothing to shout")
        return text.upper()

    @server.endpoint(on_restart="fail", concurrency_limit=1)
    async def pay() -> str:
        while not gate.is_set():
            await asyncio.sleep(0.005)
        return "paid"

    return server


def write_files(folder: Path) -> None:
    """Write a log file as a killed server leaves it, and a checkpoint. Each job has its name as idempotency key."""
    with server_of(folder / "running.db", Event()).running() as url, Client(url) as client:
        talk = client.submit("talk", idempotency_key="text")
        next(update for update in talk if len(update.value) == 9)
        (folder / "checkpoint.json").write_text(talk.checkpoint().to_json() + "\n", encoding="utf-8")
        talk.result()
        batch = client.submit_batch("shout", [{"text": "a"}, {"text": ""}], idempotency_key="failed-item")
        batch.results(return_exceptions=True)
        cancelled = client.submit("halt", idempotency_key="cancelled")
        next(update for update in cancelled if update.value == TEXT[:9])
        cancelled.cancel()
        eventually(lambda: cancelled.status() == "cancelled")
        halted = client.submit("halt", idempotency_key="interrupted")
        next(update for update in halted if update.value == TEXT[:9])
        client.submit("halt", idempotency_key="queued")
        paying = client.submit("pay", idempotency_key="paying")
        eventually(lambda: paying.status() == "running")
        with closing(sqlite3.connect(folder / "running.db")) as log:
            log.execute("VACUUM INTO ?", [str(folder / "log.db")])


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "log.db"
    shutil.copyfile(FILES / "log.db", log)
    log.chmod(0o600)
    gate = Event()
    gate.set()
    with server_of(log, gate).running() as url:
        yield url


@pytest.fixture
def client(url):
    with Client(url) as client:
        yield client


def stored(client, name):
    """The job with this name. Its idempotency key is stored, so the submit starts no job."""
    if name == "failed-item":
        return client.submit_batch("shout", [{"text": "a"}, {"text": ""}], idempotency_key=name)
    endpoint = {"text": "talk", "paying": "pay"}.get(name, "halt")
    return client.submit(endpoint, idempotency_key=name)


def test_jobs_and_idempotency_keys_are_kept(client):
    ids = {stored(client, name).id for name in (*ENDED, "interrupted", "queued", "paying")}
    assert {job.id for job in client.jobs()} == ids
    with pytest.raises(RequestError) as refused:
        client.submit("shout", text="another input", idempotency_key="failed-item")
    assert refused.value.status_code == 422


def test_results_are_kept(client):
    assert stored(client, "text").result() == TEXT
    first, failed = stored(client, "failed-item").results(return_exceptions=True)
    assert first == "A"
    assert isinstance(failed, ItemFailedError)
    with pytest.raises(JobCancelledError):
        stored(client, "cancelled").result()


@pytest.mark.parametrize("name", ENDED)
def test_each_cursor_of_an_ended_job_returns_the_rest_of_its_log(url, client, name):
    job = stored(client, name).id
    with Peer(url) as peer:
        log = [event for event in peer.events(job, "0-0") if event.id]
        assert Fold().take(log).done is not None  # each check and the digest are correct
        for read, event in enumerate(log[:-1], start=1):
            assert [each for each in peer.events(job, event.id) if each.id] == log[read:]


@pytest.mark.parametrize(("name", "attempt"), [("interrupted", 2), ("queued", 1)])
def test_an_unfinished_job_runs_to_its_end(client, name, attempt):
    job = stored(client, name)
    assert job.result() == TEXT
    assert job.read().attempt == attempt


def test_an_interrupted_job_that_must_not_run_twice_fails(client):
    with pytest.raises(JobFailedError) as lost:
        stored(client, "paying").result()
    assert lost.value.code == "worker_lost"


def test_a_checkpoint_resumes_without_loss_or_repetition(url, client):
    text = (FILES / "checkpoint.json").read_text(encoding="utf-8")
    saved = Checkpoint.from_json(text.replace(Checkpoint.from_json(text).url, url))
    run = Run(text=TEXT[:9])
    for update in client.job(checkpoint=saved):
        run.take(update)
    first, _ = run.assert_whole()
    assert first == int(saved.cursor.partition("-")[2]) + 1
    assert run.text == TEXT
    assert Checkpoint.from_json(saved.to_json()) == saved
