"""What runs next: callers take turns at each endpoint, under the concurrency limit of its group.

Nothing polls. An item starts when it is put in, when a slot of its group becomes free, when a worker thread does, or
when the oldest of its batch has waited long enough.

Endpoints of a group that wait for a slot are served as if they were one queue: the caller who was served longest ago
comes first, and of one caller the item that came first. Endpoints that wait for a worker thread take turns.
"""

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
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
from tidewire_server.settings import Settings
from tidewire_server.store.interfaces import Queue, QueueEntry

_log = logging.getLogger(__name__)

_LEAST_RETRY_MS: Final = 1000

_MAX_SERVED: Final = 10_000
"""Callers of one group whose turns are remembered."""

_RECENT: Final = 0.3
"""Weight of the latest duration in the mean that an ETA is made of."""


class JobScheduler:
    """Starts items. One per server and event loop."""

    def __init__(
        self,
        queue: Queue,
        endpoints: dict[str, Endpoint],
        settings: Settings,
        *,
        start: Callable[[QueueEntry, Callable[[], Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]],
        find: Callable[[QueueEntry], Job | None],
        starting: Callable[[QueueEntry], Job | None],
        announce: Callable[[str, QueueMessage], None],
    ) -> None:
        """Begin with nothing running.

        Args:
            queue: Where items wait.
            endpoints: All endpoints by name.
            settings: Limits and intervals.
            start: Runs one item, and calls back as soon as its function has ended.
            find: The job of an item.
            starting: The same, for an item that is about to run in a batch.
            announce: Tells a job its place in the queue.
        """
        self._queue = queue
        self._interval = settings.queue_interval
        self._start = start
        self._find = find
        self._starting = starting
        self._announce = announce
        self._threads = settings.max_threads
        self._lanes = make_endpoint_queues(endpoints, settings)
        groups = {id(lane.group): lane.group for lane in self._lanes.values()}
        self._groups = list(groups.values())
        self._turns = OrderedDict((key, group) for key, group in groups.items() if group.waits_for_thread)
        """The groups that share the worker threads; the one that took a thread last is served last."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._pumping = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    @property
    def busy(self) -> bool:
        """Whether a function runs."""
        return bool(self._tasks)

    def depth(self, endpoint: str) -> tuple[int, int]:
        """How many items of an endpoint run, and how many wait."""
        return self._lanes[endpoint].rows, self._queue.size(endpoint)

    def max_items(self, endpoint: str) -> float:
        """Items of one job, at most."""
        return self._lanes[endpoint].max_items

    def reserve(self, endpoint: str, items: int) -> Callable[[], None]:
        """Hold places for a submit, so that two at once cannot both take the last one; returns how to let them go.

        Raises:
            ProblemError: The queue is full.
        """
        lane = self._lanes[endpoint]
        waiting = self._queue.size(endpoint) + lane.reserved
        free = max(0, self._startable(lane)) * lane.rows_a_call + lane.max_queue_size
        if waiting + items > free:
            eta = self._eta(lane, 1)
            raise refuse(
                "queue_full",
                f"{waiting} items of {endpoint!r} wait already, at most {lane.max_queue_size} may (max_queue_size)",
                retry_after_ms=max(_LEAST_RETRY_MS, eta or 0),
            )
        lane.reserved += items

        def let_go() -> None:
            lane.reserved -= items

        return let_go

    async def put(self, tickets: list[QueueEntry]) -> None:
        """Add the items of one job at the end of the queue and start what can start."""
        lane = self._lanes[tickets[0].endpoint]
        name, job = lane.endpoint.name, tickets[0].job
        await self._queue.put(tickets)
        if lane.former is not None:
            self._wait_for_batch(lane.former, tickets)
        await self._pump(lane.group)
        lane.positions.moved(len(tickets))
        waiting, found = self._queue.size(name), self._find(tickets[0])
        # One that waits for the rest of its batch only is next, and has nobody before it.
        held_up = waiting >= len(tickets) and self._startable(lane) <= 0
        if held_up and found is not None and found.waits(tickets[0].index):
            place = lane.positions.entered(job, len(tickets), waiting)
            self._tell(lane, job, place)
        self._announce_soon(lane)

    async def discard(self, ticket: QueueEntry) -> None:
        """Take an item out of the queue: it never runs."""
        lane = self._lanes[ticket.endpoint]
        if lane.former is not None:
            lane.former.remove([ticket])
        await self._queue.discard(ticket)
        lane.positions.moved()
        self._announce_soon(lane)

    def stop(self) -> list[asyncio.Task[None]]:
        """Start nothing more; returns what still runs."""
        for group in self._groups:
            group.limit = 0
            for timer in (group.timer, *(lane.timer for lane in group.lanes)):
                if timer is not None:
                    timer.cancel()
        return list(self._tasks)

    # ---- starting ----------------------------------------------------------------------------------------------

    def _startable(self, lane: EndpointQueue) -> float:
        """Calls that could begin now."""
        free = lane.group.limit - lane.group.running
        return free if lane.endpoint.is_async else min(free, self._threads)

    async def _pump(self, group: ConcurrencyGroup) -> None:
        """Start what can start."""
        if group.running >= group.limit:  # as it is at most submits to a busy server
            return
        async with self._pumping:
            while (lane := self._next(group)) is not None:
                if lane.former is None:
                    taken = await self._queue.take(lane.endpoint.name)
                    work = self._run(lane, taken[0]) if taken else None
                else:
                    draft = lane.former.draft(self._loop.time())
                    drawn = await self._draw(lane, lane.former, draft)
                    taken = [ticket for ticket, _ in drawn]
                    work = self._start_batch(lane, lane.former, draft, drawn) if taken else None
                if work is None:
                    return
                group.running += 1
                self._serve(group, taken)
                if not lane.endpoint.is_async:
                    self._threads -= 1
                    self._turns.move_to_end(id(group))
                lane.rows += len(taken)
                lane.positions.moved(len(taken))
                self._in_task(work)

    def _next(self, group: ConcurrencyGroup) -> EndpointQueue | None:
        """The endpoint of a group whose turn it is, if one can start."""
        able = [
            lane for lane in group.lanes if self._queue.size(lane.endpoint.name) and self._startable(lane) > 0
        ]
        ready = [lane for lane in able if lane.former is None or lane.former.due() <= self._loop.time()]
        if able and not ready:
            self._wake_when_due(group, able)
        if len(group.lanes) == 1 or len(ready) < 2:
            return ready[0] if ready else None
        return min(ready, key=lambda lane: self._turn_of(group, lane))

    def _turn_of(self, group: ConcurrencyGroup, lane: EndpointQueue) -> tuple[int, float]:
        ticket = next(self._queue.waiting(lane.endpoint.name))
        return group.served.get(ticket.principal, 0), ticket.arrived_at

    def _serve(self, group: ConcurrencyGroup, tickets: Iterable[QueueEntry]) -> None:
        if len(group.lanes) > 1:
            group.calls += 1
            nobody_waits = not any(self._queue.size(lane.endpoint.name) for lane in group.lanes)
            if nobody_waits or len(group.served) > _MAX_SERVED:
                group.served.clear()
            for ticket in tickets:
                group.served[ticket.principal] = group.calls

    def _wake_when_due(self, group: ConcurrencyGroup, lanes: list[EndpointQueue]) -> None:
        due = min(lane.former.due() for lane in lanes if lane.former is not None)
        if due == math.inf:
            return
        if group.timer is not None:
            if group.wakes_at <= due:
                return
            group.timer.cancel()

        def wake() -> None:
            group.timer = None
            self._in_task(self._pump(group))

        group.wakes_at = due
        group.timer = self._loop.call_at(due, wake)

    def _in_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, lane: EndpointQueue, ticket: QueueEntry) -> None:
        free = self._letting_go(lane, [1])
        try:
            await self._start(ticket, free)
        finally:
            await free()

    def _letting_go(self, lane: EndpointQueue, rows: list[int]) -> Callable[[], Coroutine[Any, Any, None]]:
        """How a call that begins now gives back, once, what it has taken: its slot, its thread, and so many rows."""
        began, free = self._loop.time(), False

        async def let_go() -> None:
            nonlocal free
            if not free:
                free = True
                lane.rows -= sum(rows)
                await self._ended(lane, sum(rows), self._loop.time() - began)

        return let_go

    async def _ended(self, lane: EndpointQueue, rows: int, took: float) -> None:
        """A call has ended: its slot and its thread are free."""
        group = lane.group
        group.running -= 1
        mean = lane.mean_duration
        lane.mean_duration = took if mean is None else mean + _RECENT * (took - mean)
        lane.mean_rows = float(rows) if mean is None else lane.mean_rows + _RECENT * (rows - lane.mean_rows)
        waiting = [group]
        if not lane.endpoint.is_async:
            self._threads += 1
            # The thread may be what another endpoint waits for.
            waiting = list(self._turns.values())
        for each in waiting:
            if each is group or self._threads > 0:
                await self._pump(each)
        self._announce_soon(lane)

    # ---- batches -----------------------------------------------------------------------------------------------

    def _wait_for_batch(self, former: BatchQueue[QueueEntry], tickets: list[QueueEntry]) -> None:
        now = self._loop.time()
        for ticket in tickets:
            job = self._find(ticket)
            try:
                place = BatchSlot() if job is None else job.place(ticket.index)
            except Exception:  # noqa: BLE001 - the author's: its submit was admitted, so the item must run
                _log.exception("endpoint %r: its key or cost, which its submit had", ticket.endpoint)
                place = BatchSlot()
            former.add(ticket, place, ticket.principal, now)

    async def _draw(
        self, lane: EndpointQueue, former: BatchQueue[QueueEntry], draft: BatchBuilder[QueueEntry]
    ) -> list[tuple[QueueEntry, QueuedItem | None]]:
        """Take the items of a batch out of the queue."""
        room = draft.room
        tickets = await self._queue.take(lane.endpoint.name, limit=room, fits=draft) if room else []
        now = self._loop.time()
        drawn: list[tuple[QueueEntry, QueuedItem | None]] = []
        for ticket in tickets:
            waiting = former.find(ticket)
            job = self._starting(ticket)
            arrival = None
            if job is not None and waiting is not None:
                arrival = QueuedItem(job, ticket.index, waiting.place.cost, now - waiting.arrived)
            drawn.append((ticket, arrival))
        former.remove(tickets)
        return drawn

    def _start_batch(
        self,
        lane: EndpointQueue,
        former: BatchQueue[QueueEntry],
        draft: BatchBuilder[QueueEntry],
        drawn: list[tuple[QueueEntry, QueuedItem | None]],
    ) -> Coroutine[Any, Any, None]:
        """Call the function; returns what waits for its end."""
        rows = [len(drawn)]

        async def join(running: int, cost: float) -> list[QueuedItem]:
            joining = former.joining(self._loop.time(), draft.key, running, cost)
            more = await self._draw(lane, former, joining)
            lane.positions.moved(len(more))
            lane.rows += len(more)
            rows.append(len(more))
            self._announce_soon(lane)
            return [arrival for _, arrival in more if arrival is not None]

        others = [other.endpoint.name for other in lane.group.lanes if other is not lane]

        def may_join() -> bool:
            # A batch that never ended would keep its slot from the other endpoints of the group.
            return len(former) > 0 and lane.group.limit > 0 and not any(map(self._queue.size, others))

        call = BatchCall(lane.endpoint, join=join, may_join=may_join, free=self._letting_go(lane, rows))
        call.start([arrival for _, arrival in drawn if arrival is not None])
        return call.run()

    # ---- positions ---------------------------------------------------------------------------------------------

    def _announce_soon(self, lane: EndpointQueue) -> None:
        if lane.timer is None and lane.positions.told_any and lane.group.limit:
            lane.timer = self._loop.call_later(self._interval, self._announce_all, lane)

    def _announce_all(self, lane: EndpointQueue) -> None:
        lane.timer = None
        name = lane.endpoint.name
        for job, place in lane.positions.changes(self._queue.waiting(name), self._queue.size(name)):
            self._tell(lane, job, place)

    def _tell(self, lane: EndpointQueue, job: str, position: int) -> None:
        self._announce(job, QueueMessage(position=position, eta_ms=self._eta(lane, position)))

    def _eta(self, lane: EndpointQueue, position: int) -> int | None:
        """Milliseconds until the item at a position starts, by the mean of recent calls.

        Other endpoints of the group take their turns meanwhile: one of theirs for each of ours.
        """
        if lane.mean_duration is None or not lane.group.limit:
            return None
        calls = math.ceil(position / max(1.0, lane.mean_rows))
        work = calls * lane.mean_duration
        for other in lane.group.lanes:
            if other is not lane and other.mean_duration is not None:
                theirs = math.ceil(self._queue.size(other.endpoint.name) / max(1.0, other.mean_rows))
                work += min(theirs, calls) * other.mean_duration
        return round(1000 * max(work / lane.group.limit, lane.mean_duration))
