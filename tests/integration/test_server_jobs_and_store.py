"""The job service against the store: disconnects during a commit, keys that another job has, and jobs that are opened when one
of their items is taken.
"""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from support.job_service import job_service
from tidewire_server import Server
from tidewire_server.errors import ProblemError
from tidewire_server.jobs.job_service import JobService
from tidewire_server.store.open_store import open_store
from tidewire_server.store.records import BatchSlot, JobRecord, Key, QueueEntry
from tidewire_server.store.store_errors import KeyUsedError


def server_with(log: str, calls: list[str]) -> Server:
    server = Server(log=log)

    @server.endpoint
    async def echo(text: str) -> str:
        calls.append(text)
        return text

    @server.endpoint(batch=True, max_batch_size=2, batch_timeout=60)
    async def echo_all(text: list[str]) -> list[str]:
        calls.append("+".join(text))
        return text

    return server


async def ended(service: JobService, job: str) -> JobRecord:
    async with asyncio.timeout(20):
        while (record := await service.find("ada", job)).done is None:
            await asyncio.sleep(0.005)
        return record


async def test_a_job_whose_client_disconnects_during_the_commit_runs(tmp_path: Path) -> None:
    calls: list[str] = []
    server = server_with(f"sqlite:///{tmp_path}/log.db", calls)
    async with job_service(server, open_store(server.settings)) as service:
        endpoint = service.endpoints["echo"]
        submit = asyncio.create_task(service.submit("ada", endpoint, b'{"input":{"text":"a"}}', None))
        while not await service.store.jobs.unfinished("ada"):  # the commit has begun
            await asyncio.sleep(0)
        submit.cancel()
        await asyncio.wait([submit])
        assert submit.cancelled()
        async with asyncio.timeout(20):
            while not (jobs := await service.store.jobs.list("ada", before=None, limit=9)):
                await asyncio.sleep(0.005)
        assert (await ended(service, jobs[0][0].id)).status == "succeeded"
        assert calls == ["a"]
        # The memory of its input is free again.
        service.inputs.reserve("ada", server.settings.max_input_bytes)
        service.inputs.reserve("ada", 0)


async def test_a_request_that_loses_its_key_during_the_commit_is_a_replay() -> None:
    server = server_with("memory", [])
    async with job_service(server, open_store(server.settings)) as service:
        endpoint, text = service.endpoints["echo"], b'{"input":{"text":"a"}}'
        first = await service.submit("ada", endpoint, text, "k")
        use = await service.store.jobs.find_key(Key("ada", "echo", "k"))
        assert use is not None

        async def find_key(key: Any) -> None:
            """Find nothing, like another process that does not know the first job yet."""

        async def add(new: Any, own: Any) -> None:
            raise KeyUsedError(use)

        service.store.jobs.find_key, service.store.jobs.add = find_key, add  # type: ignore[method-assign]
        second = await service.submit("ada", endpoint, text, "k")
        assert (second.record.id, second.replayed) == (first.record.id, True)
        with pytest.raises(ProblemError) as error:
            await service.submit("ada", endpoint, b'{"input":{"text":"b"}}', "k")
        assert error.value.problem.code == "idempotency_key_reused"


@pytest.mark.parametrize(("endpoint", "expected"), [("echo", ["a", "b"]), ("echo_all", ["a+b"])])
async def test_a_job_that_no_process_runs_is_opened_when_an_item_is_taken(
    tmp_path: Path, endpoint: str, expected: list[str]
) -> None:
    calls: list[str] = []
    server = server_with(f"sqlite:///{tmp_path}/log.db", calls)
    inputs = b'{"inputs":[{"text":"a"},{"text":"b"}]}'
    store = open_store(server.settings)
    store.queue.due = lambda endpoint: math.inf  # type: ignore[method-assign]  # no item starts
    async with job_service(server, store) as service:
        job = (await service.submit("ada", service.endpoints[endpoint], inputs, None)).record
    assert calls == []

    store = open_store(server.settings)
    adopt, serve, wakes = store.jobs.adopt, store.queue.serve, []

    async def adopt_nothing(_: Any = None) -> list[str]:
        return []

    def serve_and_keep(endpoints: Any, wake: Any, limits: Any) -> None:
        wakes.append(wake)
        serve(endpoints, wake, limits)

    store.jobs.adopt, store.queue.serve = adopt_nothing, serve_and_keep  # type: ignore[method-assign]
    async with job_service(server, store) as service:
        assert await adopt(()) == (job.id,)
        entries = [QueueEntry(endpoint, job.id, index, "ada", job.created_at) for index in range(2)]
        await store.queue.put(entries, [BatchSlot()] * 2 if endpoint == "echo_all" else None)
        wakes[0](endpoint)
        assert (await ended(service, job.id)).status == "succeeded"
        assert sorted(calls) == expected
        assert await adopt(()) == ()
