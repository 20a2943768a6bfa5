"""Groups of failures with the same symptom, because one fault usually affects many checks and requirements.

two failures share a symptom if                                | reason
---------------------------------------------------------------+------------------------------------------------------
their expected and actual results are equal                    | the same observation in several checks
one server check failed twice with the same expected result    | a repetition of the same observation
one client scenario failed twice, in any server variants       | the first failure in a scenario causes later ones

A report shows each symptom once, under the requirement that is nearest to the cause. The order of the requirements comes
from the order of the checks (`registry.AREAS`), because one fault makes all checks fail that need what is broken.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidewire_conformance.judging.grade import Report, RequirementResult
from tidewire_conformance.judging.verdict import Assertion, Outcome, Verdict

MAX_SYMPTOMS = 2
"""Maximum number of symptoms of a requirement that are printed in full.

The same limit applies to the different expected results of one symptom.
"""

MAX_NAMES = 24
"""Maximum number of names in a printed list of checks."""

MIN_SOURCES = 5
"""If messages of at least this number of checks violate a rule for all messages, the rule is assumed to be the cause."""

Failure = tuple[Verdict, Assertion]


@dataclass
class Symptom:
    """Failures that are assumed to have the same cause."""

    failures: list[Failure] = field(default_factory=list)
    shown: list[Failure] = field(default_factory=list)
    """Failures that are printed in full. All of them belong to the same check and the same requirement."""

    @property
    def others(self) -> list[str]:
        """Checks that failed with this symptom, except the check that is printed in full."""
        names = dict.fromkeys(verdict.check for verdict, _ in self.failures)
        return [name for name in names if name not in {verdict.check for verdict, _ in self.shown}]

    @property
    def requirements(self) -> list[str]:
        """Ids of the requirements that failed with this symptom."""
        return sorted({assertion.requirement for _, assertion in self.failures})


@dataclass
class Section:
    """Part of a report: a failed requirement, and the symptoms that are reported under it."""

    result: RequirementResult
    symptoms: list[Symptom]
    left_out: list[Failure]
    """Failures of the requirement that the report counts, but whose symptoms it does not show."""
    omitted: int
    """Number of failures of the requirement that are not printed in full."""

    @property
    def omission(self) -> str:
        """Text that says how many failures are omitted. It is empty if all are printed."""
        names = some(list(dict.fromkeys(verdict.check for verdict, _ in self.left_out)))
        other = f", with other symptoms in {names}" if names else ""
        return f"… and {self.omitted} more failures{other}" if self.omitted else ""


def some(names: list[str]) -> str:
    """Join names with commas. After the first `MAX_NAMES` names, the text only says how many more there are."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def ordered(report: Report) -> list[RequirementResult]:
    """Sort the failed requirements. The requirement that is nearest to the cause comes first.

    Requirements in the baseline come after all others except SHOULD requirements, which come last.
    """
    found = [*report.failures, *report.warnings]
    ranks = _ranks_of_scenarios(found)

    def rank(result: RequirementResult) -> tuple[object, ...]:
        return (
            result.outcome is Outcome.WARN,
            result.requirement.id in report.known,
            min(_distance(*failure) for failure in result.broken),
            ranks[result.requirement.id],
        )

    return sorted(found, key=rank)


def fix_first(found: list[RequirementResult]) -> str:
    """Say which of several ordered requirements to fix first."""
    return f"Fix {found[0].requirement.id} first, which is nearest to the cause. The others may be consequences of it."


def _distance(verdict: Verdict, assertion: Assertion) -> tuple[bool, int, int]:
    """Return how far a failure of a server check is from the cause. For scenarios of clients, all distances are equal.

    If the messages that violate a rule for all messages belong to few checks, these checks are nearer to the cause than
    the check that judges all messages. Apart from that, checks are ordered by what they need: a stream can only be
    resumed if its events are well-formed, so a failed check of the events comes first.
    """
    if not verdict.place:
        return False, 0, 0
    own = [each.exchange for each in verdict.broken if each.requirement == assertion.requirement]
    sources = {each.check for each in own if each is not None}
    is_rare = verdict.whole_run and 0 < len(sources) < MIN_SOURCES
    return is_rare, verdict.place, verdict.requirements.index(assertion.requirement)


def _ranks_of_scenarios(found: list[RequirementResult]) -> dict[str, tuple[object, ...]]:
    """Rank the requirements that client scenarios violate, the most specific ones first.

    The most specific requirement is the one whose set of scenarios is closest to the set of failed scenarios. Nearly
    every fault also violates some requirement that half of the suite judges, but such a requirement says little about
    the cause. The first requirement of a scenario is the one that the scenario was written for. If that requirement
    fails, it comes before the other requirements that the scenario violates.

    If most scenarios failed because of a missing cursor or a missing request, the requirement to send it comes first.
    """
    failed = {verdict.check for result in found for verdict, _ in result.broken}
    scenarios = {_scenario(name) for name in failed}
    verdicts = {verdict.check: verdict for result in found for verdict, _ in result.broken}
    omissions = Counter(verdict.unsent for verdict in verdicts.values())

    def rank(result: RequirementResult) -> tuple[object, ...]:
        broken = {verdict.check: verdict for verdict, _ in result.broken}
        own = {_scenario(name) for name in broken}
        judged = {_scenario(verdict.check) for verdict in result.verdicts}
        is_first = any(verdict.requirements[:1] == (result.requirement.id,) for verdict in broken.values())
        # If a scenario fails with many server variants, none of these variants is the cause.
        variants_of_same = sum(_scenario(name) in own for name in failed) - len(broken)
        return (
            2 * omissions[result.requirement.id] <= len(verdicts),
            not is_first and any(assertion.transcript for _, assertion in result.broken),
            -len(own) / (len(scenarios) + len(judged)),
            not is_first,
            variants_of_same,
            -len(result.broken),
        )

    return {result.requirement.id: rank(result) for result in found}


def sections(report: Report) -> Iterator[Section]:
    """Yield the sections of a report. Each symptom appears in only one section.

    If all symptoms of a requirement appear in sections of other requirements, the requirement has no section.
    """
    results = ordered(report)
    symptom_of = _symptoms(report, results)
    reported: set[int] = set()
    for result in results:
        new: dict[int, Symptom] = {}
        for failure in sorted(result.broken, key=lambda each: _distance(*each)):
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
    """Add a failure to those that are printed in full.

    All failures of a symptom that are printed belong to one check, and have different expected results.
    """
    shown_expectations = {assertion.expected for _, assertion in symptom.shown}
    same = not symptom.shown or symptom.shown[0][0] is failure[0]
    if same and len(symptom.shown) < MAX_SYMPTOMS and failure[1].expected not in shown_expectations:
        symptom.shown.append(failure)


def _symptoms(report: Report, results: list[RequirementResult]) -> dict[int, Symptom]:
    """Map each failure to its symptom. The keys are the `id()` values of the failed assertions."""
    by_key: dict[tuple[object, ...], Symptom] = {}
    for result in results:
        known = result.requirement.id in report.known
        for verdict, assertion in result.broken:
            expected = "" if assertion.transcript else assertion.expected
            keys = (
                (known, "same result", assertion.expected, assertion.got),
                (known, "same check", _scenario(verdict.check), expected),
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
    """Return the name of a check without its area. For a client, the area may be the name of a server variant."""
    return check.partition(".")[2] or check
