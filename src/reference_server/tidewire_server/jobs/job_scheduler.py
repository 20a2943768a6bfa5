"""Scheduler that starts waiting items within the concurrency limits, and is fair between principals.

Each running call of a function uses one *slot* of its concurrency group, and a worker thread if the function is not async. The
scheduler does not poll. It starts an item when the item is submitted, when a slot or a worker thread becomes free, or when the
oldest item of a batch has waited for `batch_timeout`.

If several endpoints of one group wait for a slot, the scheduler compares the next items of these endpoints. It chooses
the item of the principal that was served longest ago. Among items of one principal, the oldest item runs first. Groups
that wait for a worker thread take turns. Each principal can use only its share of the worker threads. This limit does
not apply to batches, because a batch serves several principals.
"""

import asyncio
import contextvars
import math
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from tidewire.protocol.messages import Queue as QueueMessage
from tidewire_server.batching.batch_call import BatchCall
from tidewire_server.batching.batch_row_types import QueuedItem
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import ProblemError, refuse
from tidewire_server.jobs.endpoint_queues_and_groups import (
    ConcurrencyGroup,
    EndpointQueue,
    global_limits,
    make_endpoint_queues,
)
from tidewire_server.jobs.job import Job
from tidewire_server.jobs.queue_positions import PositionAnnouncer
from tidewire_server.jobs.replicas.live_workers import LiveWorkers
from tidewire_server.principals import CALLER
from tidewire_server.settings import Settings, share_of
from tidewire_server.store.queue_interface import Queue
from tidewire_server.store.records import (
    BatchItem,
    EndpointLoad,
    QueueEntry,
    QueueLimits,
    RunningBatch,
)
from tidewire_server.store.store_errors import QueueFullError

_MIN_RETRY_MS: Final = 1000

_MAX_TAKEN: Final = 256
"""Maximum number of items that are taken from the queue at once."""

_MAX_SERVED: Final = 10_000
"""Maximum number of principals for which a group remembers when they were last served."""


