"""Servers or workers on one database that are stopped, frozen and killed at random, and lose their sessions, while jobs are
submitted, cancelled and deleted: every job ends, every value is complete, and no function runs twice that must not.

`CHAOS_SEED` repeats the choices of a run.
"""

import contextlib
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx2
import psycopg
import pytest

from support.free_port import free_port
from support.postgres_server import needs_postgres
from support.random_seed import SEED
from support.reference_server import Fold, logged
from support.server_roles import APP, Fleet

PATIENCE = 45.0
"""Seconds after the last halt within which all jobs must end."""

FUNCTIONS = """
import time

STEPS = range(8)


@server.endpoint(on_restart="fail", concurrency_limit=3)
async def once(number: int) -> str:
    with (HERE / "starts").open("a") as starts:
        starts.write(f"{number} ")
    await asyncio.sleep(0.15)
    return str(number)


@server.endpoint(concurrency_limit=3)
async def again(number: int, stream: Stream[str]) -> None:
    for step in STEPS:
        stream.append(f"{number}:{step} ")
        await asyncio.sleep(0.05)


@server.endpoint(concurrency_limit=2)
def in_a_thread(number: int, stream: Stream[str]) -> None:
    for step in STEPS:
        stream.append(f"{number}:{step} ")
        time.sleep(0.03)


@server.endpoint(on_restart="continue", concurrency_limit=2)
async def goes_on(number: int, stream: Stream[str]) -> None:
    for step in STEPS[(stream.value or "").count(" "):]:
        stream.append(f"{number}:{step} ")
        await asyncio.sleep(0.05)


@server.endpoint(global_limit=2, concurrency_limit=4)
async def limited(number: int) -> str:
    await asyncio.sleep(0.1)
    return str(number)


@server.endpoint(batch=True, max_batch_size=4, batch_timeout=0.05)
async def in_a_batch(number: list[int]) -> list[str]:
    await asyncio.sleep(0.1)
    return [str(each) for each in number]
"""
STREAMS = {"again", "in_a_thread", "goes_on"}
ENDPOINTS = (*sorted(STREAMS), "once", "limited", "in_a_batch")
END_SESSIONS = """
    SELECT pg_terminate_backend(pid) FROM (
        SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'tidewire%'
        ORDER BY random() LIMIT 3) sessions
"""

pytestmark = needs_postgres


def value(endpoint, number):
    return "".join(f"{number}:{step} " for step in range(8)) if endpoint in STREAMS else str(number)


class Caller:
    """A script that submits jobs to servers that come and go, and cancels and deletes some of the latest ones."""

    def __init__(self, number, urls):
        self.choose = random.Random(SEED + number)
        self.numbers = iter(range(number * 10**6, (number + 1) * 10**6))
        self.urls = urls
        self.jobs = {}
        """Endpoint and numbers of each job."""
        self.touched, self.deleted = set(), set()

    def request(self, clients, method, path, **options):
        while True:
            with contextlib.suppress(httpx2.TransportError):
                answer = self.choose.choice(clients).request(method, path, **options)
                if answer.status_code != 503 and "idempotency_in_flight" not in answer.text:
                    return answer
            time.sleep(0.05)

    def run(self, until):
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(httpx2.Client(base_url=url, timeout=30)) for url in self.urls]
            while time.monotonic() < until:
                endpoint = self.choose.choice(ENDPOINTS)
                numbers = [next(self.numbers) for _ in range(self.choose.choice([1, 1, 2, 4]))]
                answer = self.request(
                    clients,
                    *("POST", f"/v1/endpoints/{endpoint}/jobs"),
                    json={"inputs": [{"number": number} for number in numbers]},
                    headers={"idempotency-key": str(numbers[0])},
                )
                assert answer.status_code in {200, 201}, answer.text
                self.jobs[answer.json()["id"]] = endpoint, numbers
                time.sleep(self.choose.uniform(0.02, 0.1))
                if self.choose.random() < 0.15:
                    self.end_one(clients)
        return self

    def end_one(self, clients):
        job = self.choose.choice([*self.jobs][-3:])
        self.touched.add(job)
        match self.choose.choice(["delete", "cancel", "cancel an item"]):
            case "delete":
                self.deleted.add(job)
                answer = self.request(clients, "DELETE", f"/v1/jobs/{job}")
            case "cancel":
                answer = self.request(clients, "POST", f"/v1/jobs/{job}/cancel")
            case _:
                answer = self.request(clients, "POST", f"/v1/jobs/{job}/cancel", json={"items": [0]})
        assert answer.status_code < 300 or (job in self.deleted and answer.status_code in {404, 410}), (
            answer.text
        )


