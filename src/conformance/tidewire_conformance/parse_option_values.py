"""Parsing and validation of option values, shared by the command line and the pytest plugin."""

import os
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json import loads
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from tidewire_conformance import registry, specification
from tidewire_conformance.judging.grade import Settings
from tidewire_conformance.registry import Check
from tidewire_conformance.runner import Plan
from tidewire_conformance.session import Hooks

Fields = tuple[tuple[str, str], ...]
Entry = TypeVar("Entry")

URL_VARIABLE: Final = "TIDEWIRE_URL"
TOKEN_VARIABLE: Final = "TIDEWIRE_TOKEN"  # noqa: S105 - the name of a variable

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")


@dataclass(frozen=True)
class EventStreamOptions(Settings):
    """Options of a test run with the URL of an event stream."""

    url: str
    header: Fields = ()
    body: bytes | None = None
    """Body to send with POST, or None for GET."""


class UsageError(ValueError):
    """Raised if an option value is invalid. The message says why, and which values are valid."""


class EmptySelectionError(UsageError):
    """Raised if a name matches no check or scenario, or if the options leave nothing to run."""


def plan(
    url: str,
    *,
    header: Sequence[str] = (),
    second_header: Sequence[str] = (),
    example: Sequence[str] = (),
    endpoint: Sequence[str] = (),
    restart: str = "",
    expire: str = "",
    replica_url: str = "",
    origin: str = "",
    **more: Any,
) -> Plan:
    """Build the plan of a test run from option values.

    Args:
        url: Base URL of the server.
        header: Header fields as `NAME: VALUE`, sent with each request.
        second_header: Header fields with the credentials of a second user.
        example: Inputs as `ENDPOINT=JSON`.
        endpoint: Names of the endpoints to use. By default, all endpoints are used.
        restart: Shell command that kills the server and starts it again.
        expire: Shell command that makes the server delete its ended jobs.
        replica_url: Base URL of a second replica of the server.
        origin: Origin whose pages the server allows.
        **more: Further fields of `Plan`, passed unchanged.

    Raises:
        UsageError: An option value is invalid.
    """
    address(url)
    if replica_url:
        address(replica_url)
    hooks = Hooks(
        restart=restart,
        expire=expire,
        replica=replica_url,
        second=fields(second_header),
        origin=origin,
    )
    return Plan(url, fields(header), hooks, tuple(endpoint), examples=examples(example), **more)


def stream_plan(url: str, header: Sequence[str], body: str, **settings: Any) -> EventStreamOptions:
    """Build the plan of a test run with the URL of an event stream.

    Args:
        url: URL of the stream, which may have a query.
        header: Header fields as `NAME: VALUE`, sent with each request.
        body: Text to send with POST, or `@` and the path of a file. If it is empty, the stream is requested with GET.
        **settings: Fields of `Settings`.

    Raises:
        UsageError: An option value is invalid.
    """
    if not url:
        raise UsageError("pass the URL of an event stream")
    address(url.partition("?")[0])
    if not url.isascii() or not url.isprintable() or " " in url or "#" in url:
        raise UsageError(f"the URL must not contain a fragment or unescaped characters: {url!r}")
    try:
        content = Path(body[1:]).read_bytes() if body.startswith("@") else body.encode()
    except OSError as error:
        raise UsageError(f"cannot read the file of --body: {error}") from None
    return EventStreamOptions(url=url, header=fields(header), body=content if body else None, **settings)


def server_url(url: str) -> str:
    """Return the URL of the server: the argument or, without one, the value of `TIDEWIRE_URL`, which may be empty."""
    return url or os.environ.get(URL_VARIABLE, "").strip()


def caller(url: str, header: Sequence[str]) -> list[str]:
    """Return the header fields of the caller, with the bearer token of `TIDEWIRE_TOKEN` if no other credentials are set.

    If `TIDEWIRE_URL` is also set, the token is used only for the origin of that URL, as by the client.

    Raises:
        UsageError: The token contains characters that a header must not contain, or `TIDEWIRE_URL` is invalid.
    """
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token or any(each.partition(":")[0].strip().lower() == "authorization" for each in header):
        return [*header]
    if not all("!" <= character <= "~" for character in token):
        raise UsageError(f"{TOKEN_VARIABLE} must consist of visible ASCII characters without spaces")
    if not _is_same_origin(url, server_url("") or url):
        return [*header]
    return [*header, f"Authorization: Bearer {token}"]


def _is_same_origin(url: str, other: str) -> bool:
    parts = []
    for name, each in (("the URL", url), (URL_VARIABLE, other)):
        try:
            split = urlsplit(each)
            port = split.port or {"http": 80, "https": 443}.get(split.scheme)
        except ValueError as error:
            raise UsageError(f"{name}: {each!r} is not an http URL: {error}") from None
        parts.append((split.scheme, split.hostname, port))
    return parts[0] == parts[1]


