"""Where each setting of `tidewire serve` comes from: a flag, the environment, a file, the server's own code, a default.

The same names serve in all: `max_queue_size` in a file, `TIDEWIRE_MAX_QUEUE_SIZE` in the environment and
`--max-queue-size` on the command line. The first of these that has one holds, in this order: flag, environment, file,
the code of the server, default. What nobody knows or nothing allows is refused with the place where it stands.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from tidewire_server.settings import SWITCH_INTERVAL, Settings

ENV_PREFIX: Final = "TIDEWIRE_"
DEFAULT: Final = "default"

SECRET: Final = frozenset({"tokens", "stream_token_secret"})
"""Settings that are never shown."""

SINGULAR: Final = {"tokens": "token", "cors_origins": "cors_origin"}
"""Settings that a person gives once for each value go by the singular on the command line."""

_ENDPOINTS: Final = "endpoints"
_LIKE: Final = 0.75


class ConfigurationError(ValueError):
    """What is wrong with a configuration: one line for each fault, with the place where it stands."""


class Launch(BaseModel):
    """What `tidewire serve` needs to know beside the settings of the server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str | None = Field(
        None, description="MODULE:SERVER or FILE.py:SERVER; without it, text generation with a model."
    )
    host: str = Field("127.0.0.1", description="Address to bind to; 0.0.0.0 for all.")
    port: int = Field(8000, ge=0, le=65535, description="Port; 0 takes a free one.")
    port_file: Path | None = Field(
        None, description="File that gets the port's number once requests are answered."
    )
    model: Path | None = Field(
        None, description="Folder of a Hugging Face checkpoint; without it, the model that ships."
    )
    device: str = Field("auto", description="Where the model runs: auto, cpu, cuda, cuda:1, mps.")
    script: bool = Field(False, description="Offer tidewire.script as well, which does what its input says.")
    switch_interval: float = Field(
        SWITCH_INTERVAL,
        ge=0.00001,
        le=1,
        description="Time after which Python takes a busy thread's turn away. Shorter than Python's own 0.005, so that "
        "plain functions that compute do not keep streams waiting.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="What is written to stderr: debug, info, warning or error."
    )


class EndpointSettings(BaseModel):
    """What a file may say of one endpoint, over its code: `[endpoints.NAME]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    concurrency_limit: int | None = Field(
        None, ge=1, description="Calls that run at a time; none for any number."
    )
    max_queue_size: int | None = Field(None, ge=0, description="Items that may wait; none for the server's.")
    time_limit: float | None = Field(
        None, gt=0, description="Seconds that one call may take; none for any time."
    )


class Given(NamedTuple):
    """A value and the place where it was given."""

    value: Any
    origin: str


class Configuration:
    """What was given, validated."""

    def __init__(self, given: Mapping[str, Given], endpoints: Mapping[str, Mapping[str, Given]]) -> None:
        self._given = given
        self.endpoints = endpoints
        """By endpoint, then by name."""
        self.launch = Launch(
            **{name: each.value for name, each in given.items() if name in Launch.model_fields}
        )
        self.settings = {name: each.value for name, each in given.items() if name in Settings.model_fields}
        """The settings that were given, by name."""

    def table(self, settings: Settings) -> Iterator[tuple[str, str, str]]:
        """Each name, its value as it is shown, and where it comes from.

        Args:
            settings: Those that hold: what was given, over what the server's code says.
        """
        for model in (self.launch, settings):
            for name, field in type(model).model_fields.items():
                value = getattr(model, name)
                given = self._given.get(name)
                code = DEFAULT if value == field.default else "the server's code"
                yield name, shown(name, value), code if given is None else given.origin
        for endpoint, values in self.endpoints.items():
            for name, given in values.items():
                yield f"{_ENDPOINTS}.{endpoint}.{name}", shown(name, given.value), given.origin


def configure(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None
) -> Configuration:
    """Bring together what was given.

    Args:
        flags: Values by name, as text where they come from the command line.
        environment: All variables of the environment.
        file: A TOML file.

    Raises:
        ConfigurationError: A name is unknown, or a value is not allowed.
    """
    faults: list[str] = []
    raw, endpoints = ({}, {}) if file is None else _read(file, faults)
    raw |= _from_environment(environment, faults)
    raw |= {name: Given(value, flag_of(name)) for name, value in flags.items()}
    given = {
        name: Given(
            _validated(Launch if name in Launch.model_fields else Settings, name, each, faults), each.origin
        )
        for name, each in raw.items()
    }
    of_endpoints = {
        endpoint: {
            name: Given(_validated(EndpointSettings, name, each, faults), each.origin)
            for name, each in values.items()
        }
        for endpoint, values in endpoints.items()
    }
    if faults:
        raise ConfigurationError("\n".join(faults))
    return Configuration(given, of_endpoints)


def unknown(name: str, known: Iterable[str]) -> str:
    """Says that a name is none, and which one was perhaps meant."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"there is no {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def shown(name: str, value: Any) -> str:
    """A value as it may be shown."""
    if value is None:
        return "none"
    if name in SECRET:
        return (
            f"{len(value)}, not shown"
            if isinstance(value, tuple) and value
            else "not shown"
            if value
            else "none"
        )
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) or "''"


