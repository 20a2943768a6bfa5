"""An event loop that ends without a drain, as after a second Ctrl-C or a `SystemExit`: the jobs run again like after a crash."""

import asyncio

import pytest

from support.job_service import ended, job_service, submit, until
from tidewire_server import Server
from tidewire_server.jobs.job_service import JobService
from tidewire_server.metrics import Metrics
from tidewire_server.store.open_store import open_store


async def waits(n: int) -> str:
    await asyncio.sleep(0 if n else 60)
    return "whole"


async def catches_the_cancellation(n: int) -> str:
    try:
        return await waits(n)
    except asyncio.CancelledError:
        return "part"


async def raises_another_error(n: int) -> str:
    try:
        return await waits(n)
    except asyncio.CancelledError:
        raise ValueError("interrupted") from None


async def in_a_batch(n: list[int]) -> list[str]:
    return [await waits(each) for each in n]


@pytest.mark.parametrize(
    "function", [waits, catches_the_cancellation, raises_another_error, in_a_batch], ids=lambda f: f.__name__
)
def test_a_job_whose_function_the_event_loop_cancels_runs_again(function, tmp_path):
    began = 0

    def server() -> Server:
        made = Server(log=f"sqlite:///{tmp_path / 'jobs.db'}")

        async def called(n):
            nonlocal began
            began += 1
            # The first run waits until the event loop cancels it.
            return await function([began - 1] if isinstance(n, list) else began - 1)

        called.__annotations__ = function.__annotations__
        made.endpoint(called, name="called", batch=function is in_a_batch)
        return made

    first = server()
    store = open_store(first.settings)

    async def run_until_the_function_waits():
        service = JobService(first.endpoints, first.settings, Metrics(), store)
        await service.start()
        await service.resume()
        record = await submit(service, "called", 1)
        await until(lambda: began)
        return record

    record = asyncio.run(run_until_the_function_waits())
    asyncio.run(store.close())

    async def run_again():
        async with job_service(server()) as service:
            found = await ended(service, record)
            state = await (await service.store.jobs.log(record.id)).state()
            return found.status, state.view.value()["items"][0]["value"]

    assert asyncio.run(run_again()) == ("succeeded", "whole")
    assert began == 2
