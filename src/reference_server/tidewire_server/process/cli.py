"""`tidewire serve`: a command line over `Server`.

Every setting is a flag, an environment variable and a name in a file (see `configuration`). Exit codes: 0 after a
signal, 1 where it cannot serve, 2 where the command is wrong.
"""

import importlib
import importlib.util
import inspect
import logging
import os
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from tidewire.protocol.messages import describe
from tidewire_server.process.configuration import (
    ENV_PREFIX,
    SINGULAR,
    Configuration,
    ConfigurationError,
    Launch,
    allowed,
    configure,
    flag_of,
    shown,
    unknown,
)
from tidewire_server.settings import GROUPS, Settings

if TYPE_CHECKING:
    from tidewire_server.server import Server

_LAST_GRACE = 1.0
"""Seconds that threads have to end once the server has."""


def _serve(
    context: typer.Context,
    config: Path | None = None,
    show_config: bool = False,
) -> None:
    """Serve endpoints until Ctrl-C or SIGTERM.

    Every option can also stand in the environment (TIDEWIRE_MAX_QUEUE_SIZE=100)
    or in a TOML file (max_queue_size = 100). A flag wins over the environment,
    the environment over the file, the file over the server's own code.

    tidewire serve                          the model that ships
    tidewire serve mine.py:server           your own endpoints
    tidewire serve mine:server --host 0.0.0.0 --token ann:s3cret
    tidewire serve --config tidewire.toml   what a file says
    tidewire serve --config tidewire.toml --show-config
    """
    flags = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in context.params.items()
        if name in {*Launch.model_fields, *Settings.model_fields} and _is_on_command_line(context, name)
    }
    try:
        configuration = configure(flags, os.environ, config)
    except ConfigurationError as error:
        _fail(str(error), code=2)
    _set_up_logging(configuration.launch.log_level)
    try:
        from tidewire_server.process.banner import startup_banner  # noqa: PLC0415 - the command's help needs no server
        from tidewire_server.script_endpoint import add_script  # noqa: PLC0415
        from tidewire_server.serving import serve  # noqa: PLC0415
        from tidewire_server.serving.port_file import PortFileError  # noqa: PLC0415
        from tidewire_server.store.interfaces import StoreError  # noqa: PLC0415
    except ModuleNotFoundError as error:
        _missing(error, "server")
    launch = configuration.launch
    if show_config and launch.target is None:
        _show(configuration, Settings(**configuration.settings))
        return
    try:
        server = _default_server(configuration) if launch.target is None else _load(launch.target)
        if launch.script:
            add_script(server)
        server.configure(**configuration.settings)
        _configure_endpoints(server, configuration)
    except ValidationError as error:
        _fail(f"settings: {describe(error)}", code=2)
    except ValueError as error:
        _fail(str(error), code=2)
    if show_config:
        _show(configuration, server.settings)
        return
    try:
        listener = serve.bind(launch.host, launch.port, free="--port 0")
    except OSError as error:
        _fail(str(error.strerror))
    try:
        serve.serve(
            server.app,
            server.settings,
            listener=listener,
            port_file=launch.port_file,
            started=lambda url: print(startup_banner(server, url), flush=True),
            switch_interval=launch.switch_interval,
        )
    except (StoreError, PortFileError) as error:
        _fail(str(error))
    _leave()


