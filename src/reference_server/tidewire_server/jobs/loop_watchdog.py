"""Whoever holds the event loop holds every stream: that is noticed, and told with what ran meanwhile.

An `async def` that computes, or waits without `await`, is the commonest reason, and nothing else shows it: its callers
see a server that has fallen silent.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

LONGEST: Final = 1.0
"""Seconds that the loop may stand still without a word."""

SELDOM: Final = 60.0
"""Seconds between two warnings, at least."""

_log = logging.getLogger(__name__)


class LoopWatchdog:
    """Looks after one event loop. Made and used on it."""

    def __init__(self, running: Callable[[], Iterable[str]]) -> None:
        """Look after nothing yet.

        Args:
            running: Names the endpoints whose functions run.
        """
        self._loop = asyncio.get_running_loop()
        self._running = running
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_until = 0.0

    def begin(self) -> None:
        """Look from now on."""
        self._wait()

    def end(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        due = self._loop.time() + LONGEST / 2
        self._timer = self._loop.call_at(due, self._look, due)

    def _look(self, due: float) -> None:
        late = self._loop.time() - due
        # Where nothing runs it is the machine that is busy, and nobody can be told what to do.
        if late > LONGEST and due > self._quiet_until and (names := list(self._running())):
            self._quiet_until = due + SELDOM
            _log.warning(
                "the event loop stood still for %.1f s, and every stream with it; an `async def` that computes, or "
                "waits without `await`, belongs into a plain `def`, which gets a thread; what runs: %s",
                late,
                ", ".join(map(repr, names)),
            )
        self._wait()
