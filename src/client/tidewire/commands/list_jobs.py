"""Implementation of `tidewire jobs`, which lists jobs once, or updates the list every second."""

import time
from typing import Final

from rich.text import Text

from tidewire.commands import job_tables
from tidewire.commands.display import Screen
from tidewire.protocol.resources import JobResource
from tidewire.sync import Client

WATCH_INTERVAL: Final = 1.0
"""Time between two requests of the list, in seconds."""


def list_jobs(client: Client, limit: int, screen: Screen, *, as_json: bool) -> None:
    """Print a table of the caller's jobs, or one line of JSON for each job."""
    found = client.jobs(limit=limit)
    if as_json:
        for job in found:
            screen.json(job.model_dump(exclude_none=True, exclude={"state", "columns"}))
    elif found:
        screen.table(job_tables.jobs(found, _without_worker(client, found)), wide=True)
    else:
        screen.note("no jobs")


def watch_jobs(client: Client, limit: int, screen: Screen) -> None:
    """Show a table of the caller's jobs that fit on the screen, and update it every second until Ctrl+C.

    Raises:
        ValueError: The output is not a terminal whose lines can be drawn again.
    """
    if not screen.can_redraw:
        raise ValueError(
            "--watch needs a terminal; to read the list in a program, use --json without --watch"
        )
    table = job_tables.jobs([], [], watched=True)
    hint = Text("updated every second; press Ctrl+C to end", "dim")
    try:
        with screen.area(lambda _width: [hint, table]):
            while True:
                found = client.jobs(limit=limit)
                table = job_tables.jobs(found, _without_worker(client, found), watched=True)
                time.sleep(WATCH_INTERVAL)
    finally:
        screen.table(table, wide=True)


def _without_worker(client: Client, found: list[JobResource]) -> set[str]:
    waits = any(job.status == "queued" for job in found)
    return {each.name for each in client.discover().endpoints if each.workers == 0} if waits else set()
