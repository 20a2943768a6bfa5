"""Workers on one database that are stopped, frozen and killed at random, while jobs are submitted: no function that must not run
twice does, every other one is complete, and every job ends.
"""

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.postgres_server import needs_postgres
from support.server_roles import APP, Fleet

pytestmark = [*needs_postgres, pytest.mark.timeout(200)]

FUNCTIONS = """

@server.endpoint(on_restart="fail", concurrency_limit=3)
async def once(number: int) -> int:
    with (HERE / "starts").open("a") as starts:
        starts.write(f"{number} ")
    await asyncio.sleep(0.15)
    return number


@server.endpoint(concurrency_limit=3)
async def again(number: int, stream: Stream[str]) -> None:
    for step in range(8):
        stream.append(f"{number}:{step} ")
        await asyncio.sleep(0.05)
"""
VALUES = {
    "once": lambda number: number,
    "again": lambda number: "".join(f"{number}:{step} " for step in range(8)),
}


def halt(worker, how, chance):
    if how == "frozen":
        worker.freeze()
        time.sleep(chance.choice([0.5, 6.5]))  # shorter and longer than a lease
        worker.thaw()
        return
    if how == "stopped":
        assert worker.stop() == 0
    else:
        worker.kill()
    worker.start()


@pytest.mark.parametrize(
    ("how", "seconds"),
    [
        ("stopped", 4),
        *(pytest.param(how, 25, marks=pytest.mark.slow) for how in ("stopped", "frozen", "killed")),
    ],
)
def test_no_function_that_must_not_run_twice_does(tmp_path, database_url, how, seconds):
    fleet = Fleet(
        tmp_path, database_url, APP.replace("shutdown_timeout=5.0", "shutdown_timeout=0.3") + FUNCTIONS
    )
    until, chance = time.monotonic() + seconds, random.Random(seconds)

    def submit(peer):
        jobs = []
        while time.monotonic() < until:
            number = len(jobs)
            jobs += [(name, number, peer.start(name, input={"number": number})) for name in VALUES]
            time.sleep(0.05)
        return jobs

    with (
        fleet.front() as (_, peer),
        fleet.worker() as first,
        fleet.worker() as second,
        ThreadPoolExecutor() as pool,
    ):
        submits = pool.submit(submit, peer)
        while time.monotonic() < until:
            time.sleep(chance.random())
            halt(chance.choice([first, second]), how, chance)
        for name, number, job in submits.result():
            found = peer.ended(job)
            if name == "again" or found["status"] == "succeeded":
                assert found["state"]["items"][0]["value"] == VALUES[name](number)
            else:
                assert found["state"]["items"][0]["error"]["code"] == "worker_lost"
    starts = Counter((tmp_path / "starts").read_text().split())
    assert starts
    assert [number for number, count in starts.items() if count > 1] == []
