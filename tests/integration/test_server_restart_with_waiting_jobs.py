"""Restart with waiting jobs: the start neither checks their inputs nor calls code of their endpoints, and what is wrong with
one job fails only this job.
"""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.recovering_server import BATCH, ENDPOINTS, GATES, Recovering, value_of
from support.reference_server import Reading, data
from tidewire.protocol.sse import Decoder


@pytest.fixture
def server() -> Iterator[Recovering]:
    with tempfile.TemporaryDirectory() as folder, Recovering(Path(folder), queue_interval=0.0) as server:
        server.open("check")
        yield server


def submitted(server: Recovering, endpoint: str, number: int) -> list[str]:
    """Submit a job with the inputs 0, 1 and 2, and jobs with the inputs 3, 4, … Wait until the first job runs."""
    jobs = [server.submit(endpoint, inputs=[{"n": 0}, {"n": 1}, {"n": 2}]).json()["id"]]
    jobs += [server.submit(endpoint, input={"n": n}).json()["id"] for n in range(3, 3 + number)]
    server.until(jobs[0], lambda found: found["status"] == "running")
    return jobs


def kill(server: Recovering, *open_gates: str) -> None:
    """Kill the server, forget its calls, and leave only these gates open."""
    server.kill()
    server.forget_calls()
    server.close(*GATES)
    for gate in open_gates:
        server.open(gate)


def first_event(server: Recovering, job: str, kind: str) -> Any:
    """Attach to a job, and return the data of its first event of a type."""
    with server.http.stream("GET", f"/v1/jobs/{job}/events") as response:
        return data(Reading(response).until(kind))


