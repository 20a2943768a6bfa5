"""Runs the suite against a mutant: whether the check that it names notices, by the sentence that it names."""

import asyncio
from collections.abc import Sequence

from conformance.suite.mutants import Mutant
from conformance.suite.stage import ALICE, BOB, ORIGIN, Nursery, expiry_of, replica_of, restart_of
from tidewire_conformance import registry
from tidewire_conformance.grade import Report, grade
from tidewire_conformance.registry import Check
from tidewire_conformance.runner import Plan, run
from tidewire_conformance.session import Hooks
from tidewire_conformance.verdict import Outcome
from tidewire_conformance.wire import Wire

BUDGET = 40.0
"""Seconds after which no further check of a mutant begins: what it has broken may keep each of them waiting."""
WHOLE_BUDGET = 240.0
"""The same for a server that is only unusual: of it nothing may be left out."""
CALLER = (("Authorization", f"Bearer {ALICE}"),)


def plan(url: str, budget: float = 60.0) -> Plan:
    """All that the suite can be given of the stage."""
    other = Wire(url, header=[("Authorization", f"Bearer {BOB}")])
    hooks = Hooks(restart_of(url), expiry_of(url), Wire(replica_of(url), header=CALLER), other, ORIGIN)
    return Plan(url, CALLER, hooks, budget=budget)


def report_of(url: str, checks: Sequence[Check], budget: float = 60.0) -> Report:
    """Run checks against a stage."""
    return grade(asyncio.run(run(plan(url, budget), checks)), checks)


def named(mutant: Mutant) -> list[Check]:
    """The check that has to notice, and those beside it."""
    return [check for check in registry.checks() if check.name in {mutant.check, *mutant.beside}]


def is_killed(mutant: Mutant, report: Report) -> bool:
    """Whether the check noticed, for the reason that is stated."""
    verdict = next(each for each in report.run.verdicts if each.check == mutant.check)
    return mutant.sentence in {each.sentence for each in verdict.broken}


def red(report: Report) -> list[str]:
    """Checks that found something broken that a MUST forbids, or could not judge."""
    return [f"{name}: {what}" for name, what in reds(report).items()]


def reds(report: Report, *, warnings: bool = False) -> dict[str, str]:
    """The same by their names, with what each found; on demand also what a SHOULD forbids."""
    bad = {Outcome.FAIL, Outcome.ERROR, Outcome.INCONCLUSIVE} | ({Outcome.WARN} if warnings else set())
    return {each.check: _why(each) for each in report.run.verdicts if each.outcome in bad}


def _why(verdict) -> str:
    return (
        "; ".join(f"{e.sentence} expected {e.expected}, got {e.got}" for e in verdict.broken[:2])
        or verdict.note
    )


def survey(nursery: Nursery, mutant: Mutant, *, whole: bool = False) -> Report:
    """Put a mutant on the stage, and run what names it, or the whole suite."""
    chosen = registry.checks() if whole or not mutant.check else named(mutant)
    with nursery.staged(mutant.name) as url:
        return report_of(url, chosen, BUDGET if mutant.check else WHOLE_BUDGET)
