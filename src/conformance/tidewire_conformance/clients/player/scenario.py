"""Loading of scenario files. `spec/schema/scenario.schema.json` documents each member."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidewire_conformance import specification

JOB = "2yJq8sVbT1mHkP0dXw4RcA"
JOB_2 = "Zt6wQ3uLr0eN5vB9yXc1Ks"
"""Job ids that replace the placeholders {job} and {job2}."""

DEFAULT_PATIENCE = 10.0
"""Default time limit for one action of a client, in seconds."""

Members = Mapping[str, Any]

REQUEST_KINDS = ("streams", "submits", "jobs", "cancels")
"""Kinds of requests. Each kind has its own script of responses."""


class ScenarioError(ValueError):
    """A scenario file does not match its schema; the message contains place and reason."""


@dataclass(frozen=True)
class Scenario:
    """A scripted conversation between a client and a server."""

    name: str
    about: str
    requirements: tuple[str, ...]
    expect: Members
    needs: frozenset[str] = frozenset()
    actions: tuple[Members, ...] = ({"do": "follow"},)
    scripts: Mapping[str, tuple[Members, ...]] = field(default_factory=dict)
    """Scripted exchanges by kind of request. A request of a kind without a script is a failure."""
    discovery: Members = field(default_factory=dict)
    log: tuple[Members, ...] = ()
    patience: float = DEFAULT_PATIENCE
    """Time limit for one action of the client, in seconds."""
    area: str = ""
    """Name of the scenario's file without its suffix."""
    late: float = 0.0
    """Delay before each response, in seconds."""


def load_all(folder: Path | None = None) -> list[Scenario]:
    """Load all scenarios of a folder, by default those of the specification, sorted by file name.

    Raises:
        ScenarioError: A file does not match its schema, or two scenarios have the same name.
    """
    place = specification.folder() / "scenarios" / "client" if folder is None else folder
    found = [scenario for file in sorted(place.glob("*.json")) for scenario in load(file)]
    names = [scenario.name for scenario in found]
    for name in names:
        if names.count(name) > 1:
            raise ScenarioError(f"two scenarios have the name {name!r}; rename one of them")
    return found


def load(file: Path) -> list[Scenario]:
    """Load the scenarios of one file.

    Raises:
        ScenarioError: The file does not match its schema, or uses an unknown part.
    """
    content = json.loads(file.read_text(encoding="utf-8"))
    for error in specification.validator("scenario").iter_errors(content):
        raise ScenarioError(f"{file.name} {error.json_path}: {error.message[:200]}")
    parts = content.get("parts", {})
    return [_scenario(members, parts, file.stem) for members in content["scenarios"]]


def _scenario(members: Members, parts: Mapping[str, Any], area: str) -> Scenario:
    return Scenario(
        members["name"],
        members["about"],
        tuple(members["requirements"]),
        members["expect"],
        frozenset(members.get("needs", ())),
        tuple(members.get("client", ({"do": "follow"},))),
        {kind: tuple(_exchanges(members[kind], parts)) for kind in REQUEST_KINDS if kind in members},
        members.get("discovery", {}),
        tuple(_steps(members.get("log", ()), parts)),
        members.get("patience_ms", DEFAULT_PATIENCE * 1000) / 1000,
        area,
    )


def _exchanges(exchanges: Iterable[Members], parts: Mapping[str, Any]) -> Iterator[Members]:
    for exchange in exchanges:
        if "events" in exchange:
            yield {**exchange, "events": list(_steps(exchange["events"], parts))}
        else:
            yield exchange


def _steps(steps: Iterable[Members], parts: Mapping[str, Any]) -> Iterator[Members]:
    for step in steps:
        if "use" not in step:
            yield step
        elif step["use"] in parts:
            yield from _steps(parts[step["use"]], parts)
        else:
            raise ScenarioError(f'unknown part {step["use"]!r}: add it to "parts" of the file')
