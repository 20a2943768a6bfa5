"""Workers of one database, each killed at random moments, while a server without functions answers their readers: readers lose
nothing, and no event is sent twice.

`CHAOS_SEED` repeats a run.
"""

import random
import time
from pathlib import Path

import pytest

from support.checked_reader import Reader, check_reader
from support.killable_server import JobRequests
from support.postgres_server import needs_postgres
from support.random_seed import SEED
from support.sample_server import sentence
from support.server_roles import Fleet

WORDS = 120
COUNT = 300

APP = f"""
import sys

sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from support.killable_server import killable_server

server = killable_server(max_attempts=1000, retry=0.01)
"""

pytestmark = needs_postgres


@pytest.mark.heavy
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(2, marks=pytest.mark.timeout(240)),
        pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
def test_readers_lose_nothing_and_see_no_repeats_while_workers_are_killed(kills, database_url, tmp_path):
    draw = random.Random(SEED)
    jobs: dict[str, object] = {}
    readers: dict[str, Reader] = {}
    fleet = Fleet(tmp_path, database_url, APP)
    with fleet.front() as (_, peer), fleet.worker() as first, fleet.worker() as second:
        front = JobRequests(peer.url)
        for _ in range(kills):
            for endpoint, given, end in (
                ("talk", {"words": WORDS}, sentence(WORDS)),
                ("count", {"n": COUNT}, list(range(COUNT))),
            ):
                answer = front.submit(endpoint, input=given | {"pause": 0.005})
                job = answer.json()["id"]
                jobs[job], readers[job] = end, Reader([front], job)
                readers[job].start()
            killed = draw.choice([[first], [second], [first, second]])
            time.sleep(draw.uniform(0, 0.6))
            for worker in killed:
                worker.kill()
            time.sleep(draw.choice([0.0, 0.0, 2.0]))
            for worker in killed:
                worker.start()
        for job, end in jobs.items():
            check_reader(readers[job], front, job, end)
        front.http.close()
