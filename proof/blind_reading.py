"""Reports for a blind reading.

The program chooses faulty servers and clients at random, and writes a numbered report for each of these subjects. The whole
suite runs against each subject. The terminal report is written to a file with the subject's number. The subject's name is
written only to the key file, and the program checks that the report does not contain the name. The choice depends only on
the seed, which is printed, and on the existing faulty servers and clients.
"""

import asyncio
import json
import random
import re
import secrets
import time
from pathlib import Path

from rich.console import Console

from proof.clients.faulty_client import all_faulty_clients, words_of
from proof.reimplementations.plain_adapter import PlainAdapter
from proof.servers.faults import FAULTY_SERVERS
from proof.servers.judge_server import plan
from proof.servers.server_process import running_server
from tidewire_conformance import registry
from tidewire_conformance.clients.scenarios import play_all_scenarios as client_run
from tidewire_conformance.clients.scenarios.client_mode import choose
from tidewire_conformance.judging.grade import Report, grade
from tidewire_conformance.report import terminal_report
from tidewire_conformance.runner import run

COLUMNS = 120
"""Width of a report."""


def main(out: Path, key_file: Path, *, seed: int | None = None, servers: int = 12, clients: int = 8) -> int:
    """Choose subjects, run the suite against them, and write the reports.

    Args:
        out: Folder for the reports.
        key_file: File for the names of the subjects.
        seed: Random seed. If it is None, a seed is chosen.
        servers: Number of faulty servers to choose.
        clients: Number of faulty clients to choose.
    """
    seed = secrets.randbelow(10**6) if seed is None else seed
    print(f"seed {seed}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    key = {}
    for number, (kind, name) in enumerate(chosen_subjects(seed, servers, clients), 1):
        began = time.monotonic()
        report = of_server(name) if kind == "server" else of_client(name)
        text = console_text(report)
        assert not _names(name).search(text), f"report {number} contains the name of its subject"
        (out / f"{number:02}.txt").write_text(text, encoding="utf-8")
        about = FAULTY_SERVERS[name].description if kind == "server" else words_of(name)
        key[f"{number:02}"] = {"kind": kind, "name": name, "about": about}
        key_file.write_text(json.dumps(key, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{time.monotonic() - began:6.1f} s  {number:02}", flush=True)
    return 0


def chosen_subjects(seed: int, servers: int, clients: int) -> list[tuple[str, str]]:
    """Choose subjects. Returns pairs of a subject's kind and name, in the order of the subjects' numbers."""
    rng = random.Random(seed)
    faulty = sorted(name for name, server in FAULTY_SERVERS.items() if not server.is_benign)
    found = [("server", name) for name in rng.sample(faulty, servers)]
    found += [
        ("client", name)
        for name in rng.sample(sorted(each.__name__ for each in all_faulty_clients()), clients)
    ]
    rng.shuffle(found)
    return found


def of_server(name: str) -> Report:
    """Run the whole suite against a faulty server."""
    checks = registry.checks()
    with running_server(name) as url:
        return grade(asyncio.run(run(plan(url, budget=120), checks)))


def of_client(name: str) -> Report:
    """Play every scenario with a faulty client. In the report, the client has a neutral name."""
    adapter = PlainAdapter(next(each for each in all_faulty_clients() if each.__name__ == name))
    adapter.name = "a client"
    found = client_run.run(client_run.ScenarioPlan("CLIENT", budget=240), choose([], [], []), adapter)
    return grade(found)


def console_text(report: Report) -> str:
    """Render a report as a terminal would show it."""
    screen = Console(width=COLUMNS, highlight=False, no_color=True)
    with screen.capture() as capture:
        terminal_report.show(report, screen)
    return capture.get()


def _names(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name) if "_" in name or name != name.lower() else rf"\b{name}\b")