class JobScheduler:
    """Scheduler of one server. All methods must be called on one event loop."""

    def __init__(
        self,
        queue: Queue,
        endpoints: dict[str, Endpoint],
        settings: Settings,
        *,
        start: Callable[
            [QueueEntry, Callable[[], Coroutine[Any, Any, None]]], Coroutine[Any, Any, bool | None]
        ],
        find: Callable[[QueueEntry], Job | None],
        open_job: Callable[[QueueEntry], Awaitable[Job | None]],
        check_input: Callable[[Job, QueueEntry], Awaitable[bool]] | None = None,
        announce: Callable[[str, QueueMessage], bool],
        shared: bool = False,
        share: float = 1.0,
        functions: bool = True,
        workers: LiveWorkers,
    ) -> None:
        """Create a scheduler for an idle server.

        Args:
            queue: Queue of the waiting items.
            endpoints: All endpoints by name.
            settings: Limits and intervals.
            start: Function that runs one item, and returns whether the item must wait again. When the item's function has
                ended, it should call its second argument, which releases the slot.
            find: Function that returns the job of an item, or None if this process does not run the job.
            open_job: Function that reopens the job of an item that was taken, and returns None if the job has ended.
            check_input: Function that validates the input of an item that was taken for a batch, and returns whether the item
                can run. The default is `Job.check_input`.
            announce: Function that publishes the queue position of a job. See `PositionAnnouncer`.
            shared: Whether other processes use the queue, too. If so, a waiting job has no `Job` object.
            share: Fraction of each queue and of the worker threads that one principal may use.
            functions: Whether this process runs functions. If not, it takes no items.
            workers: Live processes that run functions, including this one.
        """
        self._queue = queue
        self._start = start
        self._find = find
        self._open_job = open_job
        self._check_input = check_input or (lambda job, entry: job.check_input(entry.index))
        self._functions = functions
        self._workers = workers
        self._workers.own, self._workers.own_load = self.loads, self.load
        self._announcer = PositionAnnouncer(
            queue, settings.queue_interval, announce, self._workers, shared=shared
        )
        self._max_jobs_per_principal = settings.max_jobs_per_principal
        self._threads = settings.max_threads
        self._max_threads_per_caller = share_of(settings.max_threads, share)
        self._threads_of: Counter[str] = Counter()
        """Number of worker threads that each principal uses."""
        self._endpoint_queues = make_endpoint_queues(endpoints, settings, share)
        queues = self._endpoint_queues.values()
        self._groups = list(dict.fromkeys(each.group for each in queues))
        self._turns = OrderedDict.fromkeys(each.group for each in queues if not each.endpoint.is_async)
        """Groups that use worker threads, in the order in which they last took a thread. The next turn belongs to the first
        group.
        """
        self._tasks: set[asyncio.Task[None]] = set()
        self._restoring: list[asyncio.Task[None]] = []
        """Tasks that check the inputs of restored items of batched endpoints."""
        self._shared = shared
        self._resumed = not shared
        """Whether items may start. In a shared queue, items wait from the beginning, and start after `start_restored`."""
        self.stopped = False
        """Whether no more items may start, because the process ends."""
        self._start_lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        """Context of the tasks that call functions. Without it, a task would inherit the trace and the principal of the request
        or the job that starts it."""
        self._started: set[str] = set()
        """Endpoints that have started a call since `take_active` was last called."""
        bounds = {
            name: None if each.batching is None else each.batching.bounds for name, each in endpoints.items()
        }
        for name, each in endpoints.items():
            each.on_limit_calls = partial(self._limit_calls, name)
        queue.serve(bounds if functions else {}, self.start_soon, global_limits(endpoints.values()))

    def depth(self, endpoint: str) -> tuple[int, int]:
        """Return the number of running items and the number of waiting items of an endpoint."""
        return self._endpoint_queues[endpoint].rows, self._queue.size(endpoint)

    def loads(self) -> dict[str, EndpointLoad]:
        """Return the load of each endpoint whose functions this process runs."""
        found = {name: self.load(name) for name in self._endpoint_queues}
        return {name: load for name, load in found.items() if load is not None}

    def load(self, endpoint: str) -> EndpointLoad | None:
        """Return the load of an endpoint, or None if this process does not run its functions."""
        each = self._endpoint_queues.get(endpoint)
        if each is None or not self._functions:
            return None
        return EndpointLoad(each.group.limit, each.group.running, each.mean_duration, each.mean_rows)

    def batch_size(self, endpoint: str) -> float:
        """Return the moving average of the number of items in one call of an endpoint that runs here, or 0 before the first
        call.
        """
        load = self.load(endpoint)
        return 0.0 if load is None or load.mean_duration is None else load.mean_rows

    def take_active(self) -> list[str]:
        """Return the endpoints with running items, or with items that have started since the last call."""
        started, self._started = self._started, set()
        return [name for name, each in self._endpoint_queues.items() if each.rows or name in started]

    def max_items(self, endpoint: str) -> float:
        """Return the maximum number of items in one job of an endpoint."""
        return self._endpoint_queues[endpoint].max_items

    def limits(self, endpoint: str) -> QueueLimits:
        """Return the limits for a new job. Items that can start at once do not count as waiting."""
        endpoint_queue = self._endpoint_queues[endpoint]
        startable = max(0, self._startable_anywhere(endpoint_queue)) * endpoint_queue.max_rows_per_call
        return QueueLimits(
            startable + endpoint_queue.max_queue_size,
            startable + endpoint_queue.max_queue_size_per_caller,
            self._max_jobs_per_principal,
        )

    def refusal(self, endpoint: str, error: QueueFullError, items: int) -> ProblemError:
        """Return the error for a new job that would exceed a limit of the queue. The job has this number of items."""
        endpoint_queue = self._endpoint_queues[endpoint]
        if error.of_principal:
            detail = (
                f"this caller's share of the queue of endpoint {endpoint!r} is full: waiting items of this caller: "
                f"{error.waiting}, items of this job: {items}, limit: {endpoint_queue.max_queue_size_per_caller} "
                "(max_queue_size, max_share)"
            )
        else:
            detail = (
                f"the queue of endpoint {endpoint!r} is full: waiting items: {error.waiting}, items of this job: {items}, "
                f"limit: {endpoint_queue.max_queue_size} (max_queue_size)"
            )
        eta = self._announcer.eta(endpoint_queue, 1)
        return refuse("queue_full", detail, retry_after_ms=max(_MIN_RETRY_MS, eta or 0))

    async def added(self, entries: Sequence[QueueEntry]) -> None:
        """Start as many items as possible after the items of a new job were added to the queue."""
        endpoint_queue = self._endpoint_queues[entries[0].endpoint]
        name, job = endpoint_queue.endpoint.name, entries[0].job
        if self._shared:
            # Shield the task from a cancelled request. Otherwise items already taken from the database would never start.
            await asyncio.shield(self._start_task(self._start_waiting(endpoint_queue.group)))
        else:
            await self._start_waiting(endpoint_queue.group)
        # A job that waits only because its batch is incomplete will run next, so the job has no queue position.
        if self._queue.size(name) >= len(entries) and self._startable_anywhere(endpoint_queue) <= 0:
            found = self._find(entries[0])
            if self._shared if found is None else found.waits(entries[0].index):
                self._announcer.entered(endpoint_queue, job, len(entries))
        self._announcer.moved(endpoint_queue, len(entries))

    def start_soon(self, endpoint: str) -> None:
        """Start as many items of an endpoint as possible, in a new task."""
        self._start_task(self._start_waiting(self._endpoint_queues[endpoint].group))

    async def start_restored(self) -> None:
        """Start as many waiting items as possible, including items of recovered jobs."""
        self._resumed = True
        for endpoint_queue in self._endpoint_queues.values():
            if endpoint_queue.endpoint.batching is None or self._shared:
                continue
            waiting = await self._queue.waiting(endpoint_queue.endpoint.name)
            entries = [
                entry for entry in waiting if (job := self._find(entry)) and not job.has_input(entry.index)
            ]
            remaining = iter(entries)
            for _ in range(min(len(entries), endpoint_queue.max_rows_per_call)):
                work = self._place_restored(endpoint_queue, remaining)
                self._restoring.append(self._loop.create_task(work))
        for group in self._groups:
            await self._start_waiting(group)
        for endpoint_queue in self._endpoint_queues.values():
            if (
                self._queue.size(endpoint_queue.endpoint.name)
                and self._startable_anywhere(endpoint_queue) <= 0
            ):
                await self._announcer.restored(endpoint_queue)

    async def _place_restored(self, endpoint_queue: EndpointQueue, remaining: Iterator[QueueEntry]) -> None:
        """Check the inputs of restored items, in the order in which the items run, and make the items available to
        batches. Their batch keys and costs depend on the inputs.

        Several tasks share the iterator `remaining`. Their number is the maximum number of items per call.
        """
        for entry in remaining:
            job = self._find(entry)
            if job is not None and job.waits(entry.index) and await job.check_input(entry.index):
                await self._queue.put([entry], [job.batch_slot(entry.index)])
                await self._start_waiting(endpoint_queue.group)

    def publish_positions(self, joined: Iterable[str]) -> None:
        """Publish the positions of the jobs that wait in a queue that other processes change, too.

        Args:
            joined: Jobs with new readers, which may not have received the position. For a job that runs elsewhere, this process
                keeps the position only while there are readers.
        """
        self._announcer.forget(joined)
        for endpoint_queue in self._endpoint_queues.values():
            if size := self._queue.size(endpoint_queue.endpoint.name):
                self._announcer.changed(endpoint_queue, size)

    async def requeue(self, job: Job) -> None:
        """Return the waiting items of a job to the queue after an attempt was interrupted. The endpoint is batched."""
        endpoint_queue = self._endpoint_queues[job.record.endpoint]
        for entry in job.waiting_entries:
            if job.has_input(entry.index) or await job.check_input(entry.index):
                await self._queue.put([entry], [job.batch_slot(entry.index)])
        await self._start_waiting(endpoint_queue.group)

    async def discard(self, entry: QueueEntry) -> None:
        """Remove an item from the queue, so that it never runs."""
        await self._queue.discard(entry)
        if (endpoint_queue := self._endpoint_queues.get(entry.endpoint)) is not None:
            self._announcer.moved(endpoint_queue)

    def stop(self) -> list[asyncio.Task[None]]:
        """Start no more items. Return the tasks of the functions that are still running."""
        for task in self._restoring:
            task.cancel()
        self._announcer.stop()
        self.stopped = True
        for group in self._groups:
            group.limit = 0
            if group.timer is not None:
                group.timer.cancel()
        return list(self._tasks)

    # ---- starting ----------------------------------------------------------------------------------------------

    def _limit_calls(self, endpoint: str, calls: int) -> None:
        if not self.stopped:
            self._endpoint_queues[endpoint].group.limit = calls
            self.start_soon(endpoint)

    def _startable(self, endpoint_queue: EndpointQueue) -> float:
        """Return how many calls of an endpoint's function could start now."""
        free = endpoint_queue.group.limit - endpoint_queue.group.running
        return free if endpoint_queue.endpoint.is_async else min(free, self._threads)

    def _startable_anywhere(self, endpoint_queue: EndpointQueue) -> float:
        """Return how many calls of an endpoint's function could start now at all processes."""
        own = self._startable(endpoint_queue) if self._functions else 0.0
        name, limit = endpoint_queue.endpoint.name, endpoint_queue.group.global_limit
        free = own + self._workers.free_elsewhere(name)
        return free if limit is None else min(free, limit.calls - self._workers.total(name).running)

    async def _start_waiting(self, group: ConcurrencyGroup) -> None:
        """Start as many waiting items of a group as possible."""
        # Return before the following work if nothing can start. On a busy server, this is the most frequent case.
        if group.running >= group.limit or not self._resumed or not self._is_waiting(group):
            return
        async with self._start_lock:
            exhausted: set[EndpointQueue] = set()
            while group.running < group.limit and (chosen := await self._next(group, exhausted)) is not None:
                if not await self._start_calls(group, chosen):
                    exhausted.add(chosen)

    async def _start_calls(self, group: ConcurrencyGroup, endpoint_queue: EndpointQueue) -> bool:
        """Take the next items of an endpoint from the queue, and start calls for them. Return False if the queue has returned
        no items.

        If the scheduler is stopped while items are taken or their jobs are opened, these items do not start. Other processes
        may adopt the jobs at any moment, and would run the items as well.
        """
        endpoint = endpoint_queue.endpoint
        if endpoint.batching is not None:
            batch = await self._queue.take_batch(endpoint.name)
            if batch:
                arrivals = await self._arrivals(batch)
                if self.stopped:
                    self._queue.end_call(endpoint.name)
                    return False
                self._count_call(group, endpoint_queue, [item.entry for item in batch])
                self._start_task(self._start_batch(endpoint_queue, batch, arrivals))
            return bool(batch)
        limit = 1
        # Take one item: after each call, another endpoint may have the next turn, or a principal may have all of its threads.
        if endpoint.is_async and len(group.endpoint_queues) == 1:
            limit = int(min(group.limit - group.running, _MAX_TAKEN))
        taken = await self._queue.take(endpoint.name, limit=limit, skip=self._skipped(endpoint_queue))
        for entry in taken:
            if self._find(entry) is None:
                await self._open_job(entry)
            if self.stopped:
                self._queue.end_call(endpoint.name)
                continue
            self._count_call(group, endpoint_queue, [entry])
            self._start_task(self._run(endpoint_queue, entry))
        return bool(taken)

    def _count_call(
        self, group: ConcurrencyGroup, endpoint_queue: EndpointQueue, entries: list[QueueEntry]
    ) -> None:
        """Count a call that starts now, and its items."""
        group.running += 1
        self._record_turns(group, entries)
        if not endpoint_queue.endpoint.is_async:
            self._threads -= 1
            self._turns.move_to_end(group)
            if endpoint_queue.endpoint.batching is None:
                self._count_thread(entries[0].principal, 1)
        endpoint_queue.rows += len(entries)
        self._started.add(endpoint_queue.endpoint.name)
        self._announcer.moved(endpoint_queue, len(entries))

    def _is_waiting(self, group: ConcurrencyGroup) -> bool:
        """Return whether a group has waiting items that this process can take now or later."""
        return any(self._queue.due(each.endpoint.name) < math.inf for each in group.endpoint_queues)

    async def _thread_is_wanted(self, group: ConcurrencyGroup) -> bool:
        """Return whether a waiting item of another group could start if a worker thread became free."""
        if self._threads > 0:
            return False
        for other in self._turns:
            if other is group or other.running >= other.limit:
                continue
            for each in other.endpoint_queues:
                waits = not each.endpoint.is_async and self._queue.size(each.endpoint.name) > 0
                if waits and await self._first_waiting(each) is not None:
                    return True
        return False

    async def _next(self, group: ConcurrencyGroup, exhausted: set[EndpointQueue]) -> EndpointQueue | None:
        """Return the endpoint of a group whose function is called next, or None if no call can start now. Skip the endpoints
        in `exhausted`.
        """
        now, earliest = self._loop.time(), math.inf
        ready: list[EndpointQueue] = []
        for each in group.endpoint_queues:
            if self._startable(each) > 0:
                due = self._queue.due(each.endpoint.name)
                if due > now:
                    # Include the endpoints in `exhausted`: taking items may have shown when the next items are due.
                    earliest = min(earliest, due)
                elif each not in exhausted:
                    ready.append(each)
        if len(ready) > 1:
            firsts = [(each, await self._first_waiting(each)) for each in ready]
            turns = [
                (group.served.get(entry.principal, 0), entry.arrived_at, number)
                for number, (_, entry) in enumerate(firsts)
                if entry is not None
            ]
            ready = [firsts[min(turns)[2]][0]] if turns else []
        if ready:
            return ready[0]
        self._wake_when_due(group, earliest)
        return None

    async def _first_waiting(self, endpoint_queue: EndpointQueue) -> QueueEntry | None:
        """Return the next item of an endpoint. Skip the items of principals that use their whole share of the worker
        threads.
        """
        name, skip = endpoint_queue.endpoint.name, self._skipped(endpoint_queue)
        return next(iter(await self._queue.waiting(name, limit=1, skip=skip)), None)

    def _skipped(self, endpoint_queue: EndpointQueue) -> Collection[str]:
        """Return the principals whose items may not start now."""
        if endpoint_queue.endpoint.is_async or endpoint_queue.endpoint.batching is not None:
            return ()
        limit = self._max_threads_per_caller
        return {principal for principal, used in self._threads_of.items() if used >= limit}

    def _record_turns(self, group: ConcurrencyGroup, entries: Iterable[QueueEntry]) -> None:
        if len(group.endpoint_queues) > 1:
            group.calls += 1
            queue_empty = not any(self._queue.size(each.endpoint.name) for each in group.endpoint_queues)
            if queue_empty or len(group.served) > _MAX_SERVED:
                group.served.clear()
            for entry in entries:
                group.served[entry.principal] = group.calls

    def _wake_when_due(self, group: ConcurrencyGroup, due: float) -> None:
        """Start waiting items of a group at the event loop time `due`. Do nothing if it is infinite."""
        if due == math.inf:
            return
        if group.timer is not None:
            if group.wakes_at <= due:
                return
            group.timer.cancel()

        def wake() -> None:
            group.timer = None
            self._start_task(self._start_waiting(group))

        group.wakes_at = due
        group.timer = self._loop.call_at(due, wake)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, endpoint_queue: EndpointQueue, entry: QueueEntry) -> None:
        CALLER.set(entry.principal)
        free = self._release_function(endpoint_queue, [1], entry.principal)
        waits_again: bool | None = False
        try:
            waits_again = await self._start(entry, free)
            if waits_again:
                # Put the item back before the release, so that it keeps its turn.
                await self._queue.put([entry])
        finally:
            await free(measured=not waits_again)
        if waits_again:
            self._announcer.entered(endpoint_queue, entry.job, 1)
            self._announcer.moved(endpoint_queue)

    def _release_function(
        self, endpoint_queue: EndpointQueue, rows: list[int], principal: str | None = None
    ) -> Callable[..., Coroutine[Any, Any, None]]:
        """Create the function that releases the slot and the worker thread of a starting call. Its argument `measured` says
        whether the duration of the call is used to estimate waiting times.

        Only the first call of the returned function has an effect. The argument `principal` is None for a batch.
        """
        started_at, released = self._loop.time(), False

        async def release(*, measured: bool = True) -> None:
            nonlocal released
            if not released:
                released = True
                endpoint_queue.rows -= sum(rows)
                if principal is not None and not endpoint_queue.endpoint.is_async:
                    self._count_thread(principal, -1)
                if measured:
                    endpoint_queue.record_call(sum(rows), self._loop.time() - started_at)
                await self._ended(endpoint_queue)

        return release

    def _count_thread(self, principal: str, change: int) -> None:
        """Add `change`, which is 1 or -1, to the number of worker threads that a principal uses."""
        self._threads_of[principal] += change
        if not self._threads_of[principal]:
            del self._threads_of[principal]

    async def _ended(self, endpoint_queue: EndpointQueue) -> None:
        """Release the slot and the thread of a call that has ended, and start waiting items."""
        group = endpoint_queue.group
        group.running -= 1
        self._queue.end_call(endpoint_queue.endpoint.name)
        waiting: list[ConcurrencyGroup] = [group]
        if not endpoint_queue.endpoint.is_async:
            self._threads += 1
            # Another group may be waiting for the worker thread that became free.
            waiting = [each for each in self._turns if each is group or self._is_waiting(each)]
        for each in waiting:
            if each is group or self._threads > 0:
                await self._start_waiting(each)
        self._announcer.moved(endpoint_queue, 0)

    # ---- batches -----------------------------------------------------------------------------------------------

    async def _arrivals(self, batch: list[BatchItem]) -> list[QueuedItem]:
        """Return the items of a batch that can run."""
        arrivals = []
        for entry, slot, waited in batch:
            job = self._find(entry) or await self._open_job(entry)
            if job is None or not (job.has_input(entry.index) or await self._check_input(job, entry)):
                continue
            arrivals.append(QueuedItem(job, entry.index, slot.cost, waited))
        return arrivals

    def _start_batch(
        self, endpoint_queue: EndpointQueue, batch: list[BatchItem], arrivals: list[QueuedItem]
    ) -> Coroutine[Any, Any, None]:
        """Start a call of a batched function. Return a coroutine that waits until the call has ended."""
        name, key, rows = endpoint_queue.endpoint.name, batch[0].slot.key, [len(batch)]

        async def join(running: int, cost: float) -> list[QueuedItem]:
            # No item may join while another group waits for a thread. Otherwise new items could keep the batch running forever.
            if not endpoint_queue.endpoint.is_async and await self._thread_is_wanted(endpoint_queue.group):
                return []
            joined = await self._queue.take_batch(name, RunningBatch(key, running, cost))
            endpoint_queue.rows += len(joined)
            rows.append(len(joined))
            self._announcer.moved(endpoint_queue, len(joined))
            arrivals = await self._arrivals(joined)
            return [] if self.stopped else arrivals

        other_names = [
            other.endpoint.name
            for other in endpoint_queue.group.endpoint_queues
            if other is not endpoint_queue
        ]

        def may_join() -> bool:
            # While another endpoint of the group has waiting items, no item may join the batch. Otherwise new items
            # could keep the batch running forever, and its slot would never become free.
            return (
                self._queue.size(name) > 0
                and endpoint_queue.group.limit > 0
                and not any(map(self._queue.size, other_names))
            )

        call = BatchCall(
            endpoint_queue.endpoint,
            join=join,
            may_join=may_join,
            free=self._release_function(endpoint_queue, rows),
        )
        return call.run(arrivals)
