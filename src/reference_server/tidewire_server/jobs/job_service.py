"""What runs inside one event loop: the store, the scheduler, the jobs that have not ended, and what clears up.

Routes ask it for things; it knows nothing of HTTP.
"""

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import orjson
from pydantic import JsonValue

from tidewire.protocol.diff import DiffError
from tidewire.protocol.document import Document
from tidewire.protocol.messages import Queue as QueueMessage
from tidewire.protocol.problems import problem
from tidewire.protocol.resources import JobResource
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import refuse
from tidewire_server.jobs.admission.input_memory_limit import InputMemoryLimit
from tidewire_server.jobs.admission.stream_limit_and_unread_jobs import StreamReaders
from tidewire_server.jobs.admission.stream_tokens import StreamTokens
from tidewire_server.jobs.admission.submit_body import admit_inputs, read_submit
from tidewire_server.jobs.job import Job
from tidewire_server.jobs.job_resource import read_job
from tidewire_server.jobs.job_scheduler import JobScheduler
from tidewire_server.jobs.loop_watchdog import LoopWatchdog
from tidewire_server.jobs.outcomes import ROOM_FOR_END
from tidewire_server.jobs.recovery import AdmittedJob, admit_again, complete_record, recovery_plan_of
from tidewire_server.jobs.retention import JobCleanup
from tidewire_server.log_writer.commit_schedule import GroupCommit
from tidewire_server.log_writer.log_writer import LogWriter, epoch_block, first_block
from tidewire_server.metrics import Metrics
from tidewire_server.settings import Settings
from tidewire_server.store.interfaces import JobRecord, Key, Log, LogReader, QueueEntry, Store, Tombstone


class ClosableStream(Protocol):
    """A stream that can be told to end."""

    def go_away(self) -> None:
        """Ask the reader to come back later, and close."""
        ...


@dataclass(frozen=True, slots=True)
class Submitted:
    """What a submit led to."""

    record: JobRecord
    replayed: bool = False


