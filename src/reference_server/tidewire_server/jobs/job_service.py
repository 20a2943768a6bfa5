"""The job service submits, recovers, finds, cancels and deletes jobs.

It owns the store, the scheduler, the cleanup task, the watchdog of the event loop and the shutdown. If several processes share
the store, it also renews the lease of this process and adopts the jobs of stopped processes. The HTTP routes call the service.
The service itself does not depend on HTTP.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

import orjson

from tidewire.protocol.document import Document
from tidewire.protocol.messages import Queue as QueueMessage
from tidewire.protocol.wire_model import MessageError
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import refuse
from tidewire_server.job_log.append_retries import AppendRetries, append
from tidewire_server.job_log.commit_schedule import GroupCommit
from tidewire_server.job_log.log_writer import LogWriter
from tidewire_server.job_log.snapshot_events import first_block, next_epoch
from tidewire_server.jobs.admission.admitted_job import AdmittedJob
from tidewire_server.jobs.admission.input_memory_limit import InputMemoryLimit
from tidewire_server.jobs.admission.job_submitter import JobSubmitter, Submitted
from tidewire_server.jobs.admission.new_job import PreparedJob
from tidewire_server.jobs.admission.stream_limit_and_unread_jobs import StreamReaders
from tidewire_server.jobs.admission.stream_tokens import StreamTokens
from tidewire_server.jobs.job import Job
from tidewire_server.jobs.job_cleanup import JobCleanup
from tidewire_server.jobs.job_resource import encode_job
from tidewire_server.jobs.job_scheduler import JobScheduler
from tidewire_server.jobs.loop_watchdog import LoopWatchdog
from tidewire_server.jobs.outcomes import RESERVED_END_BYTES, end_line
from tidewire_server.jobs.publish_ephemeral_events import publish_position_of_waiting_job
from tidewire_server.jobs.recovery import admit_again, recovery_plan_of
from tidewire_server.jobs.replicas.heartbeat import BEAT_SECONDS, Heartbeat
from tidewire_server.jobs.replicas.job_ownership import JobOwnership
from tidewire_server.jobs.replicas.live_workers import LiveWorkers
from tidewire_server.jobs.shared_texts import SharedText, SharedTexts
from tidewire_server.jobs.shutdown import Shutdown
from tidewire_server.metrics import Metrics
from tidewire_server.principals import may_use
from tidewire_server.settings import Settings, share_of
from tidewire_server.store.jobs_interface import Interrupted
from tidewire_server.store.log_interface import Log, LogReader
from tidewire_server.store.records import JobRecord, QueueEntry, Tombstone
from tidewire_server.store.store_errors import HeadMovedError, StoreError
from tidewire_server.store.store_interface import Store

_log = logging.getLogger(__name__)
X = TypeVar("X")


class JobService:
    """Service for the jobs of one server. It must be created and used on one event loop."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        settings: Settings,
        metrics: Metrics,
        store: Store,
        *,
        share: float = 1.0,
        functions: bool = True,
    ) -> None:
        """Create the service. It does not run before `start` is called.

        Args:
            endpoints: All endpoints by name.
            settings: The server's settings.
            metrics: Metrics that the service updates.
            store: Store of the jobs, which the service closes.
            share: Fraction of the queue, of the memory for inputs and unread texts, and of the worker threads that one
                principal may use.
            functions: Whether this process runs functions. If not, another process that shares the store must run them.
        """
        self.endpoints = dict(endpoints)
        self.settings = settings
        self.metrics = metrics
        for name in self.endpoints:
            metrics.begin_at_zero(name)
        self.store = store
        self._functions = functions
        configured = settings.stream_token_secret
        secret = store.secret if configured is None else configured.encode()
        self.stream_tokens = StreamTokens(secret, settings.stream_token_ttl)
        self.texts = SharedTexts(settings.max_unsent_bytes, share_of(settings.max_unsent_bytes, share))
        """Large texts that readers share."""
        self._live: dict[str, Job] = {}
        self._requests: set[asyncio.Task[Any]] = set()
        self._retries = AppendRetries()
        self.inputs = InputMemoryLimit(settings.max_input_bytes, share_of(settings.max_input_bytes, share))
        self.readers = StreamReaders(settings.max_streams_per_principal, metrics.open_streams)
        self._cleanup = JobCleanup(store.jobs, store.sweep_interval)
        self._turn = asyncio.Lock()
        """Lock with which `StoredInputs` lets other tasks run between two checks of inputs."""
        self._ownership = JobOwnership(
            store, self._live, self.endpoints, open_job=self._open, forget=self._forget
        )
        self.workers = LiveWorkers()
        self._commits = GroupCommit(metrics.logged, max(settings.merge_window, store.merge_window))
        self.scheduler = JobScheduler(
            self.store.queue,
            self.endpoints,
            settings,
            start=self._run_item,
            find=lambda entry: self._live.get(entry.job),
            open_job=self._ownership.open_taken,
            check_input=None if store.replicas is None else self._ownership.accepts,
            announce=self._announce,
            shared=store.replicas is not None,
            share=share,
            functions=functions,
            workers=self.workers,
        )
        self.shutdown = Shutdown(
            self._live,
            self.readers,
            self.scheduler.stop,
            durable=store.durability != "process",
            retry=settings.retry,
            release=None if store.replicas is None else self._ownership.return_to_queue,
            leave_store=None if store.replicas is None else self._leave_store,
        )
        self._submitter = JobSubmitter(
            store.jobs,
            self.scheduler,
            self.shutdown,
            self.inputs,
            settings,
            metrics,
            find=self.find,
            activate=self._activate_new,
        )
        self._heartbeat: Heartbeat | None = None
        if store.replicas is not None:
            self._heartbeat = Heartbeat(
                store.replicas,
                self._ownership,
                self._live,
                self.readers,
                self.workers,
                outage_timeout=settings.store_outage_timeout,
                draining=lambda: self.shutdown.began,
                on_beat=self._publish_positions,
            )
        self._watchdog = LoopWatchdog(self.scheduler.take_active)

    async def start(self) -> None:
        """Recover interrupted jobs and start the background tasks. This method must have finished before the first
        request. No item runs before `resume` is called.

        Raises:
            StoreError: The store cannot be read or written.
            WorkersUnavailableError: The workers of an endpoint cannot be started.
        """
        for endpoint in self.endpoints.values():
            if self._functions and endpoint.workers is not None:
                await endpoint.workers.start(self.settings.cancel_timeout)
            if endpoint.start is not None:
                await endpoint.start()
        if self._heartbeat is None:
            await self._ownership.adopt()
        else:
            await self._heartbeat.start()
        self._cleanup.start()
        self._watchdog.start()

    async def resume(self) -> None:
        """Start waiting items. From now on, functions of the endpoints are called."""
        if not self.shutdown.began:
            await self.scheduler.start_restored()

    # ---- submit ------------------------------------------------------------------------------------------------

    async def submit(self, principal: str, endpoint: Endpoint, body: bytes, key: str | None) -> Submitted:
        """Submit a job. When this method returns, the job, its first snapshot and its idempotency key are committed.

        Raises:
            ProblemError: The job is rejected.
        """
        return await self._submitter.submit(principal, endpoint, body, key)

    def max_inputs(self, endpoint: Endpoint) -> int:
        """Return the maximum number of inputs in one job of an endpoint."""
        return self._submitter.max_inputs(endpoint)

    # ---- running and recovery ----------------------------------------------------------------------------------

    def _activate_new(self, admitted: AdmittedJob, prepared: PreparedJob, log: Log) -> None:
        self._activate(prepared.new.record, admitted, prepared.columns, log, prepared.document, prepared.size)

    def _activate(
        self,
        record: JobRecord,
        admitted: AdmittedJob,
        columns: list[list[str]],
        log: Log,
        document: Document,
        size: int,
        *,
        crashed: bool = False,
    ) -> Job:
        """Create the `Job` object for a job's record. The argument `document` is the current state of the job, and `size` is
        its size in bytes. See `Interrupted` for `crashed`.
        """
        settings, submission = self.settings, admitted.submission
        reserve = RESERVED_END_BYTES * len(columns)
        log_writer = LogWriter(
            log,
            document,
            settings,
            state_bytes=size,
            reserve=reserve,
            commits=self._commits,
            on_lost=partial(self._ownership.lose, record.id),
        )
        self._live[record.id] = job = Job(
            record,
            admitted.endpoint,
            admitted.values,
            columns,
            log_writer,
            log,
            settings,
            stored=admitted.stored,
            crashed=crashed,
            discard=self.scheduler.discard,
            on_item_start=self._on_item_start,
            on_item_end=self.shutdown.item_ended,
            on_end=self._on_end,
            restart=partial(self._restart, admitted),
            loop_ends=lambda: self._cleanup.is_cancelled,
        )
        grace = submission.grace_of_job(settings.min_grace)
        if grace is not None:
            unread = partial(self._cancel_if_unread, job, grace)
            self.readers.watch(record.id, grace, lambda: job.in_background(unread()))
        if submission.deadline is not None:
            job.set_deadline(submission.deadline)
        return job

    async def _open(self, job_id: str) -> Job | None:
        """Reopen an unfinished job that this process owns, and continue its log as `recovery` describes. Its waiting items
        are not put into the queue.

        Returns:
            The job, or None if it has ended.
        """
        try:
            interrupted = await self.store.jobs.reopen(job_id)
            if interrupted is None:
                return None
            admitted, reason = await admit_again(interrupted, self.endpoints, self.store, self._turn)
            return await self._continue(interrupted, admitted, reason, None)
        except StoreError:
            if self.store.replicas is not None and job_id not in self._live:
                self.store.replicas.stop_writing(job_id)
            raise

    async def _continue(
        self,
        interrupted: Interrupted,
        admitted: AdmittedJob,
        reason: str | None,
        retries: AppendRetries | None,
    ) -> Job | None:
        """Continue the log of an interrupted job by the rules of the module `recovery`.

        Args:
            interrupted: The job.
            admitted: The endpoint and the inputs of the job.
            reason: See `recovery_plan_of`.
            retries: If set, a write that the store refuses is repeated.

        Returns:
            See `_open`.
        """
        record, log = interrupted.record, interrupted.log
        plan = await recovery_plan_of(interrupted, admitted, self.settings, self.store, reason)
        head = log.extent().head
        if plan.reason is None:
            document, size = Document(plan.state, plan.at.columns), len(orjson.dumps(plan.state))
        else:
            record.attempt += plan.reason == "restart"
            record.status = plan.state["status"]
            block, document, size = first_block(plan.state, plan.at.columns, next_epoch(head), plan.reason)
            await (log.append(head, block) if retries is None else append(log, head, block, retries))
            self.metrics.logged(1, len(block.frames[0]))
        # If the inputs are not validated yet, the columns of an item are set when its input is checked.
        items = plan.state["items"]
        columns = [admitted.endpoint.columns(value) for value in admitted.values] or [[] for _ in items]
        job = self._activate(record, admitted, columns, log, document, size, crashed=interrupted.crashed)
        self.inputs.add(record.id, record.principal, admitted.submission.size)
        job.restore(items, plan.at.view)
        grace = admitted.submission.grace_of_job(self.settings.min_grace)
        unread = grace is not None and record.id not in self.readers.jobs() and interrupted.unread >= grace
        await job.end_items(job.unfinished() if unread else interrupted.cancelled, "cancelled")
        if interrupted.purge:
            await self.store.jobs.delete_job(record.id)
        await job.end_items(plan.failing, "failed", plan.error)
        return None if job.finished.is_set() else job

    async def _restart(self, admitted: AdmittedJob, job: Job) -> None:
        """Begin a new attempt of a running job whose worker is lost, and return its unfinished items to the queue."""
        try:
            await job.interrupt()
            cancelled = job.cancelled_items
            self.inputs.release(job.id)
            self.readers.unwatch(job.id)
            interrupted = Interrupted(job.record, b"", job.log, cancelled, crashed=True)
            # If no other process uses the store, retry: no server would find the job after a short failure, such as a full
            # disk.
            retries = self._retries if self.store.replicas is None else None
            restarted = await self._continue(interrupted, admitted, None, retries)
        except (StoreError, HeadMovedError) as error:
            _log.error("job %s: cannot begin a new attempt: %s", job.id, error)
            self._forget(job)
            return
        finally:
            job.finished.set()
        if restarted is None:
            return
        # Apply the cancellations that arrived during the restart.
        await restarted.cancel(sorted(job.cancelled_items - cancelled))
        try:
            if self.store.replicas is None:
                await self.scheduler.requeue(restarted)
            else:
                await self._ownership.return_to_queue(restarted)
        except (StoreError, HeadMovedError) as error:  # `Heartbeat` finds the job later, and recovers it.
            _log.error("job %s: cannot be returned to the queue now: %s", job.id, error)
        self.shutdown.item_ended(restarted)

    # ---- jobs --------------------------------------------------------------------------------------------------

    async def find(self, principal: str, job_id: str) -> JobRecord:
        """Find a job that a principal may use.

        Raises:
            ProblemError: The job is unknown (404) or deleted (410).
        """
        found = await self.store.jobs.get(job_id)
        if found is None or not may_use(principal, found.principal):
            raise refuse("job_not_found", f"job {job_id[:80]!r} does not exist")
        if isinstance(found, Tombstone):
            raise refuse("job_expired", f"job {job_id} was deleted, or its retention time is over")
        return found

    async def log(self, record: JobRecord) -> LogReader:
        """Return the log of a job.

        Raises:
            ProblemError: The job was deleted in the meantime.
        """
        log = await self.store.jobs.log(record.id)
        if log is None:
            raise refuse("job_expired", f"job {record.id} was deleted, or its retention time is over")
        return log

    async def encoded_resource(self, record: JobRecord, root: str) -> list[SharedText]:
        """Encode a job and its state for the response to a client. The returned texts form the JSON body when they are joined.

        Raises:
            StoreError: The stored state cannot be read, or is damaged.
        """
        log = await self.log(record)
        if record.done is not None:
            self.shutdown.expected.answered(record.id)
        try:
            return await encode_job(record, log, root, self.texts)
        except (MessageError, LookupError, TypeError):
            raise StoreError(
                f"the stored state of job {record.id} does not match the protocol, so the log is damaged"
            ) from None

    async def cancel(self, record: JobRecord, items: list[int] | None) -> bool:
        """Cancel some items of a job, or the whole job if `items` is None. Return whether the job was unfinished before
        this call.

        The cancellation is recorded first. A restart of the server therefore cannot undo it, even if the functions of the
        cancelled items have not returned yet.

        Raises:
            StoreError: The cancellation cannot be recorded. Nothing was cancelled.
        """
        return await self._to_the_end(self._cancel(record, items))

    async def _cancel(self, record: JobRecord, items: list[int] | None) -> bool:
        job = self._live.get(record.id)
        if job is None:
            return await self._ownership.cancel_elsewhere(record, items)
        if unfinished := job.unfinished(items):
            await self.store.jobs.save_cancelled(record.id, unfinished)
        if job.record.done is not None:
            return False  # the job has ended in the meantime
        # A new attempt of the job may have begun in the meantime.
        await self._live.get(record.id, job).cancel(items)
        return True

    async def purge(self, record: JobRecord) -> None:
        """Delete a job. An unfinished job is cancelled first, as by `cancel`, so that its readers still receive `done`."""
        await self._to_the_end(self._purge(record))

    async def _purge(self, record: JobRecord) -> None:
        job: Job | None = None
        # A new attempt of the job may begin while this loop ends the previous one.
        while (latest := self._live.get(record.id)) is not None and latest is not job:
            job = latest
            # Store the cancellation. Otherwise, if the store refuses writes, the request would wait until `done` can be logged.
            await self.store.jobs.save_cancelled(record.id, job.unfinished())
            await job.end_at_once()
        if job is None or job.record.done is None:
            await self._ownership.end_elsewhere(record)
        await self.store.jobs.delete_job(record.id)
        self.shutdown.expected.answered(record.id)
        self._cleanup.wake()

    async def _to_the_end(self, work: Coroutine[Any, Any, X]) -> X:
        """Run a coroutine for a request to its end, even if the request is cancelled. Otherwise, a job could stay partly ended."""
        task = asyncio.get_running_loop().create_task(work)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        return await asyncio.shield(task)

    async def outcome(self, record: JobRecord) -> Job | None:
        """Wait until a job of this process has ended. Return the job, or None if the job had already ended before the call."""
        job = self._live.get(record.id)
        waited = None
        while job is not None and job is not waited:  # a new attempt of the job is another object
            await job.finished.wait()
            job, waited = self._live.get(record.id), job
        return waited

    # ---- callbacks --------------------------------------------------------------------------------------------

    def _on_item_start(self, job: Job) -> None:
        if job.record.started_at is None:
            self.metrics.add(self.metrics.jobs_started, 1, job.record.endpoint)
        self.metrics.add(self.metrics.items_started, 1, job.record.endpoint)

    def _run_item(
        self, entry: QueueEntry, free: Callable[[], Coroutine[Any, Any, None]]
    ) -> Coroutine[Any, Any, bool | None]:
        if self.store.replicas is not None:
            return self._run_if_accepted(entry, free)
        job = self._live.get(entry.job)
        return free() if job is None else job.run_item(entry.index, free)

    async def _run_if_accepted(
        self, entry: QueueEntry, free: Callable[[], Coroutine[Any, Any, None]]
    ) -> bool:
        job = self._live.get(entry.job)
        if job is None or not (job.has_input(entry.index) or await self._ownership.accepts(job, entry)):
            return False
        # If the scheduler was stopped in the meantime, the item and its job wait for another process.
        return not self.scheduler.stopped and await job.run_item(entry.index, free)

    def _announce(self, job_id: str, message: QueueMessage) -> bool:
        """Publish the queue position of a job. Return False if this process does not keep the position for later readers."""
        job = self._live.get(job_id)
        if job is not None:
            job.announce(message)
        elif self.store.replicas is not None:
            log = self.store.jobs.log_in_use(job_id)
            if log is None:
                return False
            publish_position_of_waiting_job(log, message)
        return True

    def _publish_positions(self) -> None:
        """Publish the positions of jobs that wait in the shared queue, if this process has readers of such jobs."""
        if not self.readers.jobs() <= self._live.keys():
            self.scheduler.publish_positions(self.readers.take_joined())

    async def _cancel_if_unread(self, job: Job, grace: float) -> None:
        """Cancel a job that has had no reader at this process for its grace period, unless it had a reader at another process."""
        left = 0.0
        if self.store.replicas is not None:
            try:
                left = grace - await self.store.replicas.unread_for(job.id)
            except StoreError:
                left = BEAT_SECONDS
        if left > 0:
            self.readers.postpone(job.id, left)
        else:
            await job.cancel()

    def _forget(self, job: Job) -> None:
        """Stop a job without logging its end, because another process continues it, or because it was deleted."""
        self._live.pop(job.id, None)
        job.suspend()
        self.inputs.release(job.id)
        self.readers.unwatch(job.id)

    def _on_end(self, job: Job) -> None:
        record = job.record
        self._live.pop(record.id, None)
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s", end_line(record, job.size))
        self.inputs.release(record.id)
        self.readers.unwatch(record.id)
        self.metrics.add(self.metrics.jobs_ended, 1, record.endpoint, record.status)
        self._cleanup.wake()

    # ---- shutdown ----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop the service. Unfinished jobs are suspended if the store is persistent. Otherwise they fail."""
        self._retries.stop()
        functions = self.scheduler.stop()
        await self.shutdown.end_jobs()
        if functions:
            await asyncio.wait(functions, timeout=self.settings.cancel_timeout)
        for endpoint in self.endpoints.values():
            if endpoint.workers is not None:
                await endpoint.workers.close()
        await self.shutdown.close_streams()
        self._watchdog.stop()
        await self._cleanup.stop()
        # If `start` failed, some interrupted jobs are not recovered yet. The shutdown must then not be recorded as
        # clean.
        await self.store.close(clean=self._cleanup.started)

    async def _leave_store(self) -> None:
        """Let other processes adopt the suspended jobs of this process."""
        assert self._heartbeat is not None  # noqa: S101 - as the store has replicas
        assert self.store.replicas is not None  # noqa: S101 - guaranteed by the caller
        await self._heartbeat.stop()
        if self._cleanup.started:
            await self.store.replicas.leave()
