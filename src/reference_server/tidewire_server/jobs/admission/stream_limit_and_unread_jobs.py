"""Limit on the number of open streams of each principal, and cancellation of jobs that no longer have a reader."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import Gauge

from tidewire_server.errors import refuse


@dataclass(slots=True)
class _WatchedJob:
    """A job that the server cancels when the job has had no reader for `grace` seconds."""

    grace: float
    cancel: Callable[[], None]
    timer: asyncio.TimerHandle | None = None


class StreamReaders:
    """Registry of the open streams of one server. All methods must be called on one event loop."""

    def __init__(self, limit: int, gauge: Gauge) -> None:
        """Create the registry of open streams and watched jobs.

        Args:
            limit: Maximum number of open streams per principal.
            gauge: Prometheus gauge for the number of open streams. The streams are counted when the gauge is read.
        """
        self._limit = limit
        self._open_streams: Counter[str] = Counter()
        gauge.set_function(self._open_streams.total)
        self._attached: Counter[str] = Counter()
        """Number of readers of each job. Jobs without readers are not included."""
        self._joined: set[str] = set()
        """Jobs whose first reader has attached since the last call of `take_joined`."""
        self._watched: dict[str, _WatchedJob] = {}
        self._loop = asyncio.get_running_loop()

    def acquire_slot(self, principal: str) -> Callable[[], None]:
        """Acquire a stream slot for a principal. This method must be called before the response starts.

        Returns:
            A function that releases the slot.

        Raises:
            ProblemError: The principal has too many open streams.
        """
        count = self._open_streams[principal]
        if count >= self._limit:
            detail = (
                f"this principal has {count} open streams, which is the limit (max_streams_per_principal)"
            )
            raise refuse("too_many_streams", detail)
        self._open_streams[principal] += 1

        def release() -> None:
            self._open_streams[principal] -= 1
            if not self._open_streams[principal]:
                del self._open_streams[principal]

        return release

    def watch(self, job: str, grace: float, cancel: Callable[[], None]) -> None:
        """Watch an unfinished job. When the job has had no reader for `grace` seconds, the function `cancel` is called."""
        self._watched[job] = watched = _WatchedJob(grace, cancel)
        if job not in self._attached:
            self._start_timer(watched, grace)

    def jobs(self) -> set[str]:
        """Return the jobs that have readers."""
        return set(self._attached)

    def take_joined(self) -> set[str]:
        """Return the jobs that have readers now, and had none at some time since the last call."""
        joined, self._joined = self._joined, set()
        return joined

    def attach(self, job: str) -> Callable[[float], None]:
        """Register a reader of a job.

        Returns:
            A function that must be called when the reader disconnects. Its argument is the number of seconds for which the
            server itself keeps the reader away. These seconds do not count towards `grace` [TW-JOB-067].
        """
        self._attached[job] += 1
        if self._attached[job] == 1:
            self._joined.add(job)
        if job in self._watched:
            self._stop_timer(self._watched[job])

        def detach(kept_away: float) -> None:
            self._attached[job] -= 1
            if not self._attached[job]:
                del self._attached[job]
                self._joined.discard(job)
                if (watched := self._watched.get(job)) is not None:
                    self._start_timer(watched, watched.grace + kept_away)

        return detach

    def postpone(self, job: str, seconds: float) -> None:
        """Call the function `cancel` of a watched job later, because the job has had a reader at another server."""
        watched = self._watched.get(job)
        if watched is not None and job not in self._attached:
            self._start_timer(watched, seconds)

    def unwatch(self, job: str) -> None:
        """Stop watching a job that has ended, or that the next server process will continue. Until that process has started,
        this server itself keeps the readers away [TW-JOB-067].
        """
        watched = self._watched.pop(job, None)
        if watched is not None:
            self._stop_timer(watched)

    def _start_timer(self, watched: _WatchedJob, seconds: float) -> None:
        self._stop_timer(watched)
        watched.timer = self._loop.call_later(seconds, watched.cancel)

    @staticmethod
    def _stop_timer(watched: _WatchedJob) -> None:
        if watched.timer is not None:
            watched.timer.cancel()
