"""The list of jobs of `tidewire jobs`, once or updated every second."""

import time
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tidewire.commands import job_and_token_tables
from tidewire.commands.display import Screen
from tidewire.commands.job_and_token_tables import seconds_between, server_text
from tidewire.commands.live_view import duration_text
from tidewire.protocol.resources import JobResource
from tidewire.sync import Client

WATCH_INTERVAL: Final = 1.0
"""Time between two requests of the list, in seconds."""
NARROW: Final = 72
"""Width in cells below which a job takes two lines."""

_STYLES: Final = {
    "running": "green",
    "succeeded": "",
    "failed": "red",
    "partially_failed": "red",
    "queued": "cyan",
}


class _Listed(NamedTuple):
    jobs: list[JobResource]
    without_worker: Collection[str]
    """Endpoints that no live process runs."""


def list_jobs(client: Client, limit: int, screen: Screen, *, as_json: bool) -> None:
    """Print a table of the caller's jobs, or one line of JSON for each job."""
    if as_json:
        for job in client.jobs(limit=limit):
            _write_json(screen, job)
    elif (found := _read(client, limit)).jobs:
        screen.wide(job_and_token_tables.jobs(*found))
    else:
        screen.note("no jobs")


def watch_jobs(client: Client, limit: int, screen: Screen, *, as_json: bool) -> None:
    """Update the list of jobs every second, until an interrupt.

    On a terminal, the list is a table with as many jobs as fit. Otherwise, a job is printed when it is new, and whenever its
    status has changed.
    """
    if as_json or not screen.can_redraw:
        _print_changes(client, limit, screen, as_json=as_json)
        return
    found, trouble = _Listed([], ()), "waiting for the first response"

    def lines(width: int) -> Iterator[RenderableType]:
        yield from _rows(found, width) if found.jobs else [] if trouble else [Text("no jobs", "dim")]
        yield server_text(trouble or "updated every second; press Ctrl+C to end", "red" if trouble else "dim")

    def show_trouble(text: str) -> None:
        nonlocal trouble
        trouble = text

    screen.on_retry = show_trouble
    try:
        with screen.area(screen.out, lambda width: [*lines(width)]):
            while True:
                rows = max(1, (screen.out.height - 4) // (2 if screen.width < NARROW else 1))
                found = _read(client, min(limit, rows))
                trouble = ""
                time.sleep(WATCH_INTERVAL)
    finally:
        screen.on_retry = screen.note
        for row in _rows(found, screen.width) if found.jobs else ():
            screen.out.print(row)


def _print_changes(client: Client, limit: int, screen: Screen, *, as_json: bool) -> None:
    known: dict[str, str] = {}
    while True:
        found = client.jobs(limit=limit)
        for job in reversed(found):
            if known.get(job.id) != job.status:
                _write_json(screen, job) if as_json else screen.write(
                    f"{job.id}  {job.endpoint}  {job.status}\n"
                )
        known = {job.id: job.status for job in found}
        time.sleep(WATCH_INTERVAL)


def _read(client: Client, limit: int) -> _Listed:
    found = client.jobs(limit=limit)
    waits = any(job.status == "queued" for job in found)
    endpoints = client.discover().endpoints if waits else []
    return _Listed(found, {each.name for each in endpoints if each.workers == 0})


def _write_json(screen: Screen, job: JobResource) -> None:
    screen.json(job.model_dump(exclude_none=True, exclude={"state", "columns"}))


def _rows(found: _Listed, width: int) -> list[RenderableType]:
    """Return rows with the time that each job has waited or run. On a narrow terminal, the id has its own line."""
    wide = width >= NARROW
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    rows: list[RenderableType] = []
    for name in ("job", "status", "time", "endpoint"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for job in found.jobs:
        lacks_worker = job.status == "queued" and job.endpoint in found.without_worker
        status = server_text(
            "queued (no worker)" if lacks_worker else job.status, _STYLES.get(job.status, "dim")
        )
        seconds = seconds_between(job.started_at or job.created_at, job.ended_at)
        time_, endpoint = Text("" if seconds is None else duration_text(seconds)), server_text(job.endpoint)
        table.add_row(server_text(job.id), status, time_, endpoint)
        rows += [Text("  ").join([status, time_, endpoint]), server_text(f"  {job.id}", "dim")]
    return [table] if wide else rows
