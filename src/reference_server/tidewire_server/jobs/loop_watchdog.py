"""Watchdog that logs a warning when the event loop was blocked, with the endpoints that were running.

A blocked event loop stops all streams. The most common cause is an `async def` function that computes, or that waits
without `await`. Without this warning, the only symptom is that clients receive nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

MAX_BLOCKED_SECONDS: Final = 1.0
"""Seconds for which the loop may be blocked without a warning."""

WARNING_INTERVAL: Final = 60.0
"""Minimum number of seconds between two warnings."""

_log = logging.getLogger(__name__)


class LoopWatchdog:
    """Watchdog of the event loop on which it is created."""

    def __init__(self, running: Callable[[], Iterable[str]]) -> None:
        """Create a watchdog for the running event loop. `start` starts it.

        Args:
            running: Returns the names of the endpoints whose functions are running.
        """
        self._loop = asyncio.get_running_loop()
        self._running = running
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_until = 0.0

    def start(self) -> None:
        """Start watching."""
        self._schedule_check()

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _schedule_check(self) -> None:
        due = self._loop.time() + MAX_BLOCKED_SECONDS / 2
        self._timer = self._loop.call_at(due, self._check, due)

    def _check(self, due: float) -> None:
        late = self._loop.time() - due
        # Without a running function the cause is a busy machine, and a warning would not help.
        if late > MAX_BLOCKED_SECONDS and due > self._quiet_until and (names := list(self._running())):
            self._quiet_until = due + WARNING_INTERVAL
            _log.warning(
                "the event loop was blocked for %.1f s, which stopped all streams; if an `async def` computes, or "
                "waits without `await`, make it a plain `def`, which runs in a thread; running endpoints: %s",
                late,
                ", ".join(map(repr, names)),
            )
        self._schedule_check()
