"""Batch formation in memory (`BatchQueue`, `BatchBuilder`): decide which items form a batch, and when it may start.

This module only makes decisions. It reads no clock and starts no batch. Callers pass the current time as an argument.

Waiting items are grouped by their batch key. This table shows when a group is ready to form a batch:

  group of a key | condition                                              | effect
  ---------------+--------------------------------------------------------+-----------------------------------------
  ready          | it has `max_size` items, their cost reaches `max_cost`, | a batch starts when a worker is idle
                 |   or its oldest item has waited `timeout`               |
  not ready      | otherwise                                              | the group waits for more items

`MemoryQueue`, which is fair among principals, determines the order of the items. It offers the items in this order to a
`BatchBuilder`, which accepts or skips each item:

  offered item                     | decision of the builder
  ---------------------------------+----------------------------------------------------------------
  first item whose key is ready    | accepted; the batch is now limited to this key
  another key, or key not ready    | skipped
  the batch is full                | skipped
  cost would exceed `max_cost`     | skipped; all later items of its principal are skipped too, to preserve the order. If the
                                   |   batch is running, those of all principals are skipped
  any other item                   | accepted
  late joiner of a running batch   | the same as above; but all late joiners are skipped if the oldest item has
                                   |   another key, and that key is ready

The builder does not check the cost of the first item of a batch. A single item cannot exceed `max_cost`, because the
server rejects a request that contains such an input. The duration of every operation is independent of the number of
waiting items.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from tidewire_server.store.records import BatchBounds, BatchSlot, QueueEntry, RunningBatch


@dataclass(frozen=True, slots=True)
class Waiting:
    """Batch key and cost of a waiting item, and the time from which the item has waited."""

    slot: BatchSlot
    arrived: float


@dataclass(slots=True)
class _Group:
    """Waiting items with the same batch key, oldest first."""

    items: OrderedDict[QueueEntry, Waiting] = field(default_factory=OrderedDict)
    cost: float = 0.0


class BatchQueue:
    """Waiting items of one batched endpoint, grouped by their batch key."""

    def __init__(self, bounds: BatchBounds) -> None:
        self._bounds = bounds
        self._items: OrderedDict[QueueEntry, Waiting] = OrderedDict()
        self._groups: dict[Hashable, _Group] = {}
        self._full: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: QueueEntry, slot: BatchSlot, arrived: float) -> None:
        """Add a waiting item, unless it is in the queue. Items must be added in the order in which they arrived
        (`arrived`).
        """
        if item in self._items:
            return
        waiting = Waiting(slot, arrived)
        self._items[item] = waiting
        group = self._groups.setdefault(slot.key, _Group())
        group.items[item] = waiting
        group.cost += slot.cost
        self._update_full(slot.key, group)

    def remove(self, items: Iterable[QueueEntry]) -> None:
        """Remove items that were taken for a batch or cancelled. Items that are not in the queue are ignored."""
        smaller: dict[Hashable, _Group] = {}
        for item in items:
            waiting = self._items.pop(item, None)
            if waiting is None:
                continue
            key = waiting.slot.key
            smaller[key] = group = self._groups[key]
            del group.items[item]
            # Set the cost of an empty group to exactly 0. Otherwise the rounding errors of the subtractions would add
            # up over time.
            group.cost = group.cost - waiting.slot.cost if group.items else 0.0
        for key, group in smaller.items():
            self._update_full(key, group)
            if not group.items:
                del self._groups[key]

    def find(self, item: QueueEntry) -> Waiting | None:
        """Return the entry of a waiting item, or None if the item is not in the queue."""
        return self._items.get(item)

    def due(self) -> float:
        """Return the earliest time at which a batch may start.

        The result is minus infinity if a batch may start immediately, and infinity if no item is waiting.
        """
        if not self._items:
            return math.inf
        if self._full:
            return -math.inf
        return next(iter(self._items.values())).arrived + self._bounds.timeout

    def draft(self, now: float) -> "BatchBuilder":
        """Return a builder for a new batch."""
        return BatchBuilder(self, self._bounds, now)

    def joining(self, now: float, running: RunningBatch) -> "BatchBuilder":
        """Return a builder that chooses items to join a running batch (late joiners). Late joiners need not wait for
        `timeout`.

        Args:
            now: Current time.
            running: The running batch.
        """
        if self._items:
            oldest = next(iter(self._items.values())).slot.key
            if oldest != running.key and self.is_ready(oldest, now):
                # Treat the running batch as full, so that it ends soon. Then the older items, which have another key,
                # can start.
                running = running._replace(rows=self._bounds.max_size)
        return BatchBuilder(self, self._bounds, now, running)

    def is_ready(self, key: Hashable, now: float) -> bool:
        """Whether a batch of items with this batch key may start now, without waiting for more items."""
        oldest = next(iter(self._groups[key].items.values()))
        return key in self._full or oldest.arrived + self._bounds.timeout <= now

    def _update_full(self, key: Hashable, group: _Group) -> None:
        if self._bounds.are_reached(len(group.items), group.cost):
            self._full.add(key)
        else:
            self._full.discard(key)


class BatchBuilder:
    """A batch under construction. Call the builder with an item to add the item if it fits."""

    def __init__(
        self,
        queue: BatchQueue,
        bounds: BatchBounds,
        now: float,
        running: RunningBatch | None = None,
    ) -> None:
        self._queue = queue
        self._bounds = bounds
        self._now = now
        self._begun = self._joins = running is not None
        self.key, self.rows, self.cost = running or RunningBatch(None, 0, 0.0)
        self._closed: set[str] = set()

    @property
    def room(self) -> int:
        """Number of items that can still be added."""
        return max(0, self._bounds.max_size - self.rows)

    def __call__(self, item: QueueEntry) -> bool:
        """Add an item to the batch if it fits. Return whether the item was added."""
        waiting = self._queue.find(item)
        if waiting is None or self.rows >= self._bounds.max_size or item.principal in self._closed:
            return False
        key, cost = waiting.slot
        if not self._begun:
            if not self._queue.is_ready(key, self._now):
                return False
            self.key, self._begun = key, True
        elif key != self.key:
            return False
        if self.rows and self.cost + cost > self._bounds.max_cost:
            self._closed.add(item.principal)
            if self._joins:
                # Treat the batch as full until this item fits. Otherwise smaller items of other principals could keep the batch
                # running forever, and this item would never run.
                self.rows = self._bounds.max_size
            return False
        self.rows += 1
        self.cost += cost
        return True
