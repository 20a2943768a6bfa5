"""How many bytes of inputs are held for jobs that have not ended: a queue that is bounded in items alone could take
gigabytes.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from tidewire_server.errors import refuse

_RETRY_MS: Final = 1000


class InputMemoryLimit:
    """The bytes, job by job. Used on one event loop."""

    def __init__(self, most: int) -> None:
        """Hold nothing.

        Args:
            most: Bytes of all jobs together. A job that is alone may have more.
        """
        self._most = most
        self._of_jobs: dict[str, int] = {}
        self._total = 0

    @contextlib.contextmanager
    def room_for(self, size: int) -> Iterator[Callable[[str], None]]:
        """Take room for a job that is being made; it is given back where none comes of it.

        Yields:
            What keeps the room for a job until `let_go`.

        Raises:
            ProblemError: There is not as much.
        """
        if self._total and self._total + size > self._most:
            raise refuse(
                "queue_full",
                f"the inputs of jobs that have not ended take {self._total} bytes, and {size} more would pass "
                f"{self._most} (max_input_bytes)",
                retry_after_ms=_RETRY_MS,
            )
        self._total += size
        kept = False

        def keep(job: str) -> None:
            nonlocal kept
            kept = True
            self._of_jobs[job] = size

        try:
            yield keep
        finally:
            if not kept:
                self._total -= size

    def hold(self, job: str, size: int) -> None:
        """Count a job that is here already."""
        self._of_jobs[job] = size
        self._total += size

    def let_go(self, job: str) -> None:
        """A job has ended."""
        self._total -= self._of_jobs.pop(job, 0)