def halt(process, how, choose, database):
    match how:
        case "freeze":
            process.freeze()
            time.sleep(choose.choice([0.3, 1.0, 6.5]))  # 6.5 s are longer than a lease
            process.thaw()
        case "stop":
            assert process.stop() == 0
            process.start()
        case "kill":
            process.kill()
            process.start()
        case "end sessions":
            with psycopg.connect(database, autocommit=True) as connection:
                connection.execute(END_SESSIONS)


def ended(peer, job, until):
    """Wait until a job has ended. Return its resource, or None if it was deleted."""
    while True:
        answer = peer.http.get(f"/v1/jobs/{job}")
        if answer.status_code in {404, 410}:
            return None
        found = answer.json()
        if found["done"] is not None:
            return found
        assert time.monotonic() < until, f"not ended: {found}"
        time.sleep(0.05)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("role", "ways", "seconds"),
    [
        pytest.param("worker", ["stop", "end sessions"], 4, marks=pytest.mark.timeout(120)),
        *(
            pytest.param(role, ways, 25, marks=[pytest.mark.slow, pytest.mark.timeout(240)])
            for role in ("worker", "server")
            for ways in (["stop"], ["freeze"], ["kill"], ["stop", "freeze", "kill", "end sessions"])
        ),
    ],
)
def test_every_job_ends_with_its_values_although_servers_halt(tmp_path, database_url, role, ways, seconds):
    fleet = Fleet(
        tmp_path, database_url, APP.replace("shutdown_timeout=5.0", "shutdown_timeout=0.3") + FUNCTIONS
    )
    choose = random.Random(SEED)
    with contextlib.ExitStack() as stack:
        _, peer = stack.enter_context(fleet.front())
        processes, urls = [], [peer.url]
        for _ in range(3):
            if role == "worker":
                processes.append(stack.enter_context(fleet.worker()))
            else:
                process, own = stack.enter_context(fleet.server("--port", str(free_port())))
                processes.append(process)
                urls.append(own.url)
        until = time.monotonic() + seconds
        with ThreadPoolExecutor() as pool:
            runs = [pool.submit(Caller(number, urls).run, until) for number in range(3)]
            while time.monotonic() < until:
                time.sleep(choose.uniform(0, 0.8))
                halt(choose.choice(processes), choose.choice(ways), choose, database_url)
            callers = [run.result() for run in runs]
        until = time.monotonic() + PATIENCE
        for caller in callers:
            for job, (endpoint, numbers) in caller.jobs.items():
                found = ended(peer, job, until)
                if found is None:
                    assert job in caller.deleted
                    continue
                for number, item in zip(numbers, found["state"]["items"], strict=True):
                    if item["status"] == "succeeded":
                        assert item["value"] == value(endpoint, number)
                    elif item["status"] == "failed":
                        assert item["error"]["code"] == "worker_lost"
                        assert endpoint == "once" or found["attempt"] > 2
                    else:
                        assert job in caller.touched
                events = logged(peer.events(job, after="0-0"))
                assert events[-1].type == "done"
                assert Fold(keep_states=False).take(events).items == found["state"]["items"]
    starts = Counter((tmp_path / "starts").read_text().split())
    assert starts
    assert [number for number, count in starts.items() if count > 1] == []
    for errors in tmp_path.glob("*.err"):
        assert "internal server error" not in errors.read_text()
