"""Draws wrong servers and wrong clients, and writes the reports that a reader has to name the faults from.

python blind_reading.py --out REPORTS --key KEY.json [--seed N] [--servers 12] [--clients 8]

Each gets a number and the whole suite; its report for the console goes into REPORTS, and which it was into KEY.json
alone. The draw follows from the seed, which is printed, and from the wrong servers and clients that there are. That no
report holds the name of what it is about is checked as it is written.
"""

import argparse
import asyncio
import json
import random
import re
import secrets
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rich.console import Console

from conformance.adapters import PlainAdapter
from conformance.suite.killing import plan
from conformance.suite.mutants import MUTANTS
from conformance.suite.stage import Nursery
from conformance.wrong_clients import all_wrong
from tidewire_conformance import registry
from tidewire_conformance.client_mode import run as client_run
from tidewire_conformance.client_mode.command import choose
from tidewire_conformance.grade import Report, grade
from tidewire_conformance.report import console
from tidewire_conformance.runner import run

COLUMNS = 120
"""Of a report."""


def main() -> int:
    """Draw, judge and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--servers", type=int, default=12)
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    key = {}
    with Nursery() as nursery:
        for number, (kind, name) in enumerate(drawn(options.seed, options.servers, options.clients), 1):
            began = time.monotonic()
            report = of_server(nursery, name) if kind == "server" else of_client(name)
            text = told(report)
            assert not _names(name).search(text), f"number {number}: the report holds the name"
            (options.out / f"{number:02}.txt").write_text(text, encoding="utf-8")
            key[f"{number:02}"] = {"kind": kind, "name": name, "about": about(kind, name)}
            options.key.write_text(json.dumps(key, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(f"{time.monotonic() - began:6.1f} s  {number:02}", flush=True)
    return 0


def drawn(seed: int, servers: int, clients: int) -> list[tuple[str, str]]:
    """Kinds and names, in the order of their numbers."""
    rng = random.Random(seed)
    wrong = sorted(name for name, mutant in MUTANTS.items() if mutant.check)
    found = [("server", name) for name in rng.sample(wrong, servers)]
    found += [("client", name) for name in rng.sample(sorted(each.__name__ for each in all_wrong()), clients)]
    rng.shuffle(found)
    return found


def about(kind: str, name: str) -> str:
    """What is wrong, in words."""
    if kind == "server":
        return MUTANTS[name].about
    return re.sub(r"(?<=.)([A-Z])", lambda match: f" {match[1].lower()}", name)


def of_server(nursery: Nursery, name: str) -> Report:
    """The whole suite against a wrong server."""
    checks = registry.checks()
    with nursery.staged(name) as url:
        return grade(asyncio.run(run(plan(url, budget=120), checks)), checks)


def of_client(name: str) -> Report:
    """Every scenario with a wrong client, which is called a client and no more."""
    adapter = PlainAdapter(next(each for each in all_wrong() if each.__name__ == name))
    adapter.name = "a client"
    found = client_run.run(client_run.Plan("CLIENT", budget=240), choose([], [], []), adapter)
    return grade(found, found.trials)


def told(report: Report) -> str:
    """The report as a terminal shows it."""
    screen = Console(width=COLUMNS, highlight=False, no_color=True)
    with screen.capture() as capture:
        console.show(report, screen)
    return capture.get()


def _names(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name) if "_" in name or name != name.lower() else rf"\b{name}\b")


if __name__ == "__main__":
    sys.exit(main())
