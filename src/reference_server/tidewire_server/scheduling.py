"""Which item runs next: callers take turns at each endpoint, under its concurrency limit.

Nothing polls: an item starts when it is put in, when a slot of its endpoint becomes free, or when a worker thread
does. Endpoints that wait for a thread take turns. Positions are announced when they change, at most once in
`queue_interval` for each endpoint.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from tidewire.protocol.messages import Queue as QueueMessage
from tidewire_server.endpoints import Default, Endpoint
from tidewire_server.errors import refuse
from tidewire_server.settings import Settings
from tidewire_server.store.base import Queue, Ticket

_LEAST_RETRY_MS: Final = 1000

_RECENT: Final = 0.3
"""Weight of the latest duration in the mean that an ETA is made of."""


@dataclass(slots=True)
class _Lane:
    """What is known of one endpoint's running items."""

    endpoint: Endpoint
    limit: float
    max_queue_size: int
    running: int = 0
    mean_duration: float | None = None
    announced: dict[str, int] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    reserved: int = 0
    """Places in the queue promised to submits that are under way."""


class Scheduler:
    """Starts items. One per server and event loop."""

    def __init__(
        self,
        queue: Queue,
        endpoints: dict[str, Endpoint],
        settings: Settings,
        *,
        start: Callable[[Ticket], Coroutine[Any, Any, None]],
        announce: Callable[[str, QueueMessage], None],
    ) -> None:
        """Begin with nothing running.

        Args:
            queue: Where items wait.
            endpoints: All endpoints by name.
            settings: Limits and intervals.
            start: Runs one item; returns when its function has ended.
            announce: Tells a job its place in the queue.
        """
        self._queue = queue
        self._interval = settings.queue_interval
        self._start = start
        self._announce = announce
        self._threads = settings.max_threads
        self._lanes = {name: _lane(endpoint, settings) for name, endpoint in endpoints.items()}
        self._turns = OrderedDict.fromkeys(name for name, each in endpoints.items() if not each.is_async)
        """The endpoints that share the worker threads; the one that took a thread last is served last."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._pumping = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    @property
    def busy(self) -> bool:
        """Whether a function runs."""
        return bool(self._tasks)

    def depth(self, endpoint: str) -> tuple[int, int]:
        """How many items of an endpoint run, and how many wait."""
        return self._lanes[endpoint].running, self._queue.size(endpoint)

    def reserve(self, endpoint: str, items: int) -> Callable[[], None]:
        """Hold places for a submit, so that two at once cannot both take the last one; returns how to let them go.

        Raises:
            ProblemError: The queue is full.
        """
        lane = self._lanes[endpoint]
        waiting = self._queue.size(endpoint) + lane.reserved
        free = max(0, self._startable(lane)) + lane.max_queue_size
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

    async def put(self, tickets: list[Ticket]) -> None:
        """Add the items of one job at the end of the queue and start what can start."""
        name, job = tickets[0].endpoint, tickets[0].job
        await self._queue.put(tickets)
        await self._pump(name)
        for position, ticket in enumerate(self._queue.waiting(name), 1):
            if ticket.job == job:
                if ticket == tickets[0]:  # none of them has started
                    lane = self._lanes[name]
                    self._tell(lane, job, position)
                    self._announce_soon(lane)
                break

    async def discard(self, ticket: Ticket) -> None:
        """Take an item out of the queue: it never runs."""
        await self._queue.discard(ticket)
        self._announce_soon(self._lanes[ticket.endpoint])

    def stop(self) -> list[asyncio.Task[None]]:
        """Start nothing more; returns what still runs."""
        for lane in self._lanes.values():
            lane.limit = 0
            if lane.timer is not None:
                lane.timer.cancel()
        return list(self._tasks)

    # ---- starting ----------------------------------------------------------------------------------------------

    def _startable(self, lane: _Lane) -> float:
        free = lane.limit - lane.running
        return free if lane.endpoint.is_async else min(free, self._threads)

    async def _pump(self, name: str) -> None:
        lane = self._lanes[name]
        async with self._pumping:
            while self._startable(lane) > 0:
                taken = await self._queue.take(name)
                if not taken:
                    return
                ticket = taken[0]
                lane.running += 1
                if not lane.endpoint.is_async:
                    self._threads -= 1
                    self._turns.move_to_end(name)
                task = self._loop.create_task(self._run(lane, ticket))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _run(self, lane: _Lane, ticket: Ticket) -> None:
        began = self._loop.time()
        try:
            await self._start(ticket)
        finally:
            lane.running -= 1
            took = self._loop.time() - began
            mean = lane.mean_duration
            lane.mean_duration = took if mean is None else mean + _RECENT * (took - mean)
            names = [lane.endpoint.name]
            if not lane.endpoint.is_async:
                self._threads += 1
                # The thread may be what another endpoint waits for.
                names = list(self._turns)
            for name in names:
                await self._pump(name)
            self._announce_soon(lane)

    # ---- positions ---------------------------------------------------------------------------------------------

    def _announce_soon(self, lane: _Lane) -> None:
        if lane.timer is None and lane.announced and lane.limit:
            lane.timer = self._loop.call_later(self._interval, self._announce_all, lane)

    def _announce_all(self, lane: _Lane) -> None:
        lane.timer = None
        positions: dict[str, int] = {}
        for position, ticket in enumerate(self._queue.waiting(lane.endpoint.name), 1):
            positions.setdefault(ticket.job, position)
        for job in lane.announced.keys() - positions.keys():
            del lane.announced[job]
        for job, position in positions.items():
            if lane.announced.get(job) != position:
                self._tell(lane, job, position)

    def _tell(self, lane: _Lane, job: str, position: int) -> None:
        lane.announced[job] = position
        self._announce(job, QueueMessage(position=position, eta_ms=self._eta(lane, position)))

    def _eta(self, lane: _Lane, position: int) -> int | None:
        """Milliseconds until the item at a position starts, by the mean of recent durations."""
        if lane.mean_duration is None or not lane.limit:
            return None
        return round(1000 * lane.mean_duration * math.ceil(position / min(lane.limit, position)))


def _lane(endpoint: Endpoint, settings: Settings) -> _Lane:
    limit = endpoint.concurrency_limit
    if isinstance(limit, Default):
        limit = settings.default_concurrency_limit
    waiting = settings.max_queue_size if endpoint.max_queue_size is None else endpoint.max_queue_size
    return _Lane(endpoint, math.inf if limit is None else limit, waiting)
