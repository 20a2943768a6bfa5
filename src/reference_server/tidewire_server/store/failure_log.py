"""Log the failures of background work, without repeating the same line while the store is down."""

import logging
import time
from collections.abc import Callable
from typing import Final

from tidewire_server.store.store_errors import StoreError

REPEAT_SECONDS: Final = 60.0
"""Minimum number of seconds between two log lines with the same text."""


class FailureLog:
    """Logger for the failures of one background task, which retries after each failure."""

    def __init__(
        self, logger: logging.Logger, consequence: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create the logger for a task that has not failed yet.

        Args:
            logger: Logger of the module that does the work.
            consequence: Beginning of each line: the effect of the failure, such as "cannot delete expired entries".
            clock: Clock in seconds.
        """
        self._logger = logger
        self._consequence = consequence
        self._clock = clock
        self._reason: str | None = None
        self._at = 0.0

    def failed(self, error: StoreError) -> None:
        """Log a failure at level ERROR. Use DEBUG if the store has logged the error itself, or if the same line was logged less
        than `REPEAT_SECONDS` ago.
        """
        reason, now = str(error), self._clock()
        is_new = reason != self._reason or now - self._at >= REPEAT_SECONDS
        level = logging.ERROR if is_new and not error.logged else logging.DEBUG
        if level == logging.ERROR:
            self._reason, self._at = reason, now
        self._logger.log(level, "%s: %s", self._consequence, error)
