"""Choose the entries that a store deletes early when it holds more than its limit."""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

E = TypeVar("E", bound=Hashable)

_MAX_OUTDATED: Final = 64
"""Maximum number of outdated heap elements, in addition to one per principal. If there are more, the heap is rebuilt."""


class _Row(NamedTuple):
    """Heap element: the total size of one principal's entries. The principal in the first element loses the next entry."""

    minus_total: int
    changed: int
    """Sequence number of the change to this total. Of two principals with equal totals, the one that changed first comes first.
    """
    principal: str


class FairEviction(Generic[E]):
    """Eviction order that is fair between principals. The next entry to delete is the oldest entry of the principal whose
    entries have the largest total size.

    A principal that fills the store therefore loses its own entries, and other principals keep theirs. The entry that was added
    last is deleted only if the store has no other entry. Otherwise a large result would be deleted as soon as it exists. Every
    method takes logarithmic time.
    """

    def __init__(self) -> None:
        self.total = 0
        """Size of all entries together."""
        self._count = 0
        self._entries: dict[str, OrderedDict[E, int]] = {}
        self._rows: dict[str, _Row] = {}
        self._heap: list[_Row] = []
        """Heap of the elements in `_rows`. It also contains outdated elements, which `evict` skips."""
        self._changes = itertools.count()
        self._newest: E | None = None

    def __len__(self) -> int:
        return self._count

    def add(self, principal: str, entry: E, size: int = 1) -> None:
        """Add an entry as the newest one of its principal. If the entry exists, do nothing."""
        entries = self._entries.setdefault(principal, OrderedDict())
        if entry not in entries:
            entries[entry] = size
            self._newest = entry
            self._count += 1
            self._resized(principal, size)

    def resize(self, principal: str, entry: E, size: int) -> None:
        """Change the size of an entry. If the entry is unknown, do nothing."""
        entries = self._entries.get(principal)
        if entries is not None and entry in entries:
            before, entries[entry] = entries[entry], size
            self._resized(principal, size - before)

    def discard(self, principal: str, entry: E) -> None:
        """Remove an entry that the store has deleted. If the entry is unknown, do nothing."""
        entries = self._entries.get(principal)
        if entries is not None and entry in entries:
            self._count -= 1
            self._resized(principal, -entries.pop(entry))

    def evict(self) -> tuple[str, E]:
        """Remove the next entry that the store must delete. Return its principal and the entry.

        If several principals have the largest total size, the principal that reached this size first loses its oldest entry.

        Raises:
            LookupError: There is no entry.
        """
        if not self._count:
            raise LookupError("there is no entry to delete")
        spared = None
        while True:
            row = self._heap[0]
            if self._rows.get(row.principal) is not row:
                heapq.heappop(self._heap)
                continue
            entry = next(iter(self._entries[row.principal]))
            if entry != self._newest or self._count == 1:
                break
            spared = heapq.heappop(self._heap)
        if spared is not None:
            heapq.heappush(self._heap, spared)
        self.discard(row.principal, entry)
        return row.principal, entry

    def _resized(self, principal: str, by: int) -> None:
        """Update the heap after the total of a principal has changed."""
        self.total += by
        if not self._entries[principal]:
            del self._entries[principal]
            self._rows.pop(principal, None)
            return
        before = self._rows.get(principal)
        total = by if before is None else by - before.minus_total
        row = self._rows[principal] = _Row(-total, next(self._changes), principal)
        heapq.heappush(self._heap, row)
        if len(self._heap) > 2 * len(self._rows) + _MAX_OUTDATED:
            self._heap = sorted(self._rows.values())


class EndedJobs:
    """Eviction of ended jobs that exceed the limits `max_retained_jobs` and `max_retained_bytes`.

    If there are too many jobs, the principal with the most jobs loses its oldest job. If the jobs are too large, the principal
    with the most bytes loses its oldest job. The job that ended last always stays.
    """

    def __init__(self, max_jobs: int, max_bytes: int) -> None:
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self._numbers = FairEviction[str]()
        self._sizes = FairEviction[str]()

    def add(self, principal: str, job: str, size: int) -> None:
        """Add a job that has ended, with the size in bytes of its events and its state."""
        self._numbers.add(principal, job)
        self._sizes.add(principal, job, size)

    def resize(self, principal: str, job: str, size: int) -> None:
        """Change the size of a job, for example after its events were deleted."""
        self._sizes.resize(principal, job, size)

    def discard(self, principal: str, job: str) -> None:
        """Remove a job that the store has deleted."""
        self._numbers.discard(principal, job)
        self._sizes.discard(principal, job)

    def evict_excess(self, max_count: int | None = None) -> list[str]:
        """Remove and return the jobs that exceed a limit, but at most `max_count`. The caller must delete these jobs."""
        evicted: list[str] = []
        while max_count is None or len(evicted) < max_count:
            if len(self._numbers) > self._max_jobs:
                principal, job = self._numbers.evict()
            elif self._sizes.total > self._max_bytes and len(self._sizes) > 1:
                principal, job = self._sizes.evict()
            else:
                break
            self.discard(principal, job)
            evicted.append(job)
        return evicted
