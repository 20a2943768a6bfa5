"""The kill matrix of servers: every faulty server and benign variant against the whole suite.

Written to docs/proof/faulty-servers.md. A run of some names (`python -m proof servers NAME…`) writes nothing; with
`--merge` their rows replace those of the last run, which lie in proof/results/.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from proof.servers.expected_side_failures import EXPECTED_SIDE_FAILURES, UNDETECTABLE, is_expected
from proof.servers.faults import FAULTY_SERVERS, FaultyServer
from proof.servers.judge_server import findings_by_check, is_noticed, judge
from proof.servers.server_process import ForkServer
from tidewire_conformance import registry, specification

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/proof/faulty-servers.md"
RESULTS = ROOT / "proof/results/faulty-servers.json"
AT_ONCE = 6
"""Servers that are judged at a time: half of the time of each is waiting."""

HEAD = """# Faulty servers: the proof of the checks

Written by `make proof`, which runs the whole suite against each of these servers. A faulty server is the reference server
with one hook. It is *noticed* if the named check finds the named requirement broken, and no check of another area fails,
apart from those that are expected to. A benign variant is unusual and conforms: it *passes* if the whole suite finds
nothing broken.

"""


@dataclass(frozen=True)
class ServerRow:
    """The result of the suite for one faulty server."""

    name: str
    fault: str
    """Why the proof fails for this server; empty if it holds."""
    red: dict[str, str]
    """Checks that found something or could not judge → what they found."""
    seconds: float


def main(names: list[str], *, at_once: int = AT_ONCE, merge: bool = False, only_page: bool = False) -> int:
    """Judge the servers, and write the page.

    Args:
        names: The servers; all of them if it is empty.
        at_once: How many to judge at a time.
        merge: Replace the rows of `names` in the results of the last run, and write the page of all.
        only_page: Judge nothing; write the page again from the results of the last run.

    Returns:
        1 if the proof fails for one of them.
    """
    if unknown := sorted(set(names) - FAULTY_SERVERS.keys()):
        print("no such faulty server:", *unknown)
        return 2
    if (merge or only_page) and not RESULTS.exists():
        print(f"no results of an earlier run in {RESULTS.relative_to(ROOT)}: run all servers first")
        return 2
    began = time.monotonic()
    rows = []
    with ProcessPoolExecutor(at_once, initializer=_start_fork_server) as pool:
        for row in pool.map(_row, [] if only_page else names or _longest_first()):
            print(f"{row.seconds:6.1f} s  {row.name}: {row.fault or 'as it should be'}", flush=True)
            rows.append(row)
    print(f"{len(rows)} servers in {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    if only_page or merge:
        again = {row.name for row in rows}
        rows += [row for row in _last_run() if row.name not in again]
    if only_page or merge or not names:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
        PAGE.write_text(HEAD + "\n".join(_page(rows)) + "\n", encoding="utf-8")
    bad = [row for row in rows if row.fault]
    print(*(f"{row.name}: {row.fault}" for row in bad), sep="\n")
    return 1 if bad else 0


def _longest_first() -> list[str]:
    """All servers, so that none that takes long remains alone at the end."""
    known = {row.name: row.seconds for row in _last_run()} if RESULTS.exists() else {}
    return sorted(FAULTY_SERVERS, key=lambda name: -known.get(name, 0.0))


def _last_run() -> list[ServerRow]:
    """The results of the last run, with their faults determined again."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    found = [(FAULTY_SERVERS[each["name"]], each) for each in rows if each["name"] in FAULTY_SERVERS]
    return [
        ServerRow(server.name, fault_of(server, each["red"]), each["red"], each["seconds"])
        for server, each in found
    ]


_FORK_SERVER: list[ForkServer] = []


def _start_fork_server() -> None:
    """Once in each process of the pool; it ends with it."""
    _FORK_SERVER.append(ForkServer().__enter__())


