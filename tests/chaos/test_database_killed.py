"""A database that is killed at random moments while jobs stream: readers lose nothing, and no event is sent twice.

`CHAOS_SEED` repeats a run.
"""

import random
import time
from pathlib import Path

import pytest

from support.checked_reader import Reader, check_reader
from support.killable_server import Killed
from support.own_postgres import own_postgres
from support.postgres_server import needs_postgres
from support.random_seed import SEED
from support.sample_server import sentence

pytestmark = needs_postgres

WORDS = 250
JOBS = 3


@pytest.mark.heavy
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_readers_lose_nothing_and_see_no_repeats_while_the_database_is_killed(
    kills: int, tmp_path: Path
) -> None:
    draw = random.Random(SEED)
    with own_postgres() as database:
        url, function = database.url, "support.outage_server:outage_server"
        with Killed(tmp_path, function, log=url, once=str(tmp_path / "journal")) as server:
            readers: dict[str, Reader] = {}

            def submit() -> None:
                answer = server.submit("talk", input={"words": WORDS, "pause": 0.005})
                if answer.status_code != 503:
                    job = answer.json()["id"]
                    readers[job] = Reader([server], job)
                    readers[job].start()

            for _ in range(JOBS):
                submit()
            for _ in range(kills):
                time.sleep(draw.uniform(0, 1.5))
                database.again()
                # A run with many kills must not end before the last one.
                while sum(reader.done is None for reader in readers.values()) < JOBS:
                    submit()
            for job, reader in readers.items():
                check_reader(reader, server, job, sentence(WORDS))
            listed = server.http.get("/v1/jobs", params={"limit": 1000}).json()["jobs"]
            assert {job["status"] for job in listed} == {"succeeded"}
            assert len(server.errors().splitlines()) <= 4 * kills, server.errors()
