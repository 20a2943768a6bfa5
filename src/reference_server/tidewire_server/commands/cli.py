"""Command line of `tidewire serve`, and what `tidewire worker` shares with it.

The exit code is 0 if a signal stopped the server, 1 if the server cannot start, and 2 if the arguments are not valid.
"""

import inspect
import logging
import os
import sys
import threading
from contextlib import ExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, get_args

import typer
import typer.core

from tidewire.install_command import install_command
from tidewire_server.commands.flags import (
    CLIENT_TOKEN,
    COMMON,
    ENV_PREFIX,
    FIELDS,
    FLAGS,
    GENERATION,
    SINGULAR,
    TURNED_OFF,
    UPSTREAM,
    flag_of,
    not_a_flag,
    shown,
    unknown,
    variable_of,
)
from tidewire_server.roles import RUNS_FUNCTIONS
from tidewire_server.setting_errors import allowed
from tidewire_server.settings import Settings
from tidewire_server.user_paths import is_database, user_path, without_password

if TYPE_CHECKING:
    from tidewire_server.commands.configuration import Configuration
    from tidewire_server.server import Server

_log = logging.getLogger(__name__)

COMMAND: Final[ContextVar[str]] = ContextVar("command", default="serve")
"""Name of the command that runs, for its messages."""

_LAST_GRACE = 1.0
"""Number of seconds to wait for the threads of user functions after the server has stopped."""


_GENERATE_ARGUMENTS = {name: name for name in FLAGS[GENERATION]} | {"max_top_logprobs": "max_top"}
"""Settings of the default server, with the arguments of `add_generate` to which they are passed."""

_UPSTREAM_KEY = "upstream_key"
"""Setting that is ignored without an error, because it may be set in the environment of other commands."""

_UPSTREAM_ARGUMENTS = {
    name: name.removeprefix("upstream_") for name in FLAGS[UPSTREAM] if name != "upstream_key_file"
} | {
    _UPSTREAM_KEY: "key",
    **{
        name: _GENERATE_ARGUMENTS[name]
        for name in ("model", "context", "max_top_logprobs", "on_restart", "share_prefixes")
    },
}
"""Settings of the default server in front of another engine, with the arguments of `add_upstream`."""


class ServeCommand(typer.core.TyperCommand):
    """Command that reports a helpful error if an argument names a setting that has no flag.

    The error message contains the line that sets the value in the configuration file.
    """

    called = "serve"
    """Name of the command in messages."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        COMMAND.set(self.called)
        if "--help-all" in args:
            for option in self.params:
                option.hidden = False  # type: ignore[attr-defined]
            args = ["--help"]
        if error := not_a_flag(args):
            fail(error, code=2)
        return super().parse_args(ctx, args)


serve = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
"""Typer application that the command line `tidewire` includes as its subcommand `serve`."""


_EXAMPLES = """Examples:

tidewire serve   (the bundled language model)

tidewire serve mine.py --reload   (your own endpoints)