def _is_on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _show(configuration: Configuration, settings: Settings) -> None:
    """Print each setting, its value and where that comes from."""
    rows = [("setting", "value", "from"), *configuration.table(settings)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, value, origin in rows:
        print(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")


def _configure_endpoints(server: "Server", configuration: Configuration) -> None:
    """Let the file have the last word on single endpoints.

    Raises:
        ConfigurationError: There is no such endpoint.
        ValueError: Endpoints of one group have different limits now.
    """
    from tidewire_server.jobs.endpoint_queues_and_groups import group_limits  # noqa: PLC0415 - the command's help needs no server

    for name, values in configuration.endpoints.items():
        endpoint = server.endpoints.get(name)
        if endpoint is None:
            origin = next((given.origin for given in values.values()), f"[endpoints.{name}]")
            raise ConfigurationError(f"{origin}: endpoints: {unknown(name, server.endpoints)}")
        for member, given in values.items():
            setattr(endpoint, member, given.value)
    group_limits(server.endpoints.values())


def _leave() -> None:
    """End the process also where a function left a thread that runs on: the interpreter would wait for it, for ever."""
    left = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    for thread in left:
        thread.join(_LAST_GRACE / len(left))
    left = [each for each in left if each.is_alive()]
    if left:
        names = ", ".join(each.name for each in left)
        logging.getLogger(__name__).warning("left behind at exit, still running: %s", names)
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


def _load(target: str) -> "Server":
    """Find the server that a target names."""
    from tidewire_server.server import LOADING, Server  # noqa: PLC0415

    place, _, name = target.rpartition(":")
    if not place or not name.isidentifier():
        _fail(f"{target!r} is not MODULE:SERVER or FILE.py:SERVER", code=2)
    token = LOADING.set(place)
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    finally:
        LOADING.reset(token)
    found = getattr(module, name, None)
    if not isinstance(found, Server):
        what = "nothing" if found is None else f"of type {type(found).__name__}"
        _fail(f"{name!r} in {place} is {what}, not a tidewire_server.Server", code=2)
    return found


def _load_module(name: str) -> types.ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        _fail(f"there is no module {error.name!r} (looked in {Path.cwd()} as well)", code=2)


def _load_file(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        _fail(f"there is no file {path}", code=2)
    sys.path.insert(0, str(path.parent.resolve()))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _default_server(configuration: Configuration) -> "Server":
    """A server of text generation."""
    from tidewire_server.server import Server  # noqa: PLC0415

    model, device = configuration.launch.model, configuration.launch.device
    if model is not None and not model.is_dir():
        _fail(f"--model: there is no folder {model}", code=2)
    try:
        from tidewire_server.generation import add_generate  # noqa: PLC0415
        from tidewire_server.generation.torch_engine import LoadError  # noqa: PLC0415
    except ModuleNotFoundError as error:
        _missing(error, "engine")
    server = Server(**configuration.settings)
    try:
        add_generate(server, model=model, device=device)
    except LoadError as error:
        _fail(str(error))
    return server


def _set_up_logging(level: str) -> None:
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("tidewire_server").setLevel(level.upper())


def _missing(error: ModuleNotFoundError, extra: str) -> NoReturn:
    if (error.name or "").startswith("tidewire"):
        raise error
    _fail(f"{error.name} is not installed; install it with:  pip install 'tidewire[{extra}]'")


def _fail(message: str, *, code: int = 1) -> NoReturn:
    for line in message.splitlines():
        print(f"tidewire serve: {line}", file=sys.stderr)
    raise typer.Exit(code)


# ---- flags from settings -----------------------------------------------------------------------------------------


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for whatever can be configured. Each is a text at first: `configuration` judges it."""
    options = [
        _parameter("context", typer.Context, inspect.Parameter.empty),
        _parameter(
            "target", Annotated[str | None, typer.Argument(help=_help(Launch.model_fields["target"]))]
        ),
        _parameter(
            "config",
            Annotated[
                Path | None,
                typer.Option(
                    envvar=f"{ENV_PREFIX}CONFIG", help="TOML file with settings.", show_default=False
                ),
            ],
        ),
        _parameter(
            "show_config",
            Annotated[
                bool, typer.Option("--show-config", help="Print each setting and where it comes from.")
            ],
            default=False,
        ),
    ]
    options += [
        _option(name, field, "Start") for name, field in Launch.model_fields.items() if name != "target"
    ]
    group = ""
    for name, field in Settings.model_fields.items():
        group = GROUPS.get(name, group)
        options.append(_option(name, field, group))

    def serve(context: typer.Context, config: Path | None, show_config: bool, **_: Any) -> None:
        command(context, config, show_config)

    serve.__doc__ = command.__doc__
    serve.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    serve.__annotations__ = {each.name: each.annotation for each in options}
    return serve


def _option(name: str, field: FieldInfo, group: str) -> inspect.Parameter:
    kind: Any = bool if field.annotation is bool else list[str] if name in SINGULAR else str
    option = typer.Option(
        flag_of(name),
        envvar=ENV_PREFIX + name.upper(),
        help=_help(field)
        if name in SINGULAR or kind is bool
        else f"{_help(field)} (default {shown(name, field.default)})",
        show_default=False,
        show_envvar=False,
        rich_help_panel=group,
        metavar=None if kind is bool else _metavar(field),
    )
    return _parameter(name, Annotated[kind | None, option])


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _help(field: FieldInfo) -> str:
    return field.description or ""


def _metavar(field: FieldInfo) -> str:
    words = allowed(field)
    return "INTEGER" if words.startswith("a whole") else "NUMBER" if words.startswith("a number") else "TEXT"


serve = _with_settings(_serve)
"""The command, for the `tidewire` command line."""


def main() -> None:
    """Run the command by itself: `python -m tidewire_server`."""
    typer.run(serve)