def items(server: Recovering, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.ended(job)["state"]["items"]
    return found


def lost(item: dict[str, Any]) -> str:
    """Return the reason why an item was lost."""
    assert (item["status"], item["error"]["code"]) == ("failed", "worker_lost")
    detail: str = item["error"]["detail"]
    return detail


def change_row(server: Recovering, statement: str, job: str) -> None:
    with closing(sqlite3.connect(server.log)) as db, db:
        (number,) = db.execute("SELECT number FROM job WHERE id = ?", (job,)).fetchone()
        assert db.execute(statement, (number,)).rowcount > 0


def test_the_start_checks_no_input_of_a_waiting_job_and_each_is_checked_once_when_it_runs(server):
    jobs = {endpoint: submitted(server, endpoint, 4) for endpoint in ENDPOINTS}
    kill(server)
    server.start()  # the gate is closed, so no check returns
    for of_endpoint in jobs.values():
        for job in of_endpoint[2:]:
            assert first_event(server, job, "snapshot")["state"]["items"][0]["status"] == "queued"
    assert len(server.calls("validate")) <= 2 + 2 * BATCH
    assert server.calls("run") == []
    for gate in GATES:
        server.open(gate)
    for endpoint, of_endpoint in jobs.items():
        values = [item["value"] for job in of_endpoint for item in items(server, job)]
        assert values == [value_of(endpoint, n) for n in range(7)]
    for what in ("schema", "validate"):
        assert sorted(server.calls(what)) == sorted([str(n) for n in range(7)] * len(ENDPOINTS))


def test_waiting_jobs_keep_their_order_and_their_queue_positions(server):
    jobs = submitted(server, "compute", 5)
    kill(server, "check")
    server.start()
    server.until(jobs[0], lambda found: found["status"] == "running")
    for position, job in enumerate(jobs[1:], 3):
        assert first_event(server, job, "queue")["position"] == position
    server.open("run")
    assert {server.ended(job)["status"] for job in jobs} == {"succeeded"}
    assert server.calls("run") == [str(n) for n in range(8)]


def test_a_recovered_job_is_cancelled_while_its_input_is_checked_or_waits(server):
    jobs = {endpoint: submitted(server, endpoint, 2) for endpoint in ENDPOINTS}
    kill(server)
    server.start()
    server.until(jobs["write"][0], lambda _: len(server.calls("validate")) == 2 + 2 * BATCH)
    for first, _, last in jobs.values():
        for job in (first, last):
            assert server.http.post(f"/v1/jobs/{job}/cancel").status_code == 202
            assert server.ended(job)["status"] == "cancelled"
    for gate in GATES:
        server.open(gate)
    assert {server.ended(between)["status"] for _, between, _ in jobs.values()} == {"succeeded"}
    assert server.calls("run") == ["3"] * len(ENDPOINTS)


def test_a_stop_while_inputs_are_checked_leaves_the_jobs_to_the_next_server(server):
    jobs = [job for endpoint in ENDPOINTS for job in submitted(server, endpoint, 1)]
    kill(server)
    server.start(shutdown_timeout=0.1, cancel_timeout=0.1)
    server.until(jobs[0], lambda _: len(server.calls("validate")) == 2 + 2 * BATCH)
    assert server.stop() == 0
    assert server.calls("run") == []
    for gate in GATES:
        server.open(gate)
    server.start()
    assert {server.ended(job)["status"] for job in jobs} == {"succeeded"}
    assert sorted(server.calls("run")) == sorted([str(n) for n in range(4)] * len(ENDPOINTS))


def test_the_time_limit_does_not_include_the_check_of_the_input(server):
    submitted(server, "write", 0)
    job = server.submit("brief").json()["id"]
    kill(server, *GATES)
    server.start()
    assert [item["value"] for item in items(server, job)] == ["done"]


def test_an_input_that_the_endpoint_no_longer_accepts_fails_alone(server):
    jobs = {endpoint: submitted(server, endpoint, 2) for endpoint in ENDPOINTS}
    mixed = server.submit("compute", inputs=[{"n": 3}, {"n": 5}, {"n": 1}]).json()["id"]
    kill(server, *GATES)
    server.start(change="stricter")
    for first, accepted, refused in jobs.values():
        assert server.ended(first)["status"] == server.ended(accepted)["status"] == "succeeded"
        reason = lost(items(server, refused)[0])
        assert "no longer valid after the server restarted: /input/n" in reason
        assert "n must be below 4" in reason
    good, bad, other = items(server, mixed)
    assert good["status"] == other["status"] == "succeeded"
    assert "/inputs/1/n" in lost(bad)
    assert set(server.calls("run")) == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("endpoints", "change"),
    [(["write"], "initial"), (["write"], "columns"), (["sorted"], "key"), (ENDPOINTS, "validate")],
)
def test_code_of_an_endpoint_that_raises_fails_its_jobs_and_not_the_start(server, endpoints, change):
    jobs = [job for endpoint in endpoints for job in submitted(server, endpoint, 2)]
    kill(server, *GATES)
    server.start(change=change)
    assert items(server, server.submit("ping").json()["id"])[0]["value"] == "pong"
    for job in jobs:
        for item in items(server, job):
            assert "could not check the input after the server restarted" in lost(item)
            assert "is broken" not in item["error"]["detail"]
    assert f"RuntimeError: {change} is broken" in server.errors()
    assert server.calls("run") == []


def test_a_job_whose_request_is_damaged_fails_alone(server):
    damages = [
        "UPDATE submit SET body = x'ff' WHERE job = ?",
        "UPDATE submit SET body = 'text' WHERE job = ?",
        "DELETE FROM submit WHERE job = ?",
        """UPDATE submit SET body = CAST('{"inputs": []}' AS BLOB) WHERE job = ?""",
    ]
    jobs = {endpoint: submitted(server, endpoint, 5) for endpoint in ("write", "sorted")}
    kill(server, *GATES)
    for _, _, *damaged in jobs.values():
        for statement, job in zip(damages, damaged, strict=True):
            change_row(server, statement, job)
    server.start()
    for first, second, *damaged in jobs.values():
        assert server.ended(first)["status"] == server.ended(second)["status"] == "succeeded"
        for job in damaged:
            assert "after the" in lost(items(server, job)[0])
    assert set(server.calls("run")) == {"0", "1", "2", "3"}


