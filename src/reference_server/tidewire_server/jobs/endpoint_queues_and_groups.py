"""Which endpoints share their slots, and what is known of each one's items.

the endpoint                | its slots are those of
----------------------------+---------------------------------------------------------------------------
has no concurrency_group    | itself: its own `concurrency_limit`, or the server's default
has one                     | the group: the one limit that an endpoint in it names, or the server's default
"""

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidewire_server.batching.batch_queue import BatchQueue
from tidewire_server.endpoints.endpoint import Default, Endpoint
from tidewire_server.jobs.queue_positions import QueuePositions
from tidewire_server.settings import Settings
from tidewire_server.store.interfaces import QueueEntry


@dataclass(slots=True, eq=False)
class ConcurrencyGroup:
    """Endpoints that share their slots."""

    limit: float
    lanes: "list[EndpointQueue]" = field(default_factory=list)
    running: int = 0
    """Calls that run."""
    served: dict[str, int] = field(default_factory=dict)
    """Of each caller who waits, the number of the call that served it last; kept where several lanes need it."""
    calls: int = 0
    timer: asyncio.Handle | None = None
    """Fires when a batch need not wait any longer."""
    wakes_at: float = math.inf
    """When that timer fires: the handle itself does not always tell, uvloop's of less than a millisecond has no `when`."""

    @property
    def waits_for_thread(self) -> bool:
        """Whether an endpoint of it runs in worker threads."""
        return any(not lane.endpoint.is_async for lane in self.lanes)


@dataclass(slots=True, eq=False)
class EndpointQueue:
    """What is known of one endpoint's items."""

    endpoint: Endpoint
    group: ConcurrencyGroup
    max_queue_size: int
    calls: float
    """Calls that run at a time, at most."""
    former: BatchQueue[QueueEntry] | None
    """Puts batches together; None where calls take one input."""
    rows: int = 0
    """Items that run."""
    mean_duration: float | None = None
    """Of its recent calls, in seconds."""
    mean_rows: float = 1.0
    """Items in its recent calls."""
    positions: QueuePositions = field(default_factory=QueuePositions)
    timer: asyncio.TimerHandle | None = None
    reserved: int = 0
    """Places in the queue promised to submits that are under way."""

    @property
    def rows_a_call(self) -> int:
        """Items that one call takes at most."""
        batching = self.endpoint.batching
        return 1 if batching is None else batching.max_size

    @property
    def max_items(self) -> float:
        """Items of one job, at most: more would not find room even if nothing else ran or waited."""
        return self.calls * self.rows_a_call + self.max_queue_size


def group_limits(endpoints: Iterable[Endpoint]) -> dict[str, int | None]:
    """The limit of each group that has one of its own.

    Raises:
        ValueError: Two endpoints of one group name different limits.
    """
    limits: dict[str, tuple[str, int | None]] = {}
    for endpoint in endpoints:
        group, limit = endpoint.concurrency_group, endpoint.concurrency_limit
        if group is None or isinstance(limit, Default):
            continue
        first, other = limits.setdefault(group, (endpoint.name, limit))
        if other != limit:
            raise ValueError(
                f"concurrency_group {group!r} has one limit, and there are two: {other} at endpoint {first!r}, "
                f"{limit} at {endpoint.name!r}; name it at one of them"
            )
    return {group: limit for group, (_, limit) in limits.items()}


def make_endpoint_queues(endpoints: dict[str, Endpoint], settings: Settings) -> dict[str, EndpointQueue]:
    """A lane for each endpoint, in the group whose slots it shares.

    Raises:
        ValueError: Two endpoints of one group name different limits.
    """
    limits = group_limits(endpoints.values())
    groups: dict[str, ConcurrencyGroup] = {}
    lanes = {}
    for name, endpoint in endpoints.items():
        if endpoint.concurrency_group is None:
            group = ConcurrencyGroup(_number(endpoint.concurrency_limit, settings))
        else:
            limit = limits.get(endpoint.concurrency_group, settings.default_concurrency_limit)
            group = groups.setdefault(endpoint.concurrency_group, ConcurrencyGroup(_number(limit, settings)))
        waiting = settings.max_queue_size if endpoint.max_queue_size is None else endpoint.max_queue_size
        former: BatchQueue[QueueEntry] | None = (
            None if endpoint.batching is None else BatchQueue(endpoint.batching)
        )
        calls = group.limit if endpoint.is_async else min(group.limit, settings.max_threads)
        lanes[name] = lane = EndpointQueue(endpoint, group, waiting, calls, former)
        group.lanes.append(lane)
    return lanes


def _number(limit: int | Default | None, settings: Settings) -> float:
    if isinstance(limit, Default):
        limit = settings.default_concurrency_limit
    return math.inf if limit is None else limit
