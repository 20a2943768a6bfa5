"""Limit on the memory that the inputs of unfinished jobs may use (`max_input_bytes`).

The limit on the number of waiting items is not enough, because large inputs could still use several gigabytes.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from tidewire_server.errors import refuse

_RETRY_MS: Final = 1000


class InputMemoryLimit:
    """Counts the input bytes of each unfinished job. All methods must be called on one event loop."""

    def __init__(self, max_bytes: int) -> None:
        """Create a counter for the input bytes of unfinished jobs.

        Args:
            max_bytes: Maximum total size of the inputs of all unfinished jobs. If only one job is unfinished, it may
                exceed the limit.
        """
        self._max_bytes = max_bytes
        self._job_sizes: dict[str, int] = {}
        self._total = 0

    @contextlib.contextmanager
    def reserve(self, size: int) -> Iterator[Callable[[str], None]]:
        """Return a context manager that reserves bytes while a job is being created.

        The reservation ends when the context manager exits, unless the function `keep` was called before the exit.

        Yields:
            The function `keep`. It assigns the reserved bytes to a job, for which they are counted until `release` is
            called.

        Raises:
            ProblemError: The reservation would exceed the limit.
        """
        if self._total and self._total + size > self._max_bytes:
            raise refuse(
                "queue_full",
                f"the inputs of unfinished jobs take {self._total} bytes, and {size} bytes more would exceed "
                f"the limit of {self._max_bytes} bytes (max_input_bytes)",
                retry_after_ms=_RETRY_MS,
            )
        self._total += size
        kept = False

        def keep(job: str) -> None:
            nonlocal kept
            kept = True
            self._job_sizes[job] = size

        try:
            yield keep
        finally:
            if not kept:
                self._total -= size

    def add(self, job: str, size: int) -> None:
        """Count the inputs of a job that was recovered after a restart. The limit is not checked."""
        self._job_sizes[job] = size
        self._total += size

    def release(self, job: str) -> None:
        """Stop counting the inputs of a job that has ended."""
        self._total -= self._job_sizes.pop(job, 0)
