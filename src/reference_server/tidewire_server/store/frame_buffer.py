"""Encoded events in memory: one buffer, and where each event ends. A replay is a slice."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate


class FrameBuffer:
    """Events by their place: the first one that was ever added has place 1. The oldest may be cut off."""

    __slots__ = ("_buffer", "_cut", "_ends", "base")

    def __init__(self, base: int = 0) -> None:
        """Begin empty, after a place."""
        self.base = base
        """The place before the first event that is held."""
        self._buffer = bytearray()
        self._ends = array("Q")
        """Where each event ends, counted from the first byte that was ever added."""
        self._cut = 0
        """Bytes that were cut off."""

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return len(self._buffer)

    @property
    def written(self) -> int:
        """Bytes that were ever added."""
        return self._cut + len(self._buffer)

    def add(self, frames: Sequence[bytes]) -> int:
        """Add events at the end; returns the bytes that were ever added."""
        if len(frames) == 1:  # as it is most often
            self._buffer += frames[0]
            written = self._cut + len(self._buffer)
            self._ends.append(written)
            return written
        ends = accumulate(map(len, frames), initial=self.written)
        next(ends)
        self._ends.extend(ends)
        self._buffer += b"".join(frames)
        return self.written

    def add_joined(self, frames: bytes, ends: Iterable[int]) -> None:
        """Add events that stand one after the other, `ends` counted from the first byte of them."""
        self._ends.extend(map(self.written.__add__, ends))
        self._buffer += frames

    def read(self, after: int, max_bytes: int) -> tuple[bytes, int]:
        """The events after a place while their sum stays within a bound, at least one; and the place of the last."""
        skip = after - self.base
        start = self._ends[skip - 1] if skip else self._cut
        last = max(bisect_right(self._ends, start + max_bytes, skip), min(skip + 1, len(self._ends)))
        if last == skip:
            return b"", after
        frames = bytes(memoryview(self._buffer)[start - self._cut : self._ends[last - 1] - self._cut])
        return frames, self.base + last

    def cut(self, place: int) -> None:
        """Cut off all events up to a place."""
        events = place - self.base
        if events > 0:
            end = self._ends[events - 1]
            del self._buffer[: end - self._cut]
            del self._ends[:events]
            self._cut, self.base = end, place

    def cut_to(self, max_bytes: int) -> None:
        """Cut off the oldest events, as few as bring what is held within a bound."""
        excess = self.size - max_bytes
        if excess > 0:
            self.cut(self.base + bisect_right(self._ends, self._cut + excess - 1) + 1)
