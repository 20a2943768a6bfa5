"""Processes that run functions, with the load of each endpoint that they reported with their last heartbeats.

A server without functions computes waiting times, free slots and `waits_for` from these reports alone. In a store that only
one process uses, this process is the only worker.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tidewire_server.store.records import EndpointLoad

IDLE: Final = EndpointLoad(0.0)
"""Load of an endpoint that no process runs."""


class LiveWorkers:
    """All live processes that run functions. All methods must be called on one event loop."""

    def __init__(self) -> None:
        self.own: Callable[[], Mapping[str, EndpointLoad]] = dict
        """Function that returns the endpoints that this process runs."""
        self.own_load: Callable[[str], EndpointLoad | None] = lambda _: None
        """Function that returns the load of an endpoint, or None if this process does not run the endpoint."""
        self.others: Sequence[Mapping[str, EndpointLoad]] = ()
        """For each other process, the load of its endpoints at its last beat."""

    def loads(self, endpoint: str) -> list[EndpointLoad]:
        """Return the load of an endpoint in each process that runs it."""
        loads = [each[endpoint] for each in self.others if endpoint in each]
        own = self.own_load(endpoint)
        return loads if own is None else [own, *loads]

    def count(self, endpoint: str) -> int:
        """Return the number of processes that run an endpoint."""
        return len(self.loads(endpoint))

    def total(self, endpoint: str) -> EndpointLoad:
        """Return the load of an endpoint over all processes: the sums of slots and running calls, and the means weighted by
        slots.
        """
        loads = self.loads(endpoint)
        if len(loads) <= 1:
            return loads[0] if loads else IDLE
        known = [
            (load.mean_duration, load.mean_rows, min(load.slots, 1000.0))
            for load in loads
            if load.mean_duration is not None
        ]
        weight = sum(slots for _, _, slots in known)
        return EndpointLoad(
            sum(load.slots for load in loads),
            sum(load.running for load in loads),
            sum(duration * slots for duration, _, slots in known) / weight if weight else None,
            sum(rows * slots for _, rows, slots in known) / weight if weight else 1.0,
        )

    def free_elsewhere(self, endpoint: str) -> float:
        """Return how many calls other processes could start now."""
        loads = [each[endpoint] for each in self.others if endpoint in each]
        return sum(max(0.0, load.slots - load.running) for load in loads)
