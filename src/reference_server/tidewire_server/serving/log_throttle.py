"""Bounds on log lines that any peer can cause: uvicorn's warnings, and asyncio's errors where no descriptor is left."""

import asyncio
import errno
import logging
import math
from collections import Counter
from typing import Any, Final

EVERY: Final = 1000
"""Of warnings of one kind the first is written, and then each that is a multiple of this, with their number so far."""

_MAX_KINDS: Final = 100

_TOLD_AGAIN: Final = 60.0
"""Seconds until it is told again that none is left."""

_NONE_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger(__name__)


class LogThrottle(logging.Filter):
    """Lets few of many like warnings through; errors and all else pass."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        kind = str(record.msg)
        if record.levelno != logging.WARNING or (kind not in self._seen and len(self._seen) >= _MAX_KINDS):
            return True
        self._seen[kind] += 1
        seen = self._seen[kind]
        if seen % EVERY == 0:
            record.msg = f"{kind} ({seen} times so far; told once in {EVERY})"
        return seen == 1 or seen % EVERY == 0


def throttle_accept_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Have a loop say once in a while that no descriptor is left for a connection that waits.

    asyncio's own would try as often as `listen` lets connections wait, each second, with a traceback for each. It goes
    on trying, and takes the connection as soon as one is free.
    """
    told = -math.inf

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal told
        error = context.get("exception")
        if "socket" not in context or not isinstance(error, OSError) or error.errno not in _NONE_LEFT:
            loop.default_exception_handler(context)
        elif loop.time() >= told + _TOLD_AGAIN:
            told = loop.time()
            _log.error(
                "no connection can be taken: %s (ulimit -n); those that wait are tried again", error.strerror
            )

    loop.set_exception_handler(handle)
