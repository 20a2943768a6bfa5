"""Group commit: one event-loop callback and one timer for all jobs that have pending changes.

A callback, a timer or a task for each job and event would cost more than the event itself.

When the server is overloaded, the time between two events of a stream grows. More appends are then merged into one
event, and all jobs together cost less.

  a round of commits takes      | between two events of one stream
  ------------------------------+-------------------------------------
  less than half the window     | the window
  more                          | twice the recent duration of a round, at most `WIDEST`
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from time import monotonic
from typing import Final, Protocol

WIDEST: Final = 0.05
"""Longest time between two events of one stream, in seconds."""

_FADES: Final = 8
"""Time constant of the average duration of a round, in rounds."""


class Writer(Protocol):
    """A log writer, as `GroupCommit` uses it."""

    urgent: bool
    """Whether pending changes commit without waiting for the window."""
    committed_at: float
    """Time of the last commit, by the event loop's clock."""
    waits_until: float | None
    """Time of the scheduled commit, by the event loop's clock; None if the writer does not wait."""

    def commit_now(self, now: float) -> tuple[int, int]:
        """Commit the pending changes, or start a task that does; return the number of events and bytes logged."""
        ...


class GroupCommit:
    """Schedules the commits of all jobs of one event loop. Use it on that loop only."""

    def __init__(
        self, logged: Callable[[int, int], None], window: float, clock: Callable[[], float] = monotonic
    ) -> None:
        """Create a schedule without jobs.

        Args:
            logged: Called once for all jobs that commit together, with the number of events and bytes.
            window: Shortest time between two events of one stream, in seconds; 0 commits every append at once.
            clock: Measures the duration of rounds, in seconds.
        """
        self.logged = logged
        self.spacing = window
        """Current time between two events of one stream, in seconds, by the table above. A window of 0 stays 0."""
        self._window = window
        self._clock = clock
        self._took = 0.0
        self._loop = asyncio.get_running_loop()
        self._due: list[Writer] = []
        self._later: list[tuple[float, int, Writer]] = []
        self._order = 0
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = inf

    def soon(self, writer: Writer) -> None:
        """Schedule a commit of a job: after the callbacks that are ready now, or when its window ends."""
        if not self._due:
            self._loop.call_soon(self._commit)
        self._due.append(writer)

    def _wait(self, writer: Writer, due: float) -> None:
        writer.waits_until = due
        self._order += 1
        heappush(self._later, (due, self._order, writer))
        if due < self._fires_at:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fires_at = self._later[0][0] if self._later else inf
        if self._later:
            self._timer = self._loop.call_at(self._fires_at, self._commit_late)

    def _commit_late(self) -> None:
        now = self._loop.time()
        waiting: list[Writer] = []
        while self._later and self._later[0][0] <= now:
            due, _, writer = heappop(self._later)
            if writer.waits_until == due:
                waiting.append(writer)
        self._timer = None
        self._set_timer()
        self._commit_all(waiting, now)

    def _commit(self) -> None:
        due, self._due = self._due, []
        now = self._loop.time()
        if spacing := self.spacing:
            ready, latest = [], now - spacing
            for writer in due:
                if writer.urgent or writer.committed_at <= latest:
                    ready.append(writer)
                elif writer.waits_until is None:
                    self._wait(writer, writer.committed_at + spacing)
            due = ready
        self._commit_all(due, now)

    def _commit_all(self, writers: list[Writer], now: float) -> None:
        began = self._clock()
        events = size = 0
        for writer in writers:
            try:
                of_this, bytes_of_this = writer.commit_now(now)
            except Exception as error:  # noqa: BLE001 - a fault of one job must not prevent the commits of the others
                self._loop.call_exception_handler({"message": "a job's commit failed", "exception": error})
                continue
            events += of_this
            size += bytes_of_this
        if events:
            self.logged(events, size)
        took = self._clock() - began
        self._took = max(took, self._took + (took - self._took) / _FADES)
        if self._window:
            self.spacing = max(self._window, min(2 * self._took, WIDEST))
