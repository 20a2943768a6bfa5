"""Create the Typer options of `tidewire serve` and `tidewire worker` from the settings."""

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer
import typer.core

from tidewire_server.commands.command_exit import COMMAND, fail
from tidewire_server.commands.flags import (
    COMMON,
    ENV_PREFIX,
    FIELDS,
    SINGULAR,
    TURNED_OFF,
    flag_of,
    not_a_flag,
    shown,
)
from tidewire_server.setting_errors import allowed

_METAVARS = {"a whole number": "INT", "a number": "SECONDS"}


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_OWN_PARAMETERS: Final = (
    _parameter("invocation", typer.Context, inspect.Parameter.empty),
    _parameter("target", Annotated[str | None, typer.Argument(help=FIELDS["target"].description)]),
    _parameter(
        "config",
        Annotated[
            Path | None,
            typer.Option(envvar=f"{ENV_PREFIX}CONFIG", show_envvar=False, help="TOML file with settings."),
        ],
    ),
    _parameter(
        "show_config",
        Annotated[bool, typer.Option("--show-config", help="Print every setting and its origin, then exit.")],
        default=False,
    ),
    _parameter(
        "help_all",
        Annotated[bool, typer.Option("--help-all", help="Show this message with all flags, then exit.")],
        default=False,
    ),
)
"""Parameters that the commands `serve` and `worker` have in addition to the flags of settings."""


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


def signature_with_flags(groups: Mapping[str, Iterable[str]]) -> inspect.Signature:
    """Create the signature from which typer makes the options of a command.

    Args:
        groups: Title of a group in `--help-all` → names of the settings in this group.
    """
    flags = [_flag_parameter(name, group) for group, names in groups.items() for name in names]
    return inspect.Signature([*_OWN_PARAMETERS, *flags])


def _flag_parameter(name: str, group: str) -> inspect.Parameter:
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
    return _parameter(name, Annotated[kind | None, option])
