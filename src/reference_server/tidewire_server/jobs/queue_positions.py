"""Queue-position updates, throttled so that their total cost does not grow with the square of the queue length.

Each item that leaves the queue changes the positions of all items behind it. Sending all these changes would be slow,
so jobs receive only some of them:

  job                        | updates
  ---------------------------+--------------------------------------------------------------------------
  just submitted             | its position at the end of the queue; corrected later if fairness moves it forward
  in the first `FRONT` items | every change, at most once per `queue_interval`
  behind these items         | after the queue has moved by `FRONT` items, or by 10% of its length if that is more

If several processes share the queue, a job also gets an update if only its estimated waiting time has changed, by at least one
second and 10%. A process that starts or stops changes the estimate without changing the position.

When 1,000 waiting items leave the queue one by one, the server computes about 20,000 positions instead of 500,000.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final

from tidewire.protocol.messages import Queue as QueueMessage
from tidewire_server.jobs.endpoint_queues_and_groups import EndpointQueue
from tidewire_server.jobs.replicas.live_workers import LiveWorkers
from tidewire_server.store.queue_interface import Queue
from tidewire_server.store.records import QueueEntry

FRONT: Final = 10
"""Number of positions at the front of the queue for which every change is published."""

MOVED_FRACTION: Final = 0.1
"""Fraction of the waiting items that must leave the queue before the positions behind `FRONT` are published."""

_SECONDS_PER_ITEM: Final = 1 / 2000
"""Minimum interval between two reads of a shared queue, in seconds per waiting item."""

_MIN_CHANGE_MS: Final = 1000
"""Minimum change of an estimated waiting time that is published, in milliseconds. Every call that ends changes it a little."""

_MIN_CHANGE: Final = 0.1
"""Minimum change of an estimated waiting time that is published, as a fraction of the last published estimate."""


class QueuePositions:
    """Published positions in the queue of one endpoint. The item that runs next has position 1."""

    def __init__(self, *, shared: bool = False) -> None:
        """Create the object for an empty queue. The argument `shared` says whether other processes use the queue, too."""
        self._shared = shared
        self._published: dict[str, QueueMessage] = {}
        self._moves = 0

    def forget(self, job: str) -> None:
        """Publish the position of a job again at the next update, because no reader has received it."""
        self._published.pop(job, None)

    def moved(self, by: int = 1) -> bool:
        """Record that items were added to the queue or removed from it. Return whether any job has a published position, which
        may need an update.
        """
        self._moves += by
        return bool(self._published)

    def entered(
        self, job: str, items: int, size: int, describe: Callable[[str, int], QueueMessage]
    ) -> QueueMessage:
        """Record and return the message about a new job whose items are all waiting.

        Args:
            job: Id of the job.
            items: Number of items of the job.
            size: Length of the queue, including the items of the new job.
            describe: Function that returns the message about a job at a position.
        """
        message = self._published[job] = describe(job, max(1, size - items + 1))
        return message

    def begin_update(self, size: int) -> int | None:
        """Begin to publish new positions. Return how many items at the front of the queue must be passed to `changes`, or None
        for all.

        Args:
            size: Number of waiting items.
        """
        if size and self._moves < max(FRONT, size * MOVED_FRACTION):
            return FRONT
        self._moves = 0
        return None

    def changes(
        self, waiting: Sequence[QueueEntry], limit: int | None, describe: Callable[[str, int], QueueMessage]
    ) -> list[tuple[str, QueueMessage]]:
        """Return the jobs for which a new message must be published now, together with their messages.

        Args:
            waiting: The first waiting items, in the order in which they will run.
            limit: Number of items that `begin_update` has returned.
            describe: Function that returns the message about a job at a position.
        """
        positions: dict[str, int] = {}
        for position, entry in enumerate(waiting, 1):
            positions.setdefault(entry.job, position)
        if limit is None:
            self._published = {job: message for job, message in self._published.items() if job in positions}
        messages = ((job, describe(job, position)) for job, position in positions.items())
        changed = [(job, message) for job, message in messages if self._has_changed(job, message)]
        self._published.update(changed)
        return changed

    def _has_changed(self, job: str, message: QueueMessage) -> bool:
        """Return whether a message differs enough from the last published one to be sent to the readers [TW-FRM-063]."""
        last = self._published.get(job)
        if last is None or (last.position, last.waits_for) != (message.position, message.waits_for):
            return True
        if not self._shared or last.eta_ms == message.eta_ms:
            return False
        if last.eta_ms is None or message.eta_ms is None:
            return True
        return abs(message.eta_ms - last.eta_ms) >= max(_MIN_CHANGE_MS, _MIN_CHANGE * last.eta_ms)


class PositionAnnouncer:
    """Publishes the queue positions of jobs, with estimates of their waiting times."""

    def __init__(
        self,
        queue: Queue,
        interval: float,
        announce: Callable[[str, QueueMessage], bool],
        workers: LiveWorkers,
        *,
        shared: bool = False,
    ) -> None:
        """Create an announcer for an empty queue. Its methods must be called on one event loop.

        Args:
            queue: Queue of the waiting items.
            interval: Minimum number of seconds between two updates of the positions in an endpoint's queue.
            announce: Function that publishes the queue position of a job, and returns whether it keeps the position for later
                readers.
            workers: Live processes that run functions.
            shared: Whether other processes use the queue, too.
        """
        self._queue = queue
        self._workers = workers
        self._refused: dict[str, Collection[str]] = {}
        """Jobs that every live process refused at the last update, by endpoint."""
        self._interval = interval
        self._announce = announce
        self._positions = defaultdict[str, QueuePositions](lambda: QueuePositions(shared=shared))
        """Published positions by the name of the endpoint."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """Timers of the next updates by the name of the endpoint."""
        self._updates: set[asyncio.Task[None]] = set()
        self._stopped = False

    def entered(self, endpoint_queue: EndpointQueue, job: str, items: int) -> None:
        """Publish the position of a new job whose items are all waiting."""
        name = endpoint_queue.endpoint.name
        describe = partial(self._describe, endpoint_queue)
        message = self._positions[name].entered(job, items, self._queue.size(name), describe)
        self._publish(endpoint_queue, job, message)

    def moved(self, endpoint_queue: EndpointQueue, by: int = 1) -> None:
        """Record that items were added to the queue or removed from it. Their positions are published at the end of the
        interval.
        """
        if self._positions[endpoint_queue.endpoint.name].moved(by):
            self._update_after(self._interval, endpoint_queue)

    def changed(self, endpoint_queue: EndpointQueue, size: int) -> None:
        """Record that other processes may have changed a queue. The positions are published at the end of the interval, which is
        longer for a long queue, because all of its items are read.
        """
        self._positions[endpoint_queue.endpoint.name].moved(size)
        self._update_after(max(self._interval, size * _SECONDS_PER_ITEM), endpoint_queue)

    def forget(self, jobs: Iterable[str]) -> None:
        """Publish the positions of some jobs again at the next update, even if they have not changed."""
        for job in jobs:
            for positions in self._positions.values():
                positions.forget(job)

    async def restored(self, endpoint_queue: EndpointQueue) -> None:
        """Publish the positions of all jobs in a queue that was restored after a restart of the server."""
        name = endpoint_queue.endpoint.name
        self._positions[name].moved(self._queue.size(name))
        await self._publish_changes(endpoint_queue)

    def stop(self) -> None:
        """Publish no more positions."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        for update in self._updates:
            update.cancel()

    def eta(self, endpoint_queue: EndpointQueue, position: int) -> int | None:
        """Estimate in how many milliseconds the item at a queue position will start. Return None if this is unknown.

        The estimate uses the average duration of recent calls, and assumes that the endpoints of a group take turns.
        """
        load = self._workers.total(endpoint_queue.endpoint.name)
        if load.mean_duration is None or not load.slots:
            return None
        calls = math.ceil(position / max(1.0, load.mean_rows))
        work = calls * load.mean_duration
        for other in endpoint_queue.group.endpoint_queues:
            if other is not endpoint_queue:
                name = other.endpoint.name
                other_load = self._workers.total(name)
                if other_load.mean_duration is not None:
                    other_calls = math.ceil(self._queue.size(name) / max(1.0, other_load.mean_rows))
                    work += min(other_calls, calls) * other_load.mean_duration
        limit = endpoint_queue.group.global_limit
        slots = load.slots if limit is None else min(load.slots, limit.calls)
        return round(1000 * max(work / slots, load.mean_duration))

    def _update_after(self, delay: float, endpoint_queue: EndpointQueue) -> None:
        name = endpoint_queue.endpoint.name
        if not self._stopped and name not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(delay, self._start_update, endpoint_queue)

    def _start_update(self, endpoint_queue: EndpointQueue) -> None:
        update = asyncio.get_running_loop().create_task(self._publish_changes(endpoint_queue))
        self._updates.add(update)
        update.add_done_callback(self._updates.discard)

    async def _publish_changes(self, endpoint_queue: EndpointQueue) -> None:
        name = endpoint_queue.endpoint.name
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
        positions = self._positions[name]
        self._refused[name] = frozenset(await self._queue.refused(name))
        limit = positions.begin_update(self._queue.size(name))
        waiting = await self._queue.waiting(name, limit=limit)
        for job, message in positions.changes(waiting, limit, partial(self._describe, endpoint_queue)):
            self._publish(endpoint_queue, job, message)

    def _describe(self, endpoint_queue: EndpointQueue, job: str, position: int) -> QueueMessage:
        """Return the message about a job at a position."""
        name = endpoint_queue.endpoint.name
        if not self._workers.count(name):
            return QueueMessage(position=position, waits_for="worker")
        if job in self._refused.get(name, ()):
            return QueueMessage(position=position, waits_for="version")
        return QueueMessage(position=position, eta_ms=self.eta(endpoint_queue, position))

    def _publish(self, endpoint_queue: EndpointQueue, job: str, message: QueueMessage) -> None:
        if not self._announce(job, message):
            self._positions[endpoint_queue.endpoint.name].forget(job)
