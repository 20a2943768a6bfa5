"""Grade of a run: the result for each requirement, and whether all requirements of a profile hold.

A requirement counts toward its profile if a check covers it and the server declares the feature that the requirement is
about. The requirement holds if at least one check judged it and no check found a violation. If the server declares a
feature that could not be tested, the requirements for that feature do not hold.

verdicts of the checks that cover a requirement        | result for the requirement
-------------------------------------------------------+--------------------------------------------------------
one found a violation                                  | fail or warn
one judged it                                          | the worst of the outcomes
none judged it, one failed at another requirement      | skipped, blocked: counts, does not hold
none judged it, one was blocked or untested            | skipped, blocked or untested: counts, does not hold
none judged it, not declared or no occasion            | skipped, not declared or no occasion: does not count

The requirements of the profile `stream` count toward `core`, too. A server is graded with the first of `core` and `stream`
of which no requirement failed. If the suite could not try all checks of this profile, the grade says how many.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidewire_conformance import specification
from tidewire_conformance.judging.verdict import Assertion, Outcome, SkipReason, Verdict, worst
from tidewire_conformance.specification import PROFILE_PARTS, Requirement

BASES: Final = ("core", "stream")
"""Profiles of which a conformant server must meet at least one, the larger one first."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of a run that appear in the report."""

    seed: int = 0
    """Seed for the random choices of the checks, or for the order in which the scenarios are played."""
    repeat: int = 1
    patience: float = 1.0
    budget: float = 300.0
    """Time, in seconds, after which no further check or scenario starts."""


# No generated repr: `asyncio.run` may format the repr of a task's result, which would include all recorded bytes.
@dataclass(repr=False)
class GradedRun:
    """Completed run of checks against a server, or of scenarios with a client."""

    plan: Settings
    subject: dict[str, str]
    """Address and name of the server or client under test."""
    profiles: list[str]
    """Profiles that the server or client claims to meet, in the order in which reports show them."""
    verdicts: list[Verdict]
    requests: int
    """Number of requests that the suite or the client sent."""
    seconds: float
    cut_short: str
    """Reason why the run ended early, or an empty string if the run was complete."""

    def profile_of(self, requirement: Requirement) -> str:
        """Return the profile toward which a requirement counts."""
        return requirement.profile


@dataclass(frozen=True)
class RequirementResult:
    """Result for one requirement, with the verdicts of the checks that cover it."""

    requirement: Requirement
    outcome: Outcome
    why: SkipReason | None
    """Reason why the requirement was not judged, or None if it was judged."""
    note: str
    verdicts: tuple[Verdict, ...]

    @property
    def counts(self) -> bool:
        """Whether the requirement is part of the grade.

        False if the server does not declare the feature, or if the condition of the requirement did not occur in the
        run.
        """
        return self.why not in {SkipReason.NOT_DECLARED, SkipReason.NO_OCCASION}

    @property
    def holds(self) -> bool:
        return self.outcome is Outcome.PASS

    @property
    def broken(self) -> list[tuple[Verdict, Assertion]]:
        """Violations of the requirement, each with the verdict of the check that found it.

        Violations from checks that list this requirement first come before all others, because these checks were
        written for the requirement.
        """
        own = sorted(self.verdicts, key=lambda verdict: verdict.requirements[:1] != (self.requirement.id,))
        return [
            (verdict, each)
            for verdict in own
            for each in verdict.broken
            if each.requirement == self.requirement.id
        ]


@dataclass(frozen=True)
class Grade:
    """Result for one profile, with the number of its requirements that hold."""

    profile: str
    held: int
    total: int
    advice_held: int
    advice_total: int
    failed: int
    """Number of requirements that failed, or whose checks ran without reaching a verdict."""
    untried: int
    """Number of checks that the suite could not try."""

    @property
    def is_whole(self) -> bool:
        return self.total > 0 and self.held == self.total

    @property
    def is_unbroken(self) -> bool:
        """Whether some requirements hold and none failed. The suite may have been unable to try the others."""
        return self.held > 0 and self.failed == 0


