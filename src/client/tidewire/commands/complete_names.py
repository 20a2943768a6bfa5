"""Shell completion of the names of endpoints and the ids of jobs, which are requested from the server."""

import logging
import re
from collections.abc import Callable
from typing import Final

import typer

from tidewire.errors import TidewireError
from tidewire.following.retry_policy import RetryPolicy
from tidewire.sync import Client

TIMEOUT: Final = 2.0
"""Maximum time that a completion waits for the server, in seconds."""
MAX_JOBS: Final = 20
"""Maximum number of jobs whose ids are offered, newest first."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
"""Names that are offered. A shell evaluates what a completion prints, so a faulty server could otherwise run commands."""


def endpoint_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the endpoints of the server whose names begin with the incomplete word."""
    if any("=" not in word for word in ctx.params.get("words") or ()):
        return []  # The next words are members of the input.
    return _offered(ctx, incomplete, lambda client: [each.name for each in client.discover().endpoints])


def job_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of jobs that begin with the incomplete word."""
    return _offered(ctx, incomplete, lambda client: [job.id for job in client.jobs(limit=MAX_JOBS)])


def _offered(ctx: typer.Context, incomplete: str, read: Callable[[Client], list[str]]) -> list[str]:
    """Return the names that a server offers. If it does not answer, there are none."""
    logging.disable()  # A warning would appear in the line that the user types.
    try:
        url, retry = ctx.params.get("url") or "", RetryPolicy(patience=TIMEOUT)
        with Client(url, uds=ctx.params.get("uds"), timeout=TIMEOUT, retry=retry) as client:
            return [name for name in read(client) if name.startswith(incomplete) and _NAME.fullmatch(name)]
    except (TidewireError, ValueError):
        return []
    finally:
        logging.disable(logging.NOTSET)
