"""Detection of stop strings in the text of one generation (`StopStrings`)."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Holds back text that may be the beginning of a stop string.

    Args:
        stops: Stop strings. The text ends before the first stop string that is complete.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._held = ""
        """Text that is held back because it may be the beginning of a stop string."""
        self.stopped = False

    @property
    def holds(self) -> bool:
        """Whether text is held back."""
        return bool(self._held)

    def feed(self, text: str) -> str:
        """Add text, and return the text that later text can no longer change. If a stop string is complete, set
        `stopped`.
        """
        if not self._stops:
            return text
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        held = self._overlap(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """End the generation, and return the text that was held back."""
        text, self._held = self._held, ""
        return text

    def _overlap(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that is a prefix of a stop string."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
