"""Watchdog that logs a warning while the event loop is blocked, with the line of code that blocks it.

A blocked event loop stops all streams. The most common cause is an `async def` function that computes for a long time
or that waits without `await`. Without the warning, the only symptom would be that clients receive nothing.

A timer of the event loop records the time, and a thread compares it with the current time. If the recorded time is old, the
thread checks whether it was late itself, and concludes:

  the thread itself | CPU time of the process | conclusion
  ------------------+-------------------------+-------------------------------------------------------------------
  was on time       | any                     | the loop is blocked now, at a line that the thread can read
  was late          | was used                | the loop was blocked by a call that held the interpreter lock (GIL)
  was late          | was not used            | the process was suspended: no warning
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from tidewire_server.user_code import place_of

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
                the last call. It is called in a thread.
        """
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._running = running
        self._timer: asyncio.TimerHandle | None = None
        self._seen = 0.0
        """Time at which the event loop last ran the timer, by the monotonic clock."""
        self._stopped = threading.Event()

    def start(self) -> None:
        self._record()
        threading.Thread(target=self._watch, name="tidewire-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _record(self) -> None:
        self._seen = time.monotonic()
        self._timer = self._loop.call_later(MAX_BLOCKED_SECONDS / 4, self._record)

    # ---- in the thread -----------------------------------------------------------------------------------------

    def _watch(self) -> None:
        quiet_until = 0.0
        while True:
            began, cpu = time.monotonic(), time.process_time()
            if self._stopped.wait(MAX_BLOCKED_SECONDS / 4):
                return
            now, names = time.monotonic(), [*self._running()]
            slept = now - began
            was_late = slept > MAX_BLOCKED_SECONDS
            if was_late and time.process_time() - cpu < slept / 2:
                self._seen = now
            blocked = now - self._seen
            # If no function was running, the cause is probably a busy machine, and a warning would not help.
            if blocked > MAX_BLOCKED_SECONDS and now >= quiet_until and names:
                quiet_until = now + WARNING_INTERVAL
                frame = None if was_late else sys._current_frames().get(self._loop_thread)
                _log.warning(
                    "the event loop has been blocked for %.1f s%s, which stops all streams; if an `async def` function "
                    "computes or waits without `await`, declare it with `def`, so that it runs in a thread; running "
                    "endpoints: %s",
                    blocked,
                    "" if frame is None else f" at {place_of(frame)}",
                    ", ".join(map(repr, names)),
                )
