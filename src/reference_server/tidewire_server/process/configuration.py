"""Configuration of `tidewire serve`: pydantic-settings merges flags, the environment and a TOML file.

Precedence: flag, environment, file, the server's own code, default. One name serves in all: `max_queue_size` in the
file, `TIDEWIRE_MAX_QUEUE_SIZE` in the environment, `--max-queue-size` on the command line. An unknown name or a
rejected value is reported with its place: the flag, the variable, or the line of the file.

Import this module only to serve: pydantic-settings costs 0.15 s of CPU.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tidewire_server.process.flags import (
    ENV_PREFIX,
    FIELDS,
    SECRET,
    allowed,
    flag_of,
    shown,
    unknown,
    variable_of,
)
from tidewire_server.settings import Launch, Settings

DEFAULT: Final = "default"

_ENDPOINTS: Final = "endpoints"
_SIMILAR: Final = 0.75
"""Similarity from which an unknown `TIDEWIRE_` variable counts as a typo: other programs may use the prefix, too."""
_MAX_SHOWN: Final = 80
_ENDPOINT_MEMBER: Final = 3
"""Length of a path such as `endpoints.double.time_limit`."""
_HEADER: Final = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#|$)")
_KEY: Final = re.compile(r"[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'")


class ConfigurationError(ValueError):
    """One line for each fault of a configuration, with its place."""


class _FromText(BaseModel):
    """Base of models whose values come from text: `none` is None where that is allowed; true and false are not 1 and 0."""

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and kind is not bool:
            raise PydanticCustomError("not_bool", "not a boolean")
        if isinstance(value, str) and value.lower() == "none" and type(None) in get_args(kind):
            return None
        return value


class EndpointSettings(_FromText):
    """Settings of one endpoint in the file, over its code: `[endpoints.NAME]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    concurrency_limit: int | None = Field(
        None, ge=1, description="Calls that run at a time; none for any number."
    )
    max_queue_size: int | None = Field(None, ge=0, description="Items that may wait; none for the server's.")
    time_limit: float | None = Field(
        None, gt=0, description="Seconds that one call may take; none for any time."
    )


class _Environment(EnvSettingsSource):
    """The environment. Several values of one setting are separated by spaces."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        return value.split()


@dataclass(frozen=True)
class Configuration:
    """The validated configuration and the origin of each value."""

    launch: Launch
    settings: dict[str, Any]
    """Settings of the server that were set, by name."""
    endpoints: dict[str, EndpointSettings]
    origin: Callable[..., str]
    """Place where a value was set, by its path (`"port"` or `"endpoints", NAME, "time_limit"`): a flag, a variable, or
    file and line."""

    def table(self, settings: Settings) -> Iterator[tuple[str, str, str]]:
        """Each name, its value as it may be shown, and its origin.

        Args:
            settings: The server's settings: what was set, over the server's own code.
        """
        was_set = self.launch.model_fields_set | self.settings.keys()
        for model in (self.launch, settings):
            for name, field in type(model).model_fields.items():
                value = getattr(model, name)
                default = DEFAULT if value == field.default else "the server's code"
                yield name, shown(name, value), self.origin(name) if name in was_set else default
        for endpoint, values in self.endpoints.items():
            for name in sorted(values.model_fields_set):
                path = (_ENDPOINTS, endpoint, name)
                yield ".".join(path), shown(name, getattr(values, name)), self.origin(*path)


def configure(flags: Mapping[str, Any], file: Path | None = None) -> Configuration:
    """Merge and validate flags, `os.environ` and a file.

    Args:
        flags: Values by name, as text where they come from the command line.
        file: A TOML file.

    Raises:
        ConfigurationError: A name is unknown, or a value is not allowed.
    """
    text, tables = ("", {}) if file is None else _load(file)

    class Sources(_FromText, Launch, Settings, BaseSettings):
        model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_ignore_empty=True, case_sensitive=True)
        endpoints: dict[str, EndpointSettings] = {}

        @classmethod
        def settings_customise_sources(  # type: ignore[override]  # takes two of the five sources
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            **_: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            environment = _Environment(settings_cls, case_sensitive=False)
            return init_settings, environment, InitSettingsSource(settings_cls, tables)

    variables = {variable.upper(): variable for variable, value in os.environ.items() if value}

    def origin(*path: str) -> str:
        if path[0] in flags:
            return flag_of(path[0])
        return variables.get(variable_of(path[0])) or _place(file, text, path)

    faults = _environment_faults()
    values = None
    try:
        values = Sources(**flags)
    except ValidationError as error:
        faults += [_fault(each, origin) for each in error.errors()]
    if values is None or faults:
        raise ConfigurationError("\n".join(dict.fromkeys(faults)))
    given = {name: getattr(values, name) for name in values.model_fields_set}
    launch = Launch(**{name: value for name, value in given.items() if name in Launch.model_fields})
    settings = {name: value for name, value in given.items() if name in Settings.model_fields}
    return Configuration(launch, settings, values.endpoints, origin)


def _load(file: Path) -> tuple[str, dict[str, Any]]:
    """The text of a file, which may be a pipe, and its tables."""
    try:
        text = file.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{file}: {error}") from None


def _environment_faults() -> list[str]:
    """Variables that are likely typos, and empty secrets: one that was not filled in must not open the server to all."""
    known = [f"{ENV_PREFIX}CONFIG", *map(variable_of, FIELDS)]
    secret = {*map(variable_of, SECRET)}
    faults = []
    for variable, value in os.environ.items():
        if variable.upper() in secret and not value.strip():
            faults.append(f"{variable} is empty: set it, or take it out of the environment")
        elif variable.startswith(ENV_PREFIX) and variable not in {*known, variable_of(_ENDPOINTS)}:
            near = difflib.get_close_matches(variable, known, 1, _SIMILAR)
            faults += [f"{variable}: there is no such setting; did you mean {each}?" for each in near]
    return faults


def _fault(error: ErrorDetails, origin: Callable[..., str]) -> str:
    path = [part for part in error["loc"] if isinstance(part, str)]
    name, place = path[-1], origin(*path)
    fields = EndpointSettings.model_fields if len(path) == _ENDPOINT_MEMBER else FIELDS
    if error["type"] == "extra_forbidden":
        return f"{place}: {unknown(name, [*fields, _ENDPOINTS] if fields is FIELDS else fields)}"
    if path[0] == _ENDPOINTS and fields is FIELDS:
        return (
            f"{place}: must be a table in the file: [{_ENDPOINTS}.{'NAME' if name == _ENDPOINTS else name}]"
        )
    allows = f"must be {allowed(fields[name])}"
    if error["type"] == "value_error":
        allows = error["msg"].removeprefix("Value error, ")
    value = "" if name in SECRET else f" = {error['input']!r}"[:_MAX_SHOWN]
    return f"{place}: {name}{value}: {allows}"


def _place(file: Path | None, text: str, path: Sequence[str]) -> str:
    """File and line of a key; the file alone where the key is not at the beginning of a line."""
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = keys = [part.strip("\"'") for part in _KEY.findall(header[1])]
        else:
            key = _KEY.match(line.lstrip())
            keys = [*table, key[0].strip("\"'")] if key else []
        if keys[: len(path)] == list(path):
            return f"{file}:{number}"
    return str(file)
