"""Startup output of `tidewire serve`: a banner with the URL, the endpoints, the limits and the features that are off, and a
line that is shown while a model is being loaded.
"""

import logging
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidewire.inputs.input_words import words_for_required_members, words_of
from tidewire_server.http.discovery import SERVER
from tidewire_server.server import Server
from tidewire_server.serving.descriptors import connections_that_fit
from tidewire_server.settings import Settings
from tidewire_server.user_paths import MEMORY, file_of, is_database, without_password

_ERASE_LINE: Final = "\r\033[K"
_CREDENTIALS_HEADER: Final = "'Authorization: Bearer TOKEN'"


def startup_banner(server: Server, url: str, uds: Path | None = None) -> str:
    """Return the startup banner as plain text.

    Args:
        server: The server.
        url: URL of the server.
        uds: Path of the Unix domain socket on which the server listens, or None if it listens on a port.
    """
    settings = server.settings
    lines = [f"{SERVER} at {uds or url}  (press Ctrl-C to stop)", "", "  endpoints"]
    rows = [(name, _concurrency(server, name), each.summary) for name, each in server.endpoints.items()]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    lines += [
        f"    {name:<{widths[0]}}  {runs:<{widths[1]}}  {summary}".rstrip() for name, runs, summary in rows
    ]
    if not server.endpoints:
        lines.append("    none, because no function is decorated with @server.endpoint")
    lines += [
        "",
        *_groups(server),
        *_role(server),
        f"  callers      {_callers(server)}",
        f"  durability   {_durability(settings)}",
        f"  retention    ended jobs keep events for {settings.log_ttl:g} s and state for {settings.state_ttl:g} s",
        f"  limits       {_limits(server)}",
        f"  off          {', '.join(_off(server)) or 'nothing'}",
    ]
    if not server.app.authentication.is_required and settings.allow_anonymous:
        lines.append(
            "  WARNING      authentication is off, so anyone who can reach this server has access; set --token-file"
        )
    page = [] if uds is not None or not settings.page else [f"  page         {url}/"]
    if uds is None and server.app.serves("/openai/v1/models"):
        page.append(f"  openai       {url}/openai/v1 is the base_url for clients of OpenAI's API")
    command, curl = _example_command(server, url), f"curl {url}/v1"
    if settings.tokens:
        command, curl = (
            f"{command} --token-file FILE",
            f"curl --header {_CREDENTIALS_HEADER} {url}/v1",
        )
    if uds is not None:
        # The commands of `tidewire` have no option for a Unix domain socket.
        curl = curl.replace("curl", f"curl --unix-socket {shlex.quote(str(uds))}", 1)
        lines += ["", f"  try          {curl}", ""]
    else:
        lines += [*page, "", f"  try          {command}", f"               {curl}", ""]
    return "\n".join(lines)


def worker_banner(server: Server) -> str:
    """Return the startup banner of a worker."""
    endpoints = (
        ", ".join(f"{name} ({_concurrency(server, name)})" for name in server.endpoints) or "no endpoint"
    )
    place = without_password(server.settings.log)
    return (
        f"{SERVER} worker  (press Ctrl-C to stop)\n\n  role         functions only, without an open port; servers on the same "
        f"database answer requests\n  runs         {endpoints}\n  log          {place}\n"
    )


def _role(server: Server) -> list[str]:
    """Return the banner line about the role of this process. The list is empty if no other process can share the work."""
    if not is_database(server.settings.log):
        return []
    if server.app.lifespan.functions:
        return ["  role         requests and functions"]
    return ["  role         requests only; workers on the same database run the functions (tidewire worker)"]


def _example_command(server: Server, url: str) -> str:
    """Return a command that calls the first endpoint, with its first example, or with placeholders for the required
    members of its input.
    """
    for name, endpoint in server.endpoints.items():
        schema, examples = endpoint.input.schema, endpoint.examples
        words = words_of(examples[0], schema) if examples else words_for_required_members(schema)
        return shlex.join(["tidewire", "call", url, name, *words])
    return f"tidewire describe {url}"


