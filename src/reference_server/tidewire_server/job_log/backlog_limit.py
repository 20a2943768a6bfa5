"""Limit on the total size of a job's uncommitted changes (its backlog)."""

import threading
from typing import Final

from tidewire_server.errors import LogUnavailableError
from tidewire_server.job_log.append_retries import AppendRetries

MAX_PENDING_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a job's uncommitted changes, in bytes. Above this size, a worker thread waits before it writes more. A
function on the event loop cannot wait. Its job fails if the store refuses writes."""


class Backlog:
    """Size of a job's uncommitted changes, and the worker threads that wait until it shrinks.

    The caller of each method must hold the lock of the job's pending events.

    Attributes:
        size: Total size of the pending events, in bytes.
        fell: Condition that is notified when the backlog shrinks. The first thread that waits creates it.
    """

    __slots__ = ("_lock", "_retries", "_stopped", "_thread", "fell", "size")

    def __init__(self, lock: threading.RLock, retries: AppendRetries) -> None:
        """Create an empty backlog. Call this in the thread of the event loop, which is the only thread that commits."""
        self.size: int = 0
        self.fell: threading.Condition | None = None
        self._lock = lock
        self._thread = threading.get_ident()
        self._retries = retries
        self._stopped = False

    def wait_for_room(self) -> None:
        """Block the calling worker thread while too many bytes wait for a commit.

        The lock is released while the thread waits. The job can end or change during this time, so the caller must check its
        state after this call.

        Raises:
            LogUnavailableError: Too many bytes wait because the store refuses writes, and the caller runs on the event
                loop.
        """
        if self.size <= MAX_PENDING_BYTES:
            return
        # Never wait in the thread of the event loop, because only the event loop can commit the pending changes.
        if threading.get_ident() != self._thread:
            self.fell = self.fell or threading.Condition(self._lock)
            self.fell.wait_for(lambda: self._stopped or self.size <= MAX_PENDING_BYTES)
        elif self._retries.retrying:
            raise LogUnavailableError(self.size)

    def stop(self) -> None:
        """Wake the waiting threads. From now on, no thread waits."""
        self._stopped = True
        if self.fell is not None:
            self.fell.notify_all()
