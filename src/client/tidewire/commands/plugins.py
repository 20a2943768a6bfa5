"""Commands that other packages offer: found through entry points, loaded when they are named."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, NoReturn

import typer
import typer.core
import typer.main
from rich.markup import escape

from tidewire.commands import display

COMMANDS: Final = "tidewire.commands"
"""Entry-point group in which other packages offer commands: functions, as typer takes them, or typer apps."""
USAGE: Final = 2
"""Exit code of wrong usage, or of what is not installed."""

_EXTRAS = {"tidewire_server": "server", "tidewire_conformance": "conformance"}


class Commands(typer.core.TyperGroup):
    """The commands of a typer app, and those that were found."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(set(_others()) - set(super().list_commands(ctx)))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        other = _others().get(cmd_name)
        return own if own is not None or other is None else _load(other)


def _others() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=COMMANDS)}


def _load(point: EntryPoint) -> Any:
    """The command behind an entry point; where its package lacks a requirement, one that says what to install."""
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
    wanted = f"'tidewire[{extra}]'" if extra else (error.name or "what it needs")

    def command() -> NoReturn:
        display.Screen().error(f"`tidewire {point.name}` needs {error.name or error}: pip install {wanted}")
        raise typer.Exit(USAGE)

    # The help is markup: unescaped, the name of the extra would be lost.
    command.__doc__ = escape(f"Not installed: pip install {wanted}")
    return _command(point.name, command, ignore_unknown_options=True, allow_extra_args=True)


def _command(name: str, function: Callable[..., Any], **settings: bool) -> Any:
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command(name, context_settings=dict(settings))(function)
    return typer.main.get_command(single)
