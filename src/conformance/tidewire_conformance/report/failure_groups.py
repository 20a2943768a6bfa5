"""Grouping of failures by symptom, since one fault usually fails many checks and many requirements.

two failures share a symptom if                                | reason
---------------------------------------------------------------+------------------------------------------------------
their expected and actual results are equal                    | the same observation in several checks
a check of a server failed twice with the same expected result | the same observation, repeated
a scenario for a client failed, in any server variant          | the first failure in a conversation causes later ones

Each symptom is reported once, under the most specific requirement that it breaks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidewire_conformance.judging.grade import Report, RequirementResult
from tidewire_conformance.judging.verdict import Assertion, Outcome, Verdict

MAX_SYMPTOMS = 2
"""Maximum number of symptoms printed in full for a requirement, and of expected results for a symptom."""

Failure = tuple[Verdict, Assertion]


@dataclass
class Symptom:
    """Failures that are assumed to have the same cause."""

    failures: list[Failure] = field(default_factory=list)
    shown: list[Failure] = field(default_factory=list)
    """The failures printed in full; all belong to one check and one requirement."""

    @property
    def others(self) -> list[str]:
        """Checks with this symptom other than the printed one."""
        names = dict.fromkeys(verdict.check for verdict, _ in self.failures)
        return [name for name in names if name not in {verdict.check for verdict, _ in self.shown}]

    @property
    def requirements(self) -> list[str]:
        """Identifiers of the requirements that the symptom breaks."""
        return sorted({assertion.requirement for _, assertion in self.failures})


@dataclass
class Section:
    """A requirement with the symptoms reported under it."""

    result: RequirementResult
    symptoms: list[Symptom]
    left_out: list[Failure]
    """Failures of the requirement whose symptom is not reported anywhere."""
    omitted: int
    """Number of failures of the requirement that are not printed in full."""


def ordered(report: Report) -> list[RequirementResult]:
    """Failed requirements, most specific first.

    A requirement is specific if the checks that judge it are nearly the same as the checks that failed: few checks
    judge it, or all of them failed. Nearly every fault breaks a requirement that half the suite judges, so such a
    requirement says little about the cause. A scenario for a client is written for the first requirement that it
    names. If that requirement fails, it comes before the other requirements that the scenario breaks. Requirements in
    the baseline come after these, and SHOULD requirements last.
    """
    found = [*report.failures, *report.warnings]
    failed = {verdict.check for result in found for verdict, _ in result.broken}
    scenarios = {_scenario(name) for name in failed}

    def rank(result: RequirementResult) -> tuple[bool, bool, bool, float, bool, int, int]:
        broken = {verdict.check: verdict for verdict, _ in result.broken}
        own = {_scenario(name) for name in broken}
        judged = {_scenario(verdict.check) for verdict in result.verdicts}
        is_first = any(verdict.requirements[:1] == (result.requirement.id,) for verdict in broken.values())
        # A scenario that fails with many server variants does not fail because of the variant.
        variants_of_same = sum(_scenario(name) in own for name in failed) - len(broken)
        return (
            result.outcome is Outcome.WARN,
            result.requirement.id in report.known,
            not is_first and any(assertion.transcript for _, assertion in result.broken),
            -len(own) / (len(scenarios) + len(judged)),
            not is_first,
            variants_of_same,
            -len(result.broken),
        )

    return sorted(found, key=rank)


def sections(report: Report) -> Iterator[Section]:
    """Sections of a report: each symptom appears once.

    A requirement without a section is named at a symptom in the section of another requirement.
    """
    results = ordered(report)
    symptom_of = _symptoms(report, results)
    reported: set[int] = set()
    for result in results:
        new: dict[int, Symptom] = {}
        for failure in result.broken:
            symptom = symptom_of[id(failure[1])]
            if id(symptom) not in reported and (id(symptom) in new or len(new) < MAX_SYMPTOMS):
                new[id(symptom)] = symptom
                _show(symptom, failure)
        reported |= new.keys()
        if new:
            left_out = [each for each in result.broken if id(symptom_of[id(each[1])]) not in reported]
            shown = sum(len(each.shown) for each in new.values())
            yield Section(result, [*new.values()], left_out, len(result.broken) - shown)


def _show(symptom: Symptom, failure: Failure) -> None:
    """Print a failure in full if it belongs to the printed check and has a new expected result."""
    shown_expectations = {assertion.expected for _, assertion in symptom.shown}
    same = not symptom.shown or symptom.shown[0][0] is failure[0]
    if same and len(symptom.shown) < MAX_SYMPTOMS and failure[1].expected not in shown_expectations:
        symptom.shown.append(failure)


def _symptoms(report: Report, results: list[RequirementResult]) -> dict[int, Symptom]:
    """Map each failure to its symptom. Keys are the `id()` of the failed assertions."""
    by_key: dict[tuple[object, ...], Symptom] = {}
    for result in results:
        known = result.requirement.id in report.known
        for verdict, assertion in result.broken:
            keys = (
                (known, "same result", assertion.expected, assertion.got),
                (
                    known,
                    "same check",
                    _scenario(verdict.check),
                    "" if assertion.transcript else assertion.expected,
                ),
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
    """Name of a check without its area. For a client, the area may be a server variant."""
    return check.partition(".")[2] or check
