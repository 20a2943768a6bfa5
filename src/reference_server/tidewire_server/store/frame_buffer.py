"""In-memory buffer of encoded events. It records where each event ends, so that a reader gets any range of events as one slice
of bytes.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence


class FrameBuffer:
    """Buffer of consecutive encoded events, each identified by its position in the log. The oldest events can be
    trimmed.
    """

    __slots__ = ("_buffer", "_cut", "_ends", "base")

    def __init__(self, base: int = 0) -> None:
        """Create an empty buffer whose first event will have position `base` + 1."""
        self.base = base
        """Position just before the first buffered event."""
        self._buffer = bytearray()
        self._ends = array("Q")
        """End offset of each buffered event, counted from the first byte ever added."""
        self._cut = 0
        """Number of bytes trimmed so far."""

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def size(self) -> int:
        """Number of bytes in the buffer."""
        return len(self._buffer)

    def add(self, frames: Sequence[bytes]) -> int:
        """Append events, and return the total number of bytes added since the buffer was created."""
        end = self._cut + len(self._buffer)
        for frame in frames:
            self._buffer += frame
            end += len(frame)
            self._ends.append(end)
        return end

    def read(self, after: int, max_bytes: int) -> tuple[bytes, int]:
        """Return the events after a position, and the position of the last returned event.

        The returned events are at most `max_bytes` long in total. The first event is returned even if it alone is
        longer.
        """
        skip = after - self.base
        start = self._ends[skip - 1] if skip else self._cut
        last = max(bisect_right(self._ends, start + max_bytes, skip), min(skip + 1, len(self._ends)))
        if last == skip:
            return b"", after
        frames = bytes(memoryview(self._buffer)[start - self._cut : self._ends[last - 1] - self._cut])
        return frames, self.base + last

    def cut(self, position: int) -> None:
        """Trim all events up to and including a position."""
        events = position - self.base
        if events > 0:
            end = self._ends[events - 1]
            del self._buffer[: end - self._cut]
            del self._ends[:events]
            self._cut, self.base = end, position

    def cut_to(self, max_bytes: int) -> None:
        """Trim the oldest events until the remaining events take at most `max_bytes`."""
        excess = self.size - max_bytes
        if excess > 0:
            self.cut(self.base + bisect_right(self._ends, self._cut + excess - 1) + 1)
