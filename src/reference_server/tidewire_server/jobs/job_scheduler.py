"""Scheduler that starts waiting items within the concurrency limits, and is fair between principals.

The scheduler does not poll. It starts an item when the item is submitted, when a slot of the item's group or a worker
thread becomes free, or when the oldest item of a batch has waited for `batch_timeout`.

If several endpoints of one group wait for a slot, the scheduler compares the next items of these endpoints. It chooses
the item of the principal that was served longest ago. Among items of one principal, the oldest item runs first. Groups
that wait for a worker thread take turns. Each principal can use only its share of the worker threads. This limit does
not apply to batches, because a batch serves several principals.
"""

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from typing import Any, Final

from tidewire.protocol.messages import Queue as QueueMessage
from tidewire_server.batching.batch_call import BatchCall
from tidewire_server.batching.batch_queue import BatchBuilder, BatchQueue
from tidewire_server.batching.batch_row_types import QueuedItem
from tidewire_server.endpoints.batch_options import BatchSlot
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import refuse
from tidewire_server.jobs.endpoint_queues_and_groups import (
    ConcurrencyGroup,
    EndpointQueue,
    make_endpoint_queues,
)
from tidewire_server.jobs.job import Job
from tidewire_server.jobs.queue_positions import PositionAnnouncer
from tidewire_server.principals import CALLER
from tidewire_server.settings import Settings, share_of
from tidewire_server.store.interfaces import Queue, QueueEntry

_log = logging.getLogger(__name__)