def test_a_job_whose_log_is_damaged_is_reported_and_does_not_prevent_the_start(server):
    damages = [
        "DELETE FROM state WHERE job = ?",
        "DELETE FROM block WHERE job = ?",
        "UPDATE state SET state = x'5b5d' WHERE job = ?",
        "UPDATE state SET state = x'7b7d' WHERE job = ?",
    ]
    first, second, *damaged = submitted(server, "write", 5)
    kill(server, *GATES)
    for statement, job in zip(damages, damaged, strict=True):
        change_row(server, statement, job)
    server.start()
    assert server.ended(first)["status"] == server.ended(second)["status"] == "succeeded"
    assert server.http.get("/readyz").status_code == 200
    for job in damaged:
        assert server.errors().count(f"job {job} cannot be recovered, so it does not run") == 1
    assert server.http.get(f"/v1/jobs/{damaged[0]}").status_code == 503
    for job in damaged:
        assert server.http.delete(f"/v1/jobs/{job}").status_code == 204
    server.again()
    assert server.errors().count("cannot be recovered") == len(damaged)


def test_jobs_of_a_removed_endpoint_fail_without_a_check(server):
    jobs = {endpoint: submitted(server, endpoint, 1) for endpoint in ("compute", "sorted")}
    kill(server)
    server.start(hide=[*jobs])
    for endpoint, of_endpoint in jobs.items():
        for job in of_endpoint:
            assert f"{endpoint!r} no longer existed" in lost(items(server, job)[0])
    assert server.calls("schema") == []


def test_a_check_that_ends_the_server_counts_as_an_attempt(server):
    (job,) = submitted(server, "compute", 0)
    kill(server, *GATES)
    for _ in range(4):  # two attempts, and one more if the server lost the start of the first one
        try:
            server.start(change="crash", max_attempts=2)
            found = items(server, job)
            break
        except (ChildProcessError, httpx2.TransportError):
            if server.pid:
                server.died()
    assert {"max_attempts" in lost(item) for item in found} == {True}
    assert server.calls("run") == []


def test_a_new_attempt_begins_with_the_initial_values_and_columns_that_were_logged(server):
    """The options `initial` and `columns` depend on the input, which the start does not read."""
    (job,) = submitted(server, "write", 0)
    server.until(job, lambda found: found["state"]["items"][0]["value"]["rows"])
    kill(server)
    server.start()
    assert server.http.post(f"/v1/jobs/{job}/cancel").status_code == 202
    server.ended(job)
    logged = Decoder().feed(server.events(job))
    (restart,) = [data(each) for each in logged if '"reason":"restart"' in each.data]
    assert [item["value"] for item in restart["state"]["items"]] == [
        {"text": f"{n}:", "rows": []} for n in range(3)
    ]
    assert restart["columns"] == [f"/items/{n}/value/{each}" for n in range(3) for each in ("text", "rows")]


@pytest.mark.parametrize(
    ("change", "trimmed"),
    [("wider", False), ("wider", True), (None, True)],
    ids=["wider", "wider trimmed", "trimmed"],
)
def test_an_interrupted_job_ends_with_the_value_of_the_code_that_runs_it(server, change, trimmed):
    if trimmed:
        server.settings |= {"max_log_bytes": 1024, "merge_window": 0}
        server.again()
    running, waiting = submitted(server, "write", 1)
    server.until(running, lambda found: found["state"]["items"][0]["value"] == value_of("write", 0))
    kill(server, *GATES)
    with closing(sqlite3.connect(server.log)) as db:
        assert db.execute("SELECT min(seq) > 1 FROM state WHERE job = 1").fetchone() == (trimmed,)
    server.start(change=change)
    values = [item["value"] for job in (running, waiting) for item in items(server, job)]
    assert values == [value_of("write", n, change) for n in range(4)]