tidewire serve mine:server --host 0.0.0.0 --token-file tokens.txt"""


@serve.command("serve", cls=ServeCommand, epilog=_EXAMPLES)
def _serve(
    invocation: typer.Context,
    target: Annotated[str | None, typer.Argument(help=FIELDS["target"].description)] = None,  # noqa: ARG001 - read from `invocation`
    config: Annotated[
        Path | None,
        typer.Option(envvar=f"{ENV_PREFIX}CONFIG", show_envvar=False, help="TOML file with settings."),
    ] = None,
    show_config: Annotated[
        bool,
        typer.Option("--show-config", help="Print every setting and its origin, then exit."),
    ] = False,
    help_all: Annotated[  # noqa: ARG001 - read by ServeCommand
        bool, typer.Option("--help-all", help="Show this message with all flags, then exit.")
    ] = False,
    **_: Any,
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
        _missing(error, "server")
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
        print(startup_banner(server, url, launch.uds), flush=True)
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


def read_configuration(invocation: typer.Context, config: Path | None) -> "Configuration":
    """Read the settings of a command from its flags, the environment and the file, and set up logging.

    Raises:
        typer.Exit: A setting is not valid. The reason was printed.
    """
    from tidewire_server.commands.configuration import ConfigurationError, configure  # noqa: PLC0415
    from tidewire_server.serving.log_format import set_up_logging  # noqa: PLC0415

    flags = {
        name: tuple(value) if isinstance(value, list) else value is not True if name in TURNED_OFF else value
        for name, value in invocation.params.items()
        if name in FIELDS and value not in (None, False, (), [])
    }
    try:
        configuration = configure(flags, config)
    except ConfigurationError as error:
        fail(str(error), code=2)
    set_up_logging(configuration.launch.log_format)
    logging.getLogger("tidewire_server").setLevel(configuration.launch.log_level.upper())
    _refuse_ignored_settings(configuration)
    return configuration


def configured_server(
    configuration: "Configuration", *, show_config: bool, functions: bool, requests: bool = True
) -> "Server | None":
    """Import or create the server that a command runs, and apply the settings.

    Args:
        configuration: Settings of the command.
        show_config: Whether to print the settings instead. The result is then None.
        functions: Whether this process runs functions.
        requests: Whether this process answers requests.

    Raises:
        typer.Exit: The server cannot be imported, or a setting is not valid. The reason was printed.
    """
    from tidewire_server.commands.load_target import TargetImportError, load_target  # noqa: PLC0415
    from tidewire_server.script_endpoint import add_script  # noqa: PLC0415

    launch = configuration.launch
    if show_config and launch.target is None:
        _show(configuration, Settings(**configuration.settings))
        return None
    what = None if functions and requests else "--no-functions" if requests else "a worker"
    if launch.target is None:  # Before a model is loaded.
        _require_database(what, Settings(**configuration.settings))
    token = RUNS_FUNCTIONS.set(functions)
    try:
        server = _default_server(configuration) if launch.target is None else load_target(launch.target)
        if launch.script:
            add_script(server)
        server.configure(**configuration.settings)
        _configure_endpoints(server, configuration)
    except TargetImportError as error:
        print(f"tidewire {COMMAND.get()}: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except ValueError as error:
        fail(str(error), code=2)
    finally:
        RUNS_FUNCTIONS.reset(token)
    if show_config:
        _show(configuration, server.settings)
        return None
    _require_database(what, server.settings)
    return server


def _require_database(what: str | None, settings: Settings) -> None:
    """Exit if this process does only a part of the work, named `what`, and no other process can do the rest."""
    if what is not None and not is_database(settings.log):
        fail(
            f"{what} needs a database that servers and workers share: --log postgresql://USER@HOST/DATABASE, not "
            f"{without_password(settings.log)}",
            code=2,
        )


def _refuse_ignored_settings(configuration: "Configuration") -> None:
    """Exit if a setting of text generation is set and would have no effect."""
    _refuse_engine_settings_with_upstream(configuration)
    _refuse_upstream_settings_without_url(configuration)
    _refuse_generation_settings_with_target(configuration)


def _refuse_engine_settings_with_upstream(configuration: "Configuration") -> None:
    """Exit if a setting of the engine in this process is set, although an upstream generates the texts."""
    launch = configuration.launch
    if not launch.upstream:
        return
    for name in sorted(_GENERATE_ARGUMENTS.keys() - _UPSTREAM_ARGUMENTS.keys()):
        if name in launch.model_fields_set:
            fail(
                f"{configuration.origin(name)}: {name} has no effect together with upstream, whose engine has its own settings; "
                "omit it",
                code=2,
            )


def _refuse_upstream_settings_without_url(configuration: "Configuration") -> None:
    """Exit if a setting of an upstream is set, although the default server has no upstream."""
    launch = configuration.launch
    if launch.upstream or launch.target is not None:
        return
    for name in sorted(_UPSTREAM_ARGUMENTS.keys() - _GENERATE_ARGUMENTS.keys() - {"upstream", _UPSTREAM_KEY}):
        if name in launch.model_fields_set:
            fail(f"{configuration.origin(name)}: {name} needs the URL of an engine: --upstream URL", code=2)


def _refuse_generation_settings_with_target(configuration: "Configuration") -> None:
    """Exit if a setting of the default server is set, although a target is served instead.

    The message contains a call that has the effect of the setting in the target's code.
    """
    launch = configuration.launch
    if launch.target is None:
        return
    for name in _UPSTREAM_ARGUMENTS | _GENERATE_ARGUMENTS:
        if name not in launch.model_fields_set or name == _UPSTREAM_KEY:
            continue
        if name == "upstream":
            argument, call = "the URL", "add_upstream(server, URL)"
        elif name in _GENERATE_ARGUMENTS:
            argument = _GENERATE_ARGUMENTS[name]
            call = f"add_generate(server, {argument}=…)"
        else:
            argument = _UPSTREAM_ARGUMENTS[name]
            call = f"add_upstream(server, {argument}=…)"
        fail(
            f"{configuration.origin(name)}: {name} applies only to the default server, not to the target {launch.target}; "
            f"omit the target, or pass {argument} in the target's code, as in {call}",
            code=2,
        )


def _warn_about_client_token(server: "Server") -> None:
    """Log a warning if the environment has a token for a client, and the server does not authenticate callers at all."""
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
        _missing(error, "server")
    # If the user has not set `shutdown_timeout`, restart without waiting for jobs: a developer waits for each restart.
    at_once = {} if "shutdown_timeout" in configuration.settings else {variable_of("shutdown_timeout"): "0"}
    raise typer.Exit(serve_with_reload(sys.argv[1:], folder_of(target), at_once))


def _show(configuration: "Configuration", settings: Settings) -> None:
    """Print every setting with its value and origin."""
    rows = [("setting", "value", "from"), *configuration.table(settings)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, value, origin in rows:
        print(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")


def _configure_endpoints(server: "Server", configuration: "Configuration") -> None:
    """Apply the endpoint settings in the configuration file. They override the settings in the server's code.

    Raises:
        ValueError: An endpoint does not exist, or two endpoints of one group would have different limits.
    """
    from tidewire_server.jobs.endpoint_queues_and_groups import (  # noqa: PLC0415 - `--help` does not need the server
        global_limits,
        group_limits,
    )

    for name, values in configuration.endpoints.items():
        endpoint = server.endpoints.get(name)
        if endpoint is None:
            origin = configuration.origin("endpoints", name)
            raise ValueError(f"{origin}: endpoints: {unknown(name, server.endpoints)}")
        for member in values.model_fields_set:
            setattr(endpoint, member, getattr(values, member))
    group_limits(server.endpoints.values())
    global_limits(server.endpoints.values())


def exit_despite_threads() -> None:
    """End the process even if a thread that a user function has started is still running.

    Python itself would wait for that thread forever.
    """
    threads = [
        each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()
    ]
    for thread in threads:
        thread.join(_LAST_GRACE / len(threads))
    threads = [each for each in threads if each.is_alive()]
    if threads:
        names = ", ".join(each.name for each in threads)
        _log.warning("threads still running at exit: %s", names)
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


def _default_server(configuration: "Configuration") -> "Server":
    """Create the server for text generation. It is used if the command line contains no target."""
    from tidewire_server.commands.banner import transient_line  # noqa: PLC0415
    from tidewire_server.default_model import default_model  # noqa: PLC0415
    from tidewire_server.generation import add_generate  # noqa: PLC0415
    from tidewire_server.generation.checkpoint_folder import (  # noqa: PLC0415
        LoadError,
        missing_folder,
        size_of,
    )
    from tidewire_server.server import Server  # noqa: PLC0415

    launch = configuration.launch
    if launch.upstream:
        return _upstream_server(configuration)
    model = None if launch.model is None else user_path(launch.model)
    if model is not None and not model.is_dir():
        fail(f"--model: {missing_folder(model)}", code=2)
    folder = model or default_model()
    what = "the default model" if model is None else f"the model {folder.name}"
    server = Server(**configuration.settings)
    try:
        with transient_line(f"loading {what} ({size_of(folder)}) …"):
            add_generate(
                server,
                **{argument: getattr(launch, name) for name, argument in _GENERATE_ARGUMENTS.items()},
            )
    except ModuleNotFoundError as error:
        _missing(error, "engine")
    except LoadError as error:
        fail(str(error))
    return server


def _upstream_server(configuration: "Configuration") -> "Server":
    """Create the server for text generation by other engines."""
    from tidewire_server.generation.checkpoint_folder import LoadError  # noqa: PLC0415
    from tidewire_server.generation.upstream import add_upstream  # noqa: PLC0415
    from tidewire_server.server import Server  # noqa: PLC0415

    launch = configuration.launch
    arguments = {argument: getattr(launch, name) for name, argument in _UPSTREAM_ARGUMENTS.items()}
    server = Server(**configuration.settings)
    try:
        add_upstream(server, *arguments.pop("upstream"), **arguments)
    except ModuleNotFoundError as error:
        _missing(error, "upstream")
    except LoadError as error:
        fail(f"{configuration.origin('tokenizer')}: {error}")
    return server


def _missing(error: ModuleNotFoundError, extra: str) -> NoReturn:
    if (error.name or "").startswith("tidewire"):
        raise error
    fail(f"{error.name} is not installed; install it with: {install_command(extra)}")


def fail(message: str, *, code: int = 1) -> NoReturn:
    """Print a message with the name of the command, and exit."""
    for line in message.splitlines():
        print(f"tidewire {COMMAND.get()}: {line}", file=sys.stderr)
    raise typer.Exit(code)


# ---- flags from settings -----------------------------------------------------------------------------------------


_METAVARS = {"a whole number": "INT", "a number": "SECONDS"}


def flag_parameter(name: str, group: str) -> inspect.Parameter:
    """Create the typer parameter for a setting.

    Typer does not convert the value. It passes the text to `configure`, which validates it.
    """
    field = FIELDS[name]
    kind: Any = (
        bool
        if bool in (field.annotation, *get_args(field.annotation))
        else list[str]
        if name in SINGULAR
        else str
    )
    metavar = next((word for start, word in _METAVARS.items() if allowed(field).startswith(start)), "TEXT")
    text, default = (field.description or "").partition(". ")[0].rstrip("."), ""
    if kind is str and field.default:
        default = f" (default {shown(name, field.default)})"
    if name in TURNED_OFF:
        text = f"Turn this off: {text[0].lower()}{text[1:]}"
    option = typer.Option(
        flag_of(name),
        help=f"{text}.{' Repeatable.' if name in SINGULAR else default}",
        show_default=False,
        rich_help_panel=None if name in COMMON else group,
        hidden=name not in COMMON,
        metavar=None if kind is bool else metavar,
    )
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


OWN_PARAMETERS: Final = tuple(
    each for each in inspect.signature(_serve).parameters.values() if each.name != "_"
)
"""Parameters of the commands `serve` and `worker` that are not settings."""
_flags = [flag_parameter(name, group) for group, names in FLAGS.items() for name in names]
_serve.__signature__ = inspect.Signature([*OWN_PARAMETERS, *_flags])  # type: ignore[attr-defined]


def main() -> None:
    """Run the command `tidewire serve`. This is the entry point for `python -m tidewire_server`."""
    serve()
