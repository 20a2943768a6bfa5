"""Loader for scenario files. The schema `spec/schema/scenario.schema.json` documents each member of these files."""

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidewire_conformance import specification

JOB = "2yJq8sVbT1mHkP0dXw4RcA"
JOB_2 = "Zt6wQ3uLr0eN5vB9yXc1Ks"
"""Job ids that replace the placeholders {job} and {job2} in scenarios."""

DEFAULT_PATIENCE = 10.0
"""Default time limit, in seconds, for one command to the client."""

Members = Mapping[str, Any]

REQUEST_KINDS = ("streams", "submits", "jobs", "cancels", "discoveries")
"""Kinds of requests that a scenario can answer. Each kind has a separate script of responses."""


class ScenarioError(ValueError):
    """Raised if a scenario file does not match its schema. The message contains the location and the reason."""


@dataclass(frozen=True)
class Scenario:
    """Scripted conversation between a client and a server."""

    name: str
    about: str
    requirements: tuple[str, ...]
    expect: Members
    needs: frozenset[str] = frozenset()
    actions: tuple[Members, ...] = ({"do": "follow"},)
    scripts: Mapping[str, tuple[Members, ...]] = field(default_factory=dict)
    """Scripted exchanges, by the kind of the request. If a kind has no script, the client must not send such a request."""
    discovery: Members = field(default_factory=dict)
    log: tuple[Members, ...] = ()
    patience: float = DEFAULT_PATIENCE
    """Time limit, in seconds, for one command to the client."""
    area: str = ""
    """Name of the scenario file, without its suffix."""
    late: float = 0.0
    """Delay, in seconds, before the server sends each response."""

    @property
    def is_of_any_client(self) -> bool:
        """Whether the scenario is one of the profile `sse`, for any client that reads event streams."""
        return any(action["do"] == "open" for action in self.actions)


@functools.cache
def load_all(folder: Path | None = None) -> tuple[Scenario, ...]:
    """Load all scenarios of a folder, sorted by file name. The default is `scenarios/client` in the specification.

    A folder is loaded only once, because the validation of the scenarios takes most of a second.

    Raises:
        ScenarioError: A file does not match its schema, or two scenarios have the same name.
    """
    folder = folder or specification.folder() / "scenarios" / "client"
    found = tuple(scenario for file in sorted(folder.glob("*.json")) for scenario in load(file))
    names = [scenario.name for scenario in found]
    for name in names:
        if names.count(name) > 1:
            raise ScenarioError(f"two scenarios have the name {name!r}; rename one of them")
    return found


def load(file: Path) -> list[Scenario]:
    """Load the scenarios of one file.

    Raises:
        ScenarioError: The file does not match its schema, or refers to an undefined part.
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
            raise ScenarioError(f'undefined part {step["use"]!r}; add it to "parts" in the scenario file')


@dataclass(frozen=True)
class Finding:
    """Failure of the client in a scenario."""

    kind: str
    """Category: cursor, path, header, wait, drawn, repeat, count, foreign, open, pace, hung, died, promptness,
    end, problem, value, again, text, retracted, order, never, kept, items, incomplete, secret; of event streams also
    events, id, retry, late."""
    rules: tuple[str, ...]
    """Ids of the requirements that fail."""
    expected: str
    got: str
    unsent: str = ""
    """Id of the requirement to send a cursor or request, if the failure is that the client did not send it."""
