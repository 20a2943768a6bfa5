"""A scenario as it was written: `spec/schema/scenario.schema.json` says what each member means."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidewire_conformance import specification

JOB = "2yJq8sVbT1mHkP0dXw4RcA"
JOB_2 = "Zt6wQ3uLr0eN5vB9yXc1Ks"
"""What {job} and {job2} stand for."""

PATIENCE = 10.0
"""Seconds that one action of a client may take, where its scenario says nothing else."""

Members = Mapping[str, Any]

LANES = ("streams", "submits", "jobs", "cancels")
"""Kinds of requests that are answered each in an order of its own."""


class ScenarioError(ValueError):
    """A file of scenarios is not what its schema demands; says where and why."""


@dataclass(frozen=True)
class Scenario:
    """One scripted conversation."""

    name: str
    about: str
    requirements: tuple[str, ...]
    expect: Members
    needs: frozenset[str] = frozenset()
    actions: tuple[Members, ...] = ({"do": "follow"},)
    lanes: Mapping[str, tuple[Members, ...]] = field(default_factory=dict)
    """Exchanges by kind of request; a kind that is not here is not expected."""
    discovery: Members = field(default_factory=dict)
    log: tuple[Members, ...] = ()
    patience: float = PATIENCE
    """Seconds."""
    area: str = ""
    """The name of its file."""
    late: float = 0.0
    """Seconds by which each answer comes late."""


def load_all(folder: Path | None = None) -> list[Scenario]:
    """All scenarios of the specification, in the order of their files.

    Raises:
        ScenarioError: A file is not what its schema demands, or a name stands twice.
    """
    place = specification.folder() / "scenarios" / "client" if folder is None else folder
    found = [scenario for file in sorted(place.glob("*.json")) for scenario in load(file)]
    names = [scenario.name for scenario in found]
    for name in names:
        if names.count(name) > 1:
            raise ScenarioError(f"{name} is the name of two scenarios")
    return found


def load(file: Path) -> list[Scenario]:
    """The scenarios of one file.

    Raises:
        ScenarioError: It is not what its schema demands.
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
        {lane: tuple(_exchanges(members[lane], parts)) for lane in LANES if lane in members},
        members.get("discovery", {}),
        tuple(_steps(members.get("log", ()), parts)),
        members.get("patience_ms", PATIENCE * 1000) / 1000,
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
            raise ScenarioError(f"there is no part {step['use']!r}")