_MIN_RETRY_MS: Final = 1000

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
        start: Callable[[QueueEntry, Callable[[], Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]],
        find: Callable[[QueueEntry], Job | None],
        on_start: Callable[[QueueEntry], Job | None],
        announce: Callable[[str, QueueMessage], None],
        share: float = 1.0,
    ) -> None:
        """Create a scheduler for an idle server.

        Args:
            queue: Queue of the waiting items.
            endpoints: All endpoints by name.
            settings: Limits and intervals.
            start: Function that runs one item. It must call its second argument when the item's function has ended.
            find: Function that returns the job of an item, or None if the job has ended.
            on_start: Function that is called before an item runs in a batch, and returns the job of the item.
            announce: Function that publishes the queue position of a job.
            share: Share of each queue and of the worker threads that one principal may use.
        """
        self._queue = queue
        self._start = start
        self._find = find
        self._on_start = on_start
        self._announcer = PositionAnnouncer(queue, settings.queue_interval, announce)
        self._threads = settings.max_threads
        self._max_threads_per_caller = share_of(settings.max_threads, share)
        self._threads_of: dict[str, int] = {}
        """Number of worker threads that each principal uses."""
        self._at_thread_limit: set[str] = set()
        """Principals that use as many worker threads as they may."""
        self._endpoint_queues = make_endpoint_queues(endpoints, settings, share)
        groups = {id(each.group): each.group for each in self._endpoint_queues.values()}
        self._groups = list(groups.values())
        self._turns = OrderedDict((key, group) for key, group in groups.items() if group.waits_for_thread)
        """Groups that use worker threads. The last group in the dict is the one that most recently took a thread."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._restored: set[QueueEntry] = set()
        """Restored items before the call of `start_restored`."""
        self._restoring: list[asyncio.Task[None]] = []
        """Tasks that check the inputs of restored items of batched endpoints."""
        self._start_lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._started: set[str] = set()
        """Endpoints that have started a call since `take_active` was last called."""

    @property
    def busy(self) -> bool:
        """Whether any function is running."""
        return bool(self._tasks)

    def depth(self, endpoint: str) -> tuple[int, int]:
        """Return the number of running items and the number of waiting items of an endpoint."""
        return self._endpoint_queues[endpoint].rows, self._queue.size(endpoint)

    def take_active(self) -> list[str]:
        """Return the endpoints with running items, or with items that have started since the last call."""
        started, self._started = self._started, set()
        return [name for name, each in self._endpoint_queues.items() if each.rows or name in started]

    def max_items(self, endpoint: str) -> float:
        """Return the maximum number of items in one job of an endpoint."""
        return self._endpoint_queues[endpoint].max_items

    def reserve(self, endpoint: str, principal: str, items: int) -> Callable[[], None]:
        """Reserve queue positions for the items of a new job, so that two concurrent requests cannot get the same
        position.

        Returns:
            A function that releases the reservation.

        Raises:
            ProblemError: The queue is full, or the principal already uses its whole share of the queue.
        """
        endpoint_queue = self._endpoint_queues[endpoint]
        reserved_by = endpoint_queue.reserved_by
        waiting = self._queue.size(endpoint) + endpoint_queue.reserved
        own = self._queue.size(endpoint, principal) + reserved_by.get(principal, 0)
        startable = max(0, self._startable(endpoint_queue)) * endpoint_queue.max_rows_per_call
        detail = None
        if waiting + items > startable + endpoint_queue.max_queue_size:
            detail = (
                f"the queue of endpoint {endpoint!r} is full: {waiting} items are waiting, and the limit is "
                f"{endpoint_queue.max_queue_size} (max_queue_size)"
            )
        elif own + items > startable + endpoint_queue.max_queue_size_per_caller:
            detail = (
                f"{own} items of this caller are waiting in the queue of endpoint {endpoint!r}, and the limit for one "
                f"caller is {endpoint_queue.max_queue_size_per_caller} (max_queue_size, max_share)"
            )
        if detail is not None:
            eta = self._announcer.eta(endpoint_queue, 1)
            raise refuse("queue_full", detail, retry_after_ms=max(_MIN_RETRY_MS, eta or 0))
        endpoint_queue.reserved += items
        reserved_by[principal] = reserved_by.get(principal, 0) + items

        def release() -> None:
            endpoint_queue.reserved -= items
            left = reserved_by.pop(principal) - items
            if left:
                reserved_by[principal] = left

        return release

    async def put(self, entries: list[QueueEntry]) -> None:
        """Add the items of one job to the queue, and start as many items as possible."""
        endpoint_queue = self._endpoint_queues[entries[0].endpoint]
        name, job = endpoint_queue.endpoint.name, entries[0].job
        await self._queue.put(entries)
        if endpoint_queue.batch_queue is not None:
            self._add_to_batches(endpoint_queue.batch_queue, entries)
        await self._start_waiting(endpoint_queue.group)
        # A job that waits only because its batch is incomplete will run next, so the job has no queue position.
        if self._queue.size(name) >= len(entries) and self._startable(endpoint_queue) <= 0:
            found = self._find(entries[0])
            if found is not None and found.waits(entries[0].index):
                self._announcer.entered(endpoint_queue, job, len(entries))
        self._announcer.moved(endpoint_queue, len(entries))

    async def restore(self, entries: list[QueueEntry]) -> None:
        """Add the items of a recovered job to the queue. They wait until `start_restored` is called."""
        await self._queue.put(entries)
        self._restored.update(entries)

    async def start_restored(self) -> None:
        """Start as many of the restored items as possible."""
        restored, self._restored = self._restored, set()
        for endpoint_queue in self._endpoint_queues.values():
            waiting = self._queue.waiting(endpoint_queue.endpoint.name)
            entries = [entry for entry in waiting if entry in restored]
            if endpoint_queue.batch_queue is not None:
                remaining = iter(entries)
                for _ in range(min(len(entries), endpoint_queue.max_rows_per_call)):
                    work = self._restore_to_batches(endpoint_queue, endpoint_queue.batch_queue, remaining)
                    self._restoring.append(self._loop.create_task(work))
        for group in self._groups:
            await self._start_waiting(group)
        for endpoint_queue in self._endpoint_queues.values():
            if self._queue.size(endpoint_queue.endpoint.name) and self._startable(endpoint_queue) <= 0:
                self._announcer.restored(endpoint_queue)

    async def _restore_to_batches(
        self,
        endpoint_queue: EndpointQueue,
        batch_queue: BatchQueue[QueueEntry],
        remaining: Iterator[QueueEntry],
    ) -> None:
        """Check the inputs of restored items, in the order in which the items run, and make the items available to
        batches. Their batch keys and costs depend on the inputs.

        Several tasks share the iterator `remaining`, as many as one call has rows.
        """
        for entry in remaining:
            job = self._find(entry)
            if job is not None and job.waits(entry.index) and await job.check_input(entry.index):
                self._add_to_batches(batch_queue, [entry])
                await self._start_waiting(endpoint_queue.group)

    async def discard(self, entry: QueueEntry) -> None:
        """Remove an item from the queue, so that it never runs."""
        endpoint_queue = self._endpoint_queues[entry.endpoint]
        if endpoint_queue.batch_queue is not None:
            endpoint_queue.batch_queue.remove([entry])
        await self._queue.discard(entry)
        self._announcer.moved(endpoint_queue)

    def stop(self) -> list[asyncio.Task[None]]:
        """Start no more items. Return the tasks of the functions that are still running."""
        for task in self._restoring:
            task.cancel()
        self._announcer.stop()
        for group in self._groups:
            group.limit = 0
            if group.timer is not None:
                group.timer.cancel()
        return list(self._tasks)

    # ---- starting ----------------------------------------------------------------------------------------------

    def _startable(self, endpoint_queue: EndpointQueue) -> float:
        """Return how many calls of an endpoint's function could start now."""
        free = endpoint_queue.group.limit - endpoint_queue.group.running
        return free if endpoint_queue.endpoint.is_async else min(free, self._threads)

    async def _start_waiting(self, group: ConcurrencyGroup) -> None:
        """Start as many waiting items of a group as possible."""
        # Return before the following work if nothing can start. On a busy server, this is the most frequent case.
        if group.running >= group.limit or not self._is_waiting(group):
            return
        async with self._start_lock:
            while group.running < group.limit and (endpoint_queue := self._next(group)) is not None:
                if endpoint_queue.batch_queue is None:
                    taken = await self._queue.take(
                        endpoint_queue.endpoint.name, skip=self._skipped(endpoint_queue)
                    )
                    work = self._run(endpoint_queue, taken[0]) if taken else None
                else:
                    builder = endpoint_queue.batch_queue.draft(self._loop.time())
                    batch = await self._take_batch(endpoint_queue, endpoint_queue.batch_queue, builder)
                    taken = [entry for entry, _ in batch]
                    work = (
                        self._start_batch(endpoint_queue, endpoint_queue.batch_queue, builder, batch)
                        if taken
                        else None
                    )
                if work is None:
                    return
                group.running += 1
                self._record_turns(group, taken)
                if not endpoint_queue.endpoint.is_async:
                    self._threads -= 1
                    self._turns.move_to_end(id(group))
                    if endpoint_queue.batch_queue is None:
                        self._count_thread(taken[0].principal, 1)
                endpoint_queue.rows += len(taken)
                self._started.add(endpoint_queue.endpoint.name)
                self._announcer.moved(endpoint_queue, len(taken))
                self._start_task(work)

    def _is_waiting(self, group: ConcurrencyGroup) -> bool:
        """Return whether any item of a group is waiting."""
        return any(self._queue.size(each.endpoint.name) for each in group.endpoint_queues)

    def _next(self, group: ConcurrencyGroup) -> EndpointQueue | None:
        """Return the endpoint of a group whose function is called next, or None if no call can start now."""
        startable = [
            each
            for each in group.endpoint_queues
            if self._queue.size(each.endpoint.name)
            and self._startable(each) > 0
            and (not self._skipped(each) or self._first_waiting(each))
        ]
        if not startable:
            return None
        ready = [
            each
            for each in startable
            if each.batch_queue is None or each.batch_queue.due() <= self._loop.time()
        ]
        if not ready:
            self._wake_when_due(group, startable)
        if len(group.endpoint_queues) == 1 or len(ready) < 2:
            return ready[0] if ready else None
        return min(ready, key=lambda each: self._turn_of(group, each))

    def _turn_of(self, group: ConcurrencyGroup, endpoint_queue: EndpointQueue) -> tuple[int, float]:
        entry = self._first_waiting(endpoint_queue)
        assert entry is not None  # noqa: S101 - `_next` passes only endpoints with such an item
        return group.served.get(entry.principal, 0), entry.arrived_at

    def _first_waiting(self, endpoint_queue: EndpointQueue) -> QueueEntry | None:
        """Return the next item of an endpoint. Skip the items of principals that use their whole share of the worker
        threads.
        """
        name = endpoint_queue.endpoint.name
        return next(self._queue.waiting(name, skip=self._skipped(endpoint_queue)), None)

    def _skipped(self, endpoint_queue: EndpointQueue) -> Collection[str]:
        """Return the principals whose items may not start now."""
        in_threads = not endpoint_queue.endpoint.is_async and endpoint_queue.batch_queue is None
        return self._at_thread_limit if in_threads else ()

    def _record_turns(self, group: ConcurrencyGroup, entries: Iterable[QueueEntry]) -> None:
        if len(group.endpoint_queues) > 1:
            group.calls += 1
            queue_empty = not any(self._queue.size(each.endpoint.name) for each in group.endpoint_queues)
            if queue_empty or len(group.served) > _MAX_SERVED:
                group.served.clear()
            for entry in entries:
                group.served[entry.principal] = group.calls

    def _wake_when_due(self, group: ConcurrencyGroup, endpoint_queues: list[EndpointQueue]) -> None:
        due = min(each.batch_queue.due() for each in endpoint_queues if each.batch_queue is not None)
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

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, endpoint_queue: EndpointQueue, entry: QueueEntry) -> None:
        CALLER.set(entry.principal)
        free = self._release_function(endpoint_queue, [1], entry.principal)
        try:
            await self._start(entry, free)
        finally:
            await free()

    def _release_function(
        self, endpoint_queue: EndpointQueue, rows: list[int], principal: str | None = None
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """Create a function that releases the slot and the worker thread of the call that starts now.

        Only the first call of the returned function has an effect. The argument `principal` is None for a batch.
        """
        started_at, released = self._loop.time(), False

        async def release() -> None:
            nonlocal released
            if not released:
                released = True
                endpoint_queue.rows -= sum(rows)
                if principal is not None and not endpoint_queue.endpoint.is_async:
                    self._count_thread(principal, -1)
                await self._ended(endpoint_queue, sum(rows), self._loop.time() - started_at)

        return release

    def _count_thread(self, principal: str, change: int) -> None:
        """Count a worker thread that a principal has started to use (1) or has released (-1)."""
        used = self._threads_of.pop(principal, 0) + change
        if used:
            self._threads_of[principal] = used
        if used < self._max_threads_per_caller:
            self._at_thread_limit.discard(principal)
        else:
            self._at_thread_limit.add(principal)

    async def _ended(self, endpoint_queue: EndpointQueue, rows: int, duration: float) -> None:
        """Release the slot and the thread of a call that has ended, and start waiting items."""
        group = endpoint_queue.group
        group.running -= 1
        endpoint_queue.record_call(rows, duration)
        waiting: list[ConcurrencyGroup] = [group]
        if not endpoint_queue.endpoint.is_async:
            self._threads += 1
            # Another group may be waiting for the worker thread that became free.
            waiting = [each for each in self._turns.values() if each is group or self._is_waiting(each)]
        for each in waiting:
            if each is group or self._threads > 0:
                await self._start_waiting(each)
        self._announcer.moved(endpoint_queue, 0)

    # ---- batches -----------------------------------------------------------------------------------------------

    def _add_to_batches(self, batch_queue: BatchQueue[QueueEntry], entries: list[QueueEntry]) -> None:
        now = self._loop.time()
        for entry in entries:
            job = self._find(entry)
            try:
                slot = BatchSlot() if job is None else job.batch_slot(entry.index)
            except Exception:  # noqa: BLE001 - an error of user code, but the item was admitted, so it must run
                _log.exception(
                    "endpoint %r: key() or cost() failed for an input, although it had not failed for this input when the "
                    "job was submitted",
                    entry.endpoint,
                )
                slot = BatchSlot()
            batch_queue.add(entry, slot, entry.principal, now)

    async def _take_batch(
        self,
        endpoint_queue: EndpointQueue,
        batch_queue: BatchQueue[QueueEntry],
        builder: BatchBuilder[QueueEntry],
    ) -> list[tuple[QueueEntry, QueuedItem | None]]:
        """Remove the items that fit into a batch from the queue, and return them."""
        room = builder.room
        entries = (
            await self._queue.take(endpoint_queue.endpoint.name, limit=room, fits=builder) if room else []
        )
        now = self._loop.time()
        batch: list[tuple[QueueEntry, QueuedItem | None]] = []
        for entry in entries:
            waiting = batch_queue.find(entry)
            job = self._on_start(entry)
            item = None
            if job is not None and waiting is not None:
                item = QueuedItem(job, entry.index, waiting.place.cost, now - waiting.arrived)
            batch.append((entry, item))
        batch_queue.remove(entries)
        return batch

    def _start_batch(
        self,
        endpoint_queue: EndpointQueue,
        batch_queue: BatchQueue[QueueEntry],
        builder: BatchBuilder[QueueEntry],
        batch: list[tuple[QueueEntry, QueuedItem | None]],
    ) -> Coroutine[Any, Any, None]:
        """Start a call of a batched function. Return a coroutine that waits until the call has ended."""
        rows = [len(batch)]

        async def join(running: int, cost: float) -> list[QueuedItem]:
            joining = batch_queue.joining(self._loop.time(), builder.key, running, cost)
            joined = await self._take_batch(endpoint_queue, batch_queue, joining)
            endpoint_queue.rows += len(joined)
            rows.append(len(joined))
            self._announcer.moved(endpoint_queue, len(joined))
            return [item for _, item in joined if item is not None]

        other_names = [
            other.endpoint.name
            for other in endpoint_queue.group.endpoint_queues
            if other is not endpoint_queue
        ]

        def may_join() -> bool:
            # While another endpoint of the group has waiting items, no item may join the batch. Otherwise new items
            # could keep the batch running forever, and its slot would never become free.
            return (
                len(batch_queue) > 0
                and endpoint_queue.group.limit > 0
                and not any(map(self._queue.size, other_names))
            )

        call = BatchCall(
            endpoint_queue.endpoint,
            join=join,
            may_join=may_join,
            free=self._release_function(endpoint_queue, rows),
        )
        return call.run([item for _, item in batch if item is not None])
