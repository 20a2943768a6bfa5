"""The list of jobs of `tidewire jobs`, once or updated every second."""

import time
from collections.abc import Collection
from typing import Final, NamedTuple

from rich.text import Text

from tidewire.commands import job_tables
from tidewire.commands.display import Screen
from tidewire.protocol.resources import JobResource
from tidewire.sync import Client

WATCH_INTERVAL: Final = 1.0
"""Time between two requests of the list, in seconds."""


class _Listed(NamedTuple):
    jobs: list[JobResource]
    without_worker: Collection[str]
    """Endpoints that no live process runs."""


def list_jobs(client: Client, limit: int, screen: Screen, *, as_json: bool) -> None:
    """Print a table of the caller's jobs, or one line of JSON for each job."""
    if as_json:
        for job in client.jobs(limit=limit):
            screen.json(job.model_dump(exclude_none=True, exclude={"state", "columns"}))
    elif (found := _read(client, limit)).jobs:
        screen.table(job_tables.jobs(*found), wide=True)
    else:
        screen.note("no jobs")


def watch_jobs(client: Client, limit: int, screen: Screen) -> None:
    """Show a table of the caller's jobs, as many as fit, and update it every second, until an interrupt.

    Raises:
        ValueError: The output is not a terminal whose lines can be drawn again.
    """
    if not screen.can_redraw:
        raise ValueError(
            "--watch needs a terminal; to read the list in a program, use --json without --watch"
        )
    found = _Listed([], ())
    hint = Text("updated every second; press Ctrl+C to end", "dim")
    try:
        with screen.area(lambda _width: [hint, job_tables.watched_jobs(*found)]):
            while True:
                found = _read(client, limit)
                time.sleep(WATCH_INTERVAL)
    finally:
        screen.table(job_tables.watched_jobs(*found), wide=True)


def _read(client: Client, limit: int) -> _Listed:
    found = client.jobs(limit=limit)
    waits = any(job.status == "queued" for job in found)
    endpoints = client.discover().endpoints if waits else []
    return _Listed(found, {each.name for each in endpoints if each.workers == 0})
