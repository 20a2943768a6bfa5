"""Two servers on one database, each killed at random moments: readers lose nothing, and no event is sent twice.

`CHAOS_SEED` repeats a run.
"""

import random
import threading
import time
from typing import Any

import httpx2
import pytest

from support.checked_reader import PATIENCE, Reader, check_reader
from support.killable_server import Killed
from support.postgres_server import needs_postgres
from support.random_seed import SEED
from support.sample_server import sentence

WORDS = 120
COUNT = 300

pytestmark = needs_postgres


@pytest.fixture
def servers(database_url, tmp_path):
    """Two servers on one database."""
    both = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        both.append(Killed(tmp_path / name, log=database_url))
    with both[0], both[1]:
        yield both


def submit(servers: list[Killed], draw: random.Random, endpoint: str, key: str, **given: Any) -> str:
    """Submit a job at any server. If the server is killed meanwhile, submit it again at any server."""
    give_up = time.monotonic() + PATIENCE
    while True:
        assert time.monotonic() < give_up
        try:
            answer = draw.choice(servers).submit(endpoint, key, input=given)
        except httpx2.TransportError:
            time.sleep(0.01)
            continue
        if answer.status_code in {200, 201}:
            return str(answer.json()["id"])
        assert answer.status_code in {409, 503}, answer.text
        time.sleep(0.01)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, marks=pytest.mark.timeout(240)),
        pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
def test_readers_lose_nothing_and_see_no_repeats_while_both_servers_are_killed(servers, kills):
    draw = random.Random(SEED)
    jobs: dict[str, Any] = {}
    readers: dict[str, Reader] = {}
    keys: dict[str, str] = {}

    def add(number: int) -> None:
        """Submit a job that runs again after a kill, and one that continues, and read both."""
        for endpoint, given, end in (
            ("talk", {"words": WORDS, "pause": 0.005}, sentence(WORDS)),
            ("count", {"n": COUNT, "pause": 0.005}, list(range(COUNT))),
        ):
            key = f"{endpoint}-{number}"
            job = submit(servers, draw, endpoint, key, **given)
            keys[key], jobs[job] = job, end
            readers[job] = Reader(draw.sample(servers, 2), job)
            readers[job].start()

    def kill(server: Killed, seconds: float, down: float) -> None:
        """Kill one server, and start it again after some time. Its jobs are adopted after up to six seconds."""
        time.sleep(seconds)
        server.kill()
        time.sleep(down)
        server.start()

    for number in range(kills):
        add(number)
        # One of them, or both at once.
        killed = draw.choice([servers[:1], servers[1:], servers])
        waits = [(server, draw.uniform(0, 0.6), draw.choice([0.0, 0.0, 2.0])) for server in killed]
        threads = [threading.Thread(target=kill, args=each) for each in waits]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for job, end in jobs.items():
        check_reader(readers[job], draw.choice(servers), job, end)
    for key, job in keys.items():
        endpoint = key.partition("-")[0]
        given = {"words": WORDS} if endpoint == "talk" else {"n": COUNT}
        again = draw.choice(servers).submit(endpoint, key, input=given | {"pause": 0.005})
        assert again.json()["id"] == job
    for server in servers:
        listed = server.http.get("/v1/jobs", params={"limit": 1000}).json()["jobs"]
        assert {each["id"] for each in listed} == jobs.keys()
        assert {each["status"] for each in listed} == {"succeeded"}