def chosen(only: Sequence[str], skip: Sequence[str], profiles: Sequence[str] = ()) -> list[Check]:
    """Return the checks that the options select.

    Args:
        only: Areas, requirement ids or names of the checks to run. A name may contain `*`. By default, all checks run.
        skip: Areas, requirement ids or names of the checks to leave out.
        profiles: Profiles to check. A check runs if it judges a requirement of one of them, and judges only these
            requirements. By default, all checks run.

    Raises:
        UsageError: A profile does not exist.
        EmptySelectionError: A name matches no check, or no check is left.
    """
    known = {requirement.profile for requirement in specification.requirements().values()} - {"client", "sse"}
    if unknown := [each for each in profiles if each not in known]:
        raise UsageError(
            f"there is no profile {', '.join(unknown)}; choose from {', '.join(sorted(known | {'sse'}))}"
        )
    named = select(registry.checks(), Check.is_named_by, only, skip, "check")
    found = named
    if profiles:
        found = [check for check in (each.narrowed(profiles) for each in named) if check.requirements]
    if not found:
        raise EmptySelectionError("the options leave no check to run; --list prints all checks")
    return found


def select(
    entries: Sequence[Entry],
    is_named_by: Callable[[Entry, Sequence[str]], bool],
    only: Sequence[str],
    skip: Sequence[str],
    kind: str,
) -> list[Entry]:
    """Return the checks or scenarios that patterns select.

    Args:
        entries: All checks or scenarios.
        is_named_by: Function that returns whether one of several patterns matches an entry.
        only: Patterns of the entries to run. By default, all entries run.
        skip: Patterns of the entries to leave out.
        kind: Word for an entry in the error message: `check` or `scenario`.

    Raises:
        EmptySelectionError: A pattern matches no entry.
    """
    if unknown := [
        each for each in (*only, *skip) if not any(is_named_by(entry, [each]) for entry in entries)
    ]:
        raise EmptySelectionError(f"no {kind} matches {', '.join(unknown)}; --list prints all {kind}s")
    return [
        entry for entry in entries if (not only or is_named_by(entry, only)) and not is_named_by(entry, skip)
    ]


def address(url: str) -> None:
    """Validate the URL of a server.

    Raises:
        UsageError: The URL is invalid.
    """
    try:
        split = urlsplit(url)
        sound = split.scheme in {"http", "https"} and split.hostname and (split.port or 1)
    except ValueError as error:
        raise UsageError(f"{url!r} is not an http URL: {error}") from None
    if not sound:
        raise UsageError(
            f"the base URL must be an http or https URL such as http://127.0.0.1:8000, not {url!r}"
        )
    if split.username is not None:
        raise UsageError("the URL must not contain credentials; pass them with --header 'Authorization: …'")
    if split.query or split.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(
            f"the base URL must not contain a query, a fragment or unescaped characters: {url!r}"
        )


def fields(cli_options: Sequence[str]) -> Fields:
    """Parse header fields of the form `NAME: VALUE`.

    Raises:
        UsageError: A text does not have the form `NAME: VALUE`, or contains invalid characters.
    """
    pairs = [text.partition(":") for text in cli_options]
    for name, colon, value in pairs:
        if not colon or not _NAME.fullmatch(name.strip()) or not _VALUE.fullmatch(value.strip()):
            raise UsageError(
                "a header must be NAME: VALUE, on one line and in visible ASCII, for example 'Authorization: Bearer a'"
            )
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


def examples(cli_options: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """Parse examples of the form `ENDPOINT=JSON` into pairs of endpoint name and input.

    Raises:
        UsageError: A text does not have the form `ENDPOINT=JSON`.
    """
    pairs = [text.partition("=") for text in cli_options]
    try:
        return tuple((name, loads(text)) for name, _, text in pairs)
    except ValueError as error:
        raise UsageError(f"an example must be ENDPOINT=JSON: {error}") from None


def baseline(path: Path | None) -> dict[str, str]:
    """Read a baseline, and return the ids of requirements that are known to fail, with the reasons.

    Raises:
        UsageError: The file cannot be read, the file contains an unknown key, an entry has no reason, or an entry names
            an unknown requirement.
    """
    if path is None:
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        entries = document.get("known", [])
        known = {str(entry["sentence"]): str(entry["reason"]).strip() for entry in entries}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise UsageError(
            f"cannot read the baseline {path}: {error!r}; each [[known]] table needs `sentence` and `reason`"
        ) from None
    others = {*document} - {"known"} | {name for entry in entries for name in entry} - {"sentence", "reason"}
    if others:
        raise UsageError(
            f"unknown key in {path}: {', '.join(sorted(others))}; a [[known]] table has only `sentence` and `reason`"
        )
    for name, reason in known.items():
        if name not in specification.requirements() or not reason:
            raise UsageError(f"unknown requirement, or empty reason, in {path}: {name!r}")
    return known
