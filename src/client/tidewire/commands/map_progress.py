"""Progress of `tidewire map` on a terminal, and the summary of its failures."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tidewire.commands.display import Screen
from tidewire.commands.live_view import amount_text, bar_line, duration_text
from tidewire.errors import InvalidInputError, ItemFailedError
from tidewire.jobs.map_work import MapProgress

MAX_REASONS: Final = 1000
"""Maximum number of different reasons of failures that are counted."""
SHOWN_REASONS: Final = 5
"""Maximum number of different reasons in a summary. The most frequent ones are shown."""


@contextmanager
def map_progress(screen: Screen, total: int | None) -> Iterator[Callable[[MapProgress], None]]:
    """Show the progress of a map while the `with` block runs, and its numbers at the end, if standard error is a terminal.

    Yields a function that updates the progress.
    """
    start, last = time.monotonic(), MapProgress(0, 0, 0, 0, total)

    def move(progress: MapProgress) -> None:
        nonlocal last
        last = progress

    def numbers() -> list[str]:
        seconds = time.monotonic() - start
        parts = [amount_text(last.ended, total, "input"), f"{last.failed} failed"]
        new = last.ended - last.resumed
        if total is not None and new and last.ended < total:
            parts.append(f"{duration_text((total - last.ended) * seconds / new)} left")
        if last.resumed:
            parts.append(f"{last.resumed} from the resume file")
        return [*parts, duration_text(seconds)]

    if not screen.can_redraw_errors:
        yield move
        return
    try:
        with screen.area(screen.err, lambda width: [bar_line("", last.ended, total, numbers(), width)]):
            yield move
    finally:
        screen.note("  ".join(numbers()))


class Failures:
    """Failed inputs of a map, counted by their reasons."""

    def __init__(self) -> None:
        self.number: int = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._first: dict[tuple[str, str], int] = {}
        """Index of the first input that failed for a reason."""

    def add(self, index: int, code: str, message: str) -> None:
        """Count a failure."""
        self.number += 1
        reason = (code, message)
        if reason in self._first or len(self._first) < MAX_REASONS:
            self._counts[reason] += 1
            self._first.setdefault(reason, index)

    def summary(self) -> Iterator[str]:
        """Yield one line for each of the most frequent reasons, and a line for the others."""
        shown = self._counts.most_common(SHOWN_REASONS)
        for (code, message), count in shown:
            first = self._first[code, message]
            where = f"index {first}" if count == 1 else f"first at index {first}"
            yield f"  {count} × {code}: {' '.join(message.split())} ({where})"
        if others := self.number - sum(count for _, count in shown):
            yield f"  {others} × other reasons"


def reason_of(error: ItemFailedError) -> str:
    """Return the reason why an input of `map` failed.

    If the server refused the input, use the client's message: the index in the server's message counts the inputs of one
    job, not all inputs of `map`.
    """
    detail = None if error.problem is None else error.problem.detail
    return error.what if detail is None or isinstance(error.__cause__, InvalidInputError) else detail
