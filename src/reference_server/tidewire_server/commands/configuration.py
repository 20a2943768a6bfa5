"""Configuration of `tidewire serve`, merged from flags, environment variables and a TOML file by pydantic-settings.

A value is taken from a flag, the environment, the file, the server's code or the default, in this order of precedence.
A setting has the same name everywhere. For example, the maximum queue size is `max_queue_size` in the file,
`TIDEWIRE_MAX_QUEUE_SIZE` in the environment, and `--max-queue-size` on the command line. An error message about a name or a
value contains its origin: the flag, the environment variable, or the line of the file.

Import this module only if the command will serve, because importing pydantic-settings takes 0.15 s of CPU time.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args, get_origin

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

from tidewire_server.commands.flags import (
    CLIENT_TOKEN,
    ENV_PREFIX,
    FIELDS,
    TOKEN_FILES,
    flag_of,
    shown,
    unknown,
    variable_of,
)
from tidewire_server.setting_errors import SECRET, reason
from tidewire_server.settings import Launch, Settings
from tidewire_server.user_paths import user_path, without_password

DEFAULT: Final = "default"

_ENDPOINTS: Final = "endpoints"
_OF_THE_CLIENT: Final = (CLIENT_TOKEN, f"{ENV_PREFIX}URL")
"""Environment variables of the client. They may be set in the same shell, and the server ignores them."""
_SIMILAR: Final = 0.75
"""An unknown environment variable whose name begins with `TIDEWIRE_` is reported as a typo if its similarity to a known
name is above this number.

Less similar variables are ignored, because they may belong to other programs.
"""
_MAX_SHOWN: Final = 80
_ENDPOINT_MEMBER: Final = 3
"""Number of parts in the path of an endpoint's setting, such as `endpoints.double.time_limit`."""
_HEADER: Final = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#|$)")
_KEY: Final = re.compile(r"[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'")


class ConfigurationError(ValueError):
    """The configuration is not valid.

    The message has one line for each error. The line contains the origin of the value.
    """


