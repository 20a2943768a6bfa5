"""The report for a terminal: the grade, then what is broken and how it shows, then what was not judged."""

import re
import textwrap
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.text import Text

from tidewire_conformance.judging.grade import Report, RequirementResult
from tidewire_conformance.judging.verdict import Assertion, Outcome, SkipReason, Verdict
from tidewire_conformance.report.failure_evidence import evidence, visible
from tidewire_conformance.report.failure_groups import Section, Symptom, ordered, sections

NAMES = 24
"""Checks that are named beside the one that is shown."""
_WIDEST = 120
"""Columns of prose where the terminal has more, or is none."""
_JOB = re.compile(r"https?://[^\s/]+|(?<=/v1/jobs/)[^\s/?]+")


def show(report: Report, console: Console, *, everything: bool = False) -> None:
    """Print a report.

    Args:
        report: What came of the run.
        console: Where to.
        everything: List the checks that passed as well.
    """
    _Telling(console).tell(report, everything)


class _Telling:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[tuple[int, int], str] = {}
        """Frames that were shown, and under which sentence."""

    def tell(self, report: Report, everything: bool) -> None:
        run = report.run
        self._line(report.headline, _colour(report))
        where, name = run.subject.values()
        self._line(f"  {where}" + (f" ({name})" if name else ""), "dim")
        for grade in report.grades:
            if grade.total or grade.advice_total:
                told = f"{grade.held}/{grade.total} MUST · {grade.advice_held}/{grade.advice_total} SHOULD"
                self._line(f"  {grade.profile:<9} {told}", "" if grade.is_whole else "yellow")
        if report.part:
            self._line(f"  only a part of the suite was run: {report.part}", "yellow")
        if run.cut_short:
            self._prose(f"  cut short: {run.cut_short}", "yellow")
        self._overview(report)
        for section in sections(report):
            self._failure(report, section)
        for stale in report.stale:
            self._line(f"\nstale: {stale} is in the baseline and holds: take it out", "bold red")
        for name in report.known_unjudged:
            self._line(
                f"\n{name} is in the baseline, and was not judged: whether it still fails is not known",
                "yellow",
            )
        self._not_judged(report)
        if everything:
            self._line("\nall checks:", "bold")
            for verdict in run.verdicts:
                told = f"{verdict.outcome.value:<13}{verdict.seconds:6.2f} s  {verdict.check}"
                self._line(f"  {told}  {verdict.note}")
        self._last_line(report)

    def _overview(self, report: Report) -> None:
        """The failures at a glance."""
        found = ordered(report)
        if len(found) < 2:
            return
        self._line(f"\n{_count(found)}, first what says best where:", "bold")
        for standing in found:
            begin = f"  {_word(report, standing):<5} {standing.requirement.id}  "
            room = max(40, min(self._console.width, _WIDEST) - len(begin) - 7)
            said = textwrap.shorten(standing.requirement.text, room, placeholder=" …")
            self._line(f"{begin}{said:<{room}} {len(standing.broken):>4} ×", _style(report, standing, ""))

    def _failure(self, report: Report, section: Section) -> None:
        standing = section.standing
        word = _word(report, standing)
        self._line("")
        text = f"{word}  {standing.requirement.text} [{standing.requirement.id}]"
        self._prose(text, _style(report, standing, "bold red"), indent=" " * (len(word) + 2))
        if known := report.known.get(standing.requirement.id):
            self._prose(f"      the baseline says: {known}")
        before: list[str] = []
        for symptom in section.symptoms:
            for verdict, assertion in symptom.shown:
                self._evidence(standing.requirement.id, verdict, assertion)
            lines = [*_with_it(symptom, standing.requirement.id)]
            for line in lines:
                if line not in before:
                    self._prose(f"      {line}", indent="        ")
            before = lines
        if section.times_more:
            names = some(list(dict.fromkeys(verdict.check for verdict, _ in section.left_out)))
            more = f"… and {section.times_more} times more" + (
                f"; also otherwise, in {names}" if names else ""
            )
            self._prose(f"      {more}", "dim", indent="        ")

    def _evidence(self, sentence: str, verdict: Verdict, assertion: Assertion) -> None:
        record = assertion.exchange or assertion.transcript
        key = (id(record), id(assertion.block))
        before = self._shown.get(key)
        if record:
            self._shown.setdefault(key, sentence)
        for line in evidence(verdict, assertion):
            if line.startswith(("check ", "about ", "expected ", "got ")):
                self._prose(f"      {line}", indent=" " * 16)
            elif before is None:
                style = "cyan" if line.startswith("curl ") else "dim"
                self._line(f"      {line}", style)
        if before is not None:
            self._line(
                f"      frames    those above{'' if before == sentence else f', under {before}'}", "dim"
            )

    def _not_judged(self, report: Report) -> None:
        verdicts = report.run.verdicts
        lost = [each for each in report.unjudged if each.why is SkipReason.BLOCKED]
        if lost:
            self._line(
                f"\nnot judged, since something else failed first, and so not held: {len(lost)} sentences",
                "bold",
            )
            self._prose(f"  {' '.join(each.requirement.id for each in lost)}", indent="  ")
        for title, chosen in (
            ("error, so that nothing is known", [each for each in verdicts if each.outcome is Outcome.ERROR]),
            ("inconclusive", [each for each in verdicts if each.outcome is Outcome.INCONCLUSIVE]),
            ("blocked", [each for each in verdicts if each.why is SkipReason.BLOCKED]),
            ("untested", [each for each in verdicts if each.why is SkipReason.UNTESTED]),
        ):
            if chosen:
                self._line(f"\n{title}: {_checks(chosen)}", "bold")
                for note, names in _by_note(chosen).items():
                    self._prose(f"  {note}", indent="    ")
                    self._prose(f"      {', '.join(names)}", "dim", indent="      ")
        for why in (SkipReason.NOT_DECLARED, SkipReason.NO_OCCASION):
            if chosen := [each for each in verdicts if each.why is why]:
                self._line(f"\n{why.value}, so not counted: {_checks(chosen)}", "dim")
                for note in _by_note(chosen):
                    self._prose(f"  {note}", "dim", indent="    ")

    def _last_line(self, report: Report) -> None:
        run = report.run
        secrets = sorted(
            {
                variable
                for standing in [*report.failures, *report.warnings]
                for _, assertion in standing.broken
                if assertion.exchange is not None
                for value, variable in assertion.exchange.secrets
                if value in dict(assertion.exchange.request_headers).values()
            }
        )
        if secrets:
            names = " and ".join(f"${name}" for name in secrets)
            self._prose(f"\nThe commands take your credentials from {names}: the value of that header.")
        counts = {outcome: sum(each.outcome is outcome for each in run.verdicts) for outcome in Outcome}
        told = " · ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
        more = "" if run.plan.patience == 1 else f" · patience {run.plan.patience:g}"
        more += f" · seed {run.plan.seed}" if run.plan.seed else ""
        self._line(
            f"\n{_checks(run.verdicts)}: {told} · {run.requests} requests in "
            f"{run.seconds:.1f} s{more} · exit {report.exit_code}"
        )

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(Text(visible(text), style=style), soft_wrap=True)

    def _prose(self, text: str, style: str = "", indent: str = "") -> None:
        width = min(self._console.width, _WIDEST)
        for line in text.split("\n"):
            wrapped = textwrap.wrap(
                line, width, subsequent_indent=indent, drop_whitespace=True, break_on_hyphens=False
            )
            for each in wrapped or [""]:
                self._line(each, style)


