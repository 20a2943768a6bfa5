"""End of a stream whose token expires [TW-BRW-016]."""

import asyncio
from collections.abc import Callable
from typing import Final

_CLOCK_CHECK_SECONDS: Final = 4.0
"""Maximum number of seconds after which a stream notices that the wall clock was set past the expiry of its token."""

_GOAWAY_SECONDS: Final = 5.0
"""Maximum number of seconds in which a reader must accept `goaway` after its token has expired. Otherwise the server aborts
the connection. Together with the previous constant, it must be less than the 10 seconds of TW-BRW-016.
"""


class TokenExpiry:
    """Timer that ends a stream when its token has expired, even if the reader accepts no data.

    The token expires at a time of the wall clock, which may be set while the stream is open. The event loop has a monotonic
    clock, so the timer checks the token every few seconds.
    """

    __slots__ = ("_abort", "_leave", "_loop", "_patience", "_seconds_left", "_timer")

    def __init__(
        self,
        seconds_left: Callable[[], float],
        leave: Callable[[], None],
        abort: Callable[[], None],
        stall_timeout: float,
    ) -> None:
        """Start the timer.

        Args:
            seconds_left: Function that returns the number of seconds until the token expires.
            leave: Function that is called when the token has expired. It sends `goaway`.
            abort: Function that is called when the reader has not accepted `goaway` in time. It aborts the connection.
            stall_timeout: Number of seconds after which a reader that accepts no data is cut off anyway.
        """
        self._seconds_left = seconds_left
        self._leave = leave
        self._abort = abort
        self._patience = min(_GOAWAY_SECONDS, stall_timeout)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._check()

    def _check(self) -> None:
        left = self._seconds_left()
        if left > 0:
            self._timer = self._loop.call_later(min(left, _CLOCK_CHECK_SECONDS), self._check)
        else:
            self._leave()
            self._timer = self._loop.call_later(self._patience, self._abort)

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
