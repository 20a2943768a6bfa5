"""A bound on warnings that any peer can cause: uvicorn writes one for each request that is no HTTP."""

import logging
from collections import Counter
from typing import Final

EVERY: Final = 1000
"""Of warnings of one kind the first is written, and then each that is a multiple of this, with their number so far."""

_MAX_KINDS: Final = 100


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