def _colour(report: Report) -> str:
    """Of the grade: green is kept for one that is met."""
    if report.exit_code:
        return "bold red"
    return "bold green" if report.grades[0].is_whole else "bold yellow"


def _with_it(symptom: Symptom, sentence: str) -> Iterator[str]:
    """What else a symptom shows in, and what else it breaks."""
    if symptom.others:
        yield f"also so in: {some(symptom.others)}"
    if others := [each for each in symptom.sentences if each != sentence]:
        yield f"also not held because of this: {' '.join(others)}"


def some(names: list[str]) -> str:
    """Names in a line; of many the first, and how many more."""
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more


def _word(report: Report, standing: RequirementResult) -> str:
    if standing.requirement.id in report.known:
        return "known"
    return "warn" if standing.outcome is Outcome.WARN else "FAIL"


def _style(report: Report, standing: RequirementResult, worst: str) -> str:
    return worst if _word(report, standing) == "FAIL" else "yellow"


def _count(found: list[RequirementResult]) -> str:
    failed = sum(each.outcome is Outcome.FAIL for each in found)
    told = [f"{failed} {'sentence is' if failed == 1 else 'sentences are'} broken"] if failed else []
    if failed < len(found):
        told.append(f"{len(found) - failed} with SHOULD not followed")
    return ", ".join(told)


def _checks(found: list[Verdict]) -> str:
    return f"{len(found)} check{'s' * (len(found) != 1)}"


def _by_note(verdicts: Iterable[Verdict]) -> dict[str, list[str]]:
    """Checks by what is said of them, whichever job it was said of."""
    found: dict[str, list[str]] = {}
    for verdict in verdicts:
        found.setdefault(_JOB.sub("…", verdict.note).replace("… …", "…"), []).append(verdict.check)
    return found
