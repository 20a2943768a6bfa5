"""Readers that are likely to connect soon. A server that stops waits for them, so that they receive the end of their job."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

RECONNECT_FACTOR: Final = 3.0
"""A reader is expected for this many times the setting `retry`. The first retry delay of a client is at most 2.25 times as long
as `retry`: the server multiplies `retry` by up to 1.5 for each connection, and the client by up to 1.5 for each attempt. The
rest of the time is for the request, which is slow on a busy machine or a distant network.
"""

MAX_RECONNECT_SECONDS: Final = 3.0
"""Maximum number of seconds for which a reader is expected, whatever the setting `retry` is."""


@dataclass(slots=True)
class _Expected:
    readers: int
    since: float


class ExpectedReaders:
    """Readers that may be about to request the stream of a job.

    A reader is expected after it has submitted a job, and after its stream has ended, for as long as the first retry delay of a
    client can take. Afterwards, the job is removed from the registry.
    """

    def __init__(self, retry: float, clock: Callable[[], float]) -> None:
        """Create the registry.

        Args:
            retry: Setting `retry`, in seconds. If it is 0, no reader is ever expected.
            clock: Function that returns a time in seconds.
        """
        self._within = min(MAX_RECONNECT_SECONDS, RECONNECT_FACTOR * retry)
        self._clock = clock
        self._jobs: OrderedDict[str, _Expected] = OrderedDict()
        """Jobs with expected readers, in the order of `_Expected.since`."""

    def submitted(self, job: str) -> None:
        """Expect the caller that has submitted a job, or has repeated the submission."""
        self._expect(job, 0)

    def closed(self, job: str) -> None:
        """Expect a reader whose stream has ended, even if the stream ended with `done`: if a broken network has lost `done`,
        the reader requests the stream again.
        """
        self._expect(job, 1)

    def came(self, job: str) -> None:
        """Record that a reader has requested the stream of a job."""
        found = self._jobs.get(job)
        if found is not None:
            found.readers -= 1
            if not found.readers:
                del self._jobs[job]

    def answered(self, job: str) -> None:
        """Expect no reader of a job, because a caller has read the ended job, or has deleted it."""
        self._jobs.pop(job, None)

    def until(self) -> float:
        """Return the time until which a reader is expected, or 0 if no reader is expected."""
        self._forget_old()
        return next(reversed(self._jobs.values())).since + self._within if self._jobs else 0.0

    def seconds_left(self) -> float:
        """Return the number of seconds for which a reader is still expected."""
        until = self.until()
        return until - self._clock() if until else 0.0

    def _expect(self, job: str, more: int) -> None:
        """Expect one reader of a job. If readers of the job are expected already, expect `more` additional readers instead."""
        if self._within:
            found = self._jobs.pop(job, None)
            self._jobs[job] = _Expected(1 if found is None else found.readers + more, self._clock())
            self._forget_old()

    def _forget_old(self) -> None:
        now = self._clock()
        while self._jobs and next(iter(self._jobs.values())).since + self._within <= now:
            self._jobs.popitem(last=False)
