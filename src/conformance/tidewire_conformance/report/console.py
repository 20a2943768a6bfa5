"""The report for a terminal: the grade, then what failed and why, then what was not tried."""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from tidewire_conformance.grade import Report, Standing
from tidewire_conformance.report.frames import curl, frames
from tidewire_conformance.verdict import Assertion, Outcome, Why

_PER_SENTENCE = 2
"""Failures of one sentence that are shown whole."""
_COLOURS = {True: "bold green", False: "bold red"}


def show(report: Report, console: Console, *, everything: bool = False) -> None:
    """Print a report.

    Args:
        report: What came of the run.
        console: Where to.
        everything: List the checks that passed as well.
    """
    good = report.exit_code == 0
    console.print(Text(report.headline, style=_COLOURS[good]))
    for grade in report.grades:
        if grade.asked or grade.advice_asked:
            told = f"{grade.held}/{grade.asked} MUST · {grade.advice_held}/{grade.advice_asked} SHOULD"
            console.print(Text(f"  {grade.profile:<9} {told}", style="" if grade.is_whole else "yellow"))
    for standing in sorted(report.failures, key=lambda each: each.sentence.id in report.known):
        _failure(console, report, standing)
    warned = [each for each in report.standings.values() if each.outcome is Outcome.WARN]
    for standing in warned:
        _failure(console, report, standing)
    for name in report.stale:
        console.print(Text(f"\nstale: {name} is in the baseline and holds: take it out", style="bold red"))
    _not_judged(console, report)
    if everything:
        for verdict in report.run.verdicts:
            console.print(
                Text(
                    f"  {verdict.outcome.value:<13}{verdict.seconds:6.2f} s  {verdict.check}  {verdict.note}"
                )
            )
    _last_line(console, report)


def _failure(console: Console, report: Report, standing: Standing) -> None:
    warn = standing.outcome is Outcome.WARN
    known = report.known.get(standing.sentence.id)
    word = "known" if known else "warn" if warn else "FAIL"
    console.print()
    console.print(
        Text(
            f"{word}  {standing.sentence.text} [{standing.sentence.id}]",
            style="yellow" if warn or known else "bold red",
        )
    )
    if known:
        console.print(Text(f"      the baseline says: {known}"))
    broken = [
        (verdict.check, each)
        for verdict in standing.verdicts
        for each in verdict.broken
        if each.sentence == standing.sentence.id
    ]
    for check, assertion in broken[:_PER_SENTENCE]:
        _evidence(console, check, assertion)
    if len(broken) > _PER_SENTENCE:
        console.print(Text(f"      … and {len(broken) - _PER_SENTENCE} times more"))


def _evidence(console: Console, check: str, assertion: Assertion) -> None:
    console.print(Text(f"      check     {check}"))
    console.print(Text(f"      expected  {assertion.expected}"))
    if assertion.got:
        console.print(Text(f"      got       {assertion.got}"))
    for line in frames(assertion):
        console.print(Text(f"    {line}", style="dim"), soft_wrap=True)
    if assertion.exchange is not None:
        console.print(Text(f"      {curl(assertion.exchange)}", style="cyan"), soft_wrap=True)


def _not_judged(console: Console, report: Report) -> None:
    verdicts = report.run.verdicts
    for title, chosen in (
        ("error, so that nothing is known", [each for each in verdicts if each.outcome is Outcome.ERROR]),
        ("inconclusive", [each for each in verdicts if each.outcome is Outcome.INCONCLUSIVE]),
        ("blocked", [each for each in verdicts if each.why is Why.BLOCKED]),
        ("untested", [each for each in verdicts if each.why is Why.UNTESTED]),
    ):
        if chosen:
            console.print(Text(f"\n{title}: {len(chosen)}", style="bold"))
            for note, names in _by_note((each.note, each.check) for each in chosen).items():
                console.print(Text(f"  {note}"))
                console.print(Text(f"      {', '.join(names)}", style="dim"))
    for why in (Why.NOT_DECLARED, Why.NO_OCCASION):
        if chosen := [each for each in verdicts if each.why is why]:
            console.print(Text(f"\n{why.value}, so not counted: {len(chosen)}", style="dim"))
            for note in _by_note((each.note, each.check) for each in chosen):
                console.print(Text(f"  {note}", style="dim"))


def _by_note(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for note, name in pairs:
        found.setdefault(note, []).append(name)
    return found


def _last_line(console: Console, report: Report) -> None:
    counts = {outcome: sum(each.outcome is outcome for each in report.run.verdicts) for outcome in Outcome}
    told = " · ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
    plan = report.run.plan
    more = "" if plan.patience == 1 else f" · patience {plan.patience:g}"
    console.print(
        Text(f"\n{len(report.run.verdicts)} checks: {told} · {report.run.requests} requests in "
             f"{report.run.seconds:.1f} s{more} · exit {report.exit_code}")
    )  # fmt: skip
