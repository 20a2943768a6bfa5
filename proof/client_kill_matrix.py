"""Every wrong client against every scenario, by the verdicts of the suite: `make conformance`.

python kill_matrix.py             all wrong clients; writes docs/reference/conformance-clients.md and, whole, as JSON
python kill_matrix.py NAME…       only these; writes nothing
"""

import json
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path.insert(0, str(TESTS))

from conformance.adapters import PlainAdapter  # noqa: E402 - found beside this file
from conformance.plain_client import PlainClient  # noqa: E402
from conformance.wrong_clients import all_wrong  # noqa: E402
from tidewire_conformance import specification  # noqa: E402
from tidewire_conformance.client_mode.run import Plan, Run, run  # noqa: E402
from tidewire_conformance.client_mode.verdicts import name_of  # noqa: E402
from tidewire_conformance.grade import grade  # noqa: E402
from tidewire_conformance.player import Scenario, load_all  # noqa: E402
from tidewire_conformance.verdict import Outcome  # noqa: E402

PAGE = TESTS.parent / "docs/reference/conformance-clients.md"
WHOLE = TESTS.parent / "bench/results/conformance-clients.json"
AT_ONCE = 6
"""Clients that are judged at a time, each with all scenarios: nearly all of the time is waiting."""
LONG = 15.0
"""Scenarios that may last longer are played to a client only where they are to catch it."""

HEAD = """# What proves the suite for clients

Written by `make conformance`, which plays every scenario to each of these clients. A wrong client is a client that was
written from the specification alone, with one method changed, or one part of it. It is *noticed* where the scenario that
is named finds the sentence broken that the client breaks, and where a scenario that has nothing to do with the fault
finds nothing; one that is slow is put before these two alone. A sentence is *proved* where a client that breaks it was
noticed.

"""
NOT_BROKEN = {
    "TW-CLI-056": "a permission: a client that makes no use of it is right as well, and its scenario holds both to be right",
}
"""Sentences of scenarios that no client can break, and why."""


@dataclass(frozen=True)
class Row:
    """One wrong client."""

    name: str
    fault: str
    """What is not as it has to be; empty where the client was noticed for its reason, and for no other."""
    red: dict[str, list[str]]
    """Scenarios that it fails, and the sentences that each finds broken."""

    @property
    def breaks(self) -> str:
        """The sentence that it is made to break."""
        return _breaks(CLIENTS[self.name])


SCENARIOS = load_all()
CLIENTS = {client.__name__: client for client in all_wrong()}


def judged(name: str) -> Row:
    """What the suite says of a wrong client."""
    client = CLIENTS[name]
    chosen = [each for each in SCENARIOS if each.patience < LONG or each.name == client.scenario]
    # What is judged by its time is not judged beside three hundred others.
    if getattr(client, "kind", "") == "pace":
        chosen = [each for each in chosen if each.name in {client.scenario, client.control}]
    found = _run(client, chosen)
    return Row(name, _fault(client, found), _red(found))


def main() -> int:
    """Judge the clients; 1 where one was not noticed."""
    chosen = [name for name in CLIENTS if not sys.argv[1:] or name in sys.argv[1:]]
    began = time.monotonic()
    right = _red(_run(PlainClient, [each for each in SCENARIOS if each.patience < LONG]))
    rows = []
    with ProcessPoolExecutor(AT_ONCE) as pool:
        for row in pool.map(judged, chosen):
            rows.append(row)
            told = row.fault or f"noticed, red in {len(row.red)} scenarios"
            print(f"{time.monotonic() - began:6.1f} s  {row.name}: {told}", flush=True)
    # A machine that is busy makes up for haste: what was not noticed is judged once more, by itself.
    rows = [judged(row.name) if row.fault else row for row in rows]
    print(f"{len(rows)} clients in {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    print(*(f"{row.name}: {row.fault}" for row in rows if row.fault), sep="\n")
    if right:
        print(f"the client without a fault is red in {', '.join(right)}")
    if len(sys.argv) == 1:
        PAGE.write_text(HEAD + "\n".join(_page(rows)) + "\n", encoding="utf-8")
        WHOLE.parent.mkdir(parents=True, exist_ok=True)
        WHOLE.write_text(json.dumps({row.name: row.red for row in rows}, indent=1) + "\n")
    return 1 if right or any(row.fault for row in rows) else 0


def _run(client: type, chosen: list[Scenario]) -> Run:
    return run(Plan(client.__name__, lanes=48, budget=3600), chosen, PlainAdapter(client))


def _red(found: Run) -> dict[str, list[str]]:
    bad = (verdict for verdict in found.verdicts if verdict.outcome in {Outcome.FAIL, Outcome.WARN})
    return {verdict.check: sorted({each.sentence for each in verdict.broken}) for verdict in bad}


def _breaks(client: type) -> str:
    own = next(each for each in SCENARIOS if each.name == client.scenario)
    return client.breaks or own.requirements[0]


def _fault(client: type, found: Run) -> str:
    at = {name.partition(".")[2]: broken for name, broken in _red(found).items()}
    if _breaks(client) not in at.get(client.scenario, ()):
        return "not noticed"
    if client.control in at:
        return f"{client.control} is red"
    report = grade(found, found.trials)
    return "" if report.exit_code in {0, 1} else f"exit code {report.exit_code}"


def _page(rows: list[Row]) -> list[str]:
    noticed = [row for row in rows if not row.fault]
    proved = {row.breaks for row in noticed}
    named = {sentence for scenario in SCENARIOS for sentence in scenario.requirements}
    lines = [
        f"- {len(rows)} wrong clients, {len(noticed)} of them noticed",
        f"- {len(SCENARIOS)} scenarios about {len(named)} sentences; wrong clients prove {len(proved & named)} of them",
        *(
            f"- not proved: {name}, {NOT_BROKEN.get(name, 'for no stated reason')}"
            for name in sorted(named - proved)
        ),
        "",
        "| client | noticed by | breaks | also broken there | red in | |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (_own(row), row.name)):
        others = {*row.red.get(_own(row), ())} & specification.sentences().keys() - {row.breaks}
        mark = row.fault or "✓"
        words, also = _words(row.name), " ".join(sorted(others))
        lines.append(f"| {words} | `{_own(row)}` | {row.breaks} | {also} | {len(row.red)} | {mark} |")
    return lines


def _own(row: Row) -> str:
    return next(name_of(each) for each in SCENARIOS if each.name == CLIENTS[row.name].scenario)


def _words(name: str) -> str:
    """`SendsNoCursor` as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z0-9])(?=[A-Z][a-z])", " ", name).lower()


if __name__ == "__main__":
    sys.exit(main())
