"""Planned restarts of three servers on one database, one after the other, while jobs are submitted, run and read."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from support.checked_reader import Reader, check_reader
from support.replicas import Replica, Replicas, eventually

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(280)]

KINDS = ("count", "letters", "short")
"""Jobs that continue, that run again, and that end within the grace period."""


@pytest.fixture
def replicas(database_url: str, tmp_path: Path) -> Iterator[Replicas]:
    with Replicas(tmp_path / "replicas", database_url, shutdown_timeout=2) as found:
        yield found


def length(kind: str) -> int:
    return 20 if kind == "short" else 160


def submit(servers: list[Replica], kind: str, key: str) -> str:
    """Submit a job at a server that accepts it, as a client does behind a proxy."""
    endpoint = "letters" if kind == "short" else kind
    given = {"n": length(kind), "pause": 0.05, "name": f"{kind}-{key}"}

    def accepted() -> str | None:
        for server in servers:
            with contextlib.suppress(httpx2.TransportError):
                answer = server.submit(endpoint, given["name"], input=given)
                if answer.status_code in {200, 201}:
                    return str(answer.json()["id"])
        return None

    return str(eventually(accepted))


@pytest.mark.heavy
@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_rolling_restart_loses_and_repeats_nothing(replicas: Replicas, rounds: int):
    servers = [replicas.add() for _ in range(3)]
    jobs: dict[str, tuple[str, Reader]] = {}
    over = threading.Event()

    def add(kind: str, key: str) -> None:
        job = submit(servers, kind, key)
        reader = Reader(servers, job)
        jobs[job] = (kind, reader)
        reader.start()

    def load() -> None:
        number = 0
        while not over.wait(0.25):
            number += 1
            add(KINDS[number % 3], str(number))

    for kind in KINDS:
        add(kind, "first")
    submits = threading.Thread(target=load)
    submits.start()
    try:
        for _ in range(rounds):
            for server in servers:
                server.signal(signal.SIGTERM)
                assert server.exit_code() == 0
                server.start()
    finally:
        over.set()
        submits.join()
    assert len(jobs) > 6 * rounds
    for job, (kind, reader) in jobs.items():
        numbers = [*range(length(kind))]
        check_reader(
            reader, servers[0], job, numbers if kind == "count" else "".join(f"{n} " for n in numbers)
        )
        if kind == "short":  # It ended within the grace period, or waited and began elsewhere.
            assert servers[0].job(job)["attempt"] == 1
    assert any(servers[0].job(job)["attempt"] > 1 for job, (kind, _) in jobs.items() if kind != "short")
    for server in servers:
        assert "Traceback" not in server.errors()
