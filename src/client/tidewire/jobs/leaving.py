"""Jobs that were left: those of a `map` whose loop ended early are cancelled, as far as that can be done."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import anyio

from tidewire.errors import TidewireError
from tidewire.http.transport import Transport
from tidewire.jobs.batch_job import AsyncBatchJob

LEAVE_TIMEOUT: Final = 2.0
"""Seconds that cancelling what runs may take, all in all, when a loop is left early."""


async def cancel_all(jobs: Iterable[AsyncBatchJob[Any]]) -> None:
    """Cancel jobs that nobody waits for, as far as that can be done in `LEAVE_TIMEOUT` seconds."""
    with anyio.move_on_after(LEAVE_TIMEOUT, shield=True):
        for job in jobs:
            with suppress(TidewireError):
                await job.cancel()


class Leftovers:
    """Jobs of loops that were left where nothing could be awaited."""

    def __init__(self) -> None:
        self._jobs: list[AsyncBatchJob[Any]] = []
        self._lock: anyio.Lock | None = None

    def add(self, jobs: Iterable[AsyncBatchJob[Any]]) -> None:
        """Note jobs, from any thread."""
        self._jobs.extend(jobs)

    async def cancel(self) -> None:
        """Cancel them. Whoever comes meanwhile waits for that: a client that is being closed, say."""
        if not self._jobs and (self._lock is None or not self._lock.locked()):
            return
        self._lock = self._lock or anyio.Lock()
        async with self._lock:
            jobs = [*self._jobs]
            self._jobs.clear()
            await cancel_all(jobs)


async def close(left: Leftovers, transport: Transport) -> None:
    """Close what a client holds open. Its hooks and credentials are not needed for that, and may refer to the client."""
    await left.cancel()
    await transport.aclose()
