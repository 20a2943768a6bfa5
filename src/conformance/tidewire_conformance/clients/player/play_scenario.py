"""Plays scenarios: lets a client meet the server of each, and judges what came of it."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from tidewire_conformance import specification
from tidewire_conformance.clients.player.client_adapter import (
    Adapter,
    AdapterDiedError,
    AdapterError,
    AdapterHungError,
)
from tidewire_conformance.clients.player.client_judge import Finding, judge
from tidewire_conformance.clients.player.conversation import ClientRun, Conversation
from tidewire_conformance.clients.player.scenario import JOB, JOB_2, Members, Scenario
from tidewire_conformance.clients.player.scenario_server import Adversary
from tidewire_conformance.judging.verdict import Outcome

WORKERS = 16
"""Scenarios that are played at the same time: most of their time is spent waiting."""
_CLOSES_WITHIN = 2.0
"""Seconds that a client has to close a connection, once it has reported its end."""

_numbers = itertools.count(1)


@dataclass(frozen=True)
class ScenarioVerdict:
    """How one client met one scenario."""

    scenario: Scenario
    client: str
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    note: str = ""
    conversation: Conversation = field(default_factory=Conversation)


def play(scenario: Scenario, adapter: Adapter, *, patience: float = 1.0) -> ScenarioVerdict:
    """Play one scenario.

    Args:
        scenario: What to play.
        adapter: The client under test.
        patience: A factor to all time that a client may take; what it has to wait at least stays as it is.
    """
    lacking = scenario.needs - adapter.traits
    if lacking:
        note = f"the client does not say that it can: {', '.join(sorted(lacking))}"
        return ScenarioVerdict(scenario, adapter.name, Outcome.SKIPPED, note=note)
    seconds = scenario.patience * patience
    with Adversary(scenario, patience=seconds / 2) as server:
        conversation = server.conversation
        conversation.room = max(1.0, patience)
        try:
            for action in scenario.actions:
                _act(action, server, adapter, seconds)
                if conversation.runs[-1].hung or conversation.runs[-1].died:
                    break
        except AdapterDiedError:
            # Others were at work in the same program: by itself it shows which of them ends it.
            return play(scenario, adapter, patience=patience)
        except AdapterError as error:
            return ScenarioVerdict(
                scenario, adapter.name, Outcome.ERROR, note=str(error), conversation=conversation
            )
        _let_rest(scenario, server)
    findings = tuple(judge(scenario, conversation))
    return ScenarioVerdict(scenario, adapter.name, _outcome(findings), findings, conversation=conversation)


def play_all(
    scenarios: Iterable[Scenario], adapter: Adapter, *, patience: float = 1.0, workers: int = WORKERS
) -> Iterator[ScenarioVerdict]:
    """Play many scenarios at the same time, and give each verdict when it stands; those that last begin first."""
    ordered = sorted(scenarios, key=lambda scenario: -scenario.patience)
    with ThreadPoolExecutor(workers, thread_name_prefix="player") as pool:
        verdicts: list[Future[ScenarioVerdict]] = [
            pool.submit(play, scenario, adapter, patience=patience) for scenario in ordered
        ]
        for verdict in as_completed(verdicts):
            yield verdict.result()


def _act(action: Members, server: Adversary, adapter: Adapter, seconds: float) -> None:
    runs = server.conversation.runs
    command = _command(action, server.url, runs)
    run = ClientRun(command)
    runs.append(run)
    reports = specification.validator("scenario", "report")

    def tell(report: Mapping[str, Any]) -> None:
        for error in reports.iter_errors(report):
            raise AdapterError(f"{report!r} is no report: {error.message[:200]}")
        if report["id"] != command["id"]:
            raise AdapterError(f"a report of {report['id']!r} while {command['id']!r} is under way")
        server.took(run, report)

    try:
        adapter.run(command, tell, seconds)
    except AdapterHungError:
        run.hung = True
    except AdapterDiedError as error:
        if error.shared:
            raise
        run.died = str(error)
    else:
        if run.end is None:
            raise AdapterError("the client came to no end")


def _command(action: Members, url: str, runs: list[ClientRun]) -> dict[str, Any]:
    command = {name: value for name, value in action.items() if name not in {"resume", "end"}}
    command |= {"op": "run", "id": f"c{next(_numbers)}", "base_url": url}
    if action["do"] == "follow":
        command.setdefault("job", "{job}")
    for name in ("job", "then_job"):
        if name in command:
            command[name] = command[name].replace("{job}", JOB).replace("{job2}", JOB_2)
    if action.get("resume"):
        end = runs[-1].end or {}
        if "checkpoint" not in end:
            raise AdapterError("the client gave no checkpoint to go on from")
        command["checkpoint"] = end["checkpoint"]
    if action["do"] == "submit":
        command.setdefault("endpoint", "demo")
        if "inputs" not in command:
            command.setdefault("input", {})
    return command


def _let_rest(scenario: Scenario, server: Adversary) -> None:
    """Give the client time for what it has to do, or must not do, after it has reported its end."""
    talks = server.conversation.talks
    server.wait(
        lambda: all(talk.closed for talk in talks if (talk.exchange or {}).get("closes")), _CLOSES_WITHIN
    )
    quiet = scenario.expect.get("quiet_ms", 0) / 1000
    count = len(talks)
    if quiet:
        server.wait(lambda: len(talks) > count, quiet)


def _outcome(findings: tuple[Finding, ...]) -> Outcome:
    if not findings:
        return Outcome.PASS
    known = specification.requirements()
    levels = {known[rule].level for finding in findings for rule in finding.rules if rule in known}
    return Outcome.WARN if levels and levels <= {"SHOULD", "SHOULD NOT", "MAY"} else Outcome.FAIL
