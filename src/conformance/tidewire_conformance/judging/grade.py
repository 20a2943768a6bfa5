"""What a run says of a server: sentence by sentence, and for each profile all or nothing.

A sentence counts to its profile where a check names it and the server has what it is about. It holds where it was
judged and no check found it broken. What was claimed and could not be tried does not hold: untested is not passed.

what the checks that name a sentence said of it        | the sentence
-------------------------------------------------------+--------------------------------------------------------
one of them found it broken                            | fail or warn
one of them judged it                                  | the worst of what was judged
none: one failed at another sentence and said no more  | skipped, blocked: counts, and does not hold
none: something in the way, or nothing to try it by    | skipped, blocked or untested: counts, and does not hold
none: not declared, or it passed without an occasion   | skipped, not declared or no occasion: does not count
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tidewire_conformance import specification
from tidewire_conformance.judging.verdict import Assertion, Outcome, SkipReason, Verdict, worst
from tidewire_conformance.specification import Requirement


class Settings(Protocol):
    """How a run was asked for."""

    @property
    def seed(self) -> int: ...
    @property
    def repeat(self) -> int: ...
    @property
    def patience(self) -> float: ...
    @property
    def budget(self) -> float: ...


class GradedRun(Protocol):
    """What was run: against a server, or against a client."""

    verdicts: list[Verdict]
    seconds: float
    cut_short: str
    """Why it ended before its time; empty where it did not."""

    @property
    def plan(self) -> Settings: ...
    @property
    def subject(self) -> dict[str, str]:
        """Who was judged: where it is, and what it calls itself."""

    @property
    def requests(self) -> int: ...
    @property
    def profiles(self) -> list[str]:
        """Those that it claims, in the order in which they are told."""

    def profile_of(self, sentence: Requirement) -> str:
        """The profile that a sentence counts to."""


class Named(Protocol):
    """What has a name and judges sentences."""

    @property
    def name(self) -> str: ...
    @property
    def sentences(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class RequirementResult:
    """How one sentence came out."""

    sentence: Requirement
    outcome: Outcome
    why: SkipReason | None
    """Why it was skipped."""
    note: str
    verdicts: tuple[Verdict, ...]

    @property
    def counts(self) -> bool:
        """Whether it is part of the grade: not where the server does not claim what it is about."""
        return self.why not in {SkipReason.NOT_DECLARED, SkipReason.NO_OCCASION}

    @property
    def holds(self) -> bool:
        return self.outcome is Outcome.PASS

    @property
    def broken(self) -> list[tuple[Verdict, Assertion]]:
        """What was found broken of it, each with its check: first by one that is about it before all else."""
        own = sorted(self.verdicts, key=lambda verdict: verdict.sentences[:1] != (self.sentence.id,))
        return [
            (verdict, each) for verdict in own for each in verdict.broken if each.sentence == self.sentence.id
        ]


@dataclass(frozen=True)
class Grade:
    """One profile: how many of its sentences hold."""

    profile: str
    held: int
    asked: int
    advice_held: int
    advice_asked: int

    @property
    def is_whole(self) -> bool:
        return self.asked > 0 and self.held == self.asked


@dataclass(frozen=True)
class Report:
    """What came of a run, ready to be told."""

    run: GradedRun
    standings: Mapping[str, RequirementResult]
    known: Mapping[str, str] = field(default_factory=dict)
    """Sentences that are known to fail, and why."""
    part: str = ""
    """What of the suite was run, where it was not all of it; empty where it was."""

    @property
    def grades(self) -> list[Grade]:
        """Of the profiles that are claimed."""
        found: dict[str, list[RequirementResult]] = {profile: [] for profile in self.run.profiles}
        for standing in self.standings.values():
            found.setdefault(self.run.profile_of(standing.sentence), []).append(standing)
        return [_grade(profile, found[profile]) for profile in self.run.profiles]

    @property
    def headline(self) -> str:
        """The profiles that are met, core first, such as `core+durable · 58/58 MUST · 11/12 SHOULD`."""
        tried = self.grades
        met = [grade for grade in tried if grade.is_whole] if tried[0].is_whole else []
        chosen = met or tried
        held, asked = sum(each.held for each in chosen), sum(each.asked for each in chosen)
        advice = sum(each.advice_held for each in chosen), sum(each.advice_asked for each in chosen)
        names = "+".join(each.profile for each in met) or "no profile"
        return f"{names} · {held}/{asked} MUST · {advice[0]}/{advice[1]} SHOULD"

    @property
    def failures(self) -> list[RequirementResult]:
        """Sentences that are broken, the most often broken first: what shows everywhere is often why the rest fails."""
        found = [each for each in self.standings.values() if each.outcome is Outcome.FAIL]
        return sorted(found, key=lambda each: (each.sentence.id in self.known, -len(each.broken)))

    @property
    def warnings(self) -> list[RequirementResult]:
        """Advice that is not followed."""
        return [each for each in self.standings.values() if each.outcome is Outcome.WARN]

    @property
    def unjudged(self) -> list[RequirementResult]:
        """Sentences that count and of which nothing was said, so that they do not hold."""
        return [each for each in self.standings.values() if each.outcome is Outcome.SKIPPED and each.counts]

    @property
    def unexpected(self) -> list[RequirementResult]:
        """Failures that the baseline does not know."""
        return [each for each in self.failures if each.sentence.id not in self.known]

    @property
    def stale(self) -> list[str]:
        """Sentences of the baseline that hold."""
        standing = {name: self.standings.get(name) for name in self.known}
        return [name for name, each in standing.items() if each is not None and each.outcome is Outcome.PASS]

    @property
    def unheard(self) -> list[str]:
        """Sentences of the baseline that were to be judged, and were not: whether they still fail is not known."""
        standing = {name: self.standings.get(name) for name in self.known}
        return [
            name
            for name, each in standing.items()
            if (each is None and not self.part) or (each is not None and each.outcome is Outcome.SKIPPED)
        ]

    @property
    def errors(self) -> list[Verdict]:
        return [each for each in self.run.verdicts if each.outcome is Outcome.ERROR]

    @property
    def exit_code(self) -> int:
        """0 conformant · 1 a requirement failed, or cannot be judged · 3 our fault, or cut short · 4 nothing ran."""
        if not any(each.assertions for each in self.run.verdicts):
            return 3 if self.errors else 4
        unclear = [each for each in self.standings.values() if each.outcome is Outcome.INCONCLUSIVE]
        if self.unexpected or self.stale or any(each.sentence.binds for each in unclear):
            return 1
        return 3 if self.errors or self.run.cut_short else 0


def grade(
    run: GradedRun, checks: Iterable[Named], known: Mapping[str, str] | None = None, part: str = ""
) -> Report:
    """Judge a run.

    Args:
        run: What was run.
        checks: The checks that were run.
        known: Sentences that are known to fail, and why.
        part: What of the suite that is, where it is not all of it.
    """
    by_name = {verdict.check: verdict for verdict in run.verdicts}
    judged: dict[str, list[Verdict]] = {}
    for check in checks:
        for sentence in check.sentences:
            judged.setdefault(sentence, []).append(by_name[check.name])
    standings = {name: _standing(name, judged[name]) for name in sorted(judged)}
    return Report(run, standings, known or {}, part)


def _standing(name: str, verdicts: list[Verdict]) -> RequirementResult:
    outcomes = [verdict.of(name) for verdict in verdicts]
    tried = [each for each in outcomes if each is not Outcome.SKIPPED]
    # What one check found broken is broken, whatever became of another.
    tried = [each for each in tried if each in {Outcome.FAIL, Outcome.WARN}] or tried
    whys = {_why(verdict) for verdict in verdicts}
    why = None if tried else next(each for each in _HEAVIEST if each in whys)
    notes = [verdict.note for verdict in verdicts if verdict.note]
    if why is SkipReason.BLOCKED:
        notes += [
            f"{each.check} failed at another sentence" for each in verdicts if each.outcome is Outcome.FAIL
        ]
    return RequirementResult(
        sentence=specification.requirements()[name],
        outcome=worst(tried) if tried else Outcome.SKIPPED,
        why=why,
        note="; ".join(dict.fromkeys(notes)),
        verdicts=tuple(verdicts),
    )


_HEAVIEST = (SkipReason.BLOCKED, SkipReason.UNTESTED, SkipReason.NOT_DECLARED, SkipReason.NO_OCCASION)
"""Reasons, that first which says most about a sentence of which several checks say nothing."""


def _why(verdict: Verdict) -> SkipReason:
    """Why a check says nothing of one of its sentences."""
    if verdict.outcome is Outcome.FAIL:
        return SkipReason.BLOCKED
    return verdict.why or SkipReason.NO_OCCASION


def _grade(profile: str, standings: Iterable[RequirementResult]) -> Grade:
    own = [each for each in standings if each.counts]
    must = [each for each in own if each.sentence.binds]
    should = [each for each in own if each.sentence.level.startswith("SHOULD")]
    return Grade(
        profile,
        sum(each.holds for each in must),
        len(must),
        sum(each.holds for each in should),
        len(should),
    )
