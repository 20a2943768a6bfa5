"""Campaigns with the programs that newcomers write: the README's loop with the defaults of the client, and a long map.

  campaign | log    | fault                                    | a job may end with
  ---------+--------+------------------------------------------+-----------------------------------------------------
  shutdown | memory | SIGTERM to the server, connections cut   | its whole text, or `worker_lost` if it needs longer
           |        |                                          |   than the shutdown waits; `JobNotFoundError` only for
           |        |                                          |   a reader that was cut several times in a row, so
           |        |                                          |   that it came back after the exit
  kill     | SQLite | SIGKILL to the server, connections cut   | its whole text; if the function ran again after it
           |        |                                          |   had printed some of it, with the retraction error
  map      | memory | SIGKILL to the program that maps         | each result once; no input runs twice

The quick form of the first campaign is `test_planned_shutdown.py`.

Environment: `CHAOS_JOBS` is the number of jobs of each long campaign, and `CHAOS_SEED` repeats a run.
"""

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from proof.forked_process import Forked
from support.killable_server import Killed
from support.random_seed import SEED
from support.sample_server import sentence
from support.server_process import TESTS
from tidewire import Client
from tidewire.errors import JobFailedError, JobNotFoundError, TidewireError, VoidTextError
from tidewire_conformance.wire.fault_proxy import Cut, FaultProxy

JOBS = int(os.environ.get("CHAOS_JOBS", "300"))
QUICK_SEED = 20_261
QUICK_JOBS = 24
AT_ONCE = 16
SHUTDOWN_TIMEOUT = 0.5
ANSWER_LIMIT = SHUTDOWN_TIMEOUT + 2.0
"""Time after SIGTERM within which the reader of a running job must have its answer."""
NETWORKS = ("direct", "cut")
"""Networks between the clients and the server. The jobs alternate between them."""
MAX_WORDS = 300
"""Length of the longest text. It needs about three times the shutdown timeout."""
GENERATION = {"prompt": "def f", "max_tokens": 60, "seed": 5}
MAP_BATCH = 7

