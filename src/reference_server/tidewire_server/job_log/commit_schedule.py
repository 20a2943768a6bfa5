"""Group commit: one event-loop callback and one timer for all jobs that have pending changes.

A separate callback, timer or task for each job would cost more than writing the job's event.

A *round* commits all jobs that are due. Its delay is the time from the request of the round to its end, including the time for
which the event loop runs other callbacks. When the server is overloaded, the delay grows. The server then waits longer between
two events of one stream, so that more appends are merged into one event and all jobs together cost less:

  delay of a round              | time between two events of one stream
  ------------------------------+-------------------------------------------------------
  less than 1/4 of the window   | the window
  more than 1/4 of the window   | four times the recent delay of a round, at most `WIDEST`

On an overloaded event loop, each function appends about once per iteration. If the server waited for only two delays, it would
still write an event for every second append, and a server with 900 streams would fall behind more and more (bench/streams.py).
"""

import asyncio
import threading
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from time import monotonic
from typing import Final, Protocol

WIDEST: Final = 0.05
"""Longest time that an overloaded server waits between two events of one stream, in seconds."""

_TIMER_TOLERANCE: Final = 0.0005
"""Time by which a timer may fire too early, in seconds. The clock of uvloop advances in steps of one millisecond. Because of
rounding errors, a timer can fire at a clock time that is less than a nanosecond too early. Without the tolerance, the timer
would then be set again in each iteration of the event loop until the clock advances."""

_DELAYS_BETWEEN_EVENTS: Final = 4
"""Ratio of the time between two events of one stream to the delay of a round."""

_FADES: Final = 8
"""Approximate number of recent rounds in the moving average of their delays."""


class Writer(Protocol):
    """Interface of a log writer that `GroupCommit` uses."""

    committed_at: float
    """Time of the writer's last commit, by the event loop's clock."""
    waits_until: float | None
    """Time of the writer's scheduled commit, by the event loop's clock; None if no commit is scheduled."""

    @property
    def urgent(self) -> bool:
        """Whether the pending changes must be committed at once, without waiting for changes to merge."""
        ...

    def commit_now(self, now: float) -> tuple[int, int]:
        """Commit the pending changes, or start a task that commits them later.

        Returns:
            The number of events and the number of bytes that this call has written to the log. Both are zero if a task
            was started.
        """
        ...


class GroupCommit:
    """Schedules the commits of all jobs of one event loop."""

    def __init__(
        self, logged: Callable[[int, int], None], window: float, clock: Callable[[], float] = monotonic
    ) -> None:
        """Create an empty schedule.

        Args:
            logged: Function that is called after each group of commits, with the total numbers of events and bytes that
                were written.
            window: Shortest time between two events of one stream, in seconds. With 0, every append is committed at once.
            clock: Clock that measures the delay of rounds, in seconds.
        """
        self.logged = logged
        self.spacing = window
        """Current time between two events of one stream, in seconds; the module's docstring has the rule. It stays 0 if
        the window is 0."""
        self._window = window
        self._clock = clock
        self._delay = 0.0
        self._asked_at = 0.0
        """Time of the first call of `soon` since the last round, by `clock`."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._due: list[Writer] = []
        self._later: list[tuple[float, int, Writer]] = []
        self._order = 0
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = inf

    def soon(self, writer: Writer) -> None:
        """Schedule a commit of one job's changes, from any thread.

        The commit runs after the callbacks that are ready now. If less than `spacing` has passed since the job's last commit,
        the commit runs when this time has passed, unless it is urgent.
        """
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.soon, writer)
            return
        if not self._due:
            self._asked_at = self._clock()
            self._loop.call_soon(self._commit)
        self._due.append(writer)

    def _commit(self) -> None:
        """Commit the jobs that are due now. This is the callback of `soon` and of the timer."""
        due, self._due = self._due, []
        now = self._loop.time()
        late = max(0.0, now - self._fires_at)
        ready, latest = [], now - self.spacing
        for writer in due:
            if writer.committed_at <= latest or writer.urgent:
                ready.append(writer)
            elif writer.waits_until is None:
                self._wait(writer, writer.committed_at + self.spacing)
        if self._fires_at <= now + _TIMER_TOLERANCE:
            self._take_waiting(ready, now)
        began = self._asked_at if due else self._clock()
        events = size = 0
        for writer in ready:
            try:
                of_this, bytes_of_this = writer.commit_now(now)
            except Exception as error:  # noqa: BLE001 - a fault of one job must not prevent the commits of the others
                self._loop.call_exception_handler({"message": "a job's commit failed", "exception": error})
                continue
            events += of_this
            size += bytes_of_this
        if events:
            self.logged(events, size)
        delay = max(self._clock() - began, late)
        self._delay = max(delay, self._delay + (delay - self._delay) / _FADES)
        if self._window:
            self.spacing = max(self._window, min(_DELAYS_BETWEEN_EVENTS * self._delay, WIDEST))

    def _wait(self, writer: Writer, due: float) -> None:
        writer.waits_until = due
        self._order += 1
        heappush(self._later, (due, self._order, writer))
        if due < self._fires_at:
            self._set_timer()

    def _take_waiting(self, ready: list[Writer], now: float) -> None:
        """Add the jobs whose window has ended, and set the timer for the next one."""
        while self._later and self._later[0][0] <= now + _TIMER_TOLERANCE:
            due, _, writer = heappop(self._later)
            if writer.waits_until == due:
                writer.waits_until = None
                ready.append(writer)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fires_at = self._later[0][0] if self._later else inf
        if self._later:
            self._timer = self._loop.call_at(self._fires_at, self._commit)
