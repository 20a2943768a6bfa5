"""Servers without functions (`tidewire serve --no-functions`) and workers without requests (`tidewire worker`) on one
PostgreSQL database. All of them are real processes.
"""

import json
import re
import time
from pathlib import Path

import pytest

from proof.forked_process import Forked
from support.postgres_server import needs_postgres
from support.reference_server import Fold, data, eventually
from support.server_roles import APP, Fleet

pytestmark = needs_postgres

DEATH = 30.0
"""Time limit for the adoption of the jobs of a killed process, whose lease is 5 s."""


@pytest.fixture
def fleet(tmp_path, database_url):
    return Fleet(tmp_path, database_url)


@pytest.mark.heavy
def test_a_job_is_submitted_and_read_at_the_front_and_runs_at_a_worker(fleet):
    with fleet.front() as (front, peer), fleet.worker() as worker:
        assert "role         requests only" in front.output()
        assert "role         functions only" in worker.output()
        job = peer.start("story", {"gates": ["one", "two"]})
        with peer.stream(job, "0-0") as reading:
            seen = {}
            while not ("progress" in seen and "message" in seen):
                event = next(reading)
                seen[event.type] = event
            assert data(seen["progress"]) == {"current": 1, "total": 2, "unit": "gate", "item": 0}
            # A second reader gets the latest progress.
            with peer.stream(job) as later:
                assert data(later.until("progress")) == {"current": 1, "total": 2, "unit": "gate", "item": 0}
            fleet.open("one")
            fleet.open("two")
            assert [*reading][-1].type == "done"
        assert peer.job(job)["state"]["items"][0]["value"] == "one two "
        assert Fold().take(peer.events(job, "0-0")).done["status"] == "succeeded"
        assert worker.stop() == 0
        assert front.stop() == 0