class JobService:
    """One server's doings. Made and used on one event loop."""

    def __init__(
        self, endpoints: Mapping[str, Endpoint], settings: Settings, metrics: Metrics, store: Store
    ) -> None:
        self.endpoints = dict(endpoints)
        self.settings = settings
        self.metrics = metrics
        self.store = store
        named = settings.stream_token_secret
        secret = store.secret if named is None else named.encode()
        self.stream_tokens = StreamTokens(secret, settings.stream_token_ttl)
        self.draining = False
        self.streams: set[ClosableStream] = set()
        """The streams that are open."""
        self._live: dict[str, Job] = {}
        self.inputs = InputMemoryLimit(settings.max_input_bytes)
        self.readers = StreamReaders(settings.max_streams_per_principal, metrics.open_streams)
        self._clearing = JobCleanup(store.jobs)
        self._loop = asyncio.get_running_loop()
        self._commits = GroupCommit(metrics.logged, settings.merge_window)
        self._scheduler = JobScheduler(
            self.store.queue,
            self.endpoints,
            settings,
            start=self._run_item,
            find=lambda ticket: self._live.get(ticket.job),
            starting=self._starting,
            announce=self._announce,
        )
        self._standstill = LoopWatchdog(lambda: [name for name in self.endpoints if self.depth(name)[0]])

    async def start(self) -> None:
        """Take up what an earlier server left, before any request is answered.

        Raises:
            StoreError: The store cannot be read, or not written.
        """
        for job in await self.store.jobs.interrupted():
            await self._take_up(job)
        self._clearing.begin()
        self._standstill.begin()

    # ---- submit ------------------------------------------------------------------------------------------------

    async def submit(self, principal: str, endpoint: Endpoint, body: bytes, key: str | None) -> Submitted:
        """Take a job in. It is committed, with its first snapshot and its key, when this returns.

        Raises:
            ProblemError: It is refused.
        """
        if self.draining:
            raise refuse("unavailable", "this server is shutting down")
        if key is None:
            return Submitted(await self._create(principal, endpoint, body, None))
        scoped = Key(principal, endpoint.name, key)
        use = await self.store.jobs.reserve(scoped, digest := hashlib.sha256(body).digest())
        if use is None:
            try:
                return Submitted(await self._create(principal, endpoint, body, scoped))
            except BaseException:
                await self.store.jobs.release(scoped)
                raise
        if use.body != digest:
            raise refuse("idempotency_key_reused", "take a new Idempotency-Key for another body")
        if use.job is None:
            raise refuse("idempotency_in_flight", "wait, then repeat the request")
        return Submitted(await self.find(principal, use.job), replayed=True)

    def max_inputs(self, endpoint: Endpoint) -> int:
        """How many inputs one job of an endpoint may have: no more than its queue could ever take."""
        return int(min(self.settings.max_inputs, self._scheduler.max_items(endpoint.name)))

    async def _create(self, principal: str, endpoint: Endpoint, body: bytes, key: Key | None) -> JobRecord:
        settings = self.settings
        submission = read_submit(body, max_inputs=self.max_inputs(endpoint))
        values = await admit_inputs(endpoint, submission)
        if await self.store.jobs.unfinished(principal) >= settings.max_jobs_per_principal:
            limit = settings.max_jobs_per_principal
            raise refuse(
                "too_many_jobs",
                f"{limit} of your jobs have not ended, no more may run (max_jobs_per_principal)",
            )
        with self.inputs.room_for(submission.size) as keep:
            record = await self._make(principal, AdmittedJob(endpoint, submission, values), body, key)
            if record.id in self._live:
                keep(record.id)
        return record

    async def _make(self, principal: str, what: AdmittedJob, body: bytes, key: Key | None) -> JobRecord:
        """Make a job of inputs that were admitted, and put them into the queue."""
        settings, endpoint, submission, values = self.settings, what.endpoint, what.submission, what.values
        let_go = self._scheduler.reserve(endpoint.name, len(values))
        try:
            items: list[JsonValue] = [
                {"status": "queued", "value": endpoint.initial(value)} for value in values
            ]
            columns = [endpoint.columns(value) for value in values]
            state: JsonValue = {"status": "queued", "items": items, "usage": {}, "notes": []}
            # A bare string or a row says not which item grows, so only a job of one item has columns.
            places = [f"/items/0/value{column}" for column in columns[0]] if len(values) == 1 else []
            try:
                block, document, size = first_block(state, places)
            except DiffError as error:
                raise RuntimeError(
                    f"endpoint {endpoint.name!r}: its initial value or columns: {error}"
                ) from None
            reserve = ROOM_FOR_END * len(values)
            if size + reserve > settings.max_state_bytes:
                detail = (
                    f"the first state alone takes {size} bytes: max_state_bytes is {settings.max_state_bytes}"
                )
                raise refuse("input_too_long", detail, pointer="/inputs" if submission.batch else "/input")
            record = JobRecord(secrets.token_hex(16), endpoint.name, principal, submission.batch, time.time())
            log = await self.store.jobs.add(record, body, block, key)
            job = self._begin(record, what, columns, log, document, size)
            self.metrics.add(self.metrics.jobs_submitted, 1, endpoint.name)
            self.metrics.logged(1, len(block.frames[0]))
            await self._scheduler.put(job.tickets)
        finally:
            let_go()
        return record

    def _begin(
        self,
        record: JobRecord,
        what: AdmittedJob,
        columns: list[list[str]],
        log: Log,
        document: Document,
        size: int,
    ) -> Job:
        """Make a job live whose items grow at these columns, and whose log stands at a document of so many bytes."""
        settings, submission = self.settings, what.submission
        reserve = ROOM_FOR_END * len(columns)
        journal = LogWriter(log, document, settings, state_bytes=size, reserve=reserve, commits=self._commits)
        self._live[record.id] = job = Job(
            record,
            what.endpoint,
            what.values,
            columns,
            journal,
            log,
            settings,
            discard=self._scheduler.discard,
            ended=self._ended,
        )
        if submission.cancel_on_disconnect:
            self.readers.watch(record.id, max(submission.grace, settings.min_grace), job.cancel_soon)
        if submission.deadline is not None:
            job.set_deadline(submission.deadline)
        return job

    async def _take_up(self, job_id: str) -> None:
        """Go on with a job that an earlier server left."""
        left = await self.store.jobs.reopen(job_id)
        if left is None:
            return
        record, log = left.record, left.log
        if log.extent().ended:
            await complete_record(record, log, self.settings.state_ttl)
            await self.store.jobs.save(record)
            return
        what, why = await admit_again(left, self.endpoints)
        course = await recovery_plan_of(left, what, self.settings, self.store, why)
        head = log.extent().head
        if course.reason is None:
            document, size = Document(course.state, course.columns), len(orjson.dumps(course.state))
        else:
            record.attempt += course.reason == "restart"
            record.status = course.status
            block, document, size = epoch_block(head, course.state, course.columns, course.reason)
            await log.append(head, block)
            self.metrics.logged(1, len(block.frames[0]))
        columns = [what.endpoint.columns(value) for value in what.values]
        job = self._begin(record, what, columns, log, document, size)
        self.inputs.hold(record.id, what.submission.size)
        waiting = job.restore(course.items)
        if course.fail is not None:
            await job.fail(course.fail, status=course.fail_status)
        elif not waiting:
            await job.fail(problem("worker_lost"))  # none is left to fail: its end alone is missing
        if waiting and not job.over.is_set():
            await self._scheduler.put(waiting)

    # ---- jobs --------------------------------------------------------------------------------------------------

    async def find(self, principal: str, job_id: str) -> JobRecord:
        """Look a caller's job up.

        Raises:
            ProblemError: There is none (404), or not any more (410).
        """
        found = await self.store.jobs.get(job_id)
        if found is None or found.principal != principal:
            raise refuse("job_not_found", f"there is no job {job_id[:80]!r}")
        if isinstance(found, Tombstone):
            raise refuse("job_expired", f"job {job_id} was purged, or its time is over")
        return found

    async def log(self, record: JobRecord) -> LogReader:
        """The log of a job.

        Raises:
            ProblemError: The job has gone meanwhile.
        """
        log = await self.store.jobs.log(record.id)
        if log is None:
            raise refuse("job_expired", f"job {record.id} was purged, or its time is over")
        return log

    async def resource(self, record: JobRecord, root: str, *, state: bool = True) -> JobResource:
        """A job as it is read: state, columns and cursor at one moment."""
        return await read_job(record, await self.log(record), root, state=state)

    async def cancel(self, record: JobRecord, items: list[int] | None) -> bool:
        """Cancel a job, or some of its items; whether it had not ended."""
        job = self._live.get(record.id)
        if job is None:
            return False
        await job.cancel(items)
        return True

    def items_of(self, record: JobRecord) -> int | None:
        """How many items a job has that has not ended; None where it has."""
        job = self._live.get(record.id)
        return None if job is None else len(job.tickets)

    async def purge(self, record: JobRecord) -> None:
        """Forget a job, and cancel it if it runs. Its readers get `done` first."""
        job = self._live.get(record.id)
        if job is not None:
            await job.abandon()
        await self.store.jobs.delete_job(record.id)
        self._clearing.look()

    async def outcome(self, record: JobRecord) -> Job | None:
        """Wait until a job has ended; the job, if it had not."""
        job = self._live.get(record.id)
        if job is not None:
            await job.over.wait()
        return job

    # ---- readers -----------------------------------------------------------------------------------------------

    def take_place(self, principal: str) -> Callable[[], None]:
        """Take a stream's place, before anything is promised to its caller; returns how to give it back.

        Raises:
            ProblemError: The caller has too many streams, or the server is shutting down.
        """
        if self.draining:
            raise refuse("unavailable", "this server is shutting down")
        return self.readers.take_place(principal)

    # ---- what the parts call -----------------------------------------------------------------------------------

    def _starting(self, ticket: QueueEntry) -> Job | None:
        """The job of an item that is about to run."""
        job = self._live.get(ticket.job)
        if job is not None:
            if job.record.started_at is None:
                self.metrics.add(self.metrics.jobs_started, 1, ticket.endpoint)
            self.metrics.add(self.metrics.items_started, 1, ticket.endpoint)
        return job

    async def _run_item(self, ticket: QueueEntry, free: Callable[[], Awaitable[None]]) -> None:
        job = self._starting(ticket)
        if job is not None:
            await job.run_item(ticket.index, free)

    def _announce(self, job_id: str, message: QueueMessage) -> None:
        job = self._live.get(job_id)
        if job is not None:
            job.announce(message)

    async def _ended(self, job: Job) -> None:
        record = job.record
        self._live.pop(record.id, None)
        self.inputs.let_go(record.id)
        self.readers.forget(record.id)
        self.metrics.add(self.metrics.jobs_ended, 1, record.endpoint, record.status)
        await self._clearing.ended(record)

    def depth(self, endpoint: str) -> tuple[int, int]:
        """How many items of an endpoint run, and how many wait."""
        return self._scheduler.depth(endpoint)

    # ---- the end -----------------------------------------------------------------------------------------------

    async def settle(self, within: float) -> None:
        """Take nothing new, give what runs some time to end, and send readers away, spread over that time (TW-DEP-004).

        So those do not all come to another server at once, and many see their job end here.
        """
        self.draining = True
        self.readers.pause()
        leaving = self._loop.create_task(self._send_away(within))
        try:
            await self._let_end(within)
        finally:
            leaving.cancel()
            for stream in tuple(self.streams):
                stream.go_away()

    async def _send_away(self, within: float) -> None:
        streams = tuple(self.streams)
        for stream in streams:
            stream.go_away()
            await asyncio.sleep(within / len(streams))

    async def _let_end(self, within: float) -> None:
        jobs = list(self._live.values())
        if self._outlives:
            # What waits need not begin: the next server takes it up.
            self._scheduler.stop()
            jobs = [job for job in jobs if job.record.status == "running" and not job.waiting]
        over = [self._loop.create_task(job.over.wait()) for job in jobs]
        if over:
            _, late = await asyncio.wait(over, timeout=within)
            for task in late:
                task.cancel()

    async def close(self) -> None:
        """Stop. What still runs is left to the next server, or cancelled where the store ends with this one."""
        self.draining = True
        functions = self._scheduler.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.cancel_timeout):
                for job in list(self._live.values()):
                    if self._outlives:
                        job.suspend()
                    else:
                        await job.abandon()
                if functions:
                    await asyncio.wait(functions)
        self._standstill.end()
        await self._clearing.end()
        # Before the clearing it never began: what the server before left is still to be taken up.
        await self.store.close(clean=self._clearing.began)

    @property
    def _outlives(self) -> bool:
        """Whether jobs outlive this server."""
        return self.store.durability != "process"
