"""Scenario player, which runs a client against the server of each scenario and judges the recorded conversation."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidewire_conformance import specification
from tidewire_conformance.clients.scenarios.client_adapter import (
    Adapter,
    AdapterDiedError,
    AdapterError,
    AdapterHungError,
)
from tidewire_conformance.clients.scenarios.conversation import ClientRun, Conversation
from tidewire_conformance.clients.scenarios.judge_conversation import judge
from tidewire_conformance.clients.scenarios.scenario import JOB, JOB_2, Finding, Members, Scenario
from tidewire_conformance.clients.scenarios.scenario_server import ScenarioServer
from tidewire_conformance.judging.verdict import Outcome

_CLOSE_TIMEOUT = 2.0
"""Time, in seconds, that a client may take to close its connections after its last report."""

_NOT_SENT = frozenset({"resume", "end", "chunk", "prompt"})
"""Members of an action that are not part of the command for the client."""

_numbers = itertools.count(1)


@dataclass(frozen=True)
class ScenarioVerdict:
    """Result of one scenario that was played with one client."""

    scenario: Scenario
    client: str
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    note: str = ""
    conversation: Conversation = field(default_factory=Conversation)


def play(scenario: Scenario, adapter: Adapter, *, patience: float = 1.0) -> ScenarioVerdict:
    """Play one scenario and judge the client by its requests and reports.

    Args:
        scenario: Scenario to play.
        adapter: Client under test.
        patience: Factor that multiplies all time limits for the client. Minimum waits stay the same.
    """
    missing = scenario.needs - adapter.traits
    if missing:
        note = f'the list "can" in the client\'s introduction does not contain: {", ".join(sorted(missing))}'
        return ScenarioVerdict(scenario, adapter.name, Outcome.SKIPPED, note=note)
    seconds = scenario.patience * patience
    with ScenarioServer(scenario, patience=seconds / 2) as server:
        conversation = server.conversation
        conversation.bound_factor = max(1.0, patience)
        try:
            for action in scenario.actions:
                _run_action(action, server, adapter, seconds)
                if conversation.runs[-1].hung or conversation.runs[-1].died:
                    break
        except AdapterDiedError:
            # The program exited while it was running several commands. Run this command again alone to find the cause.
            return play(scenario, adapter, patience=patience)
        except AdapterError as error:
            return ScenarioVerdict(
                scenario, adapter.name, Outcome.ERROR, note=str(error), conversation=conversation
            )
        _wait_after_end(scenario, server)
    findings = tuple(judge(scenario, conversation))
    return ScenarioVerdict(scenario, adapter.name, _outcome(findings), findings, conversation=conversation)


def _run_action(action: Members, server: ScenarioServer, adapter: Adapter, seconds: float) -> None:
    runs = server.conversation.runs
    command = _command(action, server.url, runs)
    run = ClientRun(command, first_request=len(server.conversation.requests))
    runs.append(run)
    server.begin_action(action)
    reports = specification.validator("scenario", "report")

    def on_report(report: Mapping[str, Any]) -> None:
        for error in reports.iter_errors(report):
            raise AdapterError(f"{report!r} is not a valid report: {error.message[:200]}")
        if report["id"] != command["id"]:
            raise AdapterError(
                f"the client wrote a report for {report['id']!r} while the command {command['id']!r} was running"
            )
        server.add_report(run, report)

    try:
        adapter.run(command, on_report, seconds)
    except AdapterHungError:
        run.hung = True
    except AdapterDiedError as error:
        if error.shared:
            raise
        run.died = str(error)
    else:
        if run.end is None:
            raise AdapterError("the client's last report contains no end")


def _command(action: Members, url: str, runs: list[ClientRun]) -> dict[str, Any]:
    command = {name: value for name, value in action.items() if name not in _NOT_SENT}
    command |= {"op": "run", "id": f"c{next(_numbers)}", "base_url": url}
    if action["do"] == "open":
        command["url"] = f"{url}/events"
    if action["do"] == "follow":
        command.setdefault("job", "{job}")
    for name in ("job", "then_job"):
        if name in command:
            command[name] = command[name].replace("{job}", JOB).replace("{job2}", JOB_2)
    if action.get("resume"):
        end = runs[-1].end or {}
        if "checkpoint" not in end:
            raise AdapterError(
                "the client reported no checkpoint at the end of its previous command, so it cannot resume"
            )
        command["checkpoint"] = end["checkpoint"]
    if action["do"] == "submit":
        command.setdefault("endpoint", "demo")
        if "inputs" not in command:
            command.setdefault("input", {})
    return command


def _wait_after_end(scenario: Scenario, server: ScenarioServer) -> None:
    """Wait after the last report, to record whether the client closes its connections or sends further requests."""
    requests = server.conversation.requests
    server.wait(
        lambda: all(request.closed for request in requests if (request.exchange or {}).get("closes")),
        _CLOSE_TIMEOUT,
    )
    quiet = scenario.expect.get("quiet_ms", 0) / 1000
    count = len(requests)
    if quiet:
        server.wait(lambda: len(requests) > count, quiet)


def _outcome(findings: tuple[Finding, ...]) -> Outcome:
    if not findings:
        return Outcome.PASS
    known = specification.requirements()
    levels = {known[rule].level for finding in findings for rule in finding.rules if rule in known}
    return Outcome.WARN if levels and levels <= {"SHOULD", "SHOULD NOT", "MAY"} else Outcome.FAIL
