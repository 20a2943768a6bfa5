"""Log lines about background work that fails repeatedly because of the store."""

import logging
import time
from collections.abc import Callable
from typing import Final

from tidewire_server.store.store_errors import StoreError

REPEAT_SECONDS: Final = 60.0
"""Minimum time between two lines about the same work with the same reason."""


class FailureLog:
    """Failures of one kind of background work, which is repeated after each failure."""

    def __init__(
        self, logger: logging.Logger, consequence: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create the log of work that has not failed yet.

        Args:
            logger: Logger of the module that does the work.
            consequence: Beginning of each line, which says what does not happen.
            clock: Clock in seconds.
        """
        self._logger = logger
        self._consequence = consequence
        self._clock = clock
        self._reason: str | None = None
        self._at = 0.0

    def failed(self, error: StoreError) -> None:
        """Log an error with its advice, unless the store has logged the error itself, or the last line has the same reason and is
        less than `REPEAT_SECONDS` old.
        """
        reason, now = str(error), self._clock()
        is_new = reason != self._reason or now - self._at >= REPEAT_SECONDS
        level = logging.ERROR if is_new and not error.logged else logging.DEBUG
        if level == logging.ERROR:
            self._reason, self._at = reason, now
        self._logger.log(level, "%s: %s", self._consequence, error)
