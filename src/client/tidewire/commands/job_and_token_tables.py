"""Tables of jobs and of tokens, for the terminal.

Text from the server is wrapped in `Text` objects, because rich would interpret plain strings as markup.
"""

import math
from collections.abc import Collection, Iterable

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
            "" if token.logprob is None else _percent(token.logprob),
            "" if token.rank is None else str(token.rank),
            server_text(", ".join(f"{one.text!r} {_percent(one.logprob)}" for one in others)),
        )
    return table


def _percent(logprob: float) -> str:
    # A faulty server may send a log-probability above 0, and `exp` of a large number overflows.
    return f"{math.exp(min(logprob, 0.0)):.1%}"


def server_text(text: str, style: str = "") -> Text:
    """Return a server's text as it is shown on a terminal."""
    return Text(visible(text), style)


def _time(stamp: str) -> str:
    return stamp[:19].replace("T", " ")
