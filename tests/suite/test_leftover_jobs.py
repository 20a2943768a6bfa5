"""At the end of a run, no job that the run has started is running, whoever started it."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator

import pytest

from proof.servers.server_process import ALICE, BOB
from tidewire_conformance import registry
from tidewire_conformance.runner import Plan, run
from tidewire_server import Server
from tidewire_server.script_endpoint import add_script

PATIENCE = 0.05
UNENDED = {"queued", "running"}


def unended_jobs_of(url, token):
    """The jobs of a caller that have not ended."""
    header = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/v1/jobs?limit=1000", headers=header)
    with urllib.request.urlopen(request, timeout=10) as response:
        return [job for job in json.load(response)["jobs"] if job["status"] in UNENDED]


@pytest.fixture
def url():
    """A server with an endpoint whose example never ends."""
    server = Server(tokens=(f"alice:{ALICE}", f"bob:{BOB}"), cancel_timeout=0.1, max_jobs_per_principal=20)

    @server.endpoint(examples=[{}], concurrency_limit=1)
    async def forever() -> AsyncIterator[int]:
        number = 0
        while True:
            yield (number := number + 1)
            await asyncio.sleep(0.02)

    add_script(server)
    with server.running() as url:
        yield url


@pytest.mark.timeout(60)
def test_the_jobs_of_checks_and_endless_examples_are_cancelled(url):
    async def start_two_jobs(s):
        other = s.wire.as_caller([("Authorization", f"Bearer {BOB}")])
        sample = s.script_sample({"append": "x"}, {"sleep_ms": 60_000})
        await s.submit(sample)
        await s.submit(sample, wire=other)
        s.skip_unless(False, "the check ends while its jobs are running")

    check = registry.Check("own.check", ("TW-DSC-001",), start_two_jobs, "x", (), False, False)
    plan = Plan(url, (("Authorization", f"Bearer {ALICE}"),), patience=PATIENCE)
    found = asyncio.run(run(plan, [check]))
    assert [each.request.endpoint for each in found.server.failed_examples] == ["forever"]
    assert unended_jobs_of(url, ALICE) == []
    assert unended_jobs_of(url, BOB) == []
    assert not any(each.path.endswith("/cancel") for each in found.record)
