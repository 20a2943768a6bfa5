"""What is given to a run on a command line, be it the suite's own or pytest's: read, and refused where it is wrong."""

import re
import tomllib
from collections.abc import Sequence
from json import loads
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tidewire_conformance import registry, specification
from tidewire_conformance.registry import Check
from tidewire_conformance.runner import Plan
from tidewire_conformance.session import Hooks
from tidewire_conformance.wire.recording_client import Wire

Fields = tuple[tuple[str, str], ...]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")


class UsageError(ValueError):
    """Something that was given cannot be meant; says what, and what would do."""


class NothingNamedError(UsageError):
    """What was to be run is not there."""


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
    patience: float = 1.0,
    **more: Any,
) -> Plan:
    """A plan for a server.

    Args:
        url: Where it is mounted.
        header: Each `NAME: VALUE`, sent with each request.
        second_header: The same, of another caller.
        example: Each `ENDPOINT=JSON`.
        endpoint: Those to look at; all by default.
        restart: A command for a shell that kills the server and starts it again.
        expire: A command for a shell that lets the states of ended jobs expire.
        replica_url: Another replica.
        origin: One whose pages the server allows.
        patience: Multiplies each wait.
        **more: Further members of a `Plan`, as they are.

    Raises:
        UsageError: One of them is not what it should be.
    """
    address(url)
    caller, other = fields(header), fields(second_header)
    if replica_url:
        address(replica_url)
    hooks = Hooks(
        restart=restart,
        expire=expire,
        replica=Wire(replica_url, header=caller, patience=patience) if replica_url else None,
        second=Wire(url, header=other, patience=patience) if other else None,
        origin=origin,
    )
    return Plan(url, caller, hooks, tuple(endpoint), examples=examples(example), patience=patience, **more)


def chosen(only: Sequence[str], skip: Sequence[str], profiles: Sequence[str] = ()) -> list[Check]:
    """The checks to run.

    Args:
        only: Areas, sentences or names (with *) of those to run; all by default.
        skip: Those to leave out.
        profiles: Those of whose sentences some has to be judged; all by default.

    Raises:
        UsageError: There is no such profile.
        NothingNamedError: A name is that of no check, or nothing is left.
    """
    known = {sentence.profile for sentence in specification.requirements().values()} - {"client"}
    if unknown := [each for each in profiles if each not in known]:
        raise UsageError(f"there is no profile {', '.join(unknown)}: there are {', '.join(sorted(known))}")
    checks = registry.checks()
    unknown = [each for each in [*only, *skip] if not any(check.is_named_by([each]) for check in checks)]
    if unknown:
        raise NothingNamedError(f"no check has the name {', '.join(unknown)}: --list tells them")
    found = [
        check
        for check in checks
        if (not only or check.is_named_by(only))
        and not check.is_named_by(skip)
        and (not profiles or check.profiles & {*profiles})
    ]
    if not found:
        raise NothingNamedError("no check is left to run: --list tells what there is")
    return found


def part(only: Sequence[str], skip: Sequence[str], profiles: Sequence[str] = ()) -> str:
    """What made a run one of a part; empty where nothing did."""
    given = {"--only": only, "--skip": skip, "--profile": profiles}
    return " ".join(f"{name} {each}" for name, words in given.items() for each in words)


def address(url: str) -> None:
    """Judge the URL of a server.

    Raises:
        UsageError: It cannot be one.
    """
    try:
        split = urlsplit(url)
        sound = split.scheme in {"http", "https"} and split.hostname and (split.port or 1)
    except ValueError as error:
        raise UsageError(f"{url!r} is no http URL: {error}") from None
    if not sound:
        raise UsageError(f"{url!r} is no http URL, such as http://127.0.0.1:8000")
    if split.username is not None:
        raise UsageError("credentials go into --header 'Authorization: …', not into the URL")
    if split.query or split.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(
            f"{url!r} has a query, a fragment, or characters to be escaped: give where the server is mounted"
        )


def fields(given: Sequence[str]) -> Fields:
    """Fields of a header.

    Raises:
        UsageError: One is none.
    """
    pairs = [text.partition(":") for text in given]
    for name, colon, value in pairs:
        if not colon or not _NAME.fullmatch(name.strip()) or not _VALUE.fullmatch(value.strip()):
            raise UsageError(
                "a header is NAME: VALUE, on one line and in visible ASCII, such as 'Authorization: Bearer a'"
            )
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


def examples(given: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """Endpoints with an input.

    Raises:
        UsageError: One is no `ENDPOINT=JSON`.
    """
    pairs = [text.partition("=") for text in given]
    try:
        return tuple((name, loads(text)) for name, _, text in pairs)
    except ValueError as error:
        raise UsageError(f"an example is ENDPOINT=JSON: {error}") from None


def baseline(path: Path | None) -> dict[str, str]:
    """Sentences that are known to fail, and why.

    Raises:
        UsageError: The file cannot be read, holds anything else, an entry has no reason, or its sentence does not exist.
    """
    if path is None:
        return {}
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
        entries = told.get("known", [])
        known = {str(entry["sentence"]): str(entry["reason"]).strip() for entry in entries}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: each [[known]] has a sentence and a reason ({error!r})") from None
    others = {*told} - {"known"} | {name for entry in entries for name in entry} - {"sentence", "reason"}
    if others:
        raise UsageError(
            f"{path}: {', '.join(sorted(others))} means nothing here: each [[known]] has a sentence and a reason alone"
        )
    for name, reason in known.items():
        if name not in specification.requirements() or not reason:
            raise UsageError(f"{path}: {name!r} is no sentence of the specification, or has no reason")
    return known
