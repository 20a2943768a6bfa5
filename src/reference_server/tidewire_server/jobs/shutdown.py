"""Shutdown of a server: what happens to its jobs and their readers between the request to stop and the exit.

After the request to stop, the server drains. It refuses new jobs with 503. All other requests work as before, and a
repeated submission returns its existing job. The table shows what happens to a job. The next server process continues the
jobs of a durable log, but a job in memory exists only in this process. If several processes share the log, any other process
can continue the jobs. This process returns waiting jobs to the queue, and releases all other jobs when it ends.

  log     | the job                                   | the server                    | the job's streams, open and new
  --------+-------------------------------------------+-------------------------------+----------------------------------
  any     | ends                                      |                               | end with `done`
  memory  | waits or runs                             | continues it                  | stay open
  memory  | has not ended within `shutdown_timeout`   | fails it with `worker_lost`   | end with `done`
  durable | has a running item                        | lets its running items end    | stay open
  durable | only waits, as its running items ended    | leaves it to the next process | end with `goaway` at once
  durable | has not ended within `shutdown_timeout`   | leaves it to the next process | end with `goaway`
  shared  | runs elsewhere, or waits                  | returns it to the queue       | stay open until the server ends

Afterwards the server waits up to `LAST_SECONDS` until the streams have accepted their last event. If the log is in memory,
the server also waits for clients that have just submitted a job, or whose stream has just ended (`ExpectedReaders`). Such a
client may request the stream within its first retry delay, because a broken network can have lost `done`. No reader waits for
an answer longer than `shutdown_timeout` plus `LAST_SECONDS`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol

from tidewire.protocol.problems import problem
from tidewire_server.jobs.admission.stream_limit_and_unread_jobs import StreamReaders
from tidewire_server.jobs.expected_readers import ExpectedReaders
from tidewire_server.jobs.job import Job

LAST_SECONDS: Final = 2.0
"""Number of seconds in which the streams must accept their last event. A stalled reader cannot delay the exit longer."""

RECONNECTS_PER_SECOND: Final = 500
"""Maximum rate at which the readers of jobs that are left to the next process reconnect. Each `goaway` has a random
`retry_ms`, and the more readers there are, the longer these times are.
"""

_log = logging.getLogger(__name__)


class OpenStream(Protocol):
    """Open event stream of one reader."""

    @property
    def job_id(self) -> str:
        """Id of the job."""
        ...

    def go_away(self, *, spread: float = 0.0, even_if_ended: bool = False) -> None:
        """End the stream with `goaway`, unless the job has ended. The reader reconnects later.

        Args:
            spread: Number of seconds over which the reconnects of all readers are spread.
            even_if_ended: Whether to send `goaway` even if the job has ended. The server does so if the reader has not accepted
                the last events in time.
        """
        ...


class Shutdown:
    """Shutdown of one server, which also owns the set of open streams. All methods must be called on one event loop."""

    def __init__(
        self,
        jobs: Mapping[str, Job],
        readers: StreamReaders,
        stop_scheduler: Callable[[], object],
        *,
        durable: bool,
        retry: float,
        release: Callable[[Job], Awaitable[None]] | None = None,
        leave_store: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Create the shutdown of a server that does not drain yet.

        Args:
            jobs: Unfinished jobs of the server.
            readers: Registry that cancels jobs without readers.
            stop_scheduler: Function that stops the scheduler. No more items start afterwards.
            durable: Whether the next server process continues the jobs.
            retry: Setting `retry`, in seconds.
            release: Function that returns a job without running items to the queue that several processes share. None if only
                this process uses the store.
            leave_store: Function that lets the other processes of a shared store adopt the jobs of this process.
        """
        self.began = False
        """Whether the server was asked to stop."""
        self._loop = asyncio.get_running_loop()
        self.expected = ExpectedReaders(0.0 if durable else retry, self._loop.time)
        self.durable = durable
        """Whether the next server process continues the jobs."""
        self._over = False
        """Whether the time for running jobs is over."""
        self._jobs = jobs
        self._readers = readers
        self._stop_scheduler = stop_scheduler
        self._release = release
        self._leave_store = leave_store
        self._streams: set[OpenStream] = set()
        self._waits_for: set[str] = set()
        """Ids of the jobs that `drain` waits for."""
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """Tasks that leave jobs to the next process, because the last of their running items has ended."""
        self._changed = asyncio.Event()

    def jobs_to_wait_for(self) -> list[Job]:
        """Return the jobs that `drain` waits for, or would wait for if it was called now."""
        return [job for job in self._jobs.values() if self._continues(job)]

    # ---- notifications -----------------------------------------------------------------------------------------

    def stream_opened(self, stream: OpenStream) -> None:
        """Register a stream. If its job is left to the next process, the stream ends with `goaway`."""
        self._streams.add(stream)
        self.expected.came(stream.job_id)
        if self.began and self.durable:
            job = self._jobs.get(stream.job_id)
            if job is not None and not self._continues(job):
                self._send_away([job])
            elif job is None and self._over:
                stream.go_away()

    def stream_closed(self, stream: OpenStream) -> None:
        """Remove a stream that has ended, or whose reader has disconnected."""
        self._streams.discard(stream)
        self.expected.closed(stream.job_id)
        self._changed.set()

    def item_ended(self, job: Job) -> None:
        """Check whether the server must still wait for a job, after one of its items has ended or has returned to the queue."""
        if job.id not in self._waits_for or self._continues(job):
            return
        if job.finished.is_set():
            self._waits_for.discard(job.id)
            self._changed.set()
        elif job.id not in self._leaving:
            self._leaving[job.id] = self._loop.create_task(self._leave([job]))

    # ---- phases ------------------------------------------------------------------------------------------------

    async def drain(self, within: float, *, expect_readers: bool = True) -> None:
        """Wait up to `within` seconds for the jobs, and end the remaining jobs and all streams.

        Args:
            within: Time for the jobs, in seconds.
            expect_readers: Whether to wait for expected readers. False if the readers are in the same process.
        """
        self.began = True
        deadline = self._loop.time() + within
        self._waits_for = {job.id for job in self.jobs_to_wait_for()}
        if self.durable:
            self._stop_scheduler()
            await self._leave([job for job in self._jobs.values() if job.only_waits])
        while self._waits_for and await self._change(deadline):
            pass
        await self.end_jobs()
        await self._finish_streams(deadline + LAST_SECONDS, expect_readers=expect_readers)

    async def end_jobs(self) -> None:
        """Fail the unfinished jobs, or leave them to the next process. No more items start."""
        self.began = self._over = True
        self._waits_for.clear()
        self._stop_scheduler()
        jobs = list(self._jobs.values())
        if self.durable:
            await self._leave(jobs)
            # Do not wait for the functions to end. A function that ignores its cancellation would keep the readers waiting.
            for job in list(self._jobs.values()):
                job.suspend()
            if self._leave_store is not None:
                await self._leave_store()
            streams = tuple(self._streams)
            for stream in streams:
                stream.go_away(spread=len(streams) / RECONNECTS_PER_SECOND)
            return
        lost = problem(
            "worker_lost",
            "the server stopped before the item had ended, and keeps its jobs in memory; submit the job again",
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                ends = await asyncio.gather(*(job.end_at_once(lost) for job in jobs), return_exceptions=True)
                for job, error in zip(jobs, ends, strict=True):
                    if error is not None:
                        _log.error("job %s: cannot log the end of the job", job.id, exc_info=error)
        for stream in tuple(self._streams):
            stream.go_away()

    async def close_streams(self) -> None:
        """Wait until all streams have ended, for up to `LAST_SECONDS`. Expect no more readers."""
        until = self._loop.time() + LAST_SECONDS
        while self._streams and await self._change(until):
            pass

    async def _finish_streams(self, at_most: float, *, expect_readers: bool) -> None:
        last = min(self._loop.time() + LAST_SECONDS, at_most)
        while until := max(self.expected.until() if expect_readers else 0.0, last if self._streams else 0.0):
            if not await self._change(min(until, at_most)):
                break
        for stream in tuple(self._streams):
            stream.go_away(even_if_ended=True)

    # ---- parts -------------------------------------------------------------------------------------------------

    def _continues(self, job: Job) -> bool:
        """Return whether this process continues a job while it drains."""
        return not job.finished.is_set() and not (self.durable and (self._over or job.only_waits))

    async def _leave(self, jobs: Collection[Job]) -> None:
        """Leave jobs to the next process: commit the ends of their items, and send their readers away."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await asyncio.gather(*(job.commit() for job in jobs), return_exceptions=True)
                if self._release is not None:
                    waiting = (self._release(job) for job in jobs if job.only_waits)
                    await asyncio.gather(*waiting, return_exceptions=True)
        # A job that was returned to a shared queue continues elsewhere, and its readers here get its events.
        self._send_away([job for job in jobs if job.id in self._jobs])
        self._waits_for.difference_update(job.id for job in jobs)
        self._changed.set()

    def _send_away(self, jobs: Collection[Job]) -> None:
        left = {job.id for job in jobs}
        for job in left:
            self._readers.unwatch(job)
        streams = [stream for stream in self._streams if stream.job_id in left]
        for stream in streams:
            stream.go_away(spread=len(streams) / RECONNECTS_PER_SECOND)

    async def _change(self, until: float) -> bool:
        """Wait for a notification. Return False if the event loop time `until` has passed first."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                return await self._changed.wait()
        return False
