"""Progress of `tidewire map` on a terminal, and the summary of its failures."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tidewire.commands.display import Screen
from tidewire.commands.live_view import ProgressLine
from tidewire.errors import InvalidInputError, ItemFailedError
from tidewire.jobs.map.outcomes import MapProgress

MAX_REASONS: Final = 1000
"""Maximum number of different failure reasons that are counted separately. All further reasons are counted together."""
OTHERS: Final = "other reasons"
SHOWN_REASONS: Final = 5
"""Maximum number of failure reasons in the summary. The most frequent reasons are shown."""


@contextmanager
def map_progress(screen: Screen, total: int | None) -> Iterator[Callable[[MapProgress], None]]:
    """Show the progress of a map during a `with` block, and then its final numbers, if standard error is a terminal.

    Yields a function that updates the progress.
    """
    line, more = ProgressLine(total, "input"), ["0 failed"]

    def move(progress: MapProgress) -> None:
        line.update(progress.ended, total, "input")
        more[0] = f"{progress.failed} failed"
        more[1:] = [f"{progress.resumed} from the resume file"] if progress.resumed else []

    try:
        with screen.area(lambda width: [line.draw("", width, *more)]):
            yield move
    finally:
        if screen.can_redraw:
            screen.note(line.numbers(*more))


class Failures:
    """Counts the failed inputs of a map by the reason of the failure."""

    def __init__(self) -> None:
        self._reasons: dict[str, tuple[int, int]] = {}
        """Number of failures for each reason, and the index of the first input that failed for it."""

    def add(self, index: int, code: str, message: str) -> None:
        """Count a failure."""
        # Remove the index of the input, which would make each reason different.
        message = message.removeprefix(f"input {index} was refused: ").removesuffix(f" [{code}]")
        reason = " ".join(f"{code}: {message}".split())
        if len(self._reasons) >= MAX_REASONS and reason not in self._reasons:
            reason = OTHERS
        count, first = self._reasons.get(reason, (0, index))
        self._reasons[reason] = (count + 1, first)

    def summary(self) -> Iterator[str]:
        """Yield one line for each of the most frequent reasons, and a line for the others."""
        ranked = sorted(self._reasons.items(), key=lambda each: -each[1][0])
        for reason, (count, first) in ranked[:SHOWN_REASONS]:
            yield f"  {count} × {reason} (first at index {first})"
        if others := sum(count for _, (count, _) in ranked[SHOWN_REASONS:]):
            yield f"  {others} × {OTHERS}"


def reason_of(error: ItemFailedError) -> str:
    """Return the reason why an input of `map` failed.

    If the server refused the input, use the client's message: the index in the server's message counts the inputs of one
    job, not all inputs of `map`.
    """
    detail = None if error.problem is None else error.problem.detail
    return error.what if detail is None or isinstance(error.__cause__, InvalidInputError) else detail
