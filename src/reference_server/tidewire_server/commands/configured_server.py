"""Import or create the server that a command runs: the target, or the default server for text generation."""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tidewire_server.commands.command_exit import COMMAND, fail, fail_without_extra
from tidewire_server.commands.flags import FIELDS, FLAGS, GENERATION, TURNED_OFF, UPSTREAM, unknown
from tidewire_server.roles import RUNS_FUNCTIONS
from tidewire_server.settings import Settings
from tidewire_server.user_paths import is_database, is_folder, user_path, without_password

if TYPE_CHECKING:
    from tidewire_server.commands.configuration import Configuration
    from tidewire_server.server import Server

_GENERATE_ARGUMENTS = {name: name for name in FLAGS[GENERATION]} | {"max_top_logprobs": "max_top"}
"""Setting of the default server → argument of `add_generate` to which its value is passed."""

_UPSTREAM_ARGUMENTS = {
    name: name.removeprefix("upstream_") for name in FLAGS[UPSTREAM] if name != "upstream_key_file"
} | {
    "upstream_key": "key",
    **{
        name: _GENERATE_ARGUMENTS[name]
        for name in ("model", "context", "max_top_logprobs", "on_restart", "share_prefixes")
    },
}
"""Setting of the default server with an upstream → argument of `add_upstream` to which its value is passed."""


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
        show_config: Whether to print the settings and return None instead.
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
    if launch.target is None:  # Check the settings before a model is loaded.
        _require_database(what, Settings(**configuration.settings))
    token = RUNS_FUNCTIONS.set(functions)
    try:
        server = default_server(configuration) if launch.target is None else load_target(launch.target)
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
    """Exit if the log is not in a database. `what` is the command or option that requires one, or None."""
    if what is not None and not is_database(settings.log):
        fail(
            f"{what} needs a database that servers and workers share: --log postgresql://USER@HOST/DATABASE, not "
            f"{without_password(settings.log)}",
            code=2,
        )


def _refuse_ignored_settings(configuration: "Configuration") -> None:
    """Exit if a setting of text generation is set, but would have no effect."""
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
    # Ignore `upstream_key`, which may be set in the environment for other commands.
    for name in FLAGS[UPSTREAM]:
        if name in launch.model_fields_set:
            fail(f"{configuration.origin(name)}: {name} needs the URL of an engine: --upstream URL", code=2)


def _refuse_generation_settings_with_target(configuration: "Configuration") -> None:
    """Exit if a setting of the default server is set, although a target is served instead.

    The message contains a call that has the same effect in the target's code.
    """
    launch = configuration.launch
    if launch.target is None:
        return
    for name in FLAGS[UPSTREAM] + FLAGS[GENERATION]:  # Ignore `upstream_key`, as above.
        if name not in launch.model_fields_set:
            continue
        if name == "upstream":
            argument, call = "the URL", "add_upstream(server, URL)"
        elif name in _GENERATE_ARGUMENTS:
            argument = _GENERATE_ARGUMENTS[name]
            call = f"add_generate(server, {argument}=…)"
        else:
            argument = _UPSTREAM_ARGUMENTS[name.removesuffix("_file")]
            call = f"add_upstream(server, {argument}=…)"
        fail(
            f"{configuration.origin(name)}: {name} applies only to the default server, not to the target {launch.target}; "
            f"omit the target, or pass {argument} in the target's code, as in {call}",
            code=2,
        )


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


def default_server(configuration: "Configuration") -> "Server":
    """Create the default server for text generation, which runs if the command line contains no target."""
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
    try:
        if model is not None and not is_folder(model):
            fail(f"--model: {missing_folder(model)}", code=2)
    except OSError as error:  # for example, this user may not enter the parent folder
        fail(f"--model: cannot read {model}: {error.strerror}", code=2)
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
        fail_without_extra(error, "engine")
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
        fail_without_extra(error, "upstream")
    except LoadError as error:
        fail(f"{configuration.origin('tokenizer')}: {error}")
    return server
