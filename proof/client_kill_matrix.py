"""The kill matrix of clients: every faulty client against every scenario.

Written to docs/proof/faulty-clients.md. A run of some names (`python -m proof clients NAME…`) writes nothing; with
`--merge` their rows replace those of the last run, which lie in proof/results/.
"""

import json
import re
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from proof.clients.faulty_client import FaultyClient, all_faulty_clients
from proof.reimplementations.plain_adapter import PlainAdapter
from proof.reimplementations.plain_client import PlainClient
from tidewire_conformance import specification
from tidewire_conformance.clients.client_mode.scenario_runner import ScenarioPlan, ScenarioRun, run
from tidewire_conformance.clients.client_mode.scenario_verdicts import name_of
from tidewire_conformance.clients.player import Scenario, load_all
from tidewire_conformance.judging.grade import grade
from tidewire_conformance.judging.verdict import Outcome

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/proof/faulty-clients.md"
RESULTS = ROOT / "proof/results/faulty-clients.json"
AT_ONCE = 6
"""Clients that are judged at a time, each with all scenarios: nearly all of the time is waiting."""
LONG = 15.0
"""Scenarios that may last longer are played to a client only where they have to notice it."""

HEAD = """# Faulty clients: the proof of the scenarios

Written by `make proof`, which plays every scenario to each of these clients. A faulty client is a client that was written
from the specification alone, with one method changed, or one part of it. It is *noticed* if the named scenario finds the
requirement broken that the client breaks, and a scenario that is unrelated to the fault finds nothing; one that is slow
plays these two alone. A requirement is *proved* if a client that breaks it was noticed.

"""
NOT_BROKEN = {
    "TW-CLI-056": "a permission: a client that makes no use of it is right as well, and its scenario holds both to be right",
}
"""Requirements of scenarios that no client can break → why."""


@dataclass(frozen=True)
class ClientRow:
    """The result of the suite for one faulty client."""

    name: str
    fault: str
    """Why the proof fails for this client; empty if it was noticed for its reason, and for no other."""
    red: dict[str, list[str]]
    """Scenarios that it fails → the requirements that each finds broken."""

    @property
    def breaks(self) -> str:
        """The requirement that it is made to break."""
        return _breaks(CLIENTS[self.name])


SCENARIOS = load_all()
CLIENTS: dict[str, type[FaultyClient]] = {client.__name__: client for client in all_faulty_clients()}


def judge_client(name: str) -> ClientRow:
    """Play every scenario to a faulty client."""
    client = CLIENTS[name]
    chosen = [each for each in SCENARIOS if each.patience < LONG or each.name == client.scenario]
    # What is judged by its time is not judged beside three hundred others.
    if getattr(client, "kind", "") == "pace":
        chosen = [each for each in chosen if each.name in {client.scenario, client.control}]
    return _judged(client, chosen)


def judge_client_briefly(name: str) -> ClientRow:
    """Play only the scenario that has to notice a faulty client, and the one that is unrelated to its fault."""
    client = CLIENTS[name]
    return _judged(client, [each for each in SCENARIOS if each.name in {client.scenario, client.control}])


def main(names: list[str], *, at_once: int = AT_ONCE, merge: bool = False, only_page: bool = False) -> int:
    """Judge the clients, and write the page.

    Args:
        names: The clients; all of them if it is empty.
        at_once: How many to judge at a time.
        merge: Replace the rows of `names` in the results of the last run, and write the page of all.
        only_page: Judge nothing; write the page again from the results of the last run.

    Returns:
        1 if the proof fails for one of them.
    """
    if unknown := sorted(set(names) - CLIENTS.keys()):
        print("no such faulty client:", *unknown)
        return 2
    if (merge or only_page) and not RESULTS.exists():
        print(f"no results of an earlier run in {RESULTS.relative_to(ROOT)}: run all clients first")
        return 2
    began = time.monotonic()
    right = {} if only_page else _red(_run(PlainClient, [each for each in SCENARIOS if each.patience < LONG]))
    rows = []
    with ProcessPoolExecutor(at_once) as pool:
        for row in pool.map(judge_client, [] if only_page else names or [*CLIENTS]):
            rows.append(row)
            told = row.fault or f"noticed, red in {len(row.red)} scenarios"
            print(f"{time.monotonic() - began:6.1f} s  {row.name}: {told}", flush=True)
    # A busy machine makes up for haste: judge once more, alone, what was not noticed.
    rows = [judge_client(row.name) if row.fault else row for row in rows]
    print(f"{len(rows)} clients in {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    if only_page or merge:
        again = {row.name for row in rows}
        rows += [row for row in _last_run() if row.name not in again]
    if only_page or merge or not names:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
        PAGE.write_text(HEAD + "\n".join(_page(rows)) + "\n", encoding="utf-8")
    print(*(f"{row.name}: {row.fault}" for row in rows if row.fault), sep="\n")
    if right:
        print(f"the client without a fault is red in {', '.join(right)}")
    return 1 if right or any(row.fault for row in rows) else 0


def _last_run() -> list[ClientRow]:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
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
        return f"{client.control} is red"
    report = grade(found, found.trials)
    return "" if report.exit_code in {0, 1} else f"exit code {report.exit_code}"


def _page(rows: list[ClientRow]) -> list[str]:
    noticed = [row for row in rows if not row.fault]
    proved = {row.breaks for row in noticed}
    named = {requirement for scenario in SCENARIOS for requirement in scenario.requirements}
    lines = [
        f"- {len(rows)} faulty clients, {len(noticed)} of them noticed",
        f"- {len(SCENARIOS)} scenarios about {len(named)} requirements; faulty clients prove {len(proved & named)} of them",
        *(
            f"- not proved: {name}, {NOT_BROKEN.get(name, 'for no stated reason')}"
            for name in sorted(named - proved)
        ),
        "",
        "| client | noticed by | breaks | also broken there | red in | |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (_own(row), row.name)):
        others = {*row.red.get(_own(row), ())} & specification.requirements().keys() - {row.breaks}
        mark = row.fault or "✓"
        words, also = _words(row.name), " ".join(sorted(others))
        lines.append(f"| {words} | `{_own(row)}` | {row.breaks} | {also} | {len(row.red)} | {mark} |")
    return lines


def _own(row: ClientRow) -> str:
    return next(name_of(each) for each in SCENARIOS if each.name == CLIENTS[row.name].scenario)


def _words(name: str) -> str:
    """`SendsNoCursor` as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z0-9])(?=[A-Z][a-z])", " ", name).lower()
