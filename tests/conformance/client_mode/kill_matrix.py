"""Every wrong client against every scenario, by the verdicts of the suite: `make conformance`.

python kill_matrix.py             all wrong clients; writes docs/reference/conformance-clients.md and, whole, as JSON
python kill_matrix.py NAME…       only these; writes nothing
"""

import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
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
from tidewire_conformance.player import load_all  # noqa: E402
from tidewire_conformance.verdict import Outcome  # noqa: E402

PAGE = TESTS.parent / "docs/reference/conformance-clients.md"
WHOLE = TESTS.parent / "bench/results/conformance-clients.json"
AT_ONCE = 4
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

    client: type
    found: Run

    @property
    def red(self) -> dict[str, list[str]]:
        """Scenarios that it fails, and the sentences that each finds broken."""
        bad = (verdict for verdict in self.found.verdicts if verdict.outcome in {Outcome.FAIL, Outcome.WARN})
        return {verdict.check: sorted({each.sentence for each in verdict.broken}) for verdict in bad}

    @property
    def breaks(self) -> str:
        """The sentence that it is made to break."""
        own = next(each for each in SCENARIOS if each.name == self.client.scenario)
        return self.client.breaks or own.requirements[0]

    @property
    def fault(self) -> str:
        """What is not as it has to be; empty where the client was noticed for its reason, and for no other."""
        at = {name.partition(".")[2]: broken for name, broken in self.red.items()}
        scenario = next(each for each in SCENARIOS if each.name == self.client.scenario)
        if self.breaks not in at.get(scenario.name, ()):
            return "not noticed"
        if self.client.control in at:
            return f"{self.client.control} is red"
        report = grade(self.found, self.found.trials)
        return "" if report.exit_code in {0, 1} else f"exit code {report.exit_code}"


SCENARIOS = load_all()


def judged(client: type) -> Row:
    chosen = [each for each in SCENARIOS if each.patience < LONG or each.name == client.scenario]
    if (
        getattr(client, "kind", "") == "pace"
    ):  # what is judged by its time is not judged beside two hundred others
        chosen = [each for each in chosen if each.name in {client.scenario, client.control}]
    return Row(client, run(Plan(client.__name__, lanes=48, budget=3600), chosen, PlainAdapter(client)))


def main() -> int:
    """Judge the clients; 1 where one was not noticed."""
    chosen = [client for client in all_wrong() if not sys.argv[1:] or client.__name__ in sys.argv[1:]]
    began = time.monotonic()
    right = judged(type("RightClient", (PlainClient,), {"scenario": "", "control": ""}))
    rows = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for row in pool.map(judged, chosen):
            # A machine that is busy makes up for haste: what was not noticed is judged once more, by itself.
            row = judged(row.client) if row.fault else row  # noqa: PLW2901
            rows.append(row)
            told = row.fault or f"noticed, red in {len(row.red)} scenarios"
            print(f"{time.monotonic() - began:6.1f} s  {row.client.__name__}: {told}", flush=True)
    if right.red:
        print(f"the client without a fault is red in {', '.join(right.red)}")
    if len(sys.argv) == 1:
        PAGE.write_text(HEAD + "\n".join(_page(rows)) + "\n", encoding="utf-8")
        WHOLE.parent.mkdir(parents=True, exist_ok=True)
        WHOLE.write_text(json.dumps({row.client.__name__: row.red for row in rows}, indent=1) + "\n")
    return 1 if right.red or any(row.fault for row in rows) else 0


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
    for row in sorted(rows, key=lambda row: (_own(row), row.client.__name__)):
        others = {*row.red.get(_own(row), ())} & specification.sentences().keys() - {row.breaks}
        mark = row.fault or "✓"
        words, also = _words(row.client.__name__), " ".join(sorted(others))
        lines.append(f"| {words} | `{_own(row)}` | {row.breaks} | {also} | {len(row.red)} | {mark} |")
    return lines


def _own(row: Row) -> str:
    return next(name_of(each) for each in SCENARIOS if each.name == row.client.scenario)


def _words(name: str) -> str:
    """`SendsNoCursor` as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z0-9])(?=[A-Z][a-z])", " ", name).lower()


if __name__ == "__main__":
    sys.exit(main())
