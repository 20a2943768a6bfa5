"""Record of the updates that a reader received, with the check that each event was covered exactly once."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tidewire import Update


@dataclass
class Run:
    """Updates that one reader received, possibly over several connections."""

    covered: list[tuple[int, int]] = field(default_factory=list)
    text: str = ""
    value: Any = None

    def take(self, update: Update) -> None:
        self.covered.append((update.first_seq, update.seq))
        self.text = self.text[: len(self.text) - update.deleted] + update.text
        self.value = update.value

    def assert_whole(self) -> tuple[int, int]:
        """Assert that each event is covered by exactly one update; return the first and the last seq."""
        covered = self.covered
        assert all(first <= last for first, last in covered), covered
        assert all(after[0] == before[1] + 1 for before, after in pairwise(covered)), covered
        return covered[0][0], covered[-1][1]
