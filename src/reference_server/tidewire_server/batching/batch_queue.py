"""Who goes into which batch, and when. Pure: times come in as arguments, and nothing waits or runs here.

  a key's items are | when                                                  | then
  ------------------+-------------------------------------------------------+------------------------------------------
  ready             | there are `max_size`, their costs reach `max_cost`,    | they go as soon as a worker is idle
                    |   or the oldest has waited `timeout`                   |
  not ready         | else                                                  | they wait for more, until the oldest has
                    |                                                       |   waited `timeout` since it arrived

Who is next is the queue's business (it is fair among principals). It offers items in its order to a `BatchBuilder`, which
takes what fits:

  an item is offered          | the draft
  ----------------------------+---------------------------------------------------------------------
  first of a ready key        | takes it, and from then on only its key
  of another key, or not ready| passes it over
  when the batch is full      | passes it over
  whose cost passes `max_cost`| passes it over, and all later ones of its principal: order is kept
  else                        | takes it
  to join a batch that runs   | the same, unless an item of another key is older and ready: then the batch runs out

The first item goes whatever its cost: one that could never go was refused at the submit. Every operation is O(1) in
what waits.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tidewire_server.endpoints.batch_options import Batching, BatchSlot

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Waiting:
    """An item that waits."""

    place: BatchSlot
    principal: str
    arrived: float


@dataclass(slots=True)
class _Group(Generic[T]):
    """The waiting items of one key, the oldest first."""

    items: "OrderedDict[T, Waiting]" = field(default_factory=OrderedDict)
    cost: float = 0.0


class BatchQueue(Generic[T]):
    """The waiting items of one endpoint."""

    def __init__(self, bounds: Batching) -> None:
        self._bounds = bounds
        self._items: OrderedDict[T, Waiting] = OrderedDict()
        self._groups: dict[Hashable, _Group[T]] = {}
        self._full: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T, place: BatchSlot, principal: str, arrived: float) -> None:
        """An item waits from now on; `arrived` never goes back from one call to the next."""
        waiting = Waiting(place, principal, arrived)
        self._items[item] = waiting
        group = self._groups.setdefault(place.key, _Group())
        group.items[item] = waiting
        group.cost += place.cost
        self._weigh(place.key, group)

    def remove(self, items: Iterable[T]) -> None:
        """Items were taken, or will never run. Those that are not here are passed over."""
        smaller: dict[Hashable, _Group[T]] = {}
        for item in items:
            waiting = self._items.pop(item, None)
            if waiting is None:
                continue
            key = waiting.place.key
            smaller[key] = group = self._groups[key]
            del group.items[item]
            # Not by subtraction alone: what rounding leaves behind must not add up.
            group.cost = group.cost - waiting.place.cost if group.items else 0.0
        for key, group in smaller.items():
            self._weigh(key, group)
            if not group.items:
                del self._groups[key]

    def find(self, item: T) -> Waiting | None:
        """What is known of an item; None where it does not wait."""
        return self._items.get(item)

    def due(self) -> float:
        """The time from which a batch may go: minus infinity at once, infinity where nothing waits."""
        if not self._items:
            return math.inf
        if self._full:
            return -math.inf
        return next(iter(self._items.values())).arrived + self._bounds.timeout

    def draft(self, now: float) -> "BatchBuilder[T]":
        """Begin a batch."""
        return BatchBuilder(self, self._bounds, now)

    def joining(self, now: float, key: Hashable, rows: int, cost: float) -> "BatchBuilder[T]":
        """Look for items to join a batch that runs: they wait for nothing but room.

        Args:
            now: The time.
            key: The key of the batch.
            rows: How many run in it.
            cost: What they cost.
        """
        if self._items:
            oldest = next(iter(self._items.values())).place.key
            if oldest != key and self.is_ready(oldest, now):
                rows = self._bounds.max_size  # it is full, so that it ends, and the others have their turn
        return BatchBuilder(self, self._bounds, now, begun=(key, rows, cost))

    def is_ready(self, key: Hashable, now: float) -> bool:
        """Whether items of a key need not wait for more."""
        oldest = next(iter(self._groups[key].items.values()))
        return key in self._full or oldest.arrived + self._bounds.timeout <= now

    def _weigh(self, key: Hashable, group: _Group[T]) -> None:
        if len(group.items) >= self._bounds.max_size or group.cost >= self._bounds.max_cost:
            self._full.add(key)
        else:
            self._full.discard(key)


class BatchBuilder(Generic[T]):
    """One batch while it is put together. Called with an item: whether it goes in."""

    def __init__(
        self,
        former: BatchQueue[T],
        bounds: Batching,
        now: float,
        *,
        begun: tuple[Hashable, int, float] | None = None,
    ) -> None:
        self._former = former
        self._bounds = bounds
        self._now = now
        self._begun = begun is not None
        self.key, self.rows, self.cost = begun or (None, 0, 0.0)
        self._closed: set[str] = set()

    @property
    def room(self) -> int:
        """Rows that are free."""
        return max(0, self._bounds.max_size - self.rows)

    def __call__(self, item: T) -> bool:
        """Take an item in, if it fits."""
        waiting = self._former.find(item)
        if waiting is None or self.rows >= self._bounds.max_size or waiting.principal in self._closed:
            return False
        key, cost = waiting.place
        if not self._begun:
            if not self._former.is_ready(key, self._now):
                return False
            self.key, self._begun = key, True
        elif key != self.key:
            return False
        if self.rows and self.cost + cost > self._bounds.max_cost:
            self._closed.add(waiting.principal)
            return False
        self.rows += 1
        self.cost += cost
        return True
