"""Servers on one PostgreSQL database whose files differ, as during a rolling deployment. All of them are real processes."""

import pytest

from support.postgres_server import needs_postgres
from support.reference_server import data, eventually
from support.server_roles import APP, Fleet

pytestmark = needs_postgres

WITHOUT_STORY = """
from tidewire_server import Server

server = Server()


@server.endpoint
async def other(number: int) -> int:
    return number
"""


def statuses(job):
    return [item["status"] for item in job["state"]["items"]]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("app", "flags"),
    [(APP, ["--no-functions"]), (WITHOUT_STORY, ["--no-functions"]), (WITHOUT_STORY, [])],
    ids=["no-functions", "no-functions-without-the-endpoint", "without-the-endpoint"],
)
def test_a_cancel_at_a_server_that_cannot_run_the_job_ends_only_the_cancelled_items(
    tmp_path, database_url, app, flags
):
    fleet = Fleet(tmp_path, database_url)
    with fleet.front() as (_, peer), fleet.worker():
        fleet.write_app(app)
        with fleet.server(*flags) as (_, other):
            running = peer.start("story", inputs=[{"gates": ["go"]}] * 3)
            with peer.stream(running) as reading:
                reading.until_text("go ")
            waiting, whole, deleted = (peer.start("story", inputs=[{"gates": ["go"]}] * 3) for _ in range(3))
            for job in (running, waiting):
                assert other.http.post(f"/v1/jobs/{job}/cancel", json={"items": [2]}).status_code == 202
            assert other.http.post(f"/v1/jobs/{whole}/cancel").status_code == 202
            with peer.stream(deleted) as reading:
                assert other.http.delete(f"/v1/jobs/{deleted}").status_code == 204
                assert data(reading.until("done"))["status"] == "cancelled"
            assert statuses(peer.ended(whole)) == ["cancelled"] * 3
            for job in (running, waiting):
                eventually(lambda job=job: statuses(peer.job(job))[2] == "cancelled")
            assert statuses(peer.job(waiting))[:2] == ["queued"] * 2
            fleet.open("go")
            for job in (running, waiting):
                assert statuses(other.ended(job)) == ["succeeded", "succeeded", "cancelled"]
                assert peer.job(job)["attempt"] == 1


@pytest.mark.heavy
def test_a_job_is_cancelled_while_no_server_has_its_endpoint(tmp_path, database_url):
    fleet = Fleet(tmp_path, database_url)
    with fleet.front() as (_, peer):
        some, whole, deleted = (peer.start("story", inputs=[{"gates": []}] * 2) for _ in range(3))
    fleet.write_app(WITHOUT_STORY)
    with fleet.server() as (_, other):
        assert other.http.post(f"/v1/jobs/{some}/cancel", json={"items": [1]}).status_code == 202
        assert other.http.post(f"/v1/jobs/{whole}/cancel").status_code == 202
        assert statuses(other.ended(whole)) == ["cancelled"] * 2
        with other.stream(deleted) as reading:
            assert other.http.delete(f"/v1/jobs/{deleted}").status_code == 204
            assert data(reading.until("done"))["status"] == "cancelled"
        fleet.write_app(APP)
        with fleet.worker():
            assert statuses(other.ended(some)) == ["succeeded", "cancelled"]


@pytest.mark.heavy
def test_deadlines_and_missing_readers_end_jobs_while_no_server_has_their_endpoint(tmp_path, database_url):
    """Such jobs waited for a server with the endpoint, however long that took [TW-JOB-069] [TW-JOB-064]."""
    fleet = Fleet(tmp_path, database_url)
    with fleet.front() as (_, peer), fleet.worker() as worker:
        deadline = {"deadline_ms": 2000}
        running = peer.start("story", {"gates": ["go"]}, **deadline)
        with peer.stream(running) as reading:
            reading.until_text("go ")
        waiting = peer.start("story", {"gates": []}, **deadline)
        unread = peer.start("story", {"gates": []}, on_disconnect="cancel", grace_ms=1000)
        kept = peer.start("story", {"gates": []})
        worker.kill()
    fleet.write_app(WITHOUT_STORY)
    with fleet.server() as (_, other):
        for job in (running, waiting):
            assert other.ended(job)["done"]["error"]["code"] == "deadline_exceeded"
        eventually(lambda: other.job(unread)["status"] == "cancelled")
        assert other.job(kept)["status"] == "queued"


