"""Items that wait, in memory: a lane for each principal, and whose turn it is.

    endpoint ──► principals in the order of their turns ──► each one's tickets, first in, first out

Who got an item goes to the end of the line; who comes anew begins there. So ten thousand items of one caller do not
delay the first of another. What is passed over because it does not fit stays where it is.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from tidewire_server.store.interfaces import QueueEntry

Lane = OrderedDict[QueueEntry, None]


class MemoryQueue:
    """The order is that of dicts, which find a ticket by itself as well."""

    def __init__(self) -> None:
        self._lanes: dict[str, OrderedDict[str, Lane]] = {}
        self._sizes: dict[str, int] = {}

    async def put(self, tickets: Sequence[QueueEntry]) -> None:
        for ticket in tickets:
            lanes = self._lanes.setdefault(ticket.endpoint, OrderedDict())
            lane = lanes.setdefault(ticket.principal, OrderedDict())
            if ticket not in lane:
                lane[ticket] = None
                self._sizes[ticket.endpoint] = self._sizes.get(ticket.endpoint, 0) + 1

    async def take(
        self, endpoint: str, *, limit: int = 1, fits: Callable[[QueueEntry], bool] | None = None
    ) -> list[QueueEntry]:
        taken: list[QueueEntry] = []
        if limit > 0:
            for ticket in self._in_turn(endpoint, fits):
                taken.append(ticket)
                if len(taken) == limit:
                    break
        for ticket in taken:
            lanes = self._lanes[endpoint]
            lanes.move_to_end(ticket.principal)
            self._remove(ticket)
        return taken

    async def discard(self, ticket: QueueEntry) -> None:
        lane = self._lanes.get(ticket.endpoint, OrderedDict()).get(ticket.principal)
        if lane is not None and ticket in lane:
            self._remove(ticket)

    def size(self, endpoint: str) -> int:
        return self._sizes.get(endpoint, 0)

    def waiting(self, endpoint: str) -> Iterator[QueueEntry]:
        return self._in_turn(endpoint, None)

    def _in_turn(self, endpoint: str, fits: Callable[[QueueEntry], bool] | None) -> Iterator[QueueEntry]:
        again: deque[Iterator[QueueEntry]] = deque()
        lanes = self._lanes.get(endpoint, OrderedDict())
        first_round = (iter(lane) for lane in lanes.values())
        for own in chain(first_round, _drained(again)):
            for ticket in own:
                if fits is None or fits(ticket):
                    yield ticket
                    again.append(own)
                    break

    def _remove(self, ticket: QueueEntry) -> None:
        lanes = self._lanes[ticket.endpoint]
        lane = lanes[ticket.principal]
        del lane[ticket]
        self._sizes[ticket.endpoint] -= 1
        if not lane:
            del lanes[ticket.principal]


def _drained(line: deque[Iterator[QueueEntry]]) -> Iterator[Iterator[QueueEntry]]:
    """What is added at the end of a line while it is walked comes as well."""
    while line:
        yield line.popleft()
