"""Run the suite against a faulty server: does the check that it names notice, by the requirement that it names?"""

import asyncio
from collections.abc import Sequence

from proof.servers.faults import FaultyServer
from proof.servers.server_process import ALICE, BOB, ORIGIN, ForkServer, expiry_of, replica_of, restart_of
from tidewire_conformance import registry
from tidewire_conformance.judging.grade import Report, grade
from tidewire_conformance.judging.verdict import Outcome
from tidewire_conformance.registry import Check
from tidewire_conformance.runner import Plan, run
from tidewire_conformance.session import Hooks
from tidewire_conformance.wire.recording_client import Wire

BUDGET = 40.0
"""Seconds after which no further check of a faulty server begins: its fault may keep each of them waiting."""
WHOLE_BUDGET = 240.0
"""The same for a benign variant: no check of it may be left out."""
CALLER = (("Authorization", f"Bearer {ALICE}"),)


def plan(url: str, budget: float = 60.0) -> Plan:
    """Everything that the suite can be told about the server at a URL."""
    other = Wire(url, header=[("Authorization", f"Bearer {BOB}")])
    hooks = Hooks(restart_of(url), expiry_of(url), Wire(replica_of(url), header=CALLER), other, ORIGIN)
    return Plan(url, CALLER, hooks, budget=budget)


def run_checks(url: str, checks: Sequence[Check], budget: float = 60.0) -> Report:
    """Run checks against the server at a URL."""
    return grade(asyncio.run(run(plan(url, budget), checks)), checks)


def checks_for(server: FaultyServer) -> list[Check]:
    """The check that has to notice, and those that have to run as well."""
    return [check for check in registry.checks() if check.name in {server.check, *server.also_run}]


def is_noticed(server: FaultyServer, report: Report) -> bool:
    """Whether the named check failed because of the named requirement."""
    verdict = next(each for each in report.run.verdicts if each.check == server.check)
    return server.requirement in {each.requirement for each in verdict.broken}


def findings(report: Report) -> list[str]:
    """Checks that found a MUST broken, or could not judge."""
    return [f"{name}: {found}" for name, found in findings_by_check(report).items()]


def findings_by_check(report: Report, *, warnings: bool = False) -> dict[str, str]:
    """The same by the name of the check, with what each found; with `warnings` also what a SHOULD forbids."""
    bad = {Outcome.FAIL, Outcome.ERROR, Outcome.INCONCLUSIVE} | ({Outcome.WARN} if warnings else set())
    return {each.check: _why(each) for each in report.run.verdicts if each.outcome in bad}


def _why(verdict) -> str:
    return (
        "; ".join(f"{e.requirement} expected {e.expected}, got {e.got}" for e in verdict.broken[:2])
        or verdict.note
    )


def judge(fork_server: ForkServer, server: FaultyServer, *, whole: bool = False) -> Report:
    """Start a faulty server, and run the checks that it names against it, or the whole suite."""
    chosen = registry.checks() if whole or server.is_benign else checks_for(server)
    with fork_server.running(server.name) as url:
        return run_checks(url, chosen, WHOLE_BUDGET if server.is_benign else BUDGET)
