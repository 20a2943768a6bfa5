"""In-memory queue that is fair between principals.

    endpoint ──► principals in the order of their turns ──► each principal's entries, first in, first out

Each time an item of a principal is taken, the principal moves to the end of the turn order. If a principal without
waiting items submits a job, that principal joins the turn order at the end. Even ten thousand waiting items of one
principal therefore do not delay the first item of another principal. An item that is skipped because it does not fit
keeps its position.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain

from tidewire_server.store.interfaces import QueueEntry

PrincipalQueue = OrderedDict[QueueEntry, None]


class MemoryQueue:
    """Queue that stores the items of each principal in an ordered dict, so that an item can be discarded in O(1)."""

    def __init__(self) -> None:
        self._queues: dict[str, OrderedDict[str, PrincipalQueue]] = {}
        self._sizes: Counter[str] = Counter()

    async def put(self, entries: Sequence[QueueEntry]) -> None:
        for entry in entries:
            queues = self._queues.setdefault(entry.endpoint, OrderedDict())
            queue = queues.setdefault(entry.principal, OrderedDict())
            if entry not in queue:
                queue[entry] = None
                self._sizes[entry.endpoint] += 1

    async def take(
        self,
        endpoint: str,
        *,
        limit: int = 1,
        fits: Callable[[QueueEntry], bool] | None = None,
        skip: Collection[str] = (),
    ) -> list[QueueEntry]:
        taken: list[QueueEntry] = []
        if limit > 0:
            for entry in self._in_turn(endpoint, fits, skip):
                taken.append(entry)
                if len(taken) == limit:
                    break
        for entry in taken:
            queues = self._queues[endpoint]
            queues.move_to_end(entry.principal)
            self._remove(entry)
        return taken

    async def discard(self, entry: QueueEntry) -> None:
        queue = self._queues.get(entry.endpoint, OrderedDict()).get(entry.principal)
        if queue is not None and entry in queue:
            self._remove(entry)

    def size(self, endpoint: str, principal: str | None = None) -> int:
        if principal is None:
            return self._sizes[endpoint]
        return len(self._queues.get(endpoint, OrderedDict()).get(principal, ()))

    def waiting(self, endpoint: str, *, skip: Collection[str] = ()) -> Iterator[QueueEntry]:
        return self._in_turn(endpoint, None, skip)

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
