"""`tidewire serve`: a command line over `Server`.

Every setting is a flag (`--max-body-bytes 1000000`) and an environment variable (`TIDEWIRE_MAX_BODY_BYTES`) of the same
name. Exit codes: 0 after a signal, 1 where it cannot serve, 2 where the command is wrong.
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
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_args

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from tidewire.protocol.messages import describe
from tidewire_server.settings import Settings

if TYPE_CHECKING:
    from tidewire_server.server import Server

ENV_PREFIX = "TIDEWIRE_"

# Settings that a person gives once for each value go by the singular.
_REPEATED = {"tokens": "--token", "cors_origins": "--cors-origin"}

_LAST_GRACE = 1.0
"""Seconds that threads have to end once the server has."""


def _serve(
    target: Annotated[
        str | None,
        typer.Argument(help="MODULE:SERVER or FILE.py:SERVER; without it, text generation with a model."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of a Hugging Face checkpoint; without it, the model that ships."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where the model runs: auto, cpu, cuda, cuda:1, mps.")] = "auto",
    script: Annotated[
        bool, typer.Option("--script", help="Offer tidewire.script as well, which does what its input says.")
    ] = False,
    host: Annotated[str, typer.Option(envvar="TIDEWIRE_HOST", help="Address to bind to.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="TIDEWIRE_PORT", min=0, max=65535, help="Port; 0 takes a free one.")
    ] = 8000,
    port_file: Annotated[
        Path | None, typer.Option(help="File that gets the port's number once requests are answered.")
    ] = None,
    log_level: Annotated[
        str, typer.Option(envvar="TIDEWIRE_LOG_LEVEL", help="debug, info, warning or error.")
    ] = "info",
    **settings: Any,
) -> None:
    """Serve endpoints until Ctrl-C or SIGTERM."""
    _set_up_logging(log_level)
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        from tidewire_server.screen import screen  # noqa: PLC0415 - the command's help needs no server
        from tidewire_server.script import add_script  # noqa: PLC0415
        from tidewire_server.serving import bind  # noqa: PLC0415
    except ModuleNotFoundError as error:
        _missing(error, "server")
    try:
        server = _default_server(model, device, given) if target is None else _load(target)
        if script:
            add_script(server)
        server.configure(**given)
    except ValidationError as error:
        _fail(f"settings: {describe(error)}", code=2)
    except ValueError as error:
        _fail(str(error), code=2)
    try:
        listener = bind(host, port)
    except OSError as error:
        _fail(f"cannot bind to {host}:{port}: {error.strerror or error}; --port 0 takes a free one")
    server.run(
        listener=listener, port_file=port_file, started=lambda url: print(screen(server, url), flush=True)
    )
    _leave()


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
    from tidewire_server.server import Server  # noqa: PLC0415

    place, _, name = target.rpartition(":")
    if not place or not name.isidentifier():
        _fail(f"{target!r} is not MODULE:SERVER or FILE.py:SERVER", code=2)
    found = getattr(_load_file(Path(place)) if place.endswith(".py") else _load_module(place), name, None)
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


def _default_server(model: Path | None, device: str, settings: dict[str, Any]) -> "Server":
    """A server of text generation."""
    from tidewire_server.server import Server  # noqa: PLC0415

    if model is not None and not model.is_dir():
        _fail(f"--model: there is no folder {model}", code=2)
    try:
        from tidewire_server.generation import add_generate  # noqa: PLC0415
        from tidewire_server.generation.torch_engine import LoadError  # noqa: PLC0415
    except ModuleNotFoundError as error:
        _missing(error, "engine")
    server = Server(**settings)
    try:
        add_generate(server, model=model, device=device)
    except LoadError as error:
        _fail(str(error))
    return server


def _set_up_logging(level: str) -> None:
    names = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
    if level.lower() not in names:
        _fail(f"--log-level is {', '.join(names)}, not {level!r}", code=2)
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("tidewire_server").setLevel(names[level.lower()])


def _missing(error: ModuleNotFoundError, extra: str) -> NoReturn:
    if (error.name or "").startswith("tidewire"):
        raise error
    _fail(f'{error.name} is not installed; install it with:  pip install "tidewire[{extra}]"')


def _fail(message: str, *, code: int = 1) -> NoReturn:
    print(f"tidewire serve: {message}", file=sys.stderr)
    raise typer.Exit(code)


# ---- flags from settings -----------------------------------------------------------------------------------------


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for each setting, in place of its `**settings`."""
    own = [
        each for each in inspect.signature(command).parameters.values() if each.kind is not each.VAR_KEYWORD
    ]
    flags = [_flag(name, setting) for name, setting in Settings.model_fields.items()]

    def serve(**options: Any) -> None:
        for name in _REPEATED:
            # An environment variable holds several values apart by spaces; a flag that was not given is an empty list.
            options[name] = options[name] or None
        command(**options)

    serve.__doc__ = command.__doc__
    serve.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    serve.__annotations__ = {each.name: each.annotation for each in [*own, *flags]}
    return serve


def _flag(name: str, setting: FieldInfo) -> inspect.Parameter:
    flag = _REPEATED.get(name, f"--{name.replace('_', '-')}")
    shown = "none" if setting.default is None else setting.default
    text = setting.description if name in _REPEATED else f"{setting.description} [default: {shown}]"
    option = typer.Option(flag, envvar=ENV_PREFIX + name.upper(), help=text, show_default=False)
    kind = list[str] if name in _REPEATED else _plain_type(setting.annotation)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _plain_type(annotation: Any) -> Any:
    """What a flag's text becomes first; its bounds are judged with all other settings."""
    if isinstance(annotation, types.UnionType):
        return next(kind for kind in get_args(annotation) if kind is not types.NoneType)
    return annotation


serve = _with_settings(_serve)
"""The command, for the `tidewire` command line."""


def main() -> None:
    """Run the command by itself: `python -m tidewire_server`."""
    typer.run(serve)
