"""Submission of jobs (`JobSubmitter`): idempotency keys, limits, validation, and the commit of a new job with its queue entries."""

import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from tidewire_server import tracing
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import ProblemError, refuse
from tidewire_server.jobs.admission.admitted_job import AdmittedJob
from tidewire_server.jobs.admission.input_memory_limit import InputMemoryLimit
from tidewire_server.jobs.admission.new_job import PreparedJob, prepare_job
from tidewire_server.jobs.admission.submit_body import admit_inputs, read_submit
from tidewire_server.jobs.job_scheduler import JobScheduler
from tidewire_server.jobs.shutdown import Shutdown
from tidewire_server.metrics import Metrics
from tidewire_server.principals import CALLER
from tidewire_server.settings import Settings
from tidewire_server.store.jobs_interface import Jobs
from tidewire_server.store.log_interface import Log
from tidewire_server.store.records import JobRecord, Key
from tidewire_server.store.store_errors import KeyUsedError, QueueFullError, TooManyJobsError

_log = logging.getLogger(__name__)


class Submitted(NamedTuple):
    """Job that a request has submitted.

    `replayed` is true if an earlier request with the same idempotency key created the job.
    """

    record: JobRecord
    replayed: bool = False


@dataclass(slots=True)
class _Submitting:
    """Progress of a request that submits a job. The commit of the job may outlast the request."""

    reserves: bool = True
    """Whether the request reserves input memory. False if it has ended, or if the job counts the memory instead."""


