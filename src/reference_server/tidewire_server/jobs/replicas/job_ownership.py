"""Ownership of unfinished jobs: when this process opens a job, returns it to the queue, or gives it up.

In a store that several processes share, a waiting job belongs to no process, so that any of them can run its items. The table
shows what this process does. In a store that only this process uses, it owns all jobs, and only the second row applies.

  the job                                               | this process
  ------------------------------------------------------+-------------------------------------------------------------------
  waits, and this process takes one of its items        | opens the job, and runs the item
  has lost its process                                  | opens the job, which may begin a new attempt, and returns it
  waits, but its deadline or the time without readers   | opens the job, which ends items, and returns it if items remain
    is over, or another process stored a cancellation   |
  has lost its process, and its deadline is over, but   | opens the job, which ends
    this process does not know its endpoint             |
  waits, or has lost its process, and a client cancels  | stores a cancellation, opens the job, ends the items, and returns it if
    or deletes it here                                  |   items remain
  waits, this process does not know its endpoint, and a | stores the request, which a process that knows the endpoint serves;
    client cancels some of its items here               |   this process could not continue the other items
  runs elsewhere, and a client cancels or deletes it    | stores the request, which reaches the owner by a notification
  runs here, and a client cancelled or deleted it       | cancels the items, and deletes the job
    elsewhere                                           |
  runs here, but another process has adopted it         | stops its functions, and logs nothing more
  waits, and the code of this process rejects its input | returns it, and takes no more of its items

*Returns* means that this process returns the job to the queue. Otherwise, a process that adopts fifty jobs and runs one item at
a time would keep the other 49 from idle processes.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final
from weakref import WeakValueDictionary

from tidewire_server.jobs.job import Job
from tidewire_server.store.log_interface import LogReader
from tidewire_server.store.records import JobRecord, OwnedJob, QueueEntry
from tidewire_server.store.store_errors import HeadMovedError, StoreError
from tidewire_server.store.store_interface import Store

PURGE_SECONDS: Final = 2.0
"""Time in seconds that a request to delete a job waits for the process that runs the job to end it. Afterwards, no process
shows the job any more.
"""

ADOPTED_ELSEWHERE: Final = "another server has adopted or deleted the job"
"""Cause in log lines about a job that this process has lost."""

_log = logging.getLogger(__name__)


async def end_of(log: LogReader) -> None:
    """Wait until a log has ended. Any process may be its writer."""
    changed = asyncio.Event()
    unwatch = log.watch(lambda _: changed.set())
    try:
        while not log.extent().ended:
            changed.clear()
            await changed.wait()
    finally:
        unwatch()


def _log_failure(message: str, job: str, error: Exception) -> None:
    """Log an error of one job. The store has already logged an outage."""
    level = logging.DEBUG if isinstance(error, StoreError) and error.logged else logging.ERROR
    _log.log(level, message, job, error, exc_info=not isinstance(error, StoreError | HeadMovedError))


class JobOwnership:
    """Ownership of the jobs of one process. All methods must be called on one event loop."""

    def __init__(
        self,
        store: Store,
        live: Mapping[str, Job],
        endpoints: Collection[str],
        *,
        open_job: Callable[[str], Awaitable[Job | None]],
        forget: Callable[[Job], None],
    ) -> None:
        """Create the object for a process that owns no job yet.

        Args:
            store: Store of the jobs.
            live: Unfinished jobs that this process has opened, by id.
            endpoints: Endpoints that this process knows, even if it runs no functions.
            open_job: Function that reopens a job that this process owns, adds it to `live`, and returns None if it has ended.
            forget: Function that stops a job without logging its end, and removes it from `live`.
        """
        self._store = store
        self._jobs = store.jobs
        self._replicas = store.replicas
        self._live = live
        self._endpoints = endpoints
        self._open = open_job
        self._forget = forget
        self._refused: set[str] = set()
        """Open jobs with an input that the code of this process rejects."""
        self._differences: deque[tuple[str, str]] = deque(maxlen=100)
        """Endpoint and reason of the latest rejections. Each pair is logged as a warning only once, however many jobs wait."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def _lock(self, job_id: str) -> asyncio.Lock:
        """Return the lock that is held while a job is opened or returned, so that two items cannot open it twice."""
        return self._locks.setdefault(job_id, asyncio.Lock())

    # ---- opening and returning -----------------------------------------------------------------------------------

    async def open_taken(self, entry: QueueEntry) -> Job | None:
        """Open the job of an item that was taken from the queue. Return None if the job has ended, or cannot be read."""
        try:
            async with self._lock(entry.job):
                job = self._live.get(entry.job) or await self._open(entry.job)
                return job if job is not None and await self._still_owns(job) else None
        except Exception as error:  # noqa: BLE001 - any error of one job, so that it does not stop the scheduler
            _log_failure(
                "job %s cannot be opened, so it does not run on this server now: %s", entry.job, error
            )
            return None

    async def _still_owns(self, job: Job) -> bool:
        """Check, before an item of an open job starts, whether this process still owns the job. If not, stop the job and return
        False: the new owner runs the item.

        Raises:
            StoreError: The lease of this process cannot be renewed. The item waits.
        """
        if self._replicas is None or await self._replicas.owns(job.id):
            return True
        self.lose(job.id)
        return False

    async def recover(self, job_id: str) -> None:
        """Open a job that another process has left, and return it to the queue.

        If the job cannot be opened, for example because its log is damaged, other jobs continue.

        Raises:
            StoreError: The store cannot be read or written at all.
        """
        try:
            async with self._lock(job_id):
                if job_id not in self._live and (job := await self._open(job_id)) is not None:
                    await self.return_to_queue(job)
        except Exception as error:  # noqa: BLE001 - any error of one job, so that it does not prevent the start
            await self._store.check()
            _log_failure(
                "job %s cannot be recovered, so it does not run; other jobs continue: %s", job_id, error
            )

    async def adopt(self) -> None:
        """Recover the jobs that `Jobs.adopt` returns. See `recover`."""
        for job_id in await self._jobs.adopt(self._endpoints):
            await self.recover(job_id)

    async def accepts(self, job: Job, entry: QueueEntry) -> bool:
        """Return whether the code of this process accepts the input of an item that was taken from the queue. If not, the job
        waits for another process: during a rolling deployment, one of the two versions may accept what the other rejects.

        Args:
            job: The open job of the item.
            entry: The item.
        """
        if job.id not in self._refused:
            try:
                reason = await job.refusal(entry.index)
                if reason is None:
                    return await self._still_owns(job) and job.waits(entry.index)
            except StoreError as error:
                # When the database is back, `Heartbeat` returns the item to the queue.
                _log.debug("an item of job %s cannot start now: %s", job.id, error)
                return False
            if job.id not in self._refused:  # Another item may have been rejected in the meantime.
                self._refused.add(job.id)
                difference = job.record.endpoint, reason
                is_new = difference not in self._differences
                if is_new:
                    self._differences.append(difference)
                message = (
                    "job %s item %d: the code of this server rejects the input, which another server has accepted, so the job "
                    "waits for another server: %s"
                )
                _log.log(logging.WARNING if is_new else logging.DEBUG, message, job.id, entry.index, reason)
        try:
            await self._jobs.refuse(job.id)
            async with self._lock(job.id):
                # While other items of the job run here, the job stays. `Heartbeat` returns it later.
                if self._live.get(job.id) is job and job.only_waits:
                    await self.return_to_queue(job)
        except (StoreError, HeadMovedError) as error:
            _log.debug("job %s cannot be returned to the queue now: %s", job.id, error)
        return False

    async def return_to_queue(self, job: Job) -> None:
        """Return an open job without running items to the queue. If one of its items starts in the meantime, or if only this
        process uses the store, the job stays open.
        """
        if self._replicas is None:
            await self._store.queue.put(job.waiting_entries)
            return
        await job.commit()
        # An item may have started during the commit. Its queue entry is gone, and after a release no server would run it.
        if not job.only_waits:
            return
        # From now on, a request for this job finds no open job here, and waits for the lock.
        entries = job.waiting_entries
        self._forget(job)
        if job.id in self._refused:
            self._refused.discard(job.id)
            await self._jobs.refuse(job.id)  # The first call may have failed.
        await self._jobs.release(job.id, entries)

    async def put_again(self, job: Job) -> None:
        """Add the waiting items of an open job to the queue, if they are missing there. If this process refuses the job's
        items, return the job to the queue instead.
        """
        if job.id in self._refused:
            await self.return_to_queue(job)
        elif entries := job.waiting_entries:
            await self._store.queue.put(entries)

    def lose(self, job_id: str, error: HeadMovedError | None = None) -> None:
        """Stop a job that another process has adopted, or whose log was deleted.

        Args:
            job_id: Id of the job.
            error: Error with which the log has rejected a block, or None if the reason is already in the server's log.
        """
        job = self._live.get(job_id)
        if job is not None:
            if error is not None:
                cause = "the log rejected its writer" if self._replicas is None else ADOPTED_ELSEWHERE
                _log.warning("job %s: %s, so this server stops it: %s", job_id, cause, error)
            self._refused.discard(job_id)
            self._forget(job)

    # ---- requests ------------------------------------------------------------------------------------------------

    async def cancel_elsewhere(self, record: JobRecord, items: list[int] | None) -> bool:
        """Cancel items of a job that this process does not run. See `JobService.cancel` for the arguments and the result.

        Raises:
            StoreError: The cancellation cannot be stored. Nothing was cancelled.
        """
        if self._replicas is None:
            return False
        # If this process does not know the endpoint, it can end the whole job, but cannot continue the other items.
        can_open = record.endpoint in self._endpoints or items is None
        if items is None:
            log = await self._jobs.log(record.id)
            if log is None:
                return False
            items = list(range((await log.state()).view.length("/items")))
        # If the job has lost its process, opening it begins a new attempt, in which only items whose cancellation is stored keep
        # their values.
        if not await self._jobs.save_cancelled(record.id, items):
            return False
        async with self._lock(record.id):
            if (opened := self._live.get(record.id)) is not None:
                await opened.cancel(items)
            elif can_open and await self._jobs.claim(record.id):
                job = await self._open(record.id)
                if job is not None and not job.finished.is_set():
                    await self.return_to_queue(job)
        return True

    async def end_elsewhere(self, record: JobRecord) -> None:
        """End a job that this process does not run, because it will be deleted. If another process runs it, that process ends
        it soon, and its readers receive `done` even if the job has a tombstone already.
        """
        if self._replicas is None:
            return
        if record.endpoint not in self._endpoints:
            # Store a request to delete the job. Otherwise its items would fail when the job is opened, because their endpoint
            # is unknown.
            await self._jobs.save_cancelled(record.id, (), purge=True)
        async with self._lock(record.id):
            job = self._live.get(record.id)
            claimed = job is None and await self._jobs.claim(record.id)
            if claimed:
                job = await self._open(record.id)
            if job is not None:
                await job.end_at_once()
            if claimed or job is not None:
                return
        log = await self._jobs.log(record.id)
        if log is not None and await self._jobs.save_cancelled(record.id, (), purge=True):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PURGE_SECONDS):
                    await end_of(log)

    async def serve_requests(self, owned: OwnedJob) -> None:
        """Apply the cancellations and deletions of a job that runs here, which clients have requested from other processes.
        Repeated requests have no effect.
        """
        job = self._live.get(owned.id)
        if job is None:
            return
        if owned.purge:
            await job.end_at_once()
            await self._jobs.delete_job(job.id)
        elif cancelled := owned.cancelled.intersection(job.unfinished()):
            await job.cancel(sorted(cancelled))
