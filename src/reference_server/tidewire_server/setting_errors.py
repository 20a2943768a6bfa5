"""Error messages for invalid settings. They suggest a similar name, or describe the values that a setting accepts."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tidewire_server.user_paths import without_password

SECRET: Final = frozenset({"tokens", "operator_tokens", "stream_token_secret", "upstream_key"})
"""Settings whose value is never displayed."""

_KINDS: Final = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    Path: "a path",
}
_MAX_SHOWN: Final = 80


class SettingsError(ValueError):
    """A setting of a server is unknown, or its value is not valid. The message contains one line for each error."""


def settings_error(error: ValidationError, fields: dict[str, FieldInfo]) -> SettingsError:
    """Convert pydantic's validation error of a settings model to a `SettingsError`.

    Args:
        error: The error that pydantic raised.
        fields: All settings, by name.
    """
    return SettingsError("\n".join(_message(each, fields) for each in error.errors(include_url=False)))


def _message(error: ErrorDetails, fields: dict[str, FieldInfo]) -> str:
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        near = suggestion(name, fields)
        return f"unknown setting {name!r}{near or '; `tidewire serve --show-config` lists all settings'}"
    given = without_password(str(error["input"])) if name == "log" else error["input"]
    value = "" if name in SECRET else f"={given!r:.{_MAX_SHOWN}}"
    return f"setting {name}{value}: {reason(error, fields[name])}"


def reason(error: ErrorDetails, field: FieldInfo) -> str:
    """Describe why the value of a setting is not valid."""
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    return f"must be {allowed(field)}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'NAME'?` with the most similar known name, or an empty string."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def allowed(field: FieldInfo) -> str:
    """Describe the values that a setting accepts, such as `a number from 0.001 to 300`."""
    kinds = get_args(field.annotation) or (field.annotation,)
    if get_origin(field.annotation) is Literal:
        return " or ".join(map(str, kinds))
    kind = "a list of strings" if get_origin(field.annotation) is tuple else _KINDS[kinds[0]]
    words = f"{kind} {_bounds(field.metadata)}".rstrip()
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
