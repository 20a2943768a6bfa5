"""Tables of jobs and of tokens, for the terminal.

Text from the server is wrapped in `Text` objects, because rich would interpret plain strings as markup.
"""

import math
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from tidewire.jobs.generated_tokens import Token
from tidewire.protocol.resources import JobResource
from tidewire.terminal_escapes import visible


def jobs(found: Iterable[JobResource], without_worker: Collection[str] = ()) -> Table:
    """Return a table of jobs, in the order of the argument.

    Args:
        found: The jobs.
        without_worker: Endpoints that no live process runs.
    """
    table = Table(box=None, pad_edge=False)
    for name in ("job", "endpoint", "status", "created", "ended"):
        table.add_column(name, no_wrap=True, overflow="ignore")
    for job in found:
        lacks_worker = job.status == "queued" and job.endpoint in without_worker
        status = "queued (no worker)" if lacks_worker else job.status
        table.add_row(
            *map(
                server_text,
                (job.id, job.endpoint, status, _time(job.created_at), _time(job.ended_at or "")),
            )
        )
    return table


def tokens(found: Iterable[Token]) -> Table:
    """Return a table of tokens. It shows the probability and the rank of each token, and the most probable alternatives."""
    table = Table(box=None, pad_edge=False)
    for name, justify in (
        ("token", "left"),
        ("probability", "right"),
        ("rank", "right"),
        ("alternatives", "left"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for token in found:
        others = [one for one in token.alternatives if one.id != token.id]
        table.add_row(
            server_text(repr(token.text)),
            "" if token.logprob is None else f"{probability(token.logprob):.1%}",
            "" if token.rank is None else str(token.rank),
            server_text(", ".join(f"{one.text!r} {probability(one.logprob):.1%}" for one in others)),
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
    """Return the time between two timestamps of a server in seconds, or from the first one until now if there is no second
    one. None if one of them is not a timestamp.
    """
    try:
        until = datetime.now(UTC) if end is None else datetime.fromisoformat(end)
        return max(0.0, (until - datetime.fromisoformat(start)).total_seconds())
    except (ValueError, TypeError):
        return None


def server_text(text: str, style: str = "") -> Text:
    """Return a server's text as it is shown on a terminal."""
    return Text(visible(text), style)


def _time(stamp: str) -> str:
    return stamp[:19].replace("T", " ")
