"""Limit on the memory that request bodies use while they arrive and are processed (`max_incoming_bytes`)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        self.max_bytes = max_bytes
        self.total = 0
        """Total size of the bodies that are being received or processed, in bytes."""

    @contextmanager
    def counting(self) -> Iterator[Callable[[int], None]]:
        """Count the bytes of one body while the body is received and processed.

        Yields:
            A function that counts received bytes. It raises a `ProblemError` if they would exceed the limit.
        """
        size = 0

        def count(received: int) -> None:
            nonlocal size
            if self.total > size and self.total + received > self.max_bytes:
                raise refuse(
                    "unavailable",
                    f"the request bodies that are arriving take {self.total} bytes, and {received} bytes more would "
                    f"exceed the limit of {self.max_bytes} bytes (max_incoming_bytes); retry later",
                    retry_after_ms=_RETRY_MS,
                )
            size += received
            self.total += received

        try:
            yield count
        finally:
            self.total -= size
