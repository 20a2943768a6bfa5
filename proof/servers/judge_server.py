"""Runs the suite against a faulty server, and decides whether the expected check reports the expected requirement."""

import asyncio
from collections.abc import Sequence
from fnmatch import fnmatch

from proof.servers.faults import FaultyServer
from proof.servers.server_process import ALICE, BOB, ORIGIN, expiry_of, replica_of, restart_of, running_server
from tidewire_conformance import registry
from tidewire_conformance.judging.grade import Report, grade
from tidewire_conformance.judging.verdict import Outcome
from tidewire_conformance.registry import Check
from tidewire_conformance.report.failure_groups import sections
from tidewire_conformance.runner import Plan, run
from tidewire_conformance.session import Hooks

BUDGET = 40.0
"""Seconds after which no further check of a faulty server starts, since a fault can make every check time out."""
WHOLE_BUDGET = 240.0
"""Time budget in seconds for a benign variant, long enough for every check."""
CALLER = (("Authorization", f"Bearer {ALICE}"),)
SECOND_CALLER = (("Authorization", f"Bearer {BOB}"),)


def plan(url: str, budget: float = 60.0) -> Plan:
    """Build a plan with all optional hooks: restart, expiry, second replica, second caller and allowed origin."""
    hooks = Hooks(restart_of(url), expiry_of(url), replica_of(url), SECOND_CALLER, ORIGIN)
    return Plan(url, CALLER, hooks, budget=budget)


def run_checks(url: str, checks: Sequence[Check], budget: float = 60.0) -> Report:
    """Run checks against the server at a URL."""
    return grade(asyncio.run(run(plan(url, budget), checks)))


def checks_for(server: FaultyServer) -> list[Check]:
    """Return the check that must notice a server's fault, and the checks that must run together with this check."""
    return [check for check in registry.checks() if check.name in {server.check, *server.also_run}]


def is_expected(server: FaultyServer, name: str) -> bool:
    """Whether a check other than the expected one may fail for a faulty server."""
    check = next(each for each in registry.checks() if each.name == name)
    same_area = name.partition(".")[0] == server.check.partition(".")[0]
    patterns = " ".join(server.also_fails.values()).split()
    return (
        same_area
        or server.requirement in check.requirements
        or any(fnmatch(name, pattern) for pattern in patterns)
    )


def is_noticed(server: FaultyServer, report: Report) -> bool:
    """Whether the expected check reported the expected requirement."""
    verdict = next(each for each in report.run.verdicts if each.check == server.check)
    return server.requirement in {each.requirement for each in verdict.broken}


def leading_check(report: Report) -> str:
    """Return the name of the check whose failure a report shows first, or an empty string if nothing failed."""
    first = next(sections(report), None)
    return first.symptoms[0].shown[0][0].check if first is not None else ""


def findings(report: Report) -> list[str]:
    """List the checks that reported a broken MUST, or that could not judge the server."""
    return [f"{name}: {found}" for name, found in findings_by_check(report).items()]


def findings_by_check(report: Report, *, warnings: bool = False) -> dict[str, str]:
    """Map failed or inconclusive checks to their findings.

    With `warnings`, include checks that only reported a broken SHOULD.
    """
    bad = {Outcome.FAIL, Outcome.ERROR, Outcome.INCONCLUSIVE} | ({Outcome.WARN} if warnings else set())
    return {each.check: _why(each) for each in report.run.verdicts if each.outcome in bad}


def _why(verdict) -> str:
    return (
        "; ".join(f"{e.requirement} expected {e.expected}, got {e.got}" for e in verdict.broken[:2])
        or verdict.note
    )


def judge(server: FaultyServer, *, whole: bool = False) -> Report:
    """Start a faulty server, and run the checks that must notice its fault. With `whole`, run the whole suite instead."""
    chosen = registry.checks() if whole or server.is_benign else checks_for(server)
    with running_server(server.name) as url:
        return run_checks(url, chosen, WHOLE_BUDGET if server.is_benign else BUDGET)
