"""Ended jobs of a store, and the ones that it deletes before they expire because it holds too many or too large ones."""

from tidewire_server.store.fair_eviction import FairEviction


class EndedJobs:
    """Ended jobs within the limits `max_retained_jobs` and `max_retained_bytes`.

    If the number exceeds its limit, the oldest job of the principal with the most jobs is deleted. If the size exceeds its
    limit, the oldest job of the principal with the most bytes is deleted. The job that ended last always stays.
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
