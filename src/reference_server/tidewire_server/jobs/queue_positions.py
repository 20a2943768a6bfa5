"""Queue-position updates, throttled so that their total cost does not grow with the square of the queue length.

Each item that leaves the queue changes the positions of all items behind it. Sending all these changes would be slow,
so jobs receive only some of them:

  job                        | updates
  ---------------------------+--------------------------------------------------------------------------
  just submitted             | its position at the end of the queue; corrected later if fairness moves it forward
  in the first `FRONT` items | every change, at most once per `queue_interval`
  behind these items         | after the queue has moved by `FRONT` items, or by 10% of its length if that is more

When 1,000 waiting items leave the queue one by one, the server computes about 20,000 positions instead of 500,000.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from tidewire_server.store.interfaces import QueueEntry

FRONT: Final = 10
"""Number of positions at the front of the queue for which every change is published."""

MOVED_FRACTION: Final = 0.1
"""Fraction of the waiting items that must leave the queue before the positions behind `FRONT` are published."""


class QueuePositions:
    """Published positions in the queue of one endpoint. The item that runs next has position 1."""

    def __init__(self) -> None:
        self._published: dict[str, int] = {}
        self._moves = 0

    @property
    def has_published(self) -> bool:
        """Whether any job has a published position that may need an update."""
        return bool(self._published)

    def moved(self, by: int = 1) -> None:
        """Record that items were added to the queue or removed from it."""
        self._moves += by

    def entered(self, job: str, items: int, size: int) -> int:
        """Record and return the position of a new job whose items are all waiting.

        The argument `size` is the length of the queue, including the items of the new job.
        """
        position = max(1, size - items + 1)
        self._published[job] = position
        return position

    def changes(self, waiting: Iterator[QueueEntry], size: int) -> list[tuple[str, int]]:
        """Return the jobs for which a new position must be published now, together with their positions.

        Args:
            waiting: Waiting items, in the order in which they will run.
            size: Number of waiting items.
        """
        all_positions = self._moves >= max(FRONT, size * MOVED_FRACTION)
        positions: dict[str, int] = {}
        for position, entry in enumerate(waiting if all_positions else islice(waiting, FRONT), 1):
            positions.setdefault(entry.job, position)
        if all_positions or not size:
            self._moves = 0
            self._published = {job: position for job, position in self._published.items() if job in positions}
        changed = [
            (job, position) for job, position in positions.items() if self._published.get(job) != position
        ]
        self._published.update(changed)
        return changed
