"""Limit on the memory that request bodies use while they arrive and are processed (`max_incoming_bytes`)."""

from typing import Final, Self

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

    def counting(self) -> "BodyCount":
        """Return a context manager that counts the bytes of one body while the body is received and processed."""
        return BodyCount(self)


class BodyCount:
    """Context manager and callable that counts the bytes of one body until the context manager exits.

    This is a class because a generator with `contextlib.contextmanager` would take three times as long per request.
    """

    __slots__ = ("_bodies", "_size")

    def __init__(self, bodies: IncomingBodies) -> None:
        self._bodies = bodies
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bodies.total -= self._size

    def __call__(self, received: int) -> None:
        """Count received bytes.

        Raises:
            ProblemError: The bytes would exceed the limit.
        """
        bodies = self._bodies
        if bodies.total > self._size and bodies.total + received > bodies.max_bytes:
            raise refuse(
                "unavailable",
                f"the request bodies that are arriving take {bodies.total} bytes, and {received} bytes more would "
                f"exceed the limit of {bodies.max_bytes} bytes (max_incoming_bytes); retry later",
                retry_after_ms=_RETRY_MS,
            )
        self._size += received
        bodies.total += received
