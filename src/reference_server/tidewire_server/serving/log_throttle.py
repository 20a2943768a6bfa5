"""Rate limits for log lines that clients can cause, such as warnings from uvicorn, and errors that asyncio logs if
`accept` fails.
"""

import asyncio
import errno
import logging
import math
from collections import Counter
from typing import Any, Final

EVERY: Final = 1000
"""Interval at which repeated warnings are logged. After the first warning of a kind, only every thousandth is
logged.
"""

_MAX_KINDS: Final = 100

_REPEAT_SECONDS: Final = 60.0
"""Minimum number of seconds between two log lines about failed `accept` calls."""

_RESOURCE_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger(__name__)


class LogThrottle(logging.Filter):
    """Logging filter that drops most repetitions of the same warning. Log records of other levels pass the filter."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        kind = str(record.msg)
        if record.levelno != logging.WARNING or (kind not in self._seen and len(self._seen) >= _MAX_KINDS):
            return True
        self._seen[kind] += 1
        seen = self._seen[kind]
        if seen % EVERY == 0:
            record.msg = f"{kind} ({seen} times so far; logged once in {EVERY})"
        return seen == 1 or seen % EVERY == 0


def throttle_accept_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Limit the number of log lines about failed `accept` calls while the process has no free file descriptor.

    In this situation, asyncio calls `accept` up to `backlog` times per second and logs a traceback for each failure.
    This function installs an exception handler that logs at most one line per minute. asyncio still retries, and
    accepts connections again as soon as a descriptor is free.
    """
    last_logged = -math.inf

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal last_logged
        error = context.get("exception")
        if "socket" not in context or not isinstance(error, OSError) or error.errno not in _RESOURCE_ERRORS:
            loop.default_exception_handler(context)
        elif loop.time() >= last_logged + _REPEAT_SECONDS:
            last_logged = loop.time()
            _log.error(
                "cannot accept connections: %s (ulimit -n); the server tries again every second",
                error.strerror,
            )

    loop.set_exception_handler(handle)
