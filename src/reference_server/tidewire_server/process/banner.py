"""What `tidewire serve` shows once it answers: where, what, within which limits, and what is off."""

import json
import shlex
from typing import Final

from tidewire_server.server import Server
from tidewire_server.settings import Settings
from tidewire_server.store_urls import file_of
from tidewire_server.version import SERVER

_LOCAL: Final = ("127.0.0.1", "[::1]", "localhost")
_CREDENTIALS_HEADER: Final = "'Authorization: Bearer TOKEN'"


def startup_banner(server: Server, url: str) -> str:
    """The screen, as plain text."""
    settings = server.settings
    lines = [f"{SERVER} at {url}  (Ctrl-C ends it)", "", "  endpoints"]
    rows = [(name, _runs(server, name), each.summary) for name, each in server.endpoints.items()]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    lines += [
        f"    {name:<{widths[0]}}  {runs:<{widths[1]}}  {summary}".rstrip() for name, runs, summary in rows
    ]
    if not server.endpoints:
        lines.append("    none: the server has no function with @server.endpoint")
    lines += [
        "",
        *_groups(server),
        f"  durability   {_durability(settings)}",
        f"  retention    of an ended job: its events {settings.log_ttl:g} s, its state {settings.state_ttl:g} s",
        f"  limits       {_limits(server)}",
        f"  off          {', '.join(_off(server)) or 'nothing'}",
    ]
    if not settings.tokens and not any(local in url for local in _LOCAL):
        lines.append("  WARNING      everybody who reaches this address may use it: set --token")
    command, curl = _to_try(server, url), f"curl {url}/v1"
    if settings.tokens:
        command, curl = (
            f"{command} --header {_CREDENTIALS_HEADER}",
            f"curl --header {_CREDENTIALS_HEADER} {url}/v1",
        )
    lines += ["", f"  try          {command}", f"               {curl}", ""]
    return "\n".join(lines)


def _to_try(server: Server, url: str) -> str:
    """A command that works as it stands, but for a token."""
    for name, endpoint in server.endpoints.items():
        if endpoint.input.defaults:
            return f"tidewire call {url} {name}"
        if endpoint.examples:
            example = json.dumps(endpoint.examples[0], ensure_ascii=False)
            return f"tidewire call {url} {name} --input {shlex.quote(example)}"
    return " ".join(["tidewire describe", url, *list(server.endpoints)[:1]])


def _runs(server: Server, name: str) -> str:
    endpoint = server.endpoints[name]
    runs = _at_a_time(server.concurrency_limit_of(name))
    if endpoint.batching is not None:
        runs += f", batches of {endpoint.batching.max_size}"
    if endpoint.concurrency_group is not None:
        runs += f", group {endpoint.concurrency_group}"
    if endpoint.max_queue_size is not None:
        runs += f", {endpoint.max_queue_size} may wait"
    return runs if endpoint.time_limit is None else f"{runs}, {endpoint.time_limit:g} s each"


def _at_a_time(limit: int | None) -> str:
    return "any number at a time" if limit is None else f"{limit} at a time"


def _groups(server: Server) -> list[str]:
    """One line for each group of endpoints that share their slots."""
    members: dict[str, list[str]] = {}
    for name, endpoint in server.endpoints.items():
        if endpoint.concurrency_group is not None:
            members.setdefault(endpoint.concurrency_group, []).append(name)
    return [
        f"  group        {group}: {' and '.join(names)} share {_at_a_time(server.concurrency_limit_of(names[0]))}"
        for group, names in members.items()
    ]


def _durability(settings: Settings) -> str:
    path = file_of(settings.log)
    if path is None:
        return "process: jobs live in this process's memory, and end with it"
    cut = "a power cut takes nothing" if settings.log_fsync else "a power cut may take the last moments"
    return f"host: jobs live in {path}; {cut}"


def _limits(server: Server) -> str:
    settings = server.settings
    sizes = {
        "body": settings.max_body_bytes,
        "state": settings.max_state_bytes,
        "log": settings.max_log_bytes,
        "inputs": settings.max_input_bytes,
    }
    counts = {
        "queue": settings.max_queue_size,
        "threads": settings.max_threads,
        "connections": settings.max_connections,
    }
    parts = [f"{name} {_size(number)}" for name, number in sizes.items()]
    return ", ".join(parts + [f"{name} {number}" for name, number in counts.items()])


def _off(server: Server) -> list[str]:
    settings = server.settings
    off = []
    if not settings.tokens:
        off.append("authentication: open to everybody (--token)")
    if not settings.cors_origins:
        off.append("pages of other origins (--cors-origin)")
    if file_of(settings.log) is None:
        off.append("jobs that outlive this process (--log)")
    if not settings.merge_window:
        off.append("merging of appends (--merge-window)")
    if settings.tokens and settings.stream_token_secret is None:
        off.append("stream tokens of other processes (--stream-token-secret)")
    return off


def _size(number: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:g} {unit}"
    return f"{number} B"
