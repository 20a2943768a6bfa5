"""Terminal report: the grade, the failed requirements with their evidence, and the checks without a verdict."""

import re
import textwrap
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.text import Text

from tidewire_conformance.judging.grade import Report, RequirementResult
from tidewire_conformance.judging.verdict import Assertion, Outcome, SkipReason, Verdict
from tidewire_conformance.report.failure_evidence import evidence, visible
from tidewire_conformance.report.failure_groups import Section, Symptom, fix_first, ordered, sections, some

_MAX_COLUMNS = 120
"""Maximum width of printed prose, in columns, even if the terminal is wider."""
_JOB = re.compile(r"https?://[^\s/]+|(?<=/v1/jobs/)[^\s/?]+")


def show(report: Report, console: Console, *, everything: bool = False) -> None:
    """Print a report to a console.

    Args:
        report: Report to print.
        console: Console to print to.
        everything: Whether to list all checks at the end, including those that passed.
    """
    _Printer(console).print_report(report, everything)


class _Printer:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[tuple[int, int], str] = {}
        """Transcripts that were already printed, each with the requirement under which it was printed."""

    def print_report(self, report: Report, everything: bool) -> None:
        run = report.run
        self._line(report.headline, _color(report))
        where, name = run.subject.values()
        self._line(f"  {where}" + (f" ({name})" if name else ""), "dim")
        for grade in report.grades:
            if grade.total or grade.advice_total:
                counts = f"{grade.held}/{grade.total} MUST · {grade.advice_held}/{grade.advice_total} SHOULD"
                self._line(f"  {grade.profile:<9} {counts}", "" if grade.is_whole else "yellow")
        if report.unjudged and report.met and not report.failures:
            count = len(report.unjudged)
            what = "1 requirement was" if count == 1 else f"{count} requirements were"
            self._line(f"  nothing failed; {what} not tried, for the reasons below")
        unclear = [each.check for each in run.verdicts if each.outcome is Outcome.INCONCLUSIVE]
        if unclear and not (report.met or report.failures or run.cut_short):
            again = " ".join(f"--only {each}" for each in unclear[:3])
            self._prose(
                f"  no profile is met, because {some(unclear)} could not reach a verdict, for the reason below; run the suite "
                f"again with {again} --patience 3",
                "yellow",
            )
        if report.part:
            self._line(f"  only a part of the suite was run: {report.part}", "yellow")
        if run.cut_short:
            self._prose(f"  the run ended early: {run.cut_short}", "yellow")
        self._overview(report)
        for section in sections(report):
            self._failure(report, section)
        for stale in report.stale:
            self._line(
                f"\n{stale} passes, but the baseline lists it as failing. Remove it from the baseline.",
                "bold red",
            )
        for name in report.known_unjudged:
            self._line(
                f"\nThis run did not judge {name}, which the baseline lists as failing and which may still fail.",
                "yellow",
            )
        self._not_judged(report)
        if everything:
            self._line("\nall checks:", "bold")
            for verdict in run.verdicts:
                row = f"{verdict.outcome.value:<13}{verdict.seconds:6.2f} s  {verdict.check}"
                self._line(f"  {row}  {verdict.note}")
        self._last_line(report)

    def _overview(self, report: Report) -> None:
        """Print what to fix first, and a list with one line for each failed requirement."""
        found = ordered(report)
        if len(found) < 2:
            return
        self._line(f"\n{_count(found)}. {fix_first(found)}", "bold")
        for result in found:
            begin = f"  {_word(report, result):<5} {result.requirement.id}  "
            width = max(40, min(self._console.width, _MAX_COLUMNS) - len(begin) - 7)
            text = textwrap.shorten(result.requirement.text, width, placeholder=" …")
            self._line(f"{begin}{text:<{width}} {len(result.broken):>4} ×", _style(report, result, ""))

    def _failure(self, report: Report, section: Section) -> None:
        result = section.result
        word = _word(report, result)
        self._line("")
        text = f"{word}  {result.requirement.text} [{result.requirement.id}]"
        self._prose(text, _style(report, result, "bold red"), indent=" " * (len(word) + 2))
        if known := report.known.get(result.requirement.id):
            self._prose(f"      listed in the baseline: {known}")
        before: list[str] = []
        for symptom in section.symptoms:
            for verdict, assertion in symptom.shown:
                self._evidence(result.requirement.id, verdict, assertion)
            lines = [*_related(symptom, result.requirement.id)]
            for line in lines:
                if line not in before:
                    self._prose(f"      {line}", indent="        ")
            before = lines
        if section.omission:
            self._prose(f"      {section.omission}", "dim", indent="        ")

    def _evidence(self, requirement: str, verdict: Verdict, assertion: Assertion) -> None:
        record = assertion.exchange or assertion.transcript
        key = (id(record), id(assertion.block))
        before = self._shown.get(key)
        if record:
            self._shown.setdefault(key, requirement)
        for line in evidence(verdict, assertion):
            if line.startswith(("check ", "about ", "expected ", "got ")):
                self._prose(f"      {line}", indent=" " * 16)
            elif before is None:
                style = "cyan" if line.startswith("curl ") else "dim"
                self._line(f"      {line}", style)
        if before is not None:
            self._line(
                f"      frames    shown above{'' if before == requirement else f', under {before}'}", "dim"
            )

    def _not_judged(self, report: Report) -> None:
        verdicts = report.run.verdicts
        skipped = [each for each in verdicts if each.outcome is Outcome.SKIPPED]
        unjudged = [each for each in report.unjudged if each.why is SkipReason.BLOCKED]
        if unjudged:
            self._line(
                f"\nnot judged because of an earlier failure, and counted as not met: {len(unjudged)} requirements",
                "bold",
            )
            self._prose(f"  {' '.join(each.requirement.id for each in unjudged)}", indent="  ")
        for title, chosen in (
            ("error, no verdict", [each for each in verdicts if each.outcome is Outcome.ERROR]),
            ("inconclusive", [each for each in verdicts if each.outcome is Outcome.INCONCLUSIVE]),
            ("blocked", [each for each in skipped if each.why is SkipReason.BLOCKED]),
            ("untested", [each for each in verdicts if each.why is SkipReason.UNTESTED]),
        ):
            if chosen:
                self._line(f"\n{title}: {_checks(chosen)}", "bold")
                for note, names in _by_note(chosen).items():
                    self._prose(f"  {note}", indent="    ")
                    self._prose(f"      {', '.join(names)}", "dim", indent="      ")
        for why in (SkipReason.NOT_DECLARED, SkipReason.NO_OCCASION):
            if chosen := [each for each in skipped if each.why is why]:
                self._line(f"\n{why.value}, not counted: {_checks(chosen)}", "dim")
                for note in _by_note(chosen):
                    self._prose(f"  {note}", "dim", indent="    ")

    def _last_line(self, report: Report) -> None:
        run = report.run
        secrets = sorted(
            {
                variable
                for result in [*report.failures, *report.warnings]
                for _, assertion in result.broken
                if assertion.exchange is not None
                for value, variable in assertion.exchange.secrets
                if value in dict(assertion.exchange.request_headers).values()
            }
        )
        if secrets:
            names = " and ".join(f"${name}" for name in secrets)
            self._prose(
                f"\nThe curl commands read your credentials from {names}. Set each variable to its header's value."
            )
        counts = {outcome: sum(each.outcome is outcome for each in run.verdicts) for outcome in Outcome}
        totals = " · ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
        more = "" if run.plan.patience == 1 else f" · patience {run.plan.patience:g}"
        more += f" · seed {run.plan.seed}" if run.plan.seed else ""
        self._line(
            f"\n{_checks(run.verdicts)}: {totals} · {run.requests} requests in "
            f"{run.seconds:.1f} s{more} · exit {report.exit_code}"
        )

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(Text(visible(text), style=style), soft_wrap=True)

    def _prose(self, text: str, style: str = "", indent: str = "") -> None:
        width = min(self._console.width, _MAX_COLUMNS)
        for line in text.replace("\n", f"\n{indent}").split("\n"):
            wrapped = textwrap.wrap(
                line, width, subsequent_indent=indent, drop_whitespace=True, break_on_hyphens=False
            )
            for each in wrapped or [""]:
                self._line(each, style)


