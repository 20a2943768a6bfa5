"""In-memory queue that is fair between principals.

    endpoint ──► principals in the order of their turns ──► each principal's entries, first in, first out

Each time an item of a principal is taken, the principal moves to the end of the turn order. If a principal without
waiting items submits a job, that principal joins the turn order at the end. Even ten thousand waiting items of one
principal therefore do not delay the first item of another principal. An item that is skipped because it does not fit
keeps its position.
"""

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, takewhile
from types import MappingProxyType

from tidewire_server.store.jobs_interface import NewJob
from tidewire_server.store.memory.memory_batches import BatchQueue
from tidewire_server.store.records import (
    BatchBounds,
    BatchItem,
    BatchSlot,
    GlobalLimit,
    QueueEntry,
    RunningBatch,
)
from tidewire_server.store.store_errors import QueueFullError

PrincipalQueue = OrderedDict[QueueEntry, None]


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _is_older(entry: QueueEntry, other: QueueEntry) -> bool:
    """Return whether an item comes before another item of the same principal."""
    if entry.job == other.job:
        return entry.index < other.index
    return entry.arrived_at < other.arrived_at


class MemoryQueue:
    """Queue that stores the items of each principal in an ordered dict, so that an item can be discarded in O(1)."""

    def __init__(self, clock: Callable[[], float] = _loop_time) -> None:
        """Create an empty queue.

        Args:
            clock: Clock that measures how long the items of a batch have waited. It must be the event loop's clock, except
                in tests.
        """
        self._clock = clock
        self._queues: dict[str, OrderedDict[str, PrincipalQueue]] = {}
        self._sizes: Counter[str] = Counter()
        self._batch_queues: dict[str, BatchQueue] = {}
        """Waiting items of each batched endpoint whose batch keys and costs are known."""
        self._reserved: Counter[str] = Counter()
        """Number of places in each endpoint's queue that are reserved for jobs whose commit is in progress."""
        self._reserved_by: Counter[tuple[str, str]] = Counter()
        """Number of these reserved places per endpoint and principal."""

    def serve(
        self,
        endpoints: Mapping[str, BatchBounds | None],
        wake: Callable[[str], None],
        limits: Mapping[str, GlobalLimit] = MappingProxyType({}),
    ) -> None:
        # `wake` is not needed: only calls of this object and of `Jobs.add` make items available. This process enforces the
        # limits.
        del wake, limits
        self._batch_queues = {
            name: BatchQueue(bounds) for name, bounds in endpoints.items() if bounds is not None
        }

    async def put(self, entries: Sequence[QueueEntry], slots: Sequence[BatchSlot] | None = None) -> None:
        self.put_at_once(entries, slots)

    async def take(self, endpoint: str, *, limit: int = 1, skip: Collection[str] = ()) -> list[QueueEntry]:
        return self._take(endpoint, limit, None, skip)

    async def take_batch(self, endpoint: str, running: RunningBatch | None = None) -> list[BatchItem]:
        batch_queue, now = self._batch_queues[endpoint], self._clock()
        builder = batch_queue.draft(now) if running is None else batch_queue.joining(now, running)
        taken = []
        for entry in self._take(endpoint, builder.room, builder):
            waiting = batch_queue.find(entry)
            assert waiting is not None  # noqa: S101 - the builder accepts only items that it has found
            taken.append(BatchItem(entry, waiting.slot, now - waiting.arrived))
        batch_queue.remove(item.entry for item in taken)
        return taken

    async def discard(self, entry: QueueEntry) -> None:
        queue = self._queues.get(entry.endpoint, OrderedDict()).get(entry.principal)
        if queue is not None and entry in queue:
            self._remove(entry)
            if (batch_queue := self._batch_queues.get(entry.endpoint)) is not None:
                batch_queue.remove([entry])

    def end_call(self, endpoint: str) -> None:
        """Do nothing. Only several processes with one store have to count the calls of endpoint functions in the store."""

    async def refused(self, endpoint: str) -> Collection[str]:
        """Return nothing, because no other process could have accepted an input."""
        del endpoint
        return ()

    def due(self, endpoint: str) -> float:
        batch_queue = self._batch_queues.get(endpoint)
        if batch_queue is not None:
            return batch_queue.due()
        return -math.inf if self._sizes[endpoint] else math.inf

    def size(self, endpoint: str) -> int:
        return self._sizes[endpoint]

    async def waiting(
        self, endpoint: str, *, limit: int | None = None, skip: Collection[str] = ()
    ) -> list[QueueEntry]:
        return list(islice(self._in_turn(endpoint, None, skip), limit))

    # ---- for the store -----------------------------------------------------------------------------------------

    def put_at_once(self, entries: Sequence[QueueEntry], slots: Sequence[BatchSlot] | None) -> None:
        """Add items synchronously. See `Queue.put`."""
        for entry in entries:
            queues = self._queues.setdefault(entry.endpoint, OrderedDict())
            queue = queues.setdefault(entry.principal, OrderedDict())
            if entry not in queue:
                later = [*takewhile(partial(_is_older, entry), reversed(queue))]
                queue[entry] = None
                # An item that returns to the queue gets its earlier place among the items of its principal.
                for other in reversed(later):
                    queue.move_to_end(other)
                self._sizes[entry.endpoint] += 1
        if slots is not None and (batch_queue := self._batch_queues.get(entries[0].endpoint)) is not None:
            now = self._clock()
            for entry, slot in zip(entries, slots, strict=True):
                batch_queue.add(entry, slot, now)

    def check_limits(self, new: NewJob) -> None:
        """Check whether the queue has room for the items of a new job.

        Raises:
            QueueFullError: The queue is full, or the principal already uses its whole share of the queue.
        """
        endpoint, principal, limits = new.record.endpoint, new.record.principal, new.limits
        waiting = self._sizes[endpoint] + self._reserved.get(endpoint, 0)
        if waiting + len(new.entries) > limits.items:
            raise QueueFullError(waiting, of_principal=False)
        queues = self._queues.get(endpoint)
        own = 0 if queues is None else len(queues.get(principal, ()))
        own += self._reserved_by.get((endpoint, principal), 0)
        if own + len(new.entries) > limits.items_of_principal:
            raise QueueFullError(own, of_principal=True)

    def reserve(self, new: NewJob) -> None:
        """Reserve places in the queue for the items of a new job, so that concurrent commits cannot exceed its limit.

        Raises:
            QueueFullError: The queue has no room for the items.
        """
        self.check_limits(new)
        self._count_reserved(new, len(new.entries))

    def cancel_reservation(self, new: NewJob) -> None:
        """Release the places in the queue that were reserved for a job."""
        self._count_reserved(new, -len(new.entries))

    def _count_reserved(self, new: NewJob, change: int) -> None:
        endpoint, by = new.record.endpoint, (new.record.endpoint, new.record.principal)
        self._reserved[endpoint] += change
        self._reserved_by[by] += change
        if not self._reserved_by[by]:
            del self._reserved_by[by]

    # ---- turns -------------------------------------------------------------------------------------------------

    def _take(
        self,
        endpoint: str,
        limit: int,
        fits: Callable[[QueueEntry], bool] | None,
        skip: Collection[str] = (),
    ) -> list[QueueEntry]:
        """Remove the next items of an endpoint.

        Args:
            endpoint: Name of the endpoint.
            limit: Maximum number of items.
            fits: Predicate that is called once for each item whose turn it is. If it returns False, the item keeps its
                position, and the principal's next item gets the turn. If `fits` is None, every item may be taken.
            skip: Principals whose items keep their positions.
        """
        # The slice reads no item after the last one, so that `fits` is not called for an item that is not taken.
        taken = list(islice(self._in_turn(endpoint, fits, skip), limit))
        for entry in taken:
            self._queues[endpoint].move_to_end(entry.principal)
            self._remove(entry)
        return taken

    def _in_turn(
        self, endpoint: str, fits: Callable[[QueueEntry], bool] | None, skip: Collection[str]
    ) -> Iterator[QueueEntry]:
        queues = self._queues.get(endpoint, OrderedDict())
        next_rounds: deque[Iterator[QueueEntry]] = deque()
        first_round = (iter(queue) for principal, queue in queues.items() if principal not in skip)
        for entries in chain(first_round, _drained(next_rounds)):
            for entry in entries:
                if fits is None or fits(entry):
                    yield entry
                    next_rounds.append(entries)
                    break

    def _remove(self, entry: QueueEntry) -> None:
        queues = self._queues[entry.endpoint]
        queue = queues[entry.principal]
        del queue[entry]
        self._sizes[entry.endpoint] -= 1
        if not queue:
            del queues[entry.principal]


def _drained(pending: deque[Iterator[QueueEntry]]) -> Iterator[Iterator[QueueEntry]]:
    """Remove and yield the first element of a deque, until the deque is empty. Other code may append elements during
    the iteration.
    """
    while pending:
        yield pending.popleft()
