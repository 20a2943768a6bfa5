"""A script that maps inputs with a resume file is killed by SIGKILL and started again, and so is its server.

Each run is a child process. Each input has exactly one result, and the server runs it once, unless the server no longer
has its job. `CHAOS_SEED` repeats a run.
"""

import json
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from proof.forked_process import Forked
from support.killable_server import Killed
from support.random_seed import SEED
from tidewire import Client
from tidewire.errors import ResumeFileError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

TESTS = Path(__file__).parent.parent
CHILD_LIMIT = 60.0


@pytest.fixture(params=["memory", "sqlite"])
def log(request, tmp_path):
    return "memory" if request.param == "memory" else f"sqlite:///{tmp_path / 'log.db'}"


@pytest.fixture
def server(log, tmp_path):
    with Killed(tmp_path, log=log, once=str(tmp_path / "journal")) as server:
        yield server


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.jsonl"


def values(count):
    return [2 * number for number in range(count)]


def start(server, file, count, **options):
    return Forked(
        "support.killed_map",
        server.url,
        str(file),
        str(count),
        json.dumps(options),
        cwd=TESTS,
    )


def run(server, file, count, **options):
    """Run the script in a child process. Return the values that it printed, and whether it was killed."""
    with start(server, file, count, **options) as child:
        output, errors = child.communicate(timeout=CHILD_LIMIT)
    assert child.returncode in {0, -signal.SIGKILL}, errors
    return [int(line) for line in output.split()], child.returncode != 0


def runs_of_each_input(server):
    """Count how often the server has run each input."""
    journal = Path(server.settings["once"])
    return Counter(int(line) for line in journal.read_text().split()) if journal.exists() else Counter()


def outcomes_in(file):
    found = [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return {line["index"] for line in found if line.get("line") == "value"}


@pytest.mark.heavy
@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_a_script_killed_again_and_again_runs_each_input_once(server, file, count):
    """Each run has another batch size and concurrency, and is killed after a value or after the response to a submit."""
    chance = random.Random(SEED)
    kills = 0
    for yields in [*range(5, count, 20), 0]:
        for how in ({"posts": chance.randrange(1, 3)}, {"yields": yields}):
            sizes = {"batch_size": chance.randrange(1, 9), "concurrency": chance.randrange(1, 5)}
            found, killed = run(server, file, count, **(how | sizes))
            assert found == values(count)[: len(found)]
            kills += killed
    assert found == values(count)
    assert kills > count // 20
    assert runs_of_each_input(server) == dict.fromkeys(range(count), 1)


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_a_script_killed_between_submit_and_record_finds_its_job(server, file, batch_size):
    """The next run has another batch size and more inputs, but repeats the submit as it was."""
    assert run(server, file, 10, posts=2, batch_size=4) == ([], True)
    found, killed = run(server, file, 25, batch_size=batch_size)
    assert (found, killed) == (values(25), False)
    assert runs_of_each_input(server) == dict.fromkeys(range(25), 1)


@pytest.mark.heavy
def test_a_script_killed_while_its_server_is_restarted(server, file, log):
    found, _ = run(server, file, 30, yields=9, batch_size=4, concurrency=2)
    assert found == values(9)
    kept = outcomes_in(file)
    assert kept >= set(range(9))
    server.again()
    found, killed = run(server, file, 30, batch_size=5)
    assert (found, killed) == (values(30), False)
    runs = runs_of_each_input(server)
    assert set(runs) == set(range(30))
    assert {runs[number] for number in kept} == {1}
    # The memory log loses the jobs that were not read. The log in a file loses nothing, but may run again what was running.
    assert max(runs.values()) <= 2


@pytest.mark.heavy
def test_inputs_of_jobs_that_expired_before_the_next_run_run_again(tmp_path, file):
    with Killed(tmp_path, log="memory", once=str(tmp_path / "journal"), state_ttl=1.0) as server:
        run(server, file, 12, yields=3, batch_size=4, concurrency=3)
        jobs = [json.loads(line)["id"] for line in file.read_text().splitlines() if '"line":"job"' in line]
        kept = outcomes_in(file)
        assert len(jobs) == 3
        while {server.http.get(f"/v1/jobs/{job}").status_code for job in jobs} != {410}:
            pass
        found, killed = run(server, file, 12, batch_size=5)
        assert (found, killed) == (values(12), False)
        again = set(range(12)) - kept
        assert runs_of_each_input(server) == {number: 1 + (number in again) for number in range(12)}


def test_a_second_process_is_refused_and_a_killed_one_releases_the_file(server, file):
    with start(server, file, 3, shared={"pause": 60}, batch_size=1) as child, Client(server.url) as client:
        while not file.exists() or '"line":"job"' not in file.read_text():
            assert child.poll() is None
        with pytest.raises(ResumeFileError, match=r"run\.jsonl is in use by another map"):
            list(client.map("journaled", [{"number": 0}], resume_file=file))
        child.kill()
        assert child.wait() == -signal.SIGKILL
        with pytest.raises(ResumeFileError, match="input 0 is not"):
            list(client.map("journaled", [{"number": 0}], resume_file=file))
