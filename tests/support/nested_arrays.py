"""Arrays in arrays, for limits on depth."""

from typing import Any


def nested(levels: int, inner: Any = 0) -> Any:
    """Return `inner` within arrays of one element each."""
    for _ in range(levels):
        inner = [inner]
    return inner
