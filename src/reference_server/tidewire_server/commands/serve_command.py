"""Command line of `tidewire serve`.

The exit code is 0 if a signal stopped the server, 1 if the server cannot start, and 2 if the arguments are not valid.
"""

import logging
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from tidewire_server.commands.command_exit import exit_despite_threads, fail, fail_without_extra, print_banner
from tidewire_server.commands.configured_server import configured_server, read_configuration
from tidewire_server.commands.flags import CLIENT_TOKEN, FLAGS, flag_of, variable_of
from tidewire_server.commands.typer_options import ServeCommand, signature_with_flags

if TYPE_CHECKING:
    from tidewire_server.commands.configuration import Configuration
    from tidewire_server.server import Server

_log = logging.getLogger(__name__)

serve = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
"""Typer application that the command line `tidewire` includes as its subcommand `serve`."""


_EXAMPLES = """Examples:

tidewire serve   (the bundled language model)

tidewire serve mine.py --reload   (your own endpoints)

tidewire serve mine:server --host 0.0.0.0 --token-file tokens.txt"""


@serve.command("serve", cls=ServeCommand, epilog=_EXAMPLES)
def _serve(
    invocation: typer.Context, config: Path | None = None, *, show_config: bool = False, **_: Any
) -> None:
    """Serve endpoints until Ctrl-C or SIGTERM.

    Every setting can be set in the environment
    (TIDEWIRE_MAX_THREADS=8) or in a TOML file (max_threads = 8).
    Common settings also have a flag. Precedence: flag,
    environment, file, the server's code, default.
    """
    try:
        # Import these modules late. Importing pydantic-settings takes 0.15 s of CPU time, and `--help` does not need
        # it.
        from tidewire_server.commands.banner import startup_banner  # noqa: PLC0415
        from tidewire_server.commands.status_line import status_line  # noqa: PLC0415
        from tidewire_server.errors import WorkersUnavailableError  # noqa: PLC0415
        from tidewire_server.serving import serve as serving  # noqa: PLC0415
        from tidewire_server.serving.exposure_check import ExposedServerError  # noqa: PLC0415
        from tidewire_server.serving.listener import bind  # noqa: PLC0415
        from tidewire_server.serving.port_file import PortFileError  # noqa: PLC0415
        from tidewire_server.store.store_errors import StoreError  # noqa: PLC0415
    except ModuleNotFoundError as error:
        fail_without_extra(error, "server")
    configuration = read_configuration(invocation, config)
    launch = configuration.launch
    if launch.reload and not show_config:
        _run_with_reload(configuration)
        return
    server = configured_server(configuration, show_config=show_config, functions=not launch.no_functions)
    if server is None:
        return
    _warn_about_client_token(server)
    server.app.lifespan.functions = not launch.no_functions
    try:
        listener = bind(launch.host, launch.port, free="--port 0", uds=launch.uds)
    except OSError as error:
        fail(str(error.strerror))
    stack = ExitStack()

    def started(url: str) -> None:
        print_banner(startup_banner(server, url, launch.uds))
        stack.enter_context(status_line(server, quiet="log_level" not in launch.model_fields_set))

    try:
        with stack:
            serving.serve(
                server.app,
                server.settings,
                listener=listener,
                port_file=launch.port_file,
                started=started,
                switch_interval=launch.switch_interval,
            )
    except ExposedServerError as error:
        fail(str(error), code=2)
    except (StoreError, WorkersUnavailableError, PortFileError) as error:
        fail(str(error))
    exit_despite_threads()


_serve.__signature__ = signature_with_flags(FLAGS)  # type: ignore[attr-defined]


def _warn_about_client_token(server: "Server") -> None:
    """Log a warning if the environment contains a token for clients, but the server does not authenticate callers."""
    if os.environ.get(CLIENT_TOKEN) and not server.app.authentication.is_required:
        _log.warning(
            "%s has no effect on a server: a client sends this token, and this server serves callers without tokens; to "
            "require a token from callers, set %s or use %s",
            CLIENT_TOKEN,
            variable_of("tokens"),
            flag_of("token_file"),
        )


def _run_with_reload(configuration: "Configuration") -> NoReturn:
    """Serve in a child process that is restarted when a Python file changes."""
    from tidewire_server.commands.load_target import folder_of  # noqa: PLC0415

    target = configuration.launch.target
    if target is None:
        fail(
            f"{configuration.origin('reload')}: --reload needs a target, such as tidewire serve mine.py --reload",
            code=2,
        )
    try:
        from tidewire_server.commands.reload import serve_with_reload  # noqa: PLC0415
    except ModuleNotFoundError as error:
        fail_without_extra(error, "server")
    # Unless the user has set `shutdown_timeout`, do not wait for running jobs, because a developer waits for each restart.
    at_once = {} if "shutdown_timeout" in configuration.settings else {variable_of("shutdown_timeout"): "0"}
    raise typer.Exit(serve_with_reload(sys.argv[1:], folder_of(target), at_once))


def main() -> None:
    """Run the command `tidewire serve`. This is the entry point for `python -m tidewire_server`."""
    serve()