def _row(name: str) -> ServerRow:
    began = time.monotonic()
    server = FAULTY_SERVERS[name]
    report = judge(_FORK_SERVER[0], server, whole=True)
    red = findings_by_check(report, warnings=not server.is_benign)
    if server.is_benign and report.run.cut_short:
        red["the run"] = report.run.cut_short
    if not server.is_benign and not is_noticed(server, report):
        # A fault that holds up each check leaves no time for the last ones: run those that it names by themselves.
        red.pop(server.check, None)
        report = judge(_FORK_SERVER[0], server)
        if is_noticed(server, report):
            red[server.check] = findings_by_check(report, warnings=True)[server.check]
    return ServerRow(name, fault_of(server, red), red, time.monotonic() - began)


def fault_of(server: FaultyServer, red: dict[str, str]) -> str:
    """Why the proof fails, by the checks that failed; empty if it holds."""
    if server.is_benign:
        return "; ".join(f"{name}: {what}" for name, what in red.items())[:300]
    if server.check not in red:
        return "not noticed"
    alone = [name for name in red if not is_expected(server, name)]
    return f"found by {', '.join(alone)} as well" if alone else ""


def _page(rows: list[ServerRow]) -> Iterator[str]:
    found = {row.name: row for row in rows}
    faulty = [server for server in FAULTY_SERVERS.values() if not server.is_benign]
    benign = [server for server in FAULTY_SERVERS.values() if server.is_benign]
    checks = registry.checks()
    judged = {requirement for check in checks for requirement in check.requirements}
    proved = {server.check for server in faulty}
    yield f"- {len(faulty)} faulty servers, {_proved(found, faulty)} of them noticed, and for no other reason"
    yield f"- {len(benign)} benign variants, {_proved(found, benign)} of them pass"
    yield f"- {len(checks)} checks of {len(judged)} requirements; {len(proved)} checks are proved by a faulty server"
    yield from (
        "",
        "## Faulty servers",
        "",
        "| server | breaks | noticed by | and by | |",
        "|---|---|---|---|---|",
    )
    for server in sorted(faulty, key=lambda server: (server.check, server.name)):
        others = (
            [name for name in found[server.name].red if name != server.check] if server.name in found else []
        )
        yield (
            f"| {_cell(server.description)} | {server.requirement} | `{server.check}` | {len(others) or ''} "
            f"| {_mark(found.get(server.name))} |"
        )
    yield from (
        "",
        "*And by* counts further checks that find it: those of its own area, of its own requirement, and the expected ones below.",
    )
    yield from (
        "",
        "## Expected failures in other areas",
        "",
        "| server | why it fails there |",
        "|---|---|",
    )
    yield from (
        f"| {_cell(FAULTY_SERVERS[name].description)} | {_cell(why)} |"
        for name, (why, *_) in EXPECTED_SIDE_FAILURES.items()
    )
    yield from ("", "## Benign variants", "", "| server | |", "|---|---|")
    yield from (f"| {_cell(server.description)} | {_mark(found.get(server.name))} |" for server in benign)
    yield from ("", "## Faults that the suite cannot see", "", "| server | why |", "|---|---|")
    yield from (f"| {_cell(fault)} | {_cell(why)} |" for fault, why in UNDETECTABLE.items())
    yield from (
        "",
        "## Requirements for servers that no check judges",
        "",
        "| requirement | level | |",
        "|---|---|---|",
    )
    unseen = specification.unseen()
    for one in specification.requirements().values():
        if one.role != "client" and one.level != "MAY" and one.id not in judged:
            yield f"| {one.id} | {one.level} | {_cell(unseen.get(one.id, ''))} |"


def _proved(found: dict[str, ServerRow], servers: list[FaultyServer]) -> int:
    return sum(server.name in found and not found[server.name].fault for server in servers)


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|")


def _mark(row: ServerRow | None) -> str:
    return "not run" if row is None else f"**no** {_cell(row.fault)}" if row.fault else "yes"
