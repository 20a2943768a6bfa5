"""Kill matrix of servers: runs the whole suite against every faulty server and every benign variant.

Writes docs/proof/faulty-servers.md.
"""

import argparse
import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from proof.flakiness import busy_machine
from proof.kill_matrix import cell, run_matrix
from proof.servers.expected_side_failures import UNDETECTABLE
from proof.servers.faults import FAULTY_SERVERS, FaultyServer
from proof.servers.judge_server import findings_by_check, is_expected, is_noticed, judge, leading_check
from proof.unjudged_requirements import unseen
from tidewire_conformance import registry, specification

HEAD = """# Faulty servers: the proof of the checks

`make proof` generates this page. It runs the whole conformance suite against each of the servers below. A *faulty server*
is the reference server with one hook that introduces a fault. A faulty server is *noticed* if the named check reports
the named requirement and no check of another area fails, except for expected failures. A *benign variant* is a server
that is unusual but correct. It *passes* if the whole suite reports no failure.

"""


@dataclass(frozen=True)
class ServerRow:
    """Result of the suite for one faulty server or benign variant."""

    name: str
    fault: str
    """Reason why the proof fails for this server; empty if it holds."""
    red: dict[str, str]
    """Checks that failed or reached no verdict, with their findings."""
    seconds: float
    lead: str = ""
    """Check whose failure the report of the whole suite shows first."""
    runs: int = 1
    """Number of runs of the suite against this server. The other attributes describe the first run in which the proof did not
    hold or, if it always held, the last run.
    """
    held: int = 1
    """Number of runs in which the proof held."""
    busy: bool = False
    """Whether every CPU core was busy meanwhile."""


def main(options: argparse.Namespace) -> int:
    """Run the kill matrix of servers."""
    if options.times < 1:
        print("--times must be at least 1")
        return 2

    def judge_all(names: list[str], at_once: int) -> list[ServerRow]:
        with busy_machine() if options.busy else contextlib.nullcontext():
            return _judge_all(names, at_once, options.times, busy=options.busy)

    return run_matrix("servers", FAULTY_SERVERS, judge_all, _restore, page, options)


def _judge_all(names: list[str], at_once: int, times: int, *, busy: bool) -> list[ServerRow]:
    rows = []
    with ProcessPoolExecutor(at_once) as pool:
        runs = pool.map(_row, [name for name in names for _ in range(times)])
        for name in names:
            own = [next(runs) for _ in range(times)]
            row = merge_runs(own, busy=busy)
            found = row.fault or "as expected"
            if times > 1:
                found = f"as expected in {row.held} of {row.runs} runs{row.fault and '; ' + row.fault}"
            print(f"{row.seconds:6.1f} s  {name}: {found}", flush=True)
            rows.append(row)
    return rows


def merge_runs(runs: list[ServerRow], *, busy: bool) -> ServerRow:
    """Merge the results of several runs against one server. The result is the first run in which the proof did not hold."""
    shown = next((each for each in runs if each.fault), runs[-1])
    held = sum(not each.fault for each in runs)
    return replace(shown, runs=len(runs), held=held, busy=busy)


def _restore(rows: list[dict[str, Any]]) -> list[ServerRow]:
    """Restore the rows of an earlier run, and apply the current list of expected failures."""
    found = [(FAULTY_SERVERS[each["name"]], each) for each in rows if each["name"] in FAULTY_SERVERS]
    return [ServerRow(**each | {"fault": fault_of(server, each["red"])}) for server, each in found]


def _row(name: str) -> ServerRow:
    began = time.monotonic()
    server = FAULTY_SERVERS[name]
    report = judge(server, whole=True)
    lead = leading_check(report)
    red = findings_by_check(report, warnings=not server.is_benign)
    if server.is_benign and report.run.cut_short:
        red["the run"] = report.run.cut_short
    if not server.is_benign and not is_noticed(server, report):
        # A fault that delays every check can use up the time budget, so run only the checks that the fault names.
        red.pop(server.check, None)
        report = judge(server)
        if is_noticed(server, report):
            red[server.check] = findings_by_check(report, warnings=True)[server.check]
    return ServerRow(name, fault_of(server, red), red, time.monotonic() - began, lead)


