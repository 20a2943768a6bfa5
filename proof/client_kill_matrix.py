"""Kill matrix of clients: plays every scenario with every faulty client.

Writes docs/proof/faulty-clients.md.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from proof.clients.faulty_client import FaultyClient, all_faulty_clients, words_of
from proof.kill_matrix import run_matrix
from proof.reimplementations.plain_adapter import PlainAdapter
from proof.reimplementations.plain_client import PlainClient
from tidewire_conformance import specification
from tidewire_conformance.clients.scenarios import Scenario, load_all
from tidewire_conformance.clients.scenarios.play_all_scenarios import ScenarioPlan, ScenarioRun, run
from tidewire_conformance.clients.scenarios.scenario_to_verdict import name_of
from tidewire_conformance.judging.grade import grade
from tidewire_conformance.judging.verdict import Outcome

LONG = 15.0
"""Time limit in seconds. A scenario with a longer limit is played only with the faulty clients that it has to notice."""

HEAD = """# Faulty clients: the proof of the scenarios

`make proof` generates this page. It plays every scenario of the conformance suite with each of the clients below. The
*plain client* is a correct client that was written from the specification alone. A *faulty client* is the plain client
with one method or part changed. A faulty client is *noticed* if the named scenario reports the requirement that the
client breaks, and if another scenario, unrelated to the fault, reports nothing. A client whose fault is that it is slow
plays only these two scenarios. A requirement is *tested* if a client that breaks the requirement was noticed.

"""
NOT_BROKEN = {
    "TW-CLI-056": "it grants a permission, and its scenario accepts clients that use the permission and clients that do not",
}
"""Requirements that scenarios judge but that no client can break, with the reasons."""


@dataclass(frozen=True)
class ClientRow:
    """Result of the suite for one faulty client."""

    name: str
    fault: str
    """Reason why the proof fails for this client; empty if exactly the expected failure was reported."""
    red: dict[str, list[str]]
    """Scenarios that the client fails, with the requirements that each reports."""

    @property
    def breaks(self) -> str:
        """The requirement that the client is designed to break."""
        return _breaks(CLIENTS[self.name])


SCENARIOS = load_all()
CLIENTS: dict[str, type[FaultyClient]] = {client.__name__: client for client in all_faulty_clients()}


def judge_client(name: str) -> ClientRow:
    """Play every scenario with a faulty client."""
    client = CLIENTS[name]
    chosen = [each for each in SCENARIOS if each.patience < LONG or each.name == client.scenario]
    # Do not measure time while three hundred other scenarios run: the load would change the result.
    if getattr(client, "kind", "") == "pace":
        chosen = [each for each in chosen if each.name in {client.scenario, client.control}]
    return _judged(client, chosen)


def judge_client_briefly(name: str) -> ClientRow:
    """Play two scenarios with a faulty client: the one that must notice the fault, and one that is unrelated to the fault."""
    client = CLIENTS[name]
    return _judged(client, [each for each in SCENARIOS if each.name in {client.scenario, client.control}])


def main(options: argparse.Namespace) -> int:
    """Run the kill matrix of clients. The plain client itself must pass every scenario."""
    code = run_matrix("clients", CLIENTS, _judge_all, _restore, _page, options)
    if code == 2 or options.list or options.page:
        return code
    failed = _red(_run(PlainClient, [each for each in SCENARIOS if each.patience < LONG]))
    if failed:
        print(f"the plain client fails {', '.join(failed)}")
    return code or int(bool(failed))


def _judge_all(names: list[str], at_once: int) -> list[ClientRow]:
    began = time.monotonic()
    rows = []
    with ProcessPoolExecutor(at_once) as pool:
        for row in pool.map(judge_client, names):
            rows.append(row)
            result = row.fault or f"noticed, fails {len(row.red)} scenarios"
            print(f"{time.monotonic() - began:6.1f} s  {row.name}: {result}", flush=True)
    # On a busy machine, the suite can miss a timing fault. If the fault of a client was not noticed, judge the client
    # again, one client at a time.
    return [judge_client(row.name) if row.fault else row for row in rows]


def _restore(rows: list[dict[str, Any]]) -> list[ClientRow]:
    return [ClientRow(**each) for each in rows if each["name"] in CLIENTS]


def _judged(client: type[FaultyClient], chosen: list[Scenario]) -> ClientRow:
    found = _run(client, chosen)
    return ClientRow(client.__name__, _fault(client, found), _red(found))


def _run(client: type, chosen: list[Scenario]) -> ScenarioRun:
    return run(ScenarioPlan(client.__name__, lanes=48, budget=3600), chosen, PlainAdapter(client))


def _red(found: ScenarioRun) -> dict[str, list[str]]:
    bad = (verdict for verdict in found.verdicts if verdict.outcome in {Outcome.FAIL, Outcome.WARN})
    return {verdict.check: sorted({each.requirement for each in verdict.broken}) for verdict in bad}


def _breaks(client: type) -> str:
    own = next(each for each in SCENARIOS if each.name == client.scenario)
    return client.breaks or own.requirements[0]


def _fault(client: type, found: ScenarioRun) -> str:
    at = {name.partition(".")[2]: broken for name, broken in _red(found).items()}
    if _breaks(client) not in at.get(client.scenario, ()):
        return "not noticed"
    if client.control in at:
        return f"{client.control} fails"
    report = grade(found)
    return "" if report.exit_code in {0, 1} else f"exit code {report.exit_code}"


def _page(rows: list[ClientRow]) -> str:
    noticed = [row for row in rows if not row.fault]
    proved = {row.breaks for row in noticed}
    named = {requirement for scenario in SCENARIOS for requirement in scenario.requirements}
    lines = [
        f"- The suite tested {len(rows)} faulty clients, and noticed {len(noticed)} of them.",
        f"- The suite has {len(SCENARIOS)} scenarios, which judge {len(named)} requirements. For {len(proved & named)} of these requirements, a faulty client was noticed that breaks the requirement.",
        *(
            f"- The requirement {name} is not tested: {NOT_BROKEN.get(name, 'there is no stated reason')}."
            for name in sorted(named - proved)
        ),
        "",
        "| client | noticed by | breaks | other requirements in that scenario | failed scenarios | |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (_own(row), row.name)):
        others = {*row.red.get(_own(row), ())} & specification.requirements().keys() - {row.breaks}
        mark = row.fault or "✓"
        words, also = words_of(row.name), " ".join(sorted(others))
        lines.append(f"| {words} | `{_own(row)}` | {row.breaks} | {also} | {len(row.red)} | {mark} |")
    return HEAD + "\n".join(lines) + "\n"


def _own(row: ClientRow) -> str:
    return next(name_of(each) for each in SCENARIOS if each.name == CLIENTS[row.name].scenario)
