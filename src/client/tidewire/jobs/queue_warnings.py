"""`QueueWarnings`, which logs the queue position of a job for which a caller has waited `QUEUE_WARNING_AFTER` seconds.

Without the message, a script would wait without a word while a job of an earlier, interrupted script runs before its own.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidewire.protocol.messages import Queue

QUEUE_WARNING_AFTER: Final = 2.0
"""Time in seconds for which a call or a loop waits for a queued job before the client logs the job's queue position."""
IN_QUEUE: Final = (
    "job %s is still in the queue%s. If a job of an interrupted program runs before it: `tidewire jobs %s` lists your "
    "jobs, and `tidewire cancel %s JOB` cancels one"
)
"""Log message for a job that waits: id, position and twice the server's URL. The command line shows it."""

log: Final = logging.getLogger("tidewire")


class QueueWarnings:
    """Logs the queue positions of one client's jobs. Jobs for which callers wait at the same time share one message."""

    def __init__(self) -> None:
        self._waiting = 0
        """Number of callers that wait for a queued job."""
        self._is_logged = False
        """Whether a message was logged since `_waiting` was 0."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count a caller that waits for a queued job during a `with` block."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self._is_logged = self._is_logged and self._waiting > 0

    def log(self, job_id: str, queue: Queue | None, base: str) -> None:
        """Log that a job is queued, unless such a message was logged for another job that is still waiting.

        Args:
            job_id: Id of the job.
            queue: The job's queue position; None if it is not known.
            base: Base URL of the server.
        """
        if not self._is_logged:
            self._is_logged = True
            position = "" if queue is None else f", at position {queue.position}"
            log.warning(IN_QUEUE, job_id, position, base, base)