def fault_of(server: FaultyServer, red: dict[str, str]) -> str:
    """Return the reason why the proof fails for a server, derived from the failed checks; empty if it holds."""
    if server.is_benign:
        return "; ".join(f"{name}: {what}" for name, what in red.items())[:300]
    if server.check not in red:
        return "not noticed"
    unexpected = [name for name in red if not is_expected(server, name)]
    return f"unexpected failure of {', '.join(unexpected)}" if unexpected else ""


def page(rows: list[ServerRow]) -> str:
    return HEAD + "\n".join(_lines(rows)) + "\n"


def _lines(rows: list[ServerRow]) -> Iterator[str]:
    found = {row.name: row for row in rows}
    faulty = [server for server in FAULTY_SERVERS.values() if not server.is_benign]
    benign = [server for server in FAULTY_SERVERS.values() if server.is_benign]
    checks = registry.checks()
    judged = {requirement for check in checks for requirement in check.requirements}
    proved = {server.check for server in faulty}
    yield f"- The suite ran against {len(faulty)} faulty servers. It noticed {_proved(found, faulty)} of them, and reported no failure that the server's fault does not explain."
    leading = sum(found[server.name].lead == server.check for server in faulty if server.name in found)
    yield f"- In {leading} of {len(faulty)} reports, the failure that the report shows first is that of the check that has to notice the fault."
    yield f"- The suite ran against {len(benign)} benign variants (unusual but correct servers). {_proved(found, benign)} of them pass."
    yield f"- The suite has {len(checks)} checks, which judge {len(judged)} requirements. For {len(proved)} of the checks, there is a faulty server that the check has to notice."
    if repeated := [row for row in rows if row.runs > 1 or row.busy]:
        busy = sum(row.busy for row in repeated)
        every = sum(row.held == row.runs for row in repeated)
        yield (
            f"- The suite ran several times against {len(repeated)} of these servers, {busy} of them with every CPU core busy. "
            f"For {every} of them, each run had the expected result. Their rows say *noticed in n of n* or *passed in n of n*."
        )
    yield from (
        "",
        "## Faulty servers",
        "",
        "| server | breaks | noticed by | other failed checks | |",
        "|---|---|---|---|---|",
    )
    for server in sorted(faulty, key=lambda server: (server.check, server.name)):
        others = (
            [name for name in found[server.name].red if name != server.check] if server.name in found else []
        )
        yield (
            f"| {cell(server.description)} | {server.requirement} | `{server.check}` | {len(others) or ''} "
            f"| {_mark(found.get(server.name), 'noticed')} |"
        )
    yield from (
        "",
        (
            "A fault can make further checks fail. The column *other failed checks* counts them. Each of them belongs to the "
            "same area as the check that has to notice the fault, judges the same requirement, or is expected to fail for the "
            "reason in the next section."
        ),
    )
    yield from (
        "",
        "## Expected failures in other areas",
        "",
        "| server | reason |",
        "|---|---|",
    )
    yield from (
        f"| {cell(server.description)} | {cell('; '.join(server.also_fails))} |"
        for server in faulty
        if server.also_fails
    )
    yield from ("", "## Benign variants", "", "| server | |", "|---|---|")
    yield from (
        f"| {cell(server.description)} | {_mark(found.get(server.name), 'passed')} |" for server in benign
    )
    yield from ("", "## Faults that the suite cannot detect", "", "| fault | reason |", "|---|---|")
    yield from (f"| {cell(fault)} | {cell(why)} |" for fault, why in UNDETECTABLE.items())
    yield from (
        "",
        "## Requirements for servers that no check judges",
        "",
        "| requirement | level | |",
        "|---|---|---|",
    )
    reasons = unseen()
    for one in specification.requirements().values():
        if one.role != "client" and one.level != "MAY" and one.id not in judged:
            yield f"| {one.id} | {one.level} | {cell(reasons.get(one.id, ''))} |"


def _proved(found: dict[str, ServerRow], servers: list[FaultyServer]) -> int:
    return sum(server.name in found and not found[server.name].fault for server in servers)


def _mark(row: ServerRow | None, verb: str) -> str:
    if row is None:
        return "not run"
    repeated = f"{verb} in {row.held} of {row.runs}" if row.runs > 1 or row.busy else ""
    mark = f"**no** {cell(row.fault)}" if row.fault else "yes"
    return f"{mark}; {repeated}" if repeated else mark