@dataclass(frozen=True)
class Report:
    """Graded run, as input for printing or for writing to a file."""

    run: GradedRun
    results: Mapping[str, RequirementResult]
    known: Mapping[str, str] = field(default_factory=dict)
    """Baseline, that is the ids of requirements that are known to fail, with the reasons."""
    part: str = ""
    """Description of the selected checks, or an empty string if the whole suite ran."""
    profiles: tuple[str, ...] = ()
    """Profiles for which the server is graded. By default, all profiles that it claims."""

    @property
    def grades(self) -> list[Grade]:
        """Grades of the profiles that the server or client claims."""
        found: dict[str, list[RequirementResult]] = {}
        for result in self.results.values():
            found.setdefault(self.run.profile_of(result.requirement), []).append(result)
        claimed = [each for each in self.run.profiles if not self.profiles or each in self.profiles]
        return [
            _grade(
                profile,
                [each for part in PROFILE_PARTS.get(profile, (profile,)) for each in found.get(part, ())],
            )
            for profile in claimed or self.run.profiles
        ]

    @property
    def headline(self) -> str:
        """One line with the profiles that the server or client meets, and the numbers of requirements that hold.

        An example is `core+durable · 58/58 MUST · 11/12 SHOULD`. The line begins with `core (3 checks not tried)` if
        no requirement of the profile failed and the suite could not try three checks, and with `no profile` if
        requirements of both `core` and `stream` failed.
        """
        met = self.met
        # Every requirement of `stream` is counted once, with `core`.
        chosen = met or [each for each in self.grades if each.profile != "stream"] or self.grades
        held, total = sum(each.held for each in chosen), sum(each.total for each in chosen)
        advice = sum(each.advice_held for each in chosen), sum(each.advice_total for each in chosen)
        names = "+".join(map(_name, met)) or "no profile"
        return f"{names} · {held}/{total} MUST · {advice[0]}/{advice[1]} SHOULD"

    @property
    def met(self) -> list[Grade]:
        """Grades of the profiles in the headline: `core` or `stream`, then the other profiles that are completely met."""
        tried = self.grades
        bases = [grade for name in BASES for grade in tried if grade.profile == name]
        unbroken = [grade for grade in bases if grade.is_unbroken]
        if self.run.cut_short or (bases and not unbroken):
            return []
        return unbroken[:1] + [each for each in tried if each.profile not in BASES and each.is_whole]

    @property
    def is_whole(self) -> bool:
        """Whether the headline names a profile, all of whose requirements were tried and hold."""
        return bool(self.met) and self.met[0].is_whole

    @property
    def failures(self) -> list[RequirementResult]:
        """Violated requirements: first those that are not in the baseline, then those that are.

        Each of these two groups is sorted by the number of violations, the largest number first.
        """
        found = [each for each in self.results.values() if each.outcome is Outcome.FAIL]
        return sorted(found, key=lambda each: (each.requirement.id in self.known, -len(each.broken)))

    @property
    def warnings(self) -> list[RequirementResult]:
        """SHOULD requirements that the server or client violated."""
        return [each for each in self.results.values() if each.outcome is Outcome.WARN]

    @property
    def unjudged(self) -> list[RequirementResult]:
        """Requirements that count toward the grade but were not judged, so they do not hold."""
        return [each for each in self.results.values() if each.outcome is Outcome.SKIPPED and each.counts]

    @property
    def unexpected(self) -> list[RequirementResult]:
        """Requirements that failed and are not in the baseline."""
        return [each for each in self.failures if each.requirement.id not in self.known]

    @property
    def stale(self) -> list[str]:
        """Ids of requirements that hold although the baseline lists them."""
        result = {name: self.results.get(name) for name in self.known}
        return [name for name, each in result.items() if each is not None and each.outcome is Outcome.PASS]

    @property
    def known_unjudged(self) -> list[str]:
        """Ids of the selected requirements that are in the baseline, but were not judged in this run.

        These requirements may still fail.
        """
        result = {name: self.results.get(name) for name in self.known}
        return [
            name
            for name, each in result.items()
            if (each is None and not self.part) or (each is not None and each.outcome is Outcome.SKIPPED)
        ]

    @property
    def errors(self) -> list[Verdict]:
        return [each for each in self.run.verdicts if each.outcome is Outcome.ERROR]

    @property
    def exit_code(self) -> int:
        """Exit code of the command.

        0: no requirement failed, except those in the baseline. 1: another requirement failed, a requirement is
        inconclusive, or a requirement in the baseline holds. 3: the suite failed, or the run ended early. 4: nothing
        ran.
        """
        if not any(each.assertions for each in self.run.verdicts):
            return 3 if self.errors else 4
        inconclusive = [each for each in self.results.values() if each.outcome is Outcome.INCONCLUSIVE]
        if self.unexpected or self.stale or any(each.requirement.binds for each in inconclusive):
            return 1
        return 3 if self.errors or self.run.cut_short else 0