def allowed(field: FieldInfo) -> str:
    """What a setting may be, in words: `a number from 0.001 to 300`."""
    kinds = get_args(field.annotation) or (field.annotation,)
    if get_origin(field.annotation) is Literal:
        return " or ".join(map(str, kinds))
    what = "a list of texts" if get_origin(field.annotation) is tuple else _KINDS[kinds[0]]
    words = f"{what} {_bounds(field.metadata)}".rstrip()
    return f"{words}, or none" if type(None) in kinds else words


_KINDS: Final = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
}


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


def _fields() -> dict[str, FieldInfo]:
    return dict(Launch.model_fields) | dict(Settings.model_fields)


def flag_of(name: str) -> str:
    """How a name stands on the command line."""
    return "TARGET" if name == "target" else f"--{SINGULAR.get(name, name).replace('_', '-')}"


def _from_environment(environment: Mapping[str, str], faults: list[str]) -> dict[str, Given]:
    known = {ENV_PREFIX + name.upper(): name for name in _fields()}
    given = {}
    for variable, text in environment.items():
        if name := known.get(variable):
            if text.strip():
                value = tuple(text.split()) if name in SINGULAR else text
                given[name] = Given(value, variable)
            elif name in SECRET:
                # A deployment whose secret was not filled in must not be open to all.
                faults.append(f"{variable} is empty: set it, or take it out of the environment")
        elif variable.startswith(ENV_PREFIX) and variable not in {*known, f"{ENV_PREFIX}CONFIG"}:
            # Others may keep theirs under this prefix, too: only what looks like one of ours is taken for a slip.
            near = difflib.get_close_matches(variable, known, 1, _LIKE)
            if near:
                faults.append(f"{variable}: there is no such setting; did you mean {near[0]}?")
    return given


def _read(path: Path, faults: list[str]) -> tuple[dict[str, Given], dict[str, dict[str, Given]]]:
    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    endpoints = tables.pop(_ENDPOINTS, {})
    given = _known(tables, _fields(), path, text, (), faults)
    if not isinstance(endpoints, dict):
        faults.append(f"{_place(path, text, (), _ENDPOINTS)}: tables are meant: [endpoints.NAME]")
        endpoints = {}
    of_endpoints: dict[str, dict[str, Given]] = {}
    for name, table in endpoints.items():
        if isinstance(table, dict):
            header = (_ENDPOINTS, name)
            of_endpoints[name] = _known(table, EndpointSettings.model_fields, path, text, header, faults)
        else:
            faults.append(f"{_place(path, text, (_ENDPOINTS,), name)}: a table is meant: [endpoints.{name}]")
    return given, of_endpoints


def _known(
    table: Mapping[str, Any],
    fields: Mapping[str, FieldInfo],
    path: Path,
    text: str,
    header: tuple[str, ...],
    faults: list[str],
) -> dict[str, Given]:
    given = {}
    for name, value in table.items():
        place = _place(path, text, header, name)
        if name in fields:
            given[name] = Given(tuple(value) if isinstance(value, list) else value, place)
        else:
            faults.append(f"{place}: {unknown(name, [*fields, *([] if header else [_ENDPOINTS])])}")
    return given


def _place(path: Path, text: str, header: tuple[str, ...], name: str) -> str:
    """The file, and the line on which a name is set; the file alone where it is written in some other way."""
    here: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if match := _HEADER.match(line):
            here = tuple(part.strip("\"'") for part in _KEY.findall(match[1]))
            found = here[: len(header) + 1] == (*header, name)
        else:
            match = _KEY.match(line.lstrip())
            found = here == header and match is not None and match[0].strip("\"'") == name
        if found:
            return f"{path}:{number}"
    return str(path)


_HEADER: Final = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#|$)")
_KEY: Final = re.compile(r"[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'")


def _validated(model: type[BaseModel], name: str, given: Given, faults: list[str]) -> Any:
    field = model.model_fields[name]
    value = given.value
    if isinstance(value, str) and value.lower() == "none" and type(None) in get_args(field.annotation):
        value = None
    try:
        if isinstance(value, bool) and field.annotation is not bool:
            raise TypeError
        return getattr(model(**{name: value}), name)
    except (ValidationError, TypeError) as error:
        said = f"must be {allowed(field)}"
        if isinstance(error, ValidationError) and error.errors()[0]["type"] == "value_error":
            said = error.errors()[0]["msg"].removeprefix("Value error, ")
        what = "" if name in SECRET else f" = {given.value!r}"[:80]
        faults.append(f"{given.origin}: {name}{what}: {said}")
        return None
