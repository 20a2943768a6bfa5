"""Limit on the memory that the inputs of unfinished jobs may use (`max_input_bytes`).

The limit on the number of waiting items is not enough, because large inputs could still use several gigabytes.
"""

from typing import Final

from tidewire_server.errors import refuse

_RETRY_MS: Final = 1000


class InputMemoryLimit:
    """Counts the input bytes of each unfinished job. All methods must be called on one event loop."""

    def __init__(self, max_bytes: int, max_bytes_per_caller: int) -> None:
        """Create a counter for the input bytes of unfinished jobs.

        Args:
            max_bytes: Maximum total size of the inputs of all unfinished jobs. If only one job is unfinished, it may
                exceed the limit.
            max_bytes_per_caller: The same limit for the jobs of one principal. If only one of the principal's jobs is
                unfinished, it may exceed this limit.
        """
        self._max_bytes = max_bytes
        self._max_bytes_per_caller = max_bytes_per_caller
        self._jobs: dict[str, tuple[str, int]] = {}
        """Principal and input bytes of each job."""
        self._by_principal: dict[str, int] = {}
        self._total = 0

    def reserve(self, principal: str, size: int) -> None:
        """Reserve bytes while a job is being created. The caller must call `cancel` later.

        Raises:
            ProblemError: The reservation would exceed a limit.
        """
        own = self._by_principal.get(principal, 0)
        if own and own + size > self._max_bytes_per_caller:
            raise refuse(
                "queue_full",
                f"the inputs of this caller's unfinished jobs take {own} bytes, and {size} bytes more would exceed the limit "
                f"of {self._max_bytes_per_caller} bytes for one caller (max_input_bytes, max_share)",
                retry_after_ms=_RETRY_MS,
            )
        if self._total and self._total + size > self._max_bytes:
            raise refuse(
                "queue_full",
                f"the inputs of unfinished jobs take {self._total} bytes, and {size} bytes more would exceed "
                f"the limit of {self._max_bytes} bytes (max_input_bytes)",
                retry_after_ms=_RETRY_MS,
            )
        self._count(principal, size)

    def cancel(self, principal: str, size: int) -> None:
        """End a reservation."""
        self._count(principal, -size)

    def add(self, job: str, principal: str, size: int) -> None:
        """Count the inputs of a job until `release` is called. The limits are not checked."""
        self._jobs[job] = principal, size
        self._count(principal, size)

    def release(self, job: str) -> None:
        """Stop counting the inputs of a job that has ended."""
        if job in self._jobs:
            principal, size = self._jobs.pop(job)
            self._count(principal, -size)

    def _count(self, principal: str, size: int) -> None:
        self._total += size
        own = self._by_principal.pop(principal, 0) + size
        if own:
            self._by_principal[principal] = own
