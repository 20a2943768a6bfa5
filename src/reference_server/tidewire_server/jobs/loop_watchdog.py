"""Watchdog that logs a warning if the event loop was blocked. The warning lists the endpoints that were running.

A blocked event loop stops all streams. The most common cause is an `async def` function that computes for a long time
or that waits without `await`. Without the warning, the only symptom would be that clients receive nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

MAX_BLOCKED_SECONDS: Final = 1.0
"""Number of seconds for which the event loop may be blocked without causing a warning."""

WARNING_INTERVAL: Final = 60.0
"""Minimum number of seconds between two warnings."""

_log = logging.getLogger(__name__)


class LoopWatchdog:
    """Watchdog of the event loop on which this object is created."""

    def __init__(self, running: Callable[[], Iterable[str]]) -> None:
        """Create a watchdog for the running event loop. Call `start` to start watching.

        Args:
            running: Function that returns the names of the endpoints whose functions are running or have started since
                the last call. The latter are included, because a function that blocks the event loop has often ended
                before the watchdog runs.
        """
        self._loop = asyncio.get_running_loop()
        self._running = running
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_until = 0.0

    def start(self) -> None:
        """Start watching the event loop."""
        self._schedule_check()

    def stop(self) -> None:
        """Stop watching the event loop."""
        if self._timer is not None:
            self._timer.cancel()

    def _schedule_check(self) -> None:
        due = self._loop.time() + MAX_BLOCKED_SECONDS / 2
        self._timer = self._loop.call_at(due, self._check, due)

    def _check(self, due: float) -> None:
        late = self._loop.time() - due
        names = list(self._running())
        # If no function was running, the cause is probably a busy machine, and a warning would not help.
        if late > MAX_BLOCKED_SECONDS and due > self._quiet_until and names:
            self._quiet_until = due + WARNING_INTERVAL
            _log.warning(
                "the event loop was blocked for %.1f s, which stopped all streams; unless the process was suspended, the "
                "cause is often an `async def` function that computes or waits without `await`; declare it with `def`, so that it runs in a thread; running endpoints: %s",
                late,
                ", ".join(map(repr, names)),
            )
        self._schedule_check()