def _color(report: Report) -> str:
    """Return the color of the headline. It is green only if the run succeeded and `core` or `stream` is met."""
    if report.exit_code:
        return "bold red"
    return "bold green" if report.is_whole else "bold yellow"


def _related(symptom: Symptom, requirement: str) -> Iterator[str]:
    """Yield lines with the other checks and requirements that have the same symptom."""
    if symptom.others:
        yield f"same symptom in: {some(symptom.others)}"
    if others := [each for each in symptom.requirements if each != requirement]:
        yield f"requirements with the same symptom: {' '.join(others)}"


def _word(report: Report, result: RequirementResult) -> str:
    if result.requirement.id in report.known:
        return "known"
    return "warn" if result.outcome is Outcome.WARN else "FAIL"


def _style(report: Report, result: RequirementResult, worst: str) -> str:
    return worst if _word(report, result) == "FAIL" else "yellow"


def _count(found: list[RequirementResult]) -> str:
    failed = sum(each.outcome is Outcome.FAIL for each in found)
    parts = [f"{failed} {'requirement' if failed == 1 else 'requirements'} failed"] if failed else []
    if failed < len(found):
        parts.append(f"{len(found) - failed} SHOULD not followed")
    return ", ".join(parts)


def _checks(found: list[Verdict]) -> str:
    return f"{len(found)} check{'s' * (len(found) != 1)}"


def _by_note(verdicts: Iterable[Verdict]) -> dict[str, list[str]]:
    """Group checks by their note. Notes that differ only in a URL or in a job id count as equal."""
    found: dict[str, list[str]] = {}
    for verdict in verdicts:
        found.setdefault(_JOB.sub("…", verdict.note).replace("… …", "…"), []).append(verdict.check)
    return found
