"""What those who wait are told of their places, at a cost that does not grow with the square of the queue.

Whenever the queue moves, everybody's place changes. So not everybody is told each time:

  who waits              | is told
  -----------------------+------------------------------------------------------------------------------
  comes anew             | that it is the last: where callers take turns it may be before others, and soon hears so
  among the first `FRONT`| each change, at most once in `queue_interval`
  behind them            | once the queue has moved by `FRONT`, or by a tenth of those who wait, if that is more

A thousand who wait and leave one by one are looked at some twenty thousand times in all, not half a million.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from tidewire_server.store.interfaces import QueueEntry

FRONT: Final = 10
"""Places whose every change is told."""

PART: Final = 0.1
"""Part of the queue that moves before all are told."""


class QueuePositions:
    """What was told of one endpoint's queue. 1 is the next."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}
        self._moves = 0

    @property
    def told_any(self) -> bool:
        """Whether anybody may have to be told of a change."""
        return bool(self._told)

    def moved(self, by: int = 1) -> None:
        """Items came or left."""
        self._moves += by

    def entered(self, job: str, items: int, size: int) -> int:
        """The place of a job that comes anew with some items, all of which wait; `size` counts them."""
        place = max(1, size - items + 1)
        self._told[job] = place
        return place

    def changes(self, waiting: Iterator[QueueEntry], size: int) -> list[tuple[str, int]]:
        """Who is to be told now, and its place.

        Args:
            waiting: Those who wait, the next one first.
            size: How many they are.
        """
        everybody = self._moves >= max(FRONT, size * PART)
        places: dict[str, int] = {}
        for place, ticket in enumerate(waiting if everybody else islice(waiting, FRONT), 1):
            places.setdefault(ticket.job, place)
        if everybody or not size:
            self._moves = 0
            self._told = {job: place for job, place in self._told.items() if job in places}
        changed = [(job, place) for job, place in places.items() if self._told.get(job) != place]
        self._told.update(changed)
        return changed
