"""Command line of `tidewire worker`, which runs the functions of a server. Other processes answer the server's requests.

The exit codes are the same as for `tidewire serve`.
"""

from pathlib import Path
from typing import Any, Final

import typer

from tidewire_server.commands.command_exit import exit_despite_threads, fail, print_banner
from tidewire_server.commands.configured_server import configured_server, read_configuration
from tidewire_server.commands.flags import FLAGS, GENERATION, UPSTREAM
from tidewire_server.commands.typer_options import ServeCommand, signature_with_flags

worker = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
"""Typer application that the command line `tidewire` includes as its subcommand `worker`."""

_GROUPS: Final = {
    "Process": ("log_level", "log_format", "debug"),
    **{title: FLAGS[title] for title in (GENERATION, UPSTREAM, "Jobs", "Stored jobs")},
}
"""Flags of `tidewire serve` that do not concern requests."""


class WorkerCommand(ServeCommand):
    """`ServeCommand` with messages about `tidewire worker`."""

    called = "worker"


_EXAMPLES: Final = """Examples:

tidewire serve mine.py --no-functions --log postgresql://…   (answers requests)

tidewire worker mine.py --log postgresql://…   (runs the functions; start as many as you like, on any host)"""


@worker.command("worker", cls=WorkerCommand, epilog=_EXAMPLES)
def _worker(
    invocation: typer.Context, config: Path | None = None, *, show_config: bool = False, **_: Any
) -> None:
    """Run the functions of a server until Ctrl-C or SIGTERM, and open no port.

    A worker takes waiting items from a database (--log
    postgresql://…). Servers on the same database accept the
    jobs and send their events. Start them with tidewire serve,
    or with tidewire serve --no-functions if only workers should
    run functions. All of them name the same file.

    At the end, the worker takes no more items, and its running
    items get --shutdown-timeout seconds to end. Other workers
    continue the rest.
    """
    from tidewire_server.commands.banner import worker_banner  # noqa: PLC0415 - `--help` does not need the server
    from tidewire_server.errors import WorkersUnavailableError  # noqa: PLC0415
    from tidewire_server.serving.run_worker import run_worker  # noqa: PLC0415
    from tidewire_server.store.store_errors import StoreError  # noqa: PLC0415

    configuration = read_configuration(invocation, config)
    server = configured_server(configuration, show_config=show_config, functions=True, requests=False)
    if server is None:
        return
    try:
        run_worker(
            server.app,
            server.settings,
            started=lambda: print_banner(worker_banner(server)),
            switch_interval=configuration.launch.switch_interval,
        )
    except (StoreError, WorkersUnavailableError) as error:
        fail(str(error))
    exit_despite_threads()


_worker.__signature__ = signature_with_flags(_GROUPS)  # type: ignore[attr-defined]


def main() -> None:
    """Run the command `tidewire worker`. This is the entry point for `python -m tidewire_server.commands.worker`."""
    worker()


if __name__ == "__main__":
    main()
