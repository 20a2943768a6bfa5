"""`RunningJobs`, the running jobs of one `map`. The client reads one of them, and meanwhile checks the others."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import anyio

from tidewire.errors import ProtocolError, TidewireError, Where
from tidewire.jobs.batch_job import cancel_all
from tidewire.jobs.map.parts import RunningPart
from tidewire.jobs.submit_and_attach import JobStarter
from tidewire.jobs.update_iterator import UpdateIterator

POLL_INTERVAL: Final = 60.0
"""Interval in seconds between two checks of the running jobs that the client is not reading. The server keeps ended
jobs for `state_ttl_s` seconds. If a quarter of this time is shorter, the interval is that quarter."""
MIN_POLL_INTERVAL: Final = 0.25
"""Minimum interval between two checks of the running jobs that the client is not reading, in seconds."""

Record: TypeAlias = Callable[[RunningPart, int, Any], None]
"""Function that records an outcome: the job, the number of the input, and the outcome. Methods have it as an argument,
because a reference from `RunningJobs` to the map would keep an abandoned map and its connections open.
"""


class RunningJobs:
    """Jobs that the client has not read to their end. They run on the server, also if the client does not read them."""

    def __init__(self, starter: JobStarter) -> None:
        """Create an empty collection of jobs.

        Args:
            starter: The client's `JobStarter`. Its set `running` contains the jobs that closing the client cancels.
        """
        self._starter = starter
        self._sleep = starter.session.timing.sleep
        self._clock = starter.session.timing.clock
        self._jobs: list[RunningPart] = []
        self._poll_interval = POLL_INTERVAL
        self._poll_due = self._clock() + POLL_INTERVAL
        """Time of the next check of the jobs that the client is not reading."""

    def __len__(self) -> int:
        return len(self._jobs)

    def limit_poll_interval(self, state_ttl_s: float) -> None:
        """Check jobs often enough for a server that keeps ended jobs for a number of seconds."""
        self._poll_interval = min(POLL_INTERVAL, max(MIN_POLL_INTERVAL, state_ttl_s / 4))
        self._poll_due = self._clock() + self._poll_interval

    def add(self, running: RunningPart) -> None:
        """Add a job."""
        self._jobs.append(running)

    def remove(self, running: RunningPart) -> None:
        """Remove a job that ended or was lost."""
        self._jobs.remove(running)
        self._starter.running.discard(running.job)

    def unread(self) -> RunningPart | None:
        """Return a job that is not read to its end, although all of its outcomes have arrived."""
        return next((running for running in self._jobs if not running.part.pending), None)

    def with_input(self, number: int) -> RunningPart | None:
        """Return the job of an input, or else the oldest job, whose end makes room for another one."""
        found = next((running for running in self._jobs if number in running.part.inputs), None)
        return found or next(iter(self._jobs), None)

    async def read(self, running: RunningPart, record: Record, until: float | None = None) -> None:
        """Read the next outcomes of a job, and check the other jobs while waiting. If the job has ended, remove it.

        Args:
            running: The job to read.
            record: Function that is called with each outcome, also with those of the other jobs.
            until: Time on the clock at which this method returns even without an outcome. None: no limit.

        Raises:
            TidewireError: The job cannot be read, or does not exist.
        """
        others = [other for other in self._jobs if other is not running]
        reading = running.reading
        if running.left_at is not None:
            # The time for which the caller did not read the job must not count toward its timeout.
            reading.postpone(self._clock() - running.left_at)
        try:
            if others or until is not None:
                await self._fill_and_poll_others(reading, others, record, until)
            else:
                await _fill(reading)
        finally:
            running.left_at = self._clock()
        # Do not wait from here on. The iterator has no more copies of the outcomes, so a cancellation would lose them.
        while _is_filled(reading):
            _record_ended(running, await anext(reading), record)
        if reading.finished:
            self._finish(running)

    def _finish(self, running: RunningPart) -> None:
        """Remove a job that was read to its end."""
        self.remove(running)
        if running.part.pending:
            what = f"the job ended without an outcome of input {next(iter(running.part.pending))}"
            raise ProtocolError(what, where=Where(job_id=running.job.id))

    async def _fill_and_poll_others(
        self,
        reading: UpdateIterator[tuple[int, Any]],
        others: Iterable[RunningPart],
        record: Record,
        until: float | None,
    ) -> None:
        """Wait for outcomes of a job, at most until `until`, and check the status of the other jobs while waiting."""
        if self._clock() >= self._poll_due:
            # Check the jobs here, because items can arrive so quickly that the check below is cancelled each time.
            await self._poll(others, record)
        fault: Exception | None = None
        async with anyio.create_task_group() as tasks:

            async def poll() -> None:
                nonlocal fault
                try:
                    await self._poll_others(others, record)
                except Exception as error:  # noqa: BLE001 - raised below: the task group would wrap it
                    fault = error
                    tasks.cancel_scope.cancel()

            async def stop(until: float) -> None:
                await self._sleep(max(0.0, until - self._clock()))
                tasks.cancel_scope.cancel()

            tasks.start_soon(poll)
            if until is not None:
                tasks.start_soon(stop, until)
            try:
                await _fill(reading)
            except Exception as error:  # noqa: BLE001 - as above
                fault = error
            tasks.cancel_scope.cancel()
        if fault is not None:
            raise fault

    async def _poll_others(self, others: Iterable[RunningPart], record: Record) -> None:
        while True:
            await self._sleep(max(0.0, self._poll_due - self._clock()))
            await self._poll(others, record)

    async def _poll(self, others: Iterable[RunningPart], record: Record) -> None:
        """Check jobs once, and read those that have ended before the server deletes them."""
        for running in others:
            job = running.job
            # Ignore errors of these requests. If they persist, they are raised later, when the results of this job
            # are read.
            with suppress(TidewireError):
                if not job.ended and (await job.read()).done is not None:
                    await job.wait()
            if job.ended and running in self._jobs:
                async for ended in running.reading:
                    _record_ended(running, ended, record)
                self._finish(running)
        self._poll_due = self._clock() + self._poll_interval

    async def aclose(self) -> None:
        """Close the connections, and cancel the jobs that closing the client would cancel."""
        for running in self._jobs:
            await running.reading.aclose()
        await cancel_all(self._starter.running, [running.job for running in self._jobs])


def _is_filled(reading: UpdateIterator[Any]) -> bool:
    """Whether the iterator has items that need no waiting."""
    return reading.block.at < len(reading.block.items)


async def _fill(reading: UpdateIterator[Any]) -> None:
    """Wait until the iterator has items, or has ended. The items stay in the iterator."""
    while not (reading.finished or _is_filled(reading)):
        await reading.fill()


def _record_ended(running: RunningPart, ended: tuple[int, Any], record: Record) -> None:
    """Record the outcome of an item, unless the resume file contains it."""
    index, outcome = ended
    if index >= len(running.items):
        what = f"the job has more items than its {len(running.items)} inputs"
        raise ProtocolError(what, where=Where(job_id=running.job.id))
    if (number := running.items[index]) in running.part.pending:
        record(running, number, outcome)
