"""One fault shows in many checks and breaks many sentences: what belongs together is told once.

two failures are one symptom where                          | since
------------------------------------------------------------+---------------------------------------------------------
they expected and got the same                              | it is the same, wherever it was seen
they are of one check of a server, and expected the same    | it was seen several times
they are of one scenario for a client, whatever the variant | it is one conversation: what comes later follows from it

A symptom is told under the sentence that says best what is wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidewire_conformance.judging.grade import Report, RequirementResult
from tidewire_conformance.judging.verdict import Assertion, Outcome, Verdict

PER_SENTENCE = 2
"""Symptoms that are told whole under one sentence, and what was expected in one symptom."""

Failure = tuple[Verdict, Assertion]


@dataclass
class Symptom:
    """Failures that are one."""

    failures: list[Failure] = field(default_factory=list)
    shown: list[Failure] = field(default_factory=list)
    """Those that are told whole: of one check and one sentence."""

    @property
    def others(self) -> list[str]:
        """Checks that show it beside the one that is told."""
        names = dict.fromkeys(verdict.check for verdict, _ in self.failures)
        return [name for name in names if name not in {verdict.check for verdict, _ in self.shown}]

    @property
    def sentences(self) -> list[str]:
        """The sentences that it breaks."""
        return sorted({assertion.requirement for _, assertion in self.failures})


@dataclass
class Section:
    """A sentence, with the symptoms that are told under it."""

    standing: RequirementResult
    symptoms: list[Symptom]
    left_out: list[Failure]
    """Failures of this sentence that belong to no symptom that is told."""
    times_more: int
    """How often it was found broken beside what is shown."""


def ordered(report: Report) -> list[RequirementResult]:
    """What is broken, that sentence first which says best where.

    It is the one whose checks are most nearly those that failed: one that few checks judge, or of which all failed. A
    sentence that half the suite judges is broken by every fault, and says little of any. A scenario for a client is
    written for the sentence that it names first: where that is broken it goes before those that are broken beside it.
    Those that the baseline knows come later, and advice last.
    """
    found = [*report.failures, *report.warnings]
    failed = {verdict.check for standing in found for verdict, _ in standing.broken}
    scenarios = {_scenario(name) for name in failed}

    def rank(standing: RequirementResult) -> tuple[bool, bool, bool, float, bool, int, int]:
        broken = {verdict.check: verdict for verdict, _ in standing.broken}
        own = {_scenario(name) for name in broken}
        judged = {_scenario(verdict.check) for verdict in standing.verdicts}
        is_first = any(verdict.requirements[:1] == (standing.requirement.id,) for verdict in broken.values())
        # Where a scenario fails at the servers of all variants, it is no variant that matters.
        twins = sum(_scenario(name) in own for name in failed) - len(broken)
        return (
            standing.outcome is Outcome.WARN,
            standing.requirement.id in report.known,
            not is_first and any(assertion.transcript for _, assertion in standing.broken),
            -len(own) / (len(scenarios) + len(judged)),
            not is_first,
            twins,
            -len(standing.broken),
        )

    return sorted(found, key=rank)


def sections(report: Report) -> Iterator[Section]:
    """What is broken, each symptom once; a sentence without a section is named at a symptom of another one."""
    standings = ordered(report)
    symptom_of = _symptoms(report, standings)
    told: set[int] = set()
    for standing in standings:
        new: dict[int, Symptom] = {}
        for failure in standing.broken:
            symptom = symptom_of[id(failure[1])]
            if id(symptom) not in told and (id(symptom) in new or len(new) < PER_SENTENCE):
                new[id(symptom)] = symptom
                _show(symptom, failure)
        told |= new.keys()
        if new:
            left_out = [each for each in standing.broken if id(symptom_of[id(each[1])]) not in told]
            shown = sum(len(each.shown) for each in new.values())
            yield Section(standing, [*new.values()], left_out, len(standing.broken) - shown)


def _show(symptom: Symptom, failure: Failure) -> None:
    """Tell it whole, where it is of the check that is told, and says something new."""
    said = {assertion.expected for _, assertion in symptom.shown}
    same = not symptom.shown or symptom.shown[0][0] is failure[0]
    if same and len(symptom.shown) < PER_SENTENCE and failure[1].expected not in said:
        symptom.shown.append(failure)


def _symptoms(report: Report, standings: list[RequirementResult]) -> dict[int, Symptom]:
    """The symptom of each failure, by the identity of its assertion."""
    by_key: dict[tuple[object, ...], Symptom] = {}
    for standing in standings:
        known = standing.requirement.id in report.known
        for verdict, assertion in standing.broken:
            keys = (
                (known, "said", assertion.expected, assertion.got),
                (known, "seen", _scenario(verdict.check), "" if assertion.transcript else assertion.expected),
            )
            one, other = (by_key.get(key) for key in keys)
            symptom = one or other or Symptom()
            if one and other and one is not other:
                one.failures += other.failures
                by_key.update((key, one) for key, each in [*by_key.items()] if each is other)
            symptom.failures.append((verdict, assertion))
            by_key.update(dict.fromkeys(keys, symptom))
    return {id(each): symptom for symptom in by_key.values() for _, each in symptom.failures}


def _scenario(check: str) -> str:
    """The name without its area, which for a client is the variant that the server played."""
    return check.partition(".")[2] or check
