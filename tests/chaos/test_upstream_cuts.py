"""Jobs of a front whose network breaks on both sides, to its clients and to its engine: no job and no character is lost or repeated.

Each prompt loses at most two attempts at the engine, so that the third one ends its job. `CHAOS_JOBS` is the number of jobs of
the long run, and `CHAOS_SEED` repeats a run.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from support.client_timing import with_timing
from support.faulty_proxy import WEIGHTS, Fault, FaultyProxy
from support.random_seed import SEED
from support.scripted_engine import MARK, expected, scripted_engine, until_ready
from support.server_address import address_of
from support.server_process import ServerProcess
from tidewire import AsyncClient, RetryPolicy
from tidewire.http.api_session import Timing

JOBS = int(os.environ.get("CHAOS_JOBS", "1000"))
QUICK_JOBS, TOKENS, CALLERS, LOST = 40, 20, 24, 2
ENGINE_WEIGHTS = {
    "none": 30, "lost request": 5, "fin": 15, "rst": 15, "clean end": 15, "stall": 1, "bytes": 2, "rechunk": 5, "gateway": 5,
}  # fmt: skip


def number_of(body: bytes) -> str | None:
    """Return the text before the mark of the prompt, which names the job, or None for a question about the engine."""
    return json.loads(body)["prompt"].partition(MARK)[0] if body else None


class EngineNetwork(FaultyProxy):
    """Network between the front and the engine, which breaks at most `LOST` answers to each prompt."""

    def __init__(self, upstream: tuple[str, int], seed: int) -> None:
        super().__init__(upstream, seed, weights=ENGINE_WEIGHTS, reach=TOKENS * 150)
        self.broken: Counter[str] = Counter()
        """Number of answers to each prompt that may have been broken."""

    def fault_for(self, body: bytes, /) -> Fault:
        fault, number = super().fault_for(body), number_of(body)
        if number is None or self.broken[number] == LOST:
            return Fault("none", 0, 0)
        self.broken[number] += fault.name not in {"none", "bytes", "rechunk"}
        return fault


async def call(client: AsyncClient, number: int, found: dict[str, Any]) -> None:
    """Run a job, and read it as a stream of text and as a value."""
    source = {"prompt": f"{number}{MARK}", "max_tokens": TOKENS, "temperature": 0}
    job = await client.submit("generate", **source)
    text = "".join([piece async for piece in job.iter_text()])
    value = await job.result()
    found[job.id] = (str(number), text, value["text"], value["usage"]["completion_tokens"])


@pytest.mark.heavy
@pytest.mark.parametrize("on_restart", ["continue", "rerun"])
@pytest.mark.parametrize(
    "jobs",
    [QUICK_JOBS, pytest.param(JOBS, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_every_job_is_complete_although_both_networks_break(tmp_path: Path, jobs: int, on_restart: str):
    print(f"CHAOS_JOBS={JOBS}")
    found: dict[str, Any] = {}
    settings = {"log": f"sqlite:///{tmp_path / 'log.db'}", "retry": 0.01}
    with scripted_engine() as engine, EngineNetwork(("127.0.0.1", engine.port), SEED) as inner:
        upstream = {"on_restart": on_restart, "timeout": 2.0, "concurrency": CALLERS}
        front = ServerProcess(
            tmp_path,
            "support.upstream_front:upstream_front",
            urls=[f"{inner.url}/v1"],
            upstream=upstream,
            **settings,
        )
        with front:
            until_ready(front.url)
            with FaultyProxy(address_of(front.url), SEED, weights=WEIGHTS) as outer:

                async def caller(numbers: list[int]) -> None:
                    retry, timing = RetryPolicy(max_delay=0.2), Timing(hello_timeout=1.5)
                    async with with_timing(
                        AsyncClient(outer.url, retry=retry, answer_timeout=1.5), timing
                    ) as client:
                        for number in numbers:
                            await call(client, number, found)

                async def run_all() -> None:
                    async with anyio.create_task_group() as tasks:
                        for first in range(CALLERS):
                            tasks.start_soon(caller, list(range(first, jobs, CALLERS)))

                anyio.run(run_all)
            submitted = httpx2.get(f"{front.url}/metrics").text
        requests = Counter(number_of(json.dumps(entry["body"]).encode()) for entry in engine.journal())
    print(
        f"client side: {dict(outer.faults)}; engine side: {dict(inner.faults)}; {requests.total()} requests"
    )
    whole = expected(TOKENS)
    assert sorted(found.values()) == sorted((str(number), whole, whole, TOKENS) for number in range(jobs))
    # A submit that the network broke was repeated with its key, and created no second job.
    assert f'tidewire_jobs_submitted_total{{endpoint="generate"}} {jobs}' in submitted
    # Only an answer that the network broke was requested again.
    assert {
        number: count for number, count in requests.items() if count > 1 + inner.broken[str(number)]
    } == {}
    assert len(requests) == jobs
    assert sum(outer.faults.values()) > jobs / 4
    assert sum(inner.faults.values()) > jobs / 4