OLDER = (
    APP
    + """

import time


@server.endpoint(batch=True, max_batch_size=4, batch_timeout=0.05, concurrency_limit=1, key=lambda given: given.kind)
def kinds(kind: list[str]) -> list[str]:
    '''Return the kinds of the batch of each row.'''
    while not (HERE / "go").exists():
        time.sleep(0.01)
    return ["".join(sorted(set(kind)))] * len(kind)
"""
)
NEWER = OLDER.replace("def kinds(kind: list[str])", "def kinds(kind: list[str], added: list[int])")


@pytest.mark.heavy
def test_rows_whose_job_was_adopted_by_a_server_that_refuses_them_keep_their_batch_keys(
    tmp_path, database_url
):
    fleet = Fleet(tmp_path, database_url, NEWER)
    with fleet.front() as (_, peer):
        with fleet.worker():
            job = peer.start("kinds", inputs=[{"kind": kind, "added": 1} for kind in "abab"])
            eventually(lambda: statuses(peer.job(job)) == ["running", "queued"] * 2)
        fleet.write_app(OLDER)
        with fleet.worker() as older:
            eventually(lambda: "the code of this server rejects the input" in older.errors(), within=30)
            eventually(lambda: statuses(peer.job(job)) == ["queued"] * 4)
            fleet.open("go")
            fleet.write_app(NEWER)
            with fleet.worker():
                found = peer.ended(job)
    assert [item["value"] for item in found["state"]["items"]] == ["a", "b", "a", "b"]
    assert found["attempt"] == 2


CALLS = """

@server.endpoint
def single(n: int) -> int:
    return n


@server.endpoint(batch=True, max_batch_size=4, batch_timeout=0.05)
def batched(n: list[int]) -> list[int]:
    return n
"""
UNREADABLE = """

from tidewire_server import ItemError
from tidewire_server.jobs.recovered_inputs import StoredInputs

check = StoredInputs.check


async def check_or_fail(stored, index):
    if index == 1:
        raise ItemError("the input could not be read", code="worker_lost")
    return await check(stored, index)


StoredInputs.check = check_or_fail
"""
OUTAGE = """

from tidewire_server.store.postgres.postgres_jobs import PostgresJobs
from tidewire_server.store.store_errors import StoreError

read = PostgresJobs.submit_body
failures = 3


async def read_after_the_outage(jobs, job):
    global failures
    failures -= 1
    if failures >= 0:
        error = StoreError("the database has not answered for 10 s")
        error.outage = error.logged = True
        raise error
    return await read(jobs, job)


PostgresJobs.submit_body = read_after_the_outage
"""


@pytest.mark.heavy
@pytest.mark.parametrize("endpoint", ["single", "batched"])
def test_a_waiting_input_that_cannot_be_read_fails_only_its_item(tmp_path, database_url, endpoint):
    fleet = Fleet(tmp_path, database_url, APP + CALLS + UNREADABLE)
    with fleet.front() as (_, peer), fleet.worker():
        found = peer.ended(peer.start(endpoint, inputs=[{"n": n} for n in range(4)]))
    assert statuses(found) == ["succeeded", "failed", "succeeded", "succeeded"]
    assert found["state"]["items"][1]["error"]["code"] == "worker_lost"


@pytest.mark.heavy
@pytest.mark.parametrize("endpoint", ["single", "batched"])
def test_an_outage_while_the_input_of_a_waiting_item_is_read_fails_no_item(tmp_path, database_url, endpoint):
    fleet = Fleet(tmp_path, database_url, APP + CALLS + OUTAGE)
    with fleet.front() as (_, peer), fleet.worker():
        found = peer.ended(peer.start(endpoint, inputs=[{"n": n} for n in range(4)]))
    assert [item.get("value") for item in found["state"]["items"]] == [0, 1, 2, 3]
    assert found["attempt"] == 1
