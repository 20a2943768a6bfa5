"""Job service of a server without HTTP, for tests that need to stop at a certain moment between two awaits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from tidewire_server import Server
from tidewire_server.errors import WorkerLostError
from tidewire_server.jobs.job_service import JobService
from tidewire_server.metrics import Metrics
from tidewire_server.store.open_store import open_store
from tidewire_server.store.records import JobRecord
from tidewire_server.store.store_interface import Store


@contextlib.asynccontextmanager
async def job_service(
    server: Server, store: Store | None = None, *, functions: bool = True
) -> AsyncIterator[JobService]:
    """Run the job service of a server on the current event loop.

    Args:
        server: The server, whose setting `log` names the store.
        store: The open store; None to open it.
        functions: Whether the service runs functions.
    """
    service = JobService(
        server.endpoints,
        server.settings,
        Metrics(),
        store or open_store(server.settings),
        functions=functions,
    )
    try:
        await service.start()
        await service.resume()
        yield service
    finally:
        await service.close()


async def until(condition: Callable[[], object], within: float = 20.0) -> None:
    """Wait until a condition is true, at the first pass of the event loop at which it is."""
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0)


async def submit(service: JobService, endpoint: str, *numbers: int) -> JobRecord:
    """Submit a job with one item for each number."""
    inputs = ",".join(f'{{"n":{number}}}' for number in numbers)
    body = f'{{"inputs":[{inputs}]}}'.encode()
    return (await service.submit("ada", service.endpoints[endpoint], body, None)).record


async def ended(service: JobService, record: JobRecord) -> JobRecord:
    """Wait until a job has ended. Return its record."""
    async with asyncio.timeout(20):
        while (found := await service.find("ada", record.id)).done is None:
            await asyncio.sleep(0.01)
    return found


def lost_worker_server(log: str) -> tuple[Server, list[list[int]]]:
    """Server with a batched endpoint whose worker is lost at the first call, and the inputs of its calls."""
    server = Server(log=log)
    calls: list[list[int]] = []

    @server.endpoint(batch=True, max_batch_size=2, batch_timeout=0.05)
    async def f(n: list[int]) -> list[int]:
        calls.append(n)
        if len(calls) == 1:
            await asyncio.sleep(0.1)
            raise WorkerLostError("the worker died")
        await asyncio.sleep(0.3)
        return n

    return server, calls


async def judge_lost_workers(log: str) -> list[list[int]]:
    """Check that an input whose worker is lost at each attempt fails only its own job. Return the inputs of all calls."""
    server = Server(log=log, max_attempts=4)
    calls: list[list[int]] = []

    @server.endpoint(batch=True, max_batch_size=3, batch_timeout=0.3)
    async def f(n: list[int]) -> list[int]:
        calls.append(sorted(n))
        if 1 in n:
            raise WorkerLostError("the worker died")
        return n

    async with job_service(server) as service:
        records = [await submit(service, "f", number) for number in range(3)]
        statuses = [(await ended(service, record)).status for record in records]
    assert statuses == ["succeeded", "failed", "succeeded"]
    return calls
