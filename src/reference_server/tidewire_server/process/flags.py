"""Flags of `tidewire serve`: which settings have one, and how names, values and bounds are written.

Every setting can be set in the environment and in the configuration file. The settings below have a flag as well: the
ones that a tutorial, a how-to or the startup banner names, and `log_level`.
"""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, MinLen
from pydantic.fields import FieldInfo

from tidewire_server.settings import Launch, Settings

FLAGS: Final = {
    "Process": ("host", "port", "port_file", "root_path", "cors_origins", "log_level"),
    "Access": ("tokens", "stream_token_secret", "stream_token_ttl"),
    "Text generation, without a target": ("model", "device"),
    "Jobs": (
        "default_concurrency_limit",
        "max_queue_size",
        "max_inputs",
        "max_body_bytes",
        "cancel_timeout",
        "shutdown_timeout",
        "script",
    ),
    "Streams": ("heartbeat", "retry", "merge_window", "stall_timeout", "keep_alive_timeout"),
    "Stored jobs": ("log", "log_fsync", "max_attempts", "state_ttl"),
}
"""Settings that have a flag, by group of `--help`."""

FIELDS: Final[dict[str, FieldInfo]] = dict(Launch.model_fields) | dict(Settings.model_fields)
"""Every setting that `tidewire serve` takes, by name."""

ENV_PREFIX: Final = "TIDEWIRE_"

SECRET: Final = frozenset({"tokens", "stream_token_secret"})
"""Settings whose value is never shown."""

SINGULAR: Final = {"tokens": "token", "cors_origins": "cors_origin"}
"""Settings with several values. Their flag is singular and repeated, once for each value."""

_KINDS: Final = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
}


def flag_of(name: str) -> str:
    """The flag of a setting: `--max-queue-size`."""
    return "TARGET" if name == "target" else f"--{SINGULAR.get(name, name).replace('_', '-')}"


def variable_of(name: str) -> str:
    """The environment variable of a setting: `TIDEWIRE_MAX_QUEUE_SIZE`."""
    return ENV_PREFIX + name.upper()


def not_a_flag(arguments: Iterable[str]) -> str | None:
    """The error for the first argument that names a setting without a flag; it shows the line for the file."""
    with_flag = {"target"}.union(*FLAGS.values())
    without = {flag_of(name): name for name in FIELDS if name not in with_flag}
    rest = iter(arguments)
    for argument in rest:
        flag, has_value, value = argument.partition("=")
        if name := without.get(flag):
            value = value if has_value else next(rest, shown(name, FIELDS[name].default))
            return (
                f"{flag} is not a flag; put it in the file: {name} = {value}"
                f" (or in the environment: {variable_of(name)}={value})"
            )
    return None


def unknown(name: str, known: Iterable[str]) -> str:
    """The error for an unknown name, with the closest known one."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"there is no {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def shown(name: str, value: Any) -> str:
    """A value as text, for `--help` and `--show-config`; secrets stay hidden."""
    if value is None:
        return "none"
    if name in SECRET and value:
        return f"{len(value)}, not shown" if isinstance(value, tuple) else "not shown"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) or "''"


def allowed(field: FieldInfo) -> str:
    """The values that a setting accepts, in words: `a number from 0.001 to 300`."""
    kinds = get_args(field.annotation) or (field.annotation,)
    if get_origin(field.annotation) is Literal:
        return " or ".join(map(str, kinds))
    what = "a list of texts" if get_origin(field.annotation) is tuple else _KINDS[kinds[0]]
    words = f"{what} {_bounds(field.metadata)}".rstrip()
    return f"{words}, or none" if type(None) in kinds else words


def _bounds(metadata: Iterable[Any]) -> str:
    most = next((f"{bound.le:g}" for bound in metadata if isinstance(bound, Le)), None)
    for bound in metadata:
        if isinstance(bound, Ge):
            return f"of at least {bound.ge:g}" if most is None else f"from {bound.ge:g} to {most}"
        if isinstance(bound, Gt):
            return f"above {bound.gt:g}" + ("" if most is None else f" and at most {most}")
        if isinstance(bound, MinLen):
            return f"of at least {bound.min_length} characters"
        if pattern := getattr(bound, "pattern", None):
            return f"like `{pattern}`"
    return ""
