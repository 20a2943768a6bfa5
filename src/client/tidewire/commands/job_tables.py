"""Tables of jobs for the terminal, and functions that format a server's numbers and texts.

Text from the server is wrapped in `Text` objects, because rich would interpret plain strings as markup.
"""

import math
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from tidewire.protocol.resources import JobResource
from tidewire.terminal_escapes import visible

_STYLES: Final = {
    "running": "green",
    "succeeded": "",
    "failed": "red",
    "partially_failed": "red",
    "queued": "cyan",
}


def jobs(found: Iterable[JobResource], without_worker: Collection[str], *, watched: bool = False) -> Table:
    """Return a table of jobs, in the order of the argument. On a narrow terminal, their ids are shortened.

    Args:
        found: The jobs.
        without_worker: Endpoints that no live process runs.
        watched: Whether to show how long a job has waited or run, instead of when it was created and has ended.
    """
    table = Table(box=None, pad_edge=False)
    for name in ("job", "endpoint", "status", *(["time"] if watched else ["created", "ended"])):
        table.add_column(name, no_wrap=name != "job")
    for job in found:
        lacks_worker = job.status == "queued" and job.endpoint in without_worker
        status = "queued (no worker)" if lacks_worker else job.status
        times = [(stamp or "")[:19].replace("T", " ") for stamp in (job.created_at, job.ended_at)]
        if watched:
            seconds = seconds_between(job.started_at or job.created_at, job.ended_at)
            times = ["" if seconds is None else str(timedelta(seconds=int(seconds)))]
        table.add_row(
            Text(visible(job.id), no_wrap=True, overflow="ellipsis"),
            server_text(job.endpoint),
            server_text(status, _STYLES.get(job.status, "dim")),
            *map(server_text, times),
        )
    return table


def probability(logprob: Any) -> float:
    """Return the probability for a log-probability in JSON, where null means probability 0."""
    # A faulty server may send anything: a text, a log-probability above 0, or a number that no float can represent.
    try:
        return math.exp(min(logprob, 0.0))
    except (TypeError, OverflowError):
        return 0.0


def seconds_between(start: str, end: str | None) -> float | None:
    """Return the number of seconds between two timestamps of a server, or until now if `end` is None. Return None if a
    timestamp is not valid.
    """
    try:
        until = datetime.now(UTC) if end is None else datetime.fromisoformat(end)
        return max(0.0, (until - datetime.fromisoformat(start)).total_seconds())
    except (ValueError, TypeError):
        return None


def server_text(text: str, style: str = "") -> Text:
    """Wrap a text from the server for rich, and escape its control characters."""
    return Text(visible(text), style)