class _FromText(BaseModel):
    """Base class of models whose field values may be passed as text.

    If a field allows None, the text `none` is parsed as None. Booleans are not accepted as numbers.
    """

    @field_validator("*", mode="before")
    @classmethod
    def _parse(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and bool not in (kind, *get_args(kind)):
            raise PydanticCustomError("not_bool", "not a boolean")
        if isinstance(value, str) and value.lower() == "none" and type(None) in get_args(kind):
            return None
        return value


class EndpointSettings(_FromText):
    """Settings of one endpoint, from the table `[endpoints.NAME]` of the file. They override the settings in the
    server's code.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    concurrency_limit: int | None = Field(
        None, ge=1, description="Maximum number of concurrent calls, or none for no limit."
    )
    global_limit: int | None = Field(
        None, ge=1, description="Maximum number of concurrent calls over all servers, or none for no limit."
    )
    max_queue_size: int | None = Field(
        None, ge=0, description="Maximum number of waiting items, or none for the server's setting."
    )
    time_limit: float | None = Field(
        None, gt=0, description="Maximum duration of one call in seconds, or none for no limit."
    )


class _Environment(EnvSettingsSource):
    """Settings source for environment variables. If a setting is a list, the variable contains the list's values,
    separated by spaces.
    """

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        return value.split()


@dataclass(frozen=True)
class Configuration:
    """Validated configuration, together with the origin of each value."""

    launch: Launch
    settings: dict[str, Any]
    """Values of the server settings that were set explicitly, by name."""
    endpoints: dict[str, EndpointSettings]
    origin: Callable[..., str]
    """Function that returns the flag, the environment variable, or the file and line in which a value was set.

    Its arguments are the parts of the value's path, such as `"port"` or `"endpoints", NAME, "time_limit"`.
        """

    def table(self, settings: Settings) -> Iterator[tuple[str, str, str]]:
        """Iterate over all settings. Each setting is a tuple of its name, its value as text, and the place where the
        value was set.

        Args:
            settings: Final settings of the server. A value of this configuration takes precedence over a value in the
                server's code.
        """
        configured = self.launch.model_fields_set | self.settings.keys()
        for model in (self.launch, settings):
            for name, field in type(model).model_fields.items():
                value = getattr(model, name)
                default = DEFAULT if value == field.default else "the server's code"
                file = TOKEN_FILES.get(name)
                source = file if file and getattr(self.launch, file) is not None else name
                yield name, shown(name, value), self.origin(source) if name in configured else default
        for endpoint, values in self.endpoints.items():
            for name in sorted(values.model_fields_set):
                path = (_ENDPOINTS, endpoint, name)
                yield ".".join(path), shown(name, getattr(values, name)), self.origin(*path)


def configure(flags: Mapping[str, Any], file: Path | None = None) -> Configuration:
    """Merge and validate flags, environment variables and a file.

    Args:
        flags: Name of a setting → value of its flag. Values from the command line are text.
        file: Path of a TOML file.

    Raises:
        ConfigurationError: A name is unknown, or a value is not valid.
    """
    file = None if file is None else user_path(file)
    text, tables = ("", {}) if file is None else _load(file)

    class Sources(_FromText, Launch, Settings, BaseSettings):
        model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_ignore_empty=True, case_sensitive=True)
        endpoints: dict[str, EndpointSettings] = {}

        @classmethod
        def settings_customise_sources(  # type: ignore[override]  # uses two of the five sources
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
        return variables.get(variable_of(path[0])) or _location(file, text, path)

    errors = _environment_errors()
    values = None
    try:
        values = Sources(**flags)
    except ValidationError as error:
        errors += [_format_error(each, origin) for each in error.errors()]
    if values is None or errors:
        raise ConfigurationError("\n".join(dict.fromkeys(errors)))
    values_set = {name: getattr(values, name) for name in values.model_fields_set}
    launch = Launch(**{name: value for name, value in values_set.items() if name in Launch.model_fields})
    settings = {name: value for name, value in values_set.items() if name in Settings.model_fields}
    for name, file_setting in TOKEN_FILES.items():
        if (path := getattr(launch, file_setting)) is not None:
            if name in values_set:
                are = "are" if name in Settings.model_fields else "is"
                raise ConfigurationError(
                    f"{origin(file_setting)}: {name} {are} also set in {origin(name)}; use one of the two"
                )
            if name in Settings.model_fields:
                settings[name] = _load_tokens(path, name, origin(file_setting), settings)
            else:
                launch = _with_key(launch, path, name, origin(file_setting))
    return Configuration(launch, settings, values.endpoints, origin)


def _load(file: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a TOML file and its parsed content. The file is read only once, because it may be a pipe."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        return text, tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file} is not UTF-8") from None
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and deep nesting
        raise ConfigurationError(f"{file}: {error}") from None


def _load_tokens(path: Path, name: str, origin: str, settings: dict[str, Any]) -> tuple[str, ...]:
    """Read tokens for a setting from a file with one token per line. `settings` contains the other settings, because the same
    token must not be in two settings.
    """
    try:
        tokens = tuple(
            line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()
        )
        Settings(**(settings | {name: tokens}))
    except OSError as error:
        raise ConfigurationError(f"{origin}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{origin}: {path} is not UTF-8") from None
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"{origin}: {path}: {why}") from None
    if not tokens:
        raise ConfigurationError(f"{origin}: {path} contains no token")
    return tokens


def _with_key(launch: Launch, path: Path, name: str, origin: str) -> Launch:
    """Return the settings with a secret from a file with one line."""
    try:
        key = path.read_text(encoding="utf-8-sig").strip()
        return Launch(**(launch.model_dump(exclude_unset=True) | {name: key}))
    except OSError as error:
        raise ConfigurationError(f"{origin}: cannot read {path}: {error.strerror}") from None
    except ValueError:  # also a UnicodeDecodeError and a ValidationError, which contains the secret
        raise ConfigurationError(
            f"{origin}: {path} must contain one line of visible ASCII characters"
        ) from None


def _environment_errors() -> list[str]:
    """Return errors for environment variables that are probably typos, for empty secrets, and for lists that are not separated
    by spaces.

    An empty secret would turn off authentication without notice. In a list with commas or brackets, these characters would
    become part of the tokens.
    """
    known = [f"{ENV_PREFIX}CONFIG", *_OF_THE_CLIENT, *map(variable_of, FIELDS)]
    secret = {*map(variable_of, SECRET)}
    lists = {variable_of(name) for name, field in FIELDS.items() if get_origin(field.annotation) is tuple}
    tokens = lists & secret
    errors = []
    for variable, value in os.environ.items():
        if variable.upper() in secret and not value.strip():
            errors.append(f"{variable} is empty; set it, or remove it from the environment")
        elif variable.upper() in lists and (
            value.lstrip().startswith("[") or (variable.upper() in tokens and {*value} & {*",\"'"})
        ):
            errors.append(f"{variable}: separate the values by spaces, without brackets, commas and quotes")
        elif variable.startswith(ENV_PREFIX) and variable not in {*known, variable_of(_ENDPOINTS)}:
            near = difflib.get_close_matches(variable, known, 1, _SIMILAR)
            errors += [f"{variable}: unknown setting; did you mean {each}?" for each in near]
    return errors


def _format_error(error: ErrorDetails, origin: Callable[..., str]) -> str:
    path = [part for part in error["loc"] if isinstance(part, str)]
    name, where = path[-1], origin(*path)
    fields = EndpointSettings.model_fields if len(path) == _ENDPOINT_MEMBER else FIELDS
    if error["type"] == "extra_forbidden":
        return f"{where}: {unknown(name, [*fields, _ENDPOINTS] if fields is FIELDS else fields)}"
    if path[0] == _ENDPOINTS and fields is FIELDS:
        return (
            f"{where}: must be a table in the file: [{_ENDPOINTS}.{'NAME' if name == _ENDPOINTS else name}]"
        )
    given = without_password(str(error["input"])) if name == "log" else error["input"]
    value = "" if name in SECRET else f" = {given!r}"[:_MAX_SHOWN]
    return f"{where}: {name}{value}: {reason(error, fields[name])}"


def _location(file: Path | None, text: str, path: Sequence[str]) -> str:
    """Return the file and the line in which a key is set, or only the file if no line starts with the key."""
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