def _concurrency(server: Server, name: str) -> str:
    endpoint = server.endpoints[name]
    runs = _format_limit(server.concurrency_limit_of(name))
    if endpoint.batching is not None:
        runs += f", batches of {endpoint.batching.max_size}"
    if endpoint.global_limit is not None:
        runs += f", {endpoint.global_limit} over all servers"
    if endpoint.concurrency_group is not None:
        runs += f", group {endpoint.concurrency_group}"
    if endpoint.max_queue_size is not None:
        runs += f", queue of {endpoint.max_queue_size}"
    return runs if endpoint.time_limit is None else f"{runs}, {endpoint.time_limit:g} s each"


def _format_limit(limit: int | None) -> str:
    return "any number at a time" if limit is None else f"{limit} at a time"


def _groups(server: Server) -> list[str]:
    """Return the lines of the banner that describe the concurrency groups, one line for each group."""
    members: dict[str, list[str]] = {}
    for name, endpoint in server.endpoints.items():
        if endpoint.concurrency_group is not None:
            members.setdefault(endpoint.concurrency_group, []).append(name)
    return [
        f"  group        {group}: {' and '.join(names)} share {_format_limit(server.concurrency_limit_of(names[0]))}"
        for group, names in members.items()
    ]


def _callers(server: Server) -> str:
    if server.settings.tokens:
        return "principals with tokens; each has access only to its own jobs"
    if server.app.authentication.is_required:
        return "as the function `principal` of the server names them; each has access only to its own jobs"
    if server.app.single_user:
        return "one user: everyone who can connect has access to all jobs (--single-user)"
    return "anonymous: everyone has access to the jobs whose ids they know; limits count per client address"


def _durability(settings: Settings) -> str:
    if is_database(settings.log):
        place = without_password(settings.log)
        return f"as the database: jobs are stored in {place}, and any server that uses it can continue them"
    path = file_of(settings.log)
    if path is None:
        return "only while this process runs: jobs are kept in memory, and are lost when it ends"
    loss = (
        "they survive a power failure" if settings.log_fsync else "a power failure may lose the latest events"
    )
    return f"host: jobs are stored in {path}; {loss}"


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
        "connections": connections_that_fit(settings.max_connections),
        "streams of one caller": settings.max_streams_per_principal,
    }
    parts = [f"{name} {_size(number)}" for name, number in sizes.items()]
    return ", ".join(parts + [f"{name} {number}" for name, number in counts.items()])


def _off(server: Server) -> list[str]:
    settings = server.settings
    off = []
    authenticates = server.app.authentication.is_required
    if not authenticates:
        off.append("authentication (--token-file)")
    if authenticates and not settings.operator_tokens:
        off.append("metrics (--operator-token-file)")
    if not settings.cors_origins:
        off.append("access from pages of other origins (--cors-origin)")
    if settings.log == MEMORY:
        off.append("persistent jobs (--log)")
    if not settings.page:
        off.append("the page at / (--no-page)")
    if not settings.merge_window:
        off.append("merging of appends (--merge-window)")
    # Servers on one database share the key that the database contains.
    if authenticates and settings.stream_token_secret is None and not is_database(settings.log):
        off.append("stream tokens shared with other processes (stream_token_secret)")
    return off


def _size(number: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:g} {unit}"
    return f"{number} B"


@contextmanager
def transient_line(text: str) -> Iterator[None]:
    """Show a line on standard error until the next log record, or until the end of the `with` block.

    If standard error is not a terminal, nothing is shown.
    """
    stream = sys.stderr
    if not stream.isatty():
        yield
        return

    def erase(_record: logging.LogRecord | None = None) -> bool:
        stream.write(_ERASE_LINE)
        stream.flush()
        return True

    handlers = logging.getLogger().handlers[:]
    for handler in handlers:
        handler.addFilter(erase)
    # Truncate the line, because a wrapped line could not be erased.
    stream.write(text[: shutil.get_terminal_size().columns - 1])
    stream.flush()
    try:
        yield
    finally:
        erase()
        for handler in handlers:
            handler.removeFilter(erase)
