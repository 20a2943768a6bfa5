"""Event stream of a job that does nothing, which stays open while checks run that neither count jobs and streams nor
restart the server.

The streams of the checks end within seconds. A server may close each connection at a maximum age, and only a stream that
lives longer shows the `goaway` that it then sends. Checks that judge the whole run read this stream in the record.
"""

import asyncio
import contextlib
from typing import Final, Self

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


class IdleStream:
    """Stream of an idle job, which stays open until it is closed.

    The job is one of the endpoint `tidewire.script`, or otherwise that of the longest example.
    """

    def __init__(self, wire: Wire, server: Server) -> None:
        self._wire = wire.as_check("idle_stream")
        self._sample = _idle_sample(server)
        self._quick = server.any_sample()
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Submit the job and open its stream. Return without waiting for the response."""
        if self._sample is not None and self._quick is not None:
            self._reader = asyncio.create_task(self._read(self._sample, self._quick))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the stream and cancel the job, if that has not happened yet."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self, sample: SampleRequest, quick: SampleRequest) -> None:
        with contextlib.suppress(IncompleteResponseError):
            async with self._submit(sample) as idle:
                try:
                    if await idle.until(_has_begun, SECOND_JOB_SECONDS) and await self._ends(quick):
                        await idle.until(lambda now: now.of_type("done"), 60 * IDLE_MINUTES)
                finally:
                    if job_of(idle.exchange) and not idle.exchange.of_type("done"):
                        await self._wire.request("POST", f"/v1/jobs/{job_of(idle.exchange)}/cancel")

    async def _ends(self, quick: SampleRequest) -> bool:
        async with self._submit(quick) as stream:
            return await stream.until(
                lambda now: now.of_type("done"), max(SECOND_JOB_SECONDS, 2 * quick.seconds)
            )

    def _submit(self, sample: SampleRequest) -> contextlib.AbstractAsyncContextManager[Stream]:
        return self._wire.open("POST", sample.submit_to, json=sample.body, header=EVENT_STREAM)


def _idle_sample(server: Server) -> SampleRequest | None:
    """Return a request for a job that lasts as long as possible: an example may run without an end."""
    script = server.script_sample({"append": "x"}, *[{"sleep_ms": 60_000}] * IDLE_MINUTES)
    endless = (each.request for each in server.failed_examples if each.is_endless)
    longest = max(server.samples, key=lambda sample: sample.seconds, default=None)
    return script or next(endless, longest)


def _has_begun(exchange: RecordedExchange) -> bool:
    """Whether a job has changed its state, so that it no longer waits in the queue."""
    return value_has_grown(exchange) or len(exchange.logged) > 1
