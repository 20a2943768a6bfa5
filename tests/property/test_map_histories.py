"""Random histories of maps with one resume file: runs that are left, killed or complete, and jobs that fail or expire.

In each run, the values have the order of the inputs, and no more than `concurrency` jobs run. An input is started again
only after a failure, or after the server has lost its job. Kills leave the file as it is at a random response.
"""

import json
import random
from collections import Counter

import anyio
import pytest

from tidewire import AsyncClient, Hooks
from tidewire.errors import ItemFailedError
from tidewire.protocol.resources import Limits
from tidewire.testing import FakeServer


class KilledError(BaseException):
    """Ends a run as a kill does: nothing that the client does afterwards has an effect on the file."""


class History:
    def __init__(self, seed, file):
        self.chance = random.Random(seed)
        self.file = file
        self.count = self.chance.randrange(1, 40)
        self.forgotten = Counter()
        """Number of lost jobs of each input."""

    def pick(self, *choices):
        return self.chance.choice(choices)

    async def run(self):
        limits = Limits(max_body_bytes=self.pick(1030, 1060, 10_000), max_inputs=self.pick(1, 3, 50))
        with FakeServer(limits=limits) as server:
            endpoint = server.endpoint("double")
            for _ in range(200):
                match self.pick("value", "value", "value", "value", "retryable", "permanent"):
                    case "value":
                        endpoint.calls(lambda x: 2 * x)
                    case "retryable":
                        endpoint.fails("worker_lost", "lost")
                    case "permanent":
                        endpoint.fails("item_refused", "refused")
            endpoint.calls(lambda x: 2 * x)
            for _ in range(self.chance.randrange(2, 8)):
                await self.run_once(server)
            assert server.cancels == []
            failures = Counter(line["index"] for line in self.lines() if line.get("line") == "failure")
            started = Counter(
                x for submit in server.submits if submit.job_id and not submit.replayed for x in submit.inputs
            )
            assert {x: n for x, n in started.items() if n > 1 + failures[x] + self.forgotten[x]} == {}

    async def run_once(self, server):
        self.count += self.pick(0, 0, 0, 3, 10)
        how = self.pick("complete", "left", "killed", "losing")
        stop = self.chance.randrange(self.count + 1)
        snapshot, responses, most = None, self.chance.randrange(1, 12), 0

        def count_responses(event):
            nonlocal responses, snapshot
            responses -= 1
            if how == "killed" and not responses:
                snapshot = self.file.read_bytes() if self.file.exists() else b""
                raise KilledError

        def note_jobs(progress):
            nonlocal most
            most = max(most, progress.jobs)

        arguments = {
            "batch_size": self.chance.randrange(1, 9),
            "concurrency": self.chance.randrange(1, 5),
            "retry_failed": self.chance.random() < 0.2,
        }
        values = []
        async with AsyncClient(server.url, hooks=Hooks(on_request=count_responses)) as client:
            found = client.map(
                "double",
                iter(range(self.count)),
                return_exceptions=True,
                resume_file=self.file,
                progress=note_jobs,
                **arguments,
            )
            try:
                async for value in found:
                    values.append(value)
                    if how == "left" and len(values) > stop:
                        break
                    if how == "losing" and self.chance.random() < 0.2:
                        self.lose_a_job(server)
            except (KilledError, BaseExceptionGroup):
                assert snapshot is not None
            await found.aclose()
        if snapshot is not None:
            self.file.write_bytes(snapshot)
        for index, value in enumerate(values):
            assert value.index == index if isinstance(value, ItemFailedError) else value == 2 * index
        if how in {"complete", "losing"}:
            assert len(values) == self.count
        assert most <= arguments["concurrency"]

    def lose_a_job(self, server):
        jobs = [submit for submit in server.submits if submit.job_id and not submit.replayed]
        lost = self.chance.choice(jobs) if jobs else None
        if lost is not None and not any(self.forgotten[x] for x in lost.inputs):
            server.forget(lost.job_id)
            self.forgotten.update(lost.inputs)

    def lines(self):
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 500), marks=pytest.mark.slow)], ids=str)
def test_a_map_with_a_resume_file_loses_nothing_and_runs_nothing_twice(seeds, tmp_path):
    for seed in seeds:
        print(f"seed {seed}")
        anyio.run(History(seed, tmp_path / f"{seed}.jsonl").run)
