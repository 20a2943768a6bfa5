"""The list of jobs of `tidewire jobs`, once or updated every second."""

import time
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from rich.console import RenderableType
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
        yield from _rows(found, width)
        yield server_text(trouble or "updated every second; press Ctrl+C to end", "red" if trouble else "dim")

    def show_trouble(text: str) -> None:
        nonlocal trouble
        trouble = text

    screen.on_retry = show_trouble
    try:
        with screen.area(screen.out, lambda width: [*lines(width)]):
            while True:
                rows = max(1, (screen.out.height - 3) // (2 if screen.width < NARROW else 1))
                found = _read(client, min(limit, rows))
                trouble = ""
                time.sleep(WATCH_INTERVAL)
    finally:
        screen.on_retry = screen.note
        screen.lines(_rows(found, screen.width))


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


def _rows(found: _Listed, width: int) -> Iterator[Text]:
    """Yield a row for each job, with the time that it has waited or run. On a narrow terminal, the id has its own line."""
    ids = max((len(job.id) for job in found.jobs), default=0)
    if found.jobs and width >= NARROW:
        yield Text(f"{'job':<{ids}}  {'status':<18}  {'time':>7}  endpoint", "bold")
    for job in found.jobs:
        lacks_worker = job.status == "queued" and job.endpoint in found.without_worker
        status = f"{'queued (no worker)' if lacks_worker else job.status:<18}"
        seconds = seconds_between(job.started_at or job.created_at, job.ended_at)
        time_ = "" if seconds is None else duration_text(seconds)
        row = [
            server_text(status, _STYLES.get(job.status, "dim")),
            Text(f"{time_:>7}"),
            server_text(job.endpoint),
        ]
        yield Text("  ").join([server_text(job.id.ljust(ids)), *row] if width >= NARROW else row)
        if width < NARROW:
            yield server_text(f"  {job.id}", "dim")
