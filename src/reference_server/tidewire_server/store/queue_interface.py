"""Protocol of the queue of waiting items (`Queue`)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from tidewire_server.store.records import (
    BatchBounds,
    BatchItem,
    BatchSlot,
    GlobalLimit,
    QueueEntry,
    RunningBatch,
)


class Queue(Protocol):
    """Queue of waiting items. Principals take turns, and the items of each principal are taken in the order in which
    they arrived.

    Items of a batched endpoint can be taken as soon as their batch keys and costs are known. The module `memory_batches`
    describes when a batch is ready, and which items it contains.

    `due` and `size` are synchronous. In a store in memory, `put`, `take`, `take_batch`, `discard` and `waiting` never
    suspend. No method raises `StoreError`: while the store fails, `take`, `take_batch` and `waiting` return nothing, and
    `due` is about a second later.
    """

    def serve(
        self,
        endpoints: Mapping[str, BatchBounds | None],
        wake: Callable[[str], None],
        limits: Mapping[str, GlobalLimit] = MappingProxyType({}),
    ) -> None:
        """Set the endpoints whose items this process takes. It is called once, on the event loop, before any other method.

        Args:
            endpoints: For each endpoint, the bounds of its batches, or None if it is not batched. Empty in a process
                that runs no functions: `take` then returns nothing, and `due` is infinite.
            wake: Function that takes the name of an endpoint. The queue calls it on the event loop when `due` has become
                earlier, unless the cause was a call of this object or of `Jobs.add`.
            limits: Limits over all processes, by the name of the endpoint. `take` and `take_batch` return nothing while the
                limit is reached. A store that only one process uses ignores them, because the process has the same limits.
        """
        ...

    async def put(self, entries: Sequence[QueueEntry], slots: Sequence[BatchSlot] | None = None) -> None:
        """Add items of one job to the queue. Each item waits behind the earlier items of the same principal. An item that is
        already in the queue keeps its position. An item that was taken before gets its earlier place again. If several
        processes share the store, do nothing unless this process owns the job.

        Args:
            entries: Items of one job.
            slots: Batch key and cost of each item of a batched endpoint, or None if they are not known yet. A later call with
                the same items then adds them. A store that several processes share uses `NewJob.slots` instead.
        """
        ...

    async def take(self, endpoint: str, *, limit: int = 1, skip: Collection[str] = ()) -> list[QueueEntry]:
        """Remove the next items of an endpoint that is not batched from the queue, and return them in the order in which they
        are to run.

        This process owns the jobs of the returned items. If it has not opened such a job yet, it must `reopen` the job.

        Args:
            endpoint: Name of the endpoint.
            limit: Maximum number of items.
            skip: Principals whose items keep their positions.
        """
        ...

    async def take_batch(self, endpoint: str, running: RunningBatch | None = None) -> list[BatchItem]:
        """Remove the items of the next batch of a batched endpoint from the queue, and return them. They have the same batch
        key. Return an empty list if no batch is ready.

        This process owns the jobs of the returned items (see `take`).

        Args:
            endpoint: Name of the endpoint.
            running: Running batch that the items join (late joiners), or None to take the items of a new batch.
        """
        ...

    def end_call(self, endpoint: str) -> None:
        """Record that a call of an endpoint's function has ended. Each item from `take` counts as one call, and each new batch
        from `take_batch` counts as one call. This method is synchronous.
        """
        ...

    async def discard(self, entry: QueueEntry) -> None:
        """Remove an item from the queue, at any position. If the item is not in the queue, do nothing."""
        ...

    async def refused(self, endpoint: str) -> Collection[str]:
        """Return the ids of an endpoint's waiting jobs that no process can run now: each live process that runs the endpoint
        has called `Jobs.refuse` for the job.
        """
        ...

    def due(self, endpoint: str) -> float:
        """Return the event loop time from which `take` or `take_batch` may return items of an endpoint. Minus infinity means
        now. Infinity means that no item is waiting that this process can take.
        """
        ...

    def size(self, endpoint: str) -> int:
        """Return the number of waiting items of an endpoint. If several processes share the store, the number may be a second
        old. This method can be called from any thread.
        """
        ...

    async def waiting(
        self, endpoint: str, *, limit: int | None = None, skip: Collection[str] = ()
    ) -> list[QueueEntry]:
        """Return the first waiting items of an endpoint, in the order in which they will run.

        Args:
            endpoint: Name of the endpoint.
            limit: Maximum number of items, or None for all items.
            skip: Principals whose items are omitted.
        """
        ...
