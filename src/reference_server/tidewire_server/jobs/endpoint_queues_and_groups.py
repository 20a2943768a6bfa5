"""Data about endpoints for the scheduler: queue limits, statistics, and groups of endpoints that share a concurrency
limit.

the endpoint                | concurrency limit
----------------------------+---------------------------------------------------------------------------
has no concurrency_group    | the endpoint's own `concurrency_limit`, or the server's default
has a concurrency_group     | the limit that one or more endpoints of the group set, or the server's default
"""

import asyncio
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tidewire_server.endpoints.endpoint import DEFAULT, Default, Endpoint
from tidewire_server.settings import Settings, share_of
from tidewire_server.store.records import GlobalLimit

X = TypeVar("X")

_LATEST_WEIGHT: Final = 0.3
"""Weight of the latest call in the moving averages from which waiting times are estimated."""


@dataclass(slots=True, eq=False)
class ConcurrencyGroup:
    """Endpoints that share a concurrency limit. An endpoint without a `concurrency_group` is the only endpoint in its
    group.
    """

    limit: float
    """Maximum number of running calls in this process."""
    global_limit: GlobalLimit | None = None
    """Limit over all processes, or None."""
    endpoint_queues: "list[EndpointQueue]" = field(default_factory=list)
    running: int = 0
    """Number of running calls."""
    served: dict[str, int] = field(default_factory=dict)
    """For each principal, the number of the last call that ran an item of this principal.

    Used only if there are several endpoints.
    """
    calls: int = 0
    """Number of calls that have been started. Counted only if the group has several endpoints."""
    timer: asyncio.Handle | None = None
    """Timer that starts an incomplete batch after its `batch_timeout`."""
    wakes_at: float = math.inf
    """Event loop time at which `timer` fires.

    It is stored here because some timer handles of uvloop have no method `when`.
    """


@dataclass(slots=True, eq=False)
class EndpointQueue:
    """Limits and statistics of one endpoint's queue. The waiting items themselves are in the store's queue."""

    endpoint: Endpoint
    group: ConcurrencyGroup
    max_queue_size: int
    max_queue_size_per_caller: int
    max_rows_per_call: int
    """Maximum number of items that one call of the function takes."""
    max_items: float
    """Maximum number of items in one job. This is the number of items that can run at the same time, plus the number of
    items of one caller that can wait in the queue.
    """
    rows: int = 0
    """Number of running items."""
    mean_duration: float | None = None
    """Moving average of the duration of calls, in seconds."""
    mean_rows: float = 1.0
    """Moving average of the number of items per call."""

    def record_call(self, rows: int, duration: float) -> None:
        """Update the moving averages after a call of the endpoint's function.

        Args:
            rows: Number of items of the call.
            duration: Duration of the call in seconds.
        """
        if self.mean_duration is None:
            self.mean_duration, self.mean_rows = duration, float(rows)
        else:
            self.mean_duration += _LATEST_WEIGHT * (duration - self.mean_duration)
            self.mean_rows += _LATEST_WEIGHT * (rows - self.mean_rows)


def group_limits(endpoints: Iterable[Endpoint]) -> dict[str, int | None]:
    """Return the concurrency limits of all groups for which an endpoint sets a limit.

    Raises:
        ValueError: Two endpoints of one group set different limits.
    """
    return _limits_of_groups("limits", ((each, each.concurrency_limit) for each in endpoints))


def global_limits(endpoints: Collection[Endpoint]) -> dict[str, GlobalLimit]:
    """Return the global limits (over all processes) by endpoint name, for the endpoints that have one. In a group, one endpoint
    sets the limit for all.

    Raises:
        ValueError: Two endpoints of one group set different limits.
    """
    of_groups = _limits_of_groups(
        "global limits", ((each, each.global_limit) for each in endpoints if each.global_limit is not None)
    )
    limits = {}
    for endpoint in endpoints:
        group = endpoint.concurrency_group
        limit = endpoint.global_limit if group is None else of_groups.get(group)
        if limit is not None:
            whose = f"endpoint {endpoint.name}" if group is None else f"group {group}"
            limits[endpoint.name] = GlobalLimit(whose, limit)
    return limits


def _limits_of_groups(kind: str, limits: Iterable[tuple[Endpoint, X | Default]]) -> dict[str, X]:
    found: dict[str, tuple[str, X]] = {}
    for endpoint, limit in limits:
        group = endpoint.concurrency_group
        if group is None or isinstance(limit, Default):
            continue
        first, other = found.setdefault(group, (endpoint.name, limit))
        if other != limit:
            raise ValueError(
                f"concurrency_group {group!r} has two different {kind}: {other} at endpoint {first!r} and "
                f"{limit} at endpoint {endpoint.name!r}; set the limit at only one of them"
            )
    return {group: limit for group, (_, limit) in found.items()}


def make_endpoint_queues(
    endpoints: dict[str, Endpoint], settings: Settings, share: float
) -> dict[str, EndpointQueue]:
    """Create the scheduling data of all endpoints and assign each endpoint to its group.

    Args:
        endpoints: All endpoints by name.
        settings: The server's settings.
        share: Fraction of a queue that one principal may use.

    Raises:
        ValueError: Two endpoints of one group set different limits.
    """
    limits = group_limits(endpoints.values())
    over_all = global_limits(endpoints.values())
    groups: dict[str, ConcurrencyGroup] = {}
    endpoint_queues = {}
    for name, endpoint in endpoints.items():
        name_of_group, limit = endpoint.concurrency_group, endpoint.concurrency_limit
        if name_of_group is not None:
            limit = limits.get(name_of_group, DEFAULT)
        if isinstance(limit, Default):
            limit = settings.default_concurrency_limit
        group = ConcurrencyGroup(math.inf if limit is None else limit)
        if name_of_group is not None:
            group = groups.setdefault(name_of_group, group)
        group.global_limit = over_all.get(name)
        if group.global_limit is not None:
            group.limit = min(group.limit, group.global_limit.calls)
        max_queue_size = (
            settings.max_queue_size if endpoint.max_queue_size is None else endpoint.max_queue_size
        )
        calls = group.limit if endpoint.is_async else min(group.limit, settings.max_threads)
        rows = 1 if endpoint.batching is None else endpoint.batching.max_size
        per_caller = share_of(max_queue_size, share)
        endpoint_queue = EndpointQueue(
            endpoint, group, max_queue_size, per_caller, rows, calls * rows + per_caller
        )
        endpoint_queues[name] = endpoint_queue
        group.endpoint_queues.append(endpoint_queue)
    return endpoint_queues
