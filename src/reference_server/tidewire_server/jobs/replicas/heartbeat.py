"""Heartbeat of one server process in a store that several processes share.

Each second, or sooner after a notification, the process renews its lease, and then looks for work from the other processes:
requests for jobs that it runs, jobs of dead processes, and waiting jobs that have to end. The renewal never waits for this
work, because a process whose lease has expired loses its jobs.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Final

from tidewire_server.jobs.admission.stream_limit_and_unread_jobs import StreamReaders
from tidewire_server.jobs.job import Job
from tidewire_server.jobs.replicas.job_ownership import ADOPTED_ELSEWHERE, JobOwnership
from tidewire_server.jobs.replicas.live_workers import LiveWorkers
from tidewire_server.store.failure_log import FailureLog
from tidewire_server.store.records import Beat
from tidewire_server.store.replicas_interface import Replicas
from tidewire_server.store.store_errors import StoreError

BEAT_SECONDS: Final = 1.0
"""Maximum time between two renewals of the lease."""

_log = logging.getLogger(__name__)


class Heartbeat:
    """Heartbeat of one process. All methods must be called on one event loop."""

    def __init__(
        self,
        replicas: Replicas,
        ownership: JobOwnership,
        live: Mapping[str, Job],
        readers: StreamReaders,
        workers: LiveWorkers,
        *,
        outage_timeout: float,
        draining: Callable[[], bool],
        on_beat: Callable[[], None],
    ) -> None:
        """Create the heartbeat, which does not beat before `start`.

        Args:
            replicas: Lease of this process.
            ownership: Object that opens and ends jobs.
            live: Unfinished jobs that this process has opened, by id.
            readers: Readers of this process.
            workers: Live processes, which each beat updates.
            outage_timeout: Time in seconds after which the functions of all jobs are stopped if the store cannot be reached.
            draining: Function that returns whether this process adopts no more jobs.
            on_beat: Function that is called after each beat.
        """
        self._replicas = replicas
        self._ownership = ownership
        self._live = live
        self._readers = readers
        self._workers = workers
        self._outage_timeout = outage_timeout
        self._draining = draining
        self._on_beat = on_beat
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Timer that stops all functions, unless a beat restarts the timer first."""
        self._beat_failures = FailureLog(
            _log, "a beat of this server failed; when its lease has expired, other servers adopt its jobs"
        )
        self._work_failures = FailureLog(_log, "cannot look for the jobs of other servers")
        self._idle: frozenset[str] = frozenset()
        """Jobs that this process owned at the last beat without running or opening them."""

    async def start(self) -> None:
        """Renew the lease for the first time, and start the task that renews it regularly.

        Raises:
            StoreError: The store cannot be written.
        """
        self._replicas.on_request(self._due.set)
        await self._renew()
        self._set_timer()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop renewing the lease."""
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._task, self._work):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            self._due.clear()
            try:
                await self._beat()
            except StoreError as error:
                self._beat_failures.failed(error)
                if not error.outage:  # For example, a disk is full.
                    self._set_timer()
            except Exception:  # noqa: BLE001 - a bug of the server, but without a lease the process loses its jobs
                _log.exception("internal server error after renewing the lease of this server")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._due.wait()

    async def _renew(self) -> Beat:
        # A process that drains starts no calls.
        beat = await self._replicas.beat({} if self._draining() else self._workers.own())
        self._workers.others = beat.others
        return beat

    async def _beat(self) -> None:
        beat = await self._renew()
        self._set_timer()
        for job in beat.lost:
            _log.warning("job %s: %s, so this server stops it", job, ADOPTED_ELSEWHERE)
            self._ownership.lose(job)
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().create_task(self._serve(beat))
        await self._replicas.mark_read(self._readers.jobs() - self._live.keys())
        self._on_beat()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._outage_timeout, self._give_up)

    def _give_up(self) -> None:
        """Stop the functions of all jobs, because the store could not be reached for too long. Another process may have adopted
        the jobs in the meantime. A job that this process still owns when the store is back is recovered by `_repair`.
        """
        if not self._live:
            return
        _log.error(
            "the store could not be reached for %g s (store_outage_timeout), so the functions of %d jobs are cancelled; when the "
            "store is back, these jobs continue as on_restart says",
            self._outage_timeout,
            len(self._live),
        )
        for job in list(self._live):
            self._replicas.stop_writing(job)
            self._ownership.lose(job)

    async def _serve(self, beat: Beat) -> None:
        """Serve the requests of other processes that a beat has found, and adopt jobs."""
        try:
            for owned in beat.owned:
                await self._ownership.serve_requests(owned)
            await self._repair(beat)
            if not self._draining():
                await self._ownership.adopt()
        except StoreError as error:
            self._work_failures.failed(error)
        except Exception:  # noqa: BLE001 - a bug of the server, but the process must keep its other jobs
            _log.exception("internal server error while looking for the jobs of other servers")

    async def _repair(self, beat: Beat) -> None:
        """Recover jobs whose items were taken from the queue but do not run: the response of the database was lost, or the job
        could not be opened. Only a job that was idle at two beats in a row is recovered, because a job that was just taken may
        not be open yet.
        """
        idle = frozenset(
            owned.id for owned in beat.owned if owned.id not in self._live or self._live[owned.id].only_waits
        )
        for job_id in idle & self._idle:
            job = self._live.get(job_id)
            if job is None:
                await self._ownership.recover(job_id)
            elif job.only_waits:
                await self._ownership.put_again(job)
        self._idle = idle
