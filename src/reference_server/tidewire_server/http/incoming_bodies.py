"""Limit on the memory that request bodies use while they arrive and are processed (`max_incoming_bytes`)."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from tidewire_server.errors import refuse

_RETRY_MS: Final = 1000


class IncomingBodies:
    """Counts the bytes of request bodies on all connections. All methods must be called on one event loop."""

    def __init__(self, max_bytes: int) -> None:
        """Create a counter.

        Args:
            max_bytes: Maximum total size of all bodies. If only one body is arriving, it may exceed the limit.
        """
        self._max_bytes = max_bytes
        self._total = 0

    @contextlib.contextmanager
    def counting(self) -> Iterator[Callable[[int], None]]:
        """Return a context manager in which one body is received and processed.

        Yields:
            A function that counts a number of received bytes until the context manager exits. It raises a `ProblemError`
            if the bytes would exceed the limit.
        """
        size = 0

        def count(received: int) -> None:
            nonlocal size
            if self._total > size and self._total + received > self._max_bytes:
                raise refuse(
                    "unavailable",
                    f"the request bodies that are arriving take {self._total} bytes, and {received} bytes more would "
                    f"exceed the limit of {self._max_bytes} bytes (max_incoming_bytes); retry later",
                    retry_after_ms=_RETRY_MS,
                )
            size += received
            self._total += received

        try:
            yield count
        finally:
            self._total -= size