def grade(
    run: GradedRun, known: Mapping[str, str] | None = None, part: str = "", profiles: Sequence[str] = ()
) -> Report:
    """Grade a completed run.

    Args:
        run: Completed run of checks or scenarios.
        known: Ids of requirements that are known to fail, with the reasons.
        part: Description of the selected checks. It is empty for the whole suite.
        profiles: Profiles for which the server is graded. By default, all profiles that it claims.
    """
    judged: dict[str, list[Verdict]] = {}
    for verdict in run.verdicts:
        for requirement in verdict.requirements:
            judged.setdefault(requirement, []).append(verdict)
    results = {name: _result(name, judged[name]) for name in sorted(judged)}
    return Report(run, results, known or {}, part, tuple(profiles))


def _result(name: str, verdicts: list[Verdict]) -> RequirementResult:
    outcomes = [verdict.of(name) for verdict in verdicts]
    tried = [each for each in outcomes if each is not Outcome.SKIPPED]
    # A violation counts even if another check of the requirement was inconclusive or had an error.
    tried = [each for each in tried if each in {Outcome.FAIL, Outcome.WARN}] or tried
    reasons = {_skip_reason(verdict) for verdict in verdicts}
    why = None if tried else next(each for each in _REASON_PRIORITY if each in reasons)
    notes = [verdict.note for verdict in verdicts if verdict.note]
    if why is SkipReason.BLOCKED:
        notes += [
            f"{each.check} failed at another requirement" for each in verdicts if each.outcome is Outcome.FAIL
        ]
    return RequirementResult(
        requirement=specification.requirements()[name],
        outcome=worst(tried) if tried else Outcome.SKIPPED,
        why=why,
        note="; ".join(dict.fromkeys(notes)),
        verdicts=tuple(verdicts),
    )


_REASON_PRIORITY = (SkipReason.BLOCKED, SkipReason.UNTESTED, SkipReason.NOT_DECLARED, SkipReason.NO_OCCASION)
"""Skip reasons by priority. If several checks skipped a requirement, the reason that comes first in this tuple counts.
"""


def _skip_reason(verdict: Verdict) -> SkipReason:
    """Return the reason why a check did not judge one of its requirements."""
    if verdict.outcome is Outcome.FAIL:
        return SkipReason.BLOCKED
    return verdict.why or SkipReason.NO_OCCASION


def _grade(profile: str, results: Iterable[RequirementResult]) -> Grade:
    own = [each for each in results if each.counts]
    must = [each for each in own if each.requirement.binds]
    should = [each for each in own if each.requirement.level.startswith("SHOULD")]
    return Grade(
        profile,
        sum(each.holds for each in must),
        len(must),
        sum(each.holds for each in should),
        len(should),
        sum(not each.holds and each.outcome is not Outcome.SKIPPED for each in must),
        len({verdict.check for each in must if not each.holds for verdict in each.verdicts}),
    )


def _name(grade: Grade) -> str:
    if grade.is_whole:
        return grade.profile
    return f"{grade.profile} ({grade.untried} check{'s' * (grade.untried != 1)} not tried)"