@pytest.mark.heavy
def test_documented_query_counts_the_jobs_that_the_metrics_of_the_front_do_not_have(fleet, database_url):
    import psycopg

    page = (Path(__file__).parents[2] / "docs/how-to/monitor.md").read_text()
    (query,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    with (
        fleet.front() as (_, peer),
        fleet.worker(),
        psycopg.connect(database_url, autocommit=True) as database,
    ):
        job = peer.start("story", {"gates": ["one"]})
        eventually(lambda: peer.job(job)["status"] == "running")
        assert 'tidewire_items_running{endpoint="story"} 0.0' in peer.http.get("/metrics").text
        fleet.open("one")
        eventually(lambda: peer.job(job)["status"] == "succeeded")
        eventually(lambda: database.execute(query).fetchall() == [("story", "succeeded", 1)])
        metrics = peer.http.get("/metrics").text
    assert 'tidewire_jobs_ended_total{endpoint="story",status="succeeded"} 0.0' in metrics


def test_a_cancel_at_the_front_reaches_the_function(fleet):
    with fleet.front() as (_, peer), fleet.worker():
        job, waiting = (peer.start("story", {"gates": [name]}) for name in ("one", "two"))
        with peer.stream(job) as reading:
            reading.until_text("one ")
            assert peer.http.post(f"/v1/jobs/{waiting}/cancel").status_code in {200, 202}
            assert peer.ended(waiting)["status"] == "cancelled"
            assert peer.http.post(f"/v1/jobs/{job}/cancel").status_code in {200, 202}
            assert data(reading.until("done"))["status"] == "cancelled"
        assert (fleet.folder / "cancelled-one").exists()
        assert not (fleet.folder / "cancelled-two").exists()


@pytest.mark.heavy
def test_a_job_waits_without_a_worker_and_runs_when_one_starts(fleet):
    with fleet.front() as (_, peer):
        job, expiring = (
            peer.start("story", {"gates": []}),
            peer.start("double", {"number": 1}, deadline_ms=1000),
        )
        # A server without functions ends a waiting job whose deadline is over.
        assert peer.ended(expiring)["done"]["error"]["code"] == "deadline_exceeded"
        assert peer.job(job)["status"] == "queued"
        with fleet.worker():
            assert peer.ended(job)["status"] == "succeeded"


@pytest.mark.heavy
def test_another_worker_continues_the_jobs_of_a_killed_one(fleet):
    with fleet.front() as (_, peer), fleet.worker() as killed:
        job = peer.start("story", {"gates": ["one"]})
        with peer.stream(job) as reading:
            reading.until_text("one ")
            killed.kill()
            fleet.open("one")
            with fleet.worker():
                done = data(reading.until("done"))
        assert done["status"] == "succeeded"
        assert peer.job(job)["attempt"] == 2


@pytest.mark.heavy
def test_the_jobs_of_the_last_worker_wait_and_their_deadlines_end_them(fleet):
    with fleet.front() as (_, peer), fleet.worker() as killed:
        job, expiring = (
            peer.start("story", {"gates": [name]}, **members)
            for name, members in (("one", {}), ("two", {"deadline_ms": 3000}))
        )
        with peer.stream(job) as reading, peer.stream(expiring) as other:
            reading.until_text("one ")
            killed.kill()
            assert data(other.until("done"))["error"]["code"] == "deadline_exceeded"
            assert data(reading.until("queue"))["waits_for"] == "worker"
        assert peer.job(job)["status"] == "queued"
        with fleet.worker():
            fleet.open("one")
            assert peer.ended(job)["status"] == "succeeded"


def test_a_cancel_of_a_job_whose_worker_has_died_keeps_its_value(fleet):
    with fleet.front() as (_, peer), fleet.worker() as killed:
        job = peer.start("story", {"gates": ["one"]})
        with peer.stream(job) as reading:
            reading.until_text("one ")
            killed.kill()
            answer = peer.http.post(f"/v1/jobs/{job}/cancel")
            assert answer.status_code == 202
            assert data(reading.until("done"))["status"] == "cancelled"
        ended = peer.job(job)
        assert (ended["state"]["items"][0], ended["attempt"]) == ({"status": "cancelled", "value": "one "}, 1)
        answer = peer.http.post(f"/v1/jobs/{job}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")


@pytest.mark.heavy
def test_a_worker_finishes_its_running_items_when_it_is_stopped(fleet):
    with fleet.front() as (_, peer), fleet.worker() as worker:
        running, waiting = (peer.start("story", {"gates": [name]}) for name in ("one", "two"))
        with peer.stream(running) as reading:
            reading.until_text("one ")
            worker.request_stop()
            eventually(lambda: "stopping: waiting up to 5 s for 1 job" in worker.errors())
            fleet.open("one")
            fleet.open("two")
            assert data(reading.until("done"))["status"] == "succeeded"
        assert worker.wait() == 0
        assert peer.job(running)["attempt"] == 1
        assert peer.job(waiting)["status"] == "queued"
        with fleet.worker():
            assert peer.ended(waiting)["status"] == "succeeded"
        assert peer.job(waiting)["attempt"] == 1


NEEDS = "needs a database that servers and workers share: --log postgresql://USER@HOST/DATABASE, not"


@pytest.mark.parametrize(
    ("module", "flags", "message"),
    [
        ("tidewire_server", ["--no-functions"], f"tidewire serve: --no-functions {NEEDS} memory\n"),
        (
            "tidewire_server.commands.worker",
            ["--log", "sqlite:///jobs.db"],
            f"tidewire worker: a worker {NEEDS} sqlite:///jobs.db\n",
        ),
    ],
)
def test_a_part_of_the_work_needs_a_database(tmp_path, module, flags, message):
    (tmp_path / "app.py").write_text(APP)
    process = Forked(module, "app.py", *flags, cwd=tmp_path)
    output, errors = process.communicate()
    assert (process.wait(), output, errors) == (2, "", message)


def workers(peer):
    return {each["name"]: each["workers"] for each in peer.http.get("/v1").json()["endpoints"]}


@pytest.mark.heavy
def test_an_endpoint_without_a_worker_says_so_in_the_queue_and_in_discovery(fleet):
    with fleet.front() as (_, peer):
        assert workers(peer) == {"story": 0, "double": 0}
        job = peer.start("story", {"gates": ["one"]})
        assert "queued (no worker)" in run_cli("jobs", peer.url)
        with peer.stream(job) as reading:
            assert data(reading.until("queue")) == {"position": 1, "waits_for": "worker"}
            with fleet.worker() as worker:
                reading.until_text("one ")
                eventually(lambda: workers(peer) == {"story": 1, "double": 1})
                worker.kill()
                # The job waits again when its worker is known to be dead.
                eventually(lambda: workers(peer) == {"story": 0, "double": 0}, within=DEATH)
                fleet.open("one")
                worker.start()
                reading.until("done")


def test_each_reader_of_a_waiting_job_gets_its_position(fleet):
    """Only the first reader did: the log of the waiting job was freed with it, and the position had not changed."""
    with fleet.front() as (_, peer):
        job = peer.start("story", {"gates": []})
        for _ in range(3):
            with peer.stream(job) as reading:
                assert data(reading.until("queue")) == {"position": 1, "waits_for": "worker"}


@pytest.mark.heavy
def test_metrics_and_estimates_of_the_front_are_those_of_the_workers(fleet):
    def metric(name):
        return [
            peer.metrics()[f'tidewire_{name}{{endpoint="{endpoint}"}}'] for endpoint in ("story", "double")
        ]

    with fleet.front() as (_, peer), fleet.worker(), fleet.worker() as second:
        eventually(lambda: workers(peer) == {"story": 2, "double": 2})
        assert (metric("workers"), metric("slots")) == ([2, 2], [2, 8])
        assert second.stop() == 0
        eventually(lambda: (metric("workers"), metric("slots")) == ([1, 1], [1, 4]))
        peer.run("story", {"gates": []})
        with peer.stream(peer.start("story", {"gates": ["one"]})) as running:
            running.until_text("one ")

            def has_estimate():
                with peer.stream(peer.start("story", {"gates": []})) as reading:
                    return data(reading.until("queue")).get("eta_ms", -1) >= 0

            eventually(has_estimate)  # The front learns the mean duration from a beat of the worker.
            fleet.open("one")
            running.until("done")


def test_a_waiting_job_gets_a_new_estimate_although_its_position_stays(fleet, database_url):
    """The front computes the estimates from the row of a worker, which only this test writes."""
    import psycopg

    def report(mean_duration):
        load = {"story": {"slots": 1, "running": 1, "mean_duration": mean_duration}}
        connection.execute("UPDATE server SET endpoints = %s WHERE host = 'worker'", [json.dumps(load)])

    with fleet.front() as (_, peer), psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SET search_path = tidewire")
        connection.execute(
            "INSERT INTO server (host, until, endpoints) VALUES ('worker', now() + interval '1 hour', '{}')"
        )
        report(100)
        eventually(lambda: workers(peer)["story"] == 1)
        with peer.stream(peer.start("story", {"gates": []})) as reading:
            assert data(reading.until("queue")) == {"position": 1, "eta_ms": 100_000}
            report(200)
            assert data(reading.until("queue")) == {"position": 1, "eta_ms": 200_000}
            report(200.9)
            time.sleep(2.5)  # two beats
            report(2)
            assert data(reading.until("queue")) == {"position": 1, "eta_ms": 2000}


LIMITED = APP.replace(
    "@server.endpoint(concurrency_limit=1)", "@server.endpoint(concurrency_limit=3, global_limit=2)"
)


@pytest.mark.heavy
def test_a_global_limit_counts_over_all_servers_without_the_dead_ones(tmp_path, database_url):
    def running():
        return sum(peer.job(job)["status"] == "running" for job in jobs)

    fleet = Fleet(tmp_path, database_url, LIMITED)
    with fleet.server() as (process, peer), fleet.worker() as worker:
        eventually(lambda: workers(peer) == {"story": 2, "double": 2})
        assert "3 at a time, 2 over all servers" in process.output()
        assert peer.metrics()['tidewire_slots{endpoint="story"}'] == 2
        jobs = [peer.start("story", {"gates": [str(number)]}) for number in range(6)]
        eventually(lambda: running() == 2)
        # Each call that ends lets one other begin, at whichever server.
        first = next(number for number, job in enumerate(jobs) if peer.job(job)["status"] == "running")
        fleet.open(str(first))
        peer.ended(jobs[first])
        eventually(lambda: running() == 2)
        process.kill()
        worker.kill()
        for number in range(6):
            fleet.open(str(number))
    with fleet.server() as (_, peer):
        for job in jobs:
            with peer.stream(job) as reading:
                assert data(reading.until("done"))["status"] == "succeeded"


NEWER = APP.replace(
    "async def double(number: int) -> int:", "async def double(number: int, times: int = 2) -> int:"
).replace("return 2 * number", "return times * number")


@pytest.mark.heavy
def test_a_job_whose_input_a_worker_rejects_waits_for_another_worker(fleet):
    fleet.write_app(NEWER)
    with fleet.front() as (_, peer):
        fleet.write_app(APP)
        with fleet.worker() as older:
            job, same = (peer.start("double", {"number": 5, "times": 3}) for _ in range(2))
            plain = peer.start("double", {"number": 5})
            with peer.stream(job) as reading:
                while (place := data(reading.until("queue"))).get("waits_for") != "version":
                    pass
                assert place == {"position": 1, "waits_for": "version"}
                assert peer.ended(plain)["state"]["items"][0]["value"] == 10
                assert peer.job(job)["status"] == peer.job(same)["status"] == "queued"
                fleet.write_app(NEWER)
                with fleet.worker():
                    assert data(reading.until("done"))["status"] == "succeeded"
                    assert peer.ended(same)["attempt"] == peer.job(job)["attempt"] == 1
            assert peer.job(job)["state"]["items"][0]["value"] == 15
            (warning,) = [line for line in older.errors().splitlines() if "WARNING" in line]
            assert f"job {job} item 0: the code of this server rejects the input" in warning
            assert "times" in warning


def run_cli(*arguments):
    process = Forked("tidewire", *arguments)
    output, errors = process.communicate()
    assert process.wait() == 0, errors
    return output


LATE = """

from tidewire_server.store.postgres.postgres_jobs import PostgresJobs

reopen = PostgresJobs.reopen


async def reopen_late(jobs, job):
    found = await reopen(jobs, job)
    if found.record.endpoint == "noted":
        (HERE / "opened").touch()
        await gate("go on")
    return found


PostgresJobs.reopen = reopen_late
"""
NOTED = """

@server.endpoint(concurrency_limit=2)
async def noted(number: int) -> int:
    with (HERE / "starts").open("a") as starts:
        starts.write(".")
    await gate("end")
    return number
"""


@pytest.mark.heavy
@pytest.mark.parametrize("halt", ["stopped", "frozen"])
def test_an_item_that_a_halted_worker_had_taken_starts_only_where_its_job_is_adopted(
    tmp_path, database_url, halt
):
    fleet = Fleet(tmp_path, database_url, APP + NOTED)
    with fleet.front() as (_, peer):
        fleet.write_app(APP + NOTED + LATE)
        with fleet.worker() as halted:
            assert peer.ended(peer.start("double", input={"number": 3}))["status"] == "succeeded"
            job = peer.start("noted", input={"number": 3})
            eventually((tmp_path / "opened").exists)
            fleet.write_app(APP + NOTED)
            with fleet.worker():
                halted.request_stop() if halt == "stopped" else halted.freeze()
                eventually((tmp_path / "starts").exists, within=30)  # at the other worker
                fleet.open("go on")
                if halt == "frozen":
                    halted.thaw()
                    # It serves again, and has not started the item.
                    assert peer.ended(peer.start("double", input={"number": 3}))["status"] == "succeeded"
                    halted.request_stop()
                assert halted.wait() == 0
                fleet.open("end")
                assert peer.ended(job)["status"] == "succeeded"
    assert (tmp_path / "starts").read_text() == "."


@pytest.mark.heavy
def test_a_worker_drains_while_it_still_starts_the_items_that_waited_for_it(tmp_path, database_url):
    app = APP.replace("shutdown_timeout=5.0", "shutdown_timeout=0.3") + NOTED
    fleet = Fleet(tmp_path, database_url, app)
    with fleet.front() as (_, peer):
        story, noted = peer.start("story", {"gates": ["one"]}), peer.start("noted", {"number": 3})
        fleet.write_app(app + LATE)
        with fleet.worker() as stopped:
            eventually((tmp_path / "opened").exists)
            eventually(lambda: peer.job(story)["status"] == "running")
            stopped.request_stop()
            eventually((tmp_path / "cancelled-one").exists)
            fleet.open("go on")
            assert stopped.wait() == 0
        fleet.write_app(app)
        fleet.open("one")
        fleet.open("end")
        with fleet.worker():
            assert peer.ended(story)["status"] == peer.ended(noted)["status"] == "succeeded"
    assert (tmp_path / "starts").read_text() == "."


RETURNED = """

from tidewire_server.jobs.job import Job
from tidewire_server.jobs.replicas.job_ownership import JobOwnership

refusal, return_to_queue = Job.refusal, JobOwnership.return_to_queue


async def check_late(job, index):
    if job.record.endpoint == "noted" and index == 0:
        (HERE / "taken").touch()
        await gate("returns")
    return await refusal(job, index)


async def return_late(ownership, job):
    commit = job.commit

    async def commit_late():
        (HERE / "returns").touch()
        await asyncio.sleep(0.5)  # meanwhile, the check of item 0 ends
        await commit()

    job.commit = commit_late
    await return_to_queue(ownership, job)
    job.commit = commit


Job.refusal, JobOwnership.return_to_queue = check_late, return_late
"""


@pytest.mark.heavy
@pytest.mark.parametrize("why", ["the worker stops", "the worker rejects another input"])
def test_an_item_that_was_taken_when_its_job_returns_to_the_queue_is_not_lost(tmp_path, database_url, why):
    noted = NOTED.replace("@server.endpoint(", '@server.endpoint(on_restart="fail", ')
    newer = APP + noted.replace("number: int)", "number: int, more: int = 0)")
    fleet = Fleet(tmp_path, database_url, newer)
    with fleet.front() as (_, peer):
        stops = why == "the worker stops"
        fleet.write_app((newer if stops else APP + noted) + RETURNED)
        with fleet.worker() as first:
            inputs = [{"number": 3}] if stops else [{"number": 3}, {"number": 4, "more": 1}]
            job = peer.start("noted", inputs=inputs)
            eventually((tmp_path / "taken").exists)
            fleet.write_app(newer)
            with fleet.worker():
                if stops:
                    assert first.stop() == 0
                fleet.open("end")
                found = peer.ended(job)
    assert [item["value"] for item in found["state"]["items"]] == [each["number"] for each in inputs]
    assert len((tmp_path / "starts").read_text()) == len(inputs)


BLOCKS = """
import time

@server.endpoint(concurrency_limit=2, on_restart="fail")
async def blocks(number: int) -> int:
    if number == 0:
        await gate("end")
    if number == 1:
        time.sleep(6)  # longer than a lease
    return number
"""


def test_a_blocked_event_loop_costs_no_running_item_of_a_job_that_no_server_has_adopted(
    tmp_path, database_url
):
    fleet = Fleet(tmp_path, database_url, APP + BLOCKS)
    with fleet.server() as (_, peer):
        job = peer.start("blocks", inputs=[{"number": number} for number in range(4)])
        eventually(
            lambda: [item["status"] for item in peer.job(job)["state"]["items"]].count("succeeded") == 3,
            within=30,
        )
        fleet.open("end")
        found = peer.ended(job)
    assert [item.get("value") for item in found["state"]["items"]] == [0, 1, 2, 3]
    assert found["attempt"] == 1
