"""Import the module that `tidewire serve TARGET` names, and find the server in it."""

import importlib
import importlib.util
import sys
import traceback
import types
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from tidewire_server.server import LOADING, Server
from tidewire_server.user_code import is_user_code
from tidewire_server.user_paths import user_path


class TargetError(ValueError):
    """The target does not name a server. The message shows how to correct the target."""


class TargetImportError(Exception):
    """The import of the target raised an exception. The message contains the frames of the user's code."""


def load_target(target: str) -> Server:
    """Import the module of a target, and return the server that the target names. If the target contains only a module, it
    must have exactly one server.

    Raises:
        TargetError: The module does not exist, or does not contain the server.
        TargetImportError: The import raised an exception.
    """
    module_name, _, name = target.rpartition(":")
    if not module_name:
        module_name, name = target, ""
    elif not name.isidentifier():
        raise TargetError(f"{target!r} is not FILE.py, MODULE, FILE.py:SERVER or MODULE:SERVER")
    token = LOADING.set(module_name)
    try:
        module = (
            _load_file(user_path(module_name)) if module_name.endswith(".py") else _load_module(module_name)
        )
    except (TargetError, SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise TargetImportError(f"cannot import {module_name}:\n{_user_traceback(error)}") from error
    finally:
        LOADING.reset(token)
    return _named_server(module, module_name, name) if name else _only_server(module, module_name)


def folder_of(target: str) -> Path:
    """Return the folder with the code of a target: the folder of the file, or the working directory for a module."""
    name = target.partition(":")[0]
    return user_path(name).resolve().parent if name.endswith(".py") else Path.cwd()


def _named_server(module: types.ModuleType, module_name: str, name: str) -> Server:
    found = getattr(module, name, None)
    if isinstance(found, Server):
        return found
    kind = "undefined" if found is None else f"of type {type(found).__name__}"
    raise TargetError(f"{name!r} in {module_name} is {kind}, not a tidewire_server.Server")


def _only_server(module: types.ModuleType, module_name: str) -> Server:
    servers: dict[str, Server] = {}
    for name, value in vars(module).items():
        if isinstance(value, Server) and not any(value is each for each in servers.values()):
            servers[name] = value
    if len(servers) == 1:
        return next(iter(servers.values()))
    if servers:
        raise TargetError(
            f"{module_name} has {len(servers)} servers: {', '.join(servers)}; name one of them, such as "
            f"{module_name}:{next(iter(servers))}"
        )
    raise TargetError(
        f"{module_name} has no server; write `server = tidewire_server.Server()` at its top level, and decorate functions "
        "with @server.endpoint"
    )


def _load_module(name: str) -> types.ModuleType:
    if name.startswith(".") or Path(name).is_file():
        raise TargetError(f"{name} is neither a Python file nor a module; pass a file such as app.py")
    folder = str(Path.cwd())
    # Search the working directory only if it contains the module. Otherwise a file in this directory could replace a
    # library.
    if PathFinder.find_spec(name.partition(".")[0], [folder]) is not None:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        hint = f"; for the file, use {name}.py" if Path(f"{name}.py").is_file() else ""
        raise TargetError(f"module {error.name!r} not found (also searched {Path.cwd()}){hint}") from None


def _load_file(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise TargetError(f"file {path} not found")
    sys.path.insert(0, str(path.parent.resolve()))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _user_traceback(error: BaseException) -> str:
    """Format an exception and its causes, with only the frames of the user's code."""
    formatted = traceback.TracebackException.from_exception(error)
    for each in _chain(formatted):
        each.stack = traceback.StackSummary.from_list(
            frame for frame in each.stack if is_user_code(frame.filename)
        )
    lines = "".join(formatted.format()).rstrip().splitlines()
    return "\n".join(line for line in lines if line != "Traceback (most recent call last):")


def _chain(formatted: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    yield formatted
    for cause in (formatted.__cause__, formatted.__context__):
        if cause is not None:
            yield from _chain(cause)
