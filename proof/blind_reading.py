"""Reports to be read blind: draw faulty servers and clients by chance, and write what the suite reports about each.

Each gets a number and the whole suite. Its console report goes into a folder under that number, and its name into the key
alone. The draw follows from the seed, which is printed, and from the faulty servers and clients that exist. No report may
contain the name of its subject: this is checked when it is written.
"""

import asyncio
import json
import random
import re
import secrets
import time
from pathlib import Path

from rich.console import Console

from proof.clients.faulty_client import all_faulty_clients
from proof.reimplementations.plain_adapter import PlainAdapter
from proof.servers.faults import FAULTY_SERVERS
from proof.servers.judge_server import plan
from proof.servers.server_process import ForkServer
from tidewire_conformance import registry
from tidewire_conformance.clients.client_mode import scenario_runner as client_run
from tidewire_conformance.clients.client_mode.choose_and_judge_client import choose
from tidewire_conformance.judging.grade import Report, grade
from tidewire_conformance.report import terminal_report
from tidewire_conformance.runner import run

COLUMNS = 120
"""Of a report."""


def main(out: Path, key_file: Path, *, seed: int | None = None, servers: int = 12, clients: int = 8) -> int:
    """Draw, judge and write.

    Args:
        out: The folder of the reports.
        key_file: The file of the names.
        seed: Of the draw; drawn itself if it is None.
        servers: How many faulty servers to draw.
        clients: How many faulty clients to draw.
    """
    seed = secrets.randbelow(10**6) if seed is None else seed
    print(f"seed {seed}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    key = {}
    with ForkServer() as fork_server:
        for number, (kind, name) in enumerate(drawn(seed, servers, clients), 1):
            began = time.monotonic()
            report = of_server(fork_server, name) if kind == "server" else of_client(name)
            text = console_text(report)
            assert not _names(name).search(text), f"number {number}: the report holds the name"
            (out / f"{number:02}.txt").write_text(text, encoding="utf-8")
            key[f"{number:02}"] = {"kind": kind, "name": name, "about": description_of(kind, name)}
            key_file.write_text(json.dumps(key, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(f"{time.monotonic() - began:6.1f} s  {number:02}", flush=True)
    return 0


def drawn(seed: int, servers: int, clients: int) -> list[tuple[str, str]]:
    """Kinds and names, in the order of their numbers."""
    rng = random.Random(seed)
    faulty = sorted(name for name, server in FAULTY_SERVERS.items() if not server.is_benign)
    found = [("server", name) for name in rng.sample(faulty, servers)]
    found += [
        ("client", name)
        for name in rng.sample(sorted(each.__name__ for each in all_faulty_clients()), clients)
    ]
    rng.shuffle(found)
    return found


def description_of(kind: str, name: str) -> str:
    """What is wrong with it, in words."""
    if kind == "server":
        return FAULTY_SERVERS[name].description
    return re.sub(r"(?<=.)([A-Z])", lambda match: f" {match[1].lower()}", name)


def of_server(fork_server: ForkServer, name: str) -> Report:
    """The whole suite against a faulty server."""
    checks = registry.checks()
    with fork_server.running(name) as url:
        return grade(asyncio.run(run(plan(url, budget=120), checks)), checks)


def of_client(name: str) -> Report:
    """Every scenario with a faulty client, which the report calls a client and no more."""
    adapter = PlainAdapter(next(each for each in all_faulty_clients() if each.__name__ == name))
    adapter.name = "a client"
    found = client_run.run(client_run.ScenarioPlan("CLIENT", budget=240), choose([], [], []), adapter)
    return grade(found, found.trials)


def console_text(report: Report) -> str:
    """The report as a terminal shows it."""
    screen = Console(width=COLUMNS, highlight=False, no_color=True)
    with screen.capture() as capture:
        terminal_report.show(report, screen)
    return capture.get()


def _names(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name) if "_" in name or name != name.lower() else rf"\b{name}\b")
