"""Commands that other packages add to `tidewire`.

The commands are found through entry points, and imported on first use.
"""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, NoReturn

import typer
import typer.core
import typer.main
from rich.markup import escape

from tidewire.commands import display
from tidewire.commands.exit_codes import USAGE
from tidewire.install_command import install_command

COMMANDS: Final = "tidewire.commands"
"""Name of the entry-point group for commands of plugins. Each entry point is a typer app, or a function that typer can
convert to a command."""

_EXTRAS = {"tidewire_server": "server", "tidewire_conformance": "conformance"}


class Commands(typer.core.TyperGroup):
    """Command group that contains the commands of a typer app and the commands of plugins."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(set(_plugins()) - set(super().list_commands(ctx)))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        plugin = _plugins().get(cmd_name)
        return own if own is not None or plugin is None else _load(plugin)


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=COMMANDS)}


def _load(point: EntryPoint) -> Any:
    """Load the command of an entry point.

    If the import fails, return a command that only prints which package must be installed.
    """
    try:
        found = point.load()
    except ImportError as error:
        return _missing(point, error)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    if not callable(found) or hasattr(found, "invoke"):
        return found
    return _command(point.name, found)


def _missing(point: EntryPoint, error: ImportError) -> Any:
    extra = _EXTRAS.get(point.module.partition(".")[0])
    command_line = install_command(extra) if extra else f"pip install {error.name or 'the missing package'}"

    def command() -> NoReturn:
        display.Screen().error(f"`tidewire {point.name}` needs {error.name or error}: {command_line}")
        raise typer.Exit(USAGE)

    # The library rich reads help texts as markup. Escape the brackets, because rich would drop `[server]` as an unknown
    # tag.
    command.__doc__ = escape(f"Not installed: {command_line}")
    return _command(point.name, command, ignore_unknown_options=True, allow_extra_args=True)


def _command(name: str, function: Callable[..., Any], **settings: bool) -> Any:
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command(name, context_settings=dict(settings))(function)
    return typer.main.get_command(single)