class JobSubmitter:
    """Submission of the jobs of one server. All methods must be called on one event loop."""

    def __init__(
        self,
        jobs: Jobs,
        scheduler: JobScheduler,
        shutdown: Shutdown,
        inputs: InputMemoryLimit,
        settings: Settings,
        metrics: Metrics,
        *,
        find: Callable[[str, str], Awaitable[JobRecord]],
        activate: Callable[[AdmittedJob, PreparedJob, Log], object],
    ) -> None:
        """Create the submitter of one server.

        Args:
            jobs: Jobs of the store.
            scheduler: Scheduler that starts the items.
            shutdown: Shutdown of the server. After it has begun, jobs are rejected.
            inputs: Limit on the memory that inputs use.
            settings: The server's settings.
            metrics: Metrics that are updated.
            find: Function that finds the job of an earlier request, by principal and id.
            activate: Function that is called when a new job was committed, before its items can start.
        """
        self._jobs = jobs
        self._scheduler = scheduler
        self._shutdown = shutdown
        self._inputs = inputs
        self._settings = settings
        self._metrics = metrics
        self._find = find
        self._activate = activate
        self._in_flight: dict[Key, bytes] = {}
        """Idempotency keys of requests that this process is processing, with the SHA-256 of their bodies. These keys are not
        stored: if the process ends, a client can retry its request with the same key.
        """

    def max_inputs(self, endpoint: Endpoint) -> int:
        """Return the maximum number of inputs in one job of an endpoint. All items of a job must fit into the queue."""
        return int(min(self._settings.max_inputs, self._scheduler.max_items(endpoint.name)))

    async def submit(self, principal: str, endpoint: Endpoint, body: bytes, key: str | None) -> Submitted:
        """Submit a job. When this method returns, the job, its first snapshot and its idempotency key are committed.

        Raises:
            ProblemError: The job is rejected.
        """
        with tracing.submitting(endpoint.name):
            submitted = await self._with_key(principal, endpoint, body, key)
            tracing.accepted(submitted.record, replayed=submitted.replayed)
        self._shutdown.expected.submitted(submitted.record.id)
        return submitted

    async def _with_key(self, principal: str, endpoint: Endpoint, body: bytes, key: str | None) -> Submitted:
        if key is None:
            return Submitted(await self._create(principal, endpoint, body, None))
        scoped, digest = Key(principal, endpoint.name, key), hashlib.sha256(body).digest()
        use, known = None, self._in_flight.get(scoped)
        if known is None:
            # Do this before the first await. Otherwise two concurrent requests with the same key could both continue.
            self._in_flight[scoped] = digest
            try:
                use = await self._jobs.find_key(scoped)
                if use is None:
                    return Submitted(await self._create(principal, endpoint, body, (scoped, digest)))
            except KeyUsedError as error:
                use = error.use
            finally:
                del self._in_flight[scoped]
            known = use.body
        if known != digest:
            raise refuse(
                "idempotency_key_reused",
                "this Idempotency-Key was already used for a request with a different body; use a new key",
            )
        if use is None:
            raise refuse(
                "idempotency_in_flight",
                "an earlier request with this Idempotency-Key is still being processed; wait, and then retry",
            )
        return Submitted(await self._find(principal, use.job), replayed=True)

    async def _create(
        self, principal: str, endpoint: Endpoint, body: bytes, key: tuple[Key, bytes] | None
    ) -> JobRecord:
        self._refuse_while_draining()
        if (reason := endpoint.unavailable()) is not None:
            raise refuse("unavailable", reason)
        settings = self._settings
        CALLER.set(principal)
        limit = settings.max_jobs_per_principal
        if await self._jobs.unfinished(principal) >= limit:
            raise _too_many_jobs(limit)
        submission = read_submit(
            body, max_inputs=self.max_inputs(endpoint), max_values=settings.max_body_values
        )
        submitting = _Submitting()
        self._inputs.reserve(principal, submission.size)
        try:
            values = await admit_inputs(endpoint, submission)
            if len(values) > (most := self.max_inputs(endpoint)):
                detail = f"/input: {len(values)} samples, but this endpoint runs at most {most} items per job"
                raise refuse("batch_too_large", detail, pointer="/input", limit=most)
            # Check again, because the shutdown may have begun in the meantime.
            self._refuse_while_draining()
            admitted = AdmittedJob(endpoint, submission, values)
            return await self._commit_job(principal, admitted, body, key, submitting)
        except TooManyJobsError:
            raise _too_many_jobs(limit) from None
        except QueueFullError as error:
            raise self._scheduler.refusal(endpoint.name, error, len(values)) from None
        finally:
            if submitting.reserves:
                submitting.reserves = False
                self._inputs.cancel(principal, submission.size)

    def _refuse_while_draining(self) -> None:
        if self._shutdown.began:
            raise refuse("unavailable", "this server is shutting down and accepts no new jobs")

    async def _commit_job(
        self,
        principal: str,
        admitted: AdmittedJob,
        body: bytes,
        key: tuple[Key, bytes] | None,
        submitting: _Submitting,
    ) -> JobRecord:
        """Commit a job with validated inputs, together with its items in the queue.

        Raises:
            KeyUsedError: Another job has the idempotency key.
            TooManyJobsError: The principal has too many unfinished jobs.
            QueueFullError: The queue has no room for the items.
        """
        endpoint, submission = admitted.endpoint, admitted.submission
        prepared = prepare_job(
            principal, admitted, body, key, self._settings, self._scheduler.limits(endpoint.name)
        )
        new, (record, entries) = prepared.new, (prepared.new.record, prepared.new.entries)

        def own(log: Log) -> None:
            self._activate(admitted, prepared, log)
            self._inputs.add(record.id, principal, submission.size)
            if submitting.reserves:
                submitting.reserves = False
                self._inputs.cancel(principal, submission.size)
            else:  # The client has disconnected during the commit.
                self._scheduler.start_soon(endpoint.name)

        await self._jobs.add(new, own)
        self._metrics.add(self._metrics.jobs_submitted, 1, endpoint.name)
        _log.debug("job %s: %s submitted", record.id, endpoint.name)
        self._metrics.logged(1, len(new.first.frames[0]))
        await self._scheduler.added(entries)
        return record


def _too_many_jobs(limit: int) -> ProblemError:
    return refuse(
        "too_many_jobs",
        f"this principal already has {limit} unfinished jobs, which is the limit (max_jobs_per_principal)",
    )
