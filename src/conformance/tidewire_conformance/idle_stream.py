"""Event stream of a job that does nothing, which stays open while checks run that neither count jobs and streams nor
restart the server.

The streams of the checks end within seconds. A server that limits the age of connections sends `goaway` before it closes
one, and only a long stream shows this event. Checks that judge the whole run find the stream in the record of responses.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from tidewire_conformance.judging.server_probe import SampleRequest, Server
from tidewire_conformance.judging.state_history import job_of, value_has_grown
from tidewire_conformance.session import EVENT_STREAM
from tidewire_conformance.wire.recorded_exchange import RecordedExchange
from tidewire_conformance.wire.recording_client import IncompleteResponseError, Stream, Wire

IDLE_MINUTES: Final = 10
"""Duration of the job in minutes. It is cancelled when the checks have ended."""
SECOND_JOB_SECONDS: Final = 5.0
"""Time, in seconds, in which a second job must end while the idle one runs. Otherwise the idle one is cancelled, because
all other jobs would have to wait for it. The option `--patience` multiplies it.
"""


@contextlib.asynccontextmanager
async def idle_stream(wire: Wire, server: Server) -> AsyncIterator[None]:
    """Submit a job without waiting for the response, and keep its stream open during the `with` block. Then cancel the job.

    The job runs at the endpoint `tidewire.script`. Without this endpoint, it is the job of the longest example.
    """
    sample, quick = _idle_sample(server), server.any_sample()
    if sample is None or quick is None:
        yield
        return
    reader = asyncio.create_task(_read(wire.as_check("idle_stream"), sample, quick))
    try:
        yield
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def _read(wire: Wire, sample: SampleRequest, quick: SampleRequest) -> None:
    with contextlib.suppress(IncompleteResponseError):
        async with _submit(wire, sample) as idle:
            try:
                if await idle.until(_has_begun, SECOND_JOB_SECONDS) and await _ends(wire, quick):
                    await idle.until(lambda now: now.of_type("done"), 60 * IDLE_MINUTES)
            finally:
                if job_of(idle.exchange) and not idle.exchange.of_type("done"):
                    await wire.request("POST", f"/v1/jobs/{job_of(idle.exchange)}/cancel")


async def _ends(wire: Wire, quick: SampleRequest) -> bool:
    async with _submit(wire, quick) as stream:
        return await stream.until(lambda now: now.of_type("done"), max(SECOND_JOB_SECONDS, 2 * quick.seconds))


def _submit(wire: Wire, sample: SampleRequest) -> contextlib.AbstractAsyncContextManager[Stream]:
    return wire.open("POST", sample.submit_to, json=sample.body, header=EVENT_STREAM)


def _idle_sample(server: Server) -> SampleRequest | None:
    """Return a request for a job that lasts as long as possible: an example may run without an end."""
    script = server.script_sample({"append": "x"}, *[{"sleep_ms": 60_000}] * IDLE_MINUTES)
    endless = (each.request for each in server.failed_examples if each.is_endless)
    longest = max(server.samples, key=lambda sample: sample.seconds, default=None)
    return script or next(endless, longest)


def _has_begun(exchange: RecordedExchange) -> bool:
    """Whether a job has changed its state, so that it no longer waits in the queue."""
    return value_has_grown(exchange) or len(exchange.logged) > 1
