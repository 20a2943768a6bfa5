"""Limit on the memory that request bodies use while they arrive and are processed (`max_incoming_bytes`)."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tidewire_server.errors import ProblemError, refuse
from tidewire_server.settings import share_of

_RETRY_MS: Final = 1000


class IncomingBodies:
    """Counts the bytes of request bodies on all connections. All methods must be called on one event loop."""

    def __init__(self, max_bytes: int) -> None:
        """Create a counter.

        Args:
            max_bytes: Maximum total size of all bodies. A body may exceed this limit if no other body is arriving.
        """
        self.max_bytes = max_bytes
        self.total = 0
        """Total size of the bodies that are being received or processed, in bytes."""
        self._by_caller: Counter[str] = Counter()
        """Principal → total size of its bodies in `total`, in bytes."""

    @contextmanager
    def counting(self, principal: str, share: float = 1.0) -> Iterator[Callable[[int], None]]:
        """Count the bytes of one body while the body is received and processed.

        Args:
            principal: Principal that sends the body.
            share: Fraction of the limit that one principal may use. A body may exceed it if the principal sends no other body.

        Yields:
            A function that counts received bytes. It raises a `ProblemError` if they would exceed the limit.
        """
        size = 0

        def count(received: int) -> None:
            nonlocal size
            if self.total > size and self.total + received > self.max_bytes:
                raise _unavailable("", self.total, received, self.max_bytes, "max_incoming_bytes")
            own, limit = self._by_caller[principal], share_of(self.max_bytes, share)
            if own > size and own + received > limit:
                raise _unavailable(" of this caller", own, received, limit, "max_incoming_bytes, max_share")
            size += received
            self.total += received
            self._by_caller[principal] += received

        try:
            yield count
        finally:
            self.total -= size
            self._by_caller[principal] -= size
            if not self._by_caller[principal]:
                del self._by_caller[principal]


def _unavailable(whose: str, used: int, received: int, limit: int, settings: str) -> ProblemError:
    return refuse(
        "unavailable",
        f"the request bodies{whose} that are arriving take {used} bytes, and {received} bytes more would exceed the limit "
        f"of {limit} bytes ({settings}); retry later",
        retry_after_ms=_RETRY_MS,
    )