sizes = pytest.mark.parametrize(
    ("jobs", "seed"),
    [(QUICK_JOBS, QUICK_SEED), pytest.param(JOBS, SEED, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
    ids=["quick", "long"],
)


@dataclass
class Printed:
    """What a run of the README's loop showed its user."""

    text: str
    result: str | None
    error: TidewireError | None
    job_id: str
    submitted_at: float
    ended_at: float


def readme_loop(client, endpoint, **members):
    """Read a job as the README does, and keep what the loop prints."""
    printed, result, error = [], None, None
    job = client.submit(endpoint, **members)
    submitted_at = time.monotonic()
    try:
        for update in job:
            printed.append(update.text)
        result = job.result()
    except TidewireError as caught:
        error = caught
    return Printed("".join(printed), result, error, job.id, submitted_at, time.monotonic())


class Disturber:
    """Thread that ends the server again and again, and starts it again on the same port.

    It does so a limited number of times, because on a busy machine no job might fit between two kills.
    """

    def __init__(self, server, how, draw, pause, most):
        self.times = []
        """Times at which the signals were sent."""
        self._server, self._how, self._draw, self._pause, self._most = server, how, draw, pause, most
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._finished.set()
        self._thread.join()

    def _run(self):
        while len(self.times) < self._most and not self._finished.wait(self._draw.uniform(*self._pause)):
            self.times.append(time.monotonic())
            if self._how is signal.SIGTERM:
                assert self._server.stop() == 0, self._server.errors()
            else:
                self._server.kill()
            self._server.start()


def cutting_proxy(server, seed):
    """Return a proxy that cuts two of three connections within their first bytes."""
    draw = random.Random(seed)
    return FaultProxy(
        ("127.0.0.1", server.port),
        plan=lambda number: (
            None if number % 3 == 2 else Cut(after=draw.randrange(200, 4000), how=draw.choice(["fin", "rst"]))
        ),
    )


def run_loops(server, how, jobs, seed, pause, draw_job):
    """Run the README's loop for many jobs while the server is ended again and again. Return what the loops showed."""
    draw = random.Random(seed)
    drawn = [draw_job(draw) for _ in range(jobs)]
    with (
        cutting_proxy(server, seed) as proxy,
        Client(proxy.url) as cut,
        Client(server.url) as direct,
        ThreadPoolExecutor(AT_ONCE) as threads,
        Disturber(server, how, random.Random(seed + 1), pause, jobs) as disturber,
    ):
        clients = {"direct": direct, "cut": cut}
        futures = [
            threads.submit(readme_loop, clients[NETWORKS[number % 2]], endpoint, **members)
            for number, (endpoint, members) in enumerate(drawn)
        ]
        loops = [future.result() for future in futures]
    assert disturber.times
    return drawn, loops, disturber.times


def ending(loop, expected):
    """Classify how a job ended for its reader."""
    if loop.error is None:
        whole = loop.text == expected and loop.result == expected
        return "whole" if whole else f"WRONG: {len(loop.text)} of {len(expected)} characters printed"
    if isinstance(loop.error, VoidTextError) and expected.startswith(loop.text):
        return "retracted"
    if isinstance(loop.error, JobFailedError) and expected.startswith(loop.text):
        return str(loop.error.code)
    if isinstance(loop.error, JobNotFoundError) and expected.startswith(loop.text):
        return "JobNotFoundError"
    return f"WRONG: {type(loop.error).__name__} after {len(loop.text)} of {len(expected)} characters"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_reader_of_a_server_that_is_shut_down_loses_a_result_or_waits(tmp_path):
    settings = {"log": "memory", "shutdown_timeout": SHUTDOWN_TIMEOUT, "cancel_timeout": 0.1, "retry": 0.1}

    def draw_job(draw):
        return "talk", {"tag": draw.randrange(2**40), "words": draw.randrange(4, MAX_WORDS)}

    with Killed(tmp_path, function="support.campaign_server:campaign_server", **settings) as server:
        drawn, loops, signals = run_loops(server, signal.SIGTERM, JOBS, SEED, (0.2, 1.0), draw_job)
    endings = {"direct": Counter(), "cut": Counter()}
    waits = [0.0]
    for number, ((_, members), loop) in enumerate(zip(drawn, loops, strict=True)):
        network = NETWORKS[number % 2]
        how = ending(loop, sentence(members["words"]))
        endings[network][how] += 1
        if network == "direct":
            waits += [loop.ended_at - at for at in signals if loop.submitted_at < at < loop.ended_at]
        if how == "worker_lost":
            assert loop.error.problem.retryable, loop.error
    print({network: dict(counts) for network, counts in endings.items()})
    print(f"{len(signals)} signals, longest wait for an answer {max(waits):.2f} s")
    assert set(endings["direct"]) == {"whole", "worker_lost"}
    assert set(endings["cut"]) <= {"whole", "worker_lost", "JobNotFoundError"}
    assert max(waits) <= ANSWER_LIMIT


@pytest.mark.heavy
@sizes
def test_the_loop_of_the_readme_prints_nothing_twice_after_kills(jobs, seed, tmp_path):

    def draw_job(draw):
        if draw.random() < 0.3:
            return "generate", GENERATION
        return "talk", {
            "tag": draw.randrange(2**40),
            "words": draw.randrange(4, MAX_WORDS if jobs > QUICK_JOBS else 120),
        }

    with Killed(
        tmp_path, function="support.campaign_server:campaign_server", on_restart="auto", retry=0.05
    ) as server:
        with Client(server.url) as client:
            generated = client.run("generate", **GENERATION)["text"]
        drawn, loops, kills = run_loops(server, signal.SIGKILL, jobs, seed, (0.3, 1.0), draw_job)
        endings = Counter()
        with Client(server.url) as client:
            for (endpoint, members), loop in zip(drawn, loops, strict=True):
                if endpoint == "generate" and loop.result is not None:
                    loop.result = loop.result["text"]
                expected = generated if endpoint == "generate" else sentence(members["words"])
                how = ending(loop, expected)
                endings[endpoint, how] += 1
                if how == "retracted":
                    assert client.job(loop.job_id).result() == expected
    print(dict(endings), f"{len(kills)} kills")
    assert set(endings) <= {("talk", "whole"), ("talk", "retracted"), ("generate", "whole")}
    assert min(endings["talk", "whole"], endings["talk", "retracted"]) > 0


@pytest.mark.heavy
@sizes
def test_a_map_with_a_resume_file_survives_kills_of_its_program(jobs, seed, tmp_path):
    draw, inputs = random.Random(seed), jobs * MAP_BATCH
    journal, results = tmp_path / "journal", tmp_path / "results"
    settings = {"log": "memory", "journal": str(journal), "pause": 0.02, "queue_size": 1000}
    kills = 0  # The functions of the quick form take longer than the time to the first kill.
    with Killed(tmp_path, function="support.campaign_server:campaign_server", **settings) as server:
        arguments = (server.url, str(inputs), str(tmp_path / "run.jsonl"), str(results))
        while True:
            with Forked("support.resumed_map", *arguments, cwd=TESTS) as program:
                try:
                    code = program.wait(draw.uniform(0.05, 0.3) if kills < 20 else 300)
                except subprocess.TimeoutExpired:
                    kills += 1
                    continue
                _, errors = program.communicate()
                assert code == 0, errors
                break
    assert [int(line) for line in results.read_text().splitlines()] == [2 * tag for tag in range(inputs)]
    runs = Counter(line.split()[1] for line in journal.read_text().splitlines())
    print(f"{inputs} inputs, {kills} kills")
    assert kills > 0
    assert len(runs) == inputs
    assert max(runs.values()) == 1, "an input ran twice"
