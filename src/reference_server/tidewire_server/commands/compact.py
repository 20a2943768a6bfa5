"""Command line of `tidewire compact`.

The exit code is 0 if the file was compacted, 1 if that is not possible, and 2 if the arguments are not valid.
"""

from typing import Annotated

import typer

from tidewire_server.commands.command_exit import COMMAND, fail
from tidewire_server.store.store_errors import StoreError
from tidewire_server.user_paths import MEMORY, file_of, is_database, user_path, without_password

compact = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
"""Typer application that the command line `tidewire` includes as its subcommand `compact`."""


@compact.command("compact")
def _compact(
    log: Annotated[
        str, typer.Argument(metavar="LOG", help="The log: sqlite:///PATH, or the path of the file.")
    ],
) -> None:
    """Make the log file of a stopped server as small as possible.

    tidewire compact jobs.db
    tidewire compact sqlite:////var/lib/tidewire/jobs.db

    A running server returns free space by itself, some pages at a time, so this
    command is rarely needed. Run it once for a file that an older version of
    Tidewire created. Otherwise, a server cannot return free space of that file.

    Stop the server first. The command refuses a file that a server uses. The
    command temporarily needs as much free disk space as the file has content.
    """
    COMMAND.set("compact")
    try:
        is_url = log == MEMORY or log.startswith("sqlite:") or is_database(log)
        path = file_of(log) if is_url else user_path(log)
    except ValueError as error:
        fail(str(error), code=2)
    if path is None:
        fail(f"the log {without_password(log)} has no file; name a file, or sqlite:///PATH", code=2)
    try:
        from tidewire_server.store.sqlite import sqlite_file  # noqa: PLC0415 - some Pythons have no sqlite3

        before, after = sqlite_file.compact(path)
    except StoreError as error:
        fail(str(error))
    print(f"{path}: {before:,} bytes before, {after:,} bytes after")
