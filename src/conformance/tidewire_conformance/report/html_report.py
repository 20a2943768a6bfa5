"""HTML report: a single page that can be published, without scripts and without external resources."""

from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from pathlib import Path

from tidewire_conformance.judging.grade import Report, RequirementResult
from tidewire_conformance.judging.verdict import Outcome, Verdict
from tidewire_conformance.report import badge
from tidewire_conformance.report.failure_evidence import curl, frames
from tidewire_conformance.report.failure_groups import Section, Symptom, fix_first, ordered, sections, some

_CHAPTERS = {
    "OVR": "Overview", "DSC": "Discovery", "FRM": "Framing", "RES": "Resume", "DIF": "State and diffs", "JOB": "Jobs",
    "BAT": "Batching", "GEN": "Text generation", "ERR": "Errors", "BRW": "Browsers", "SEC": "Security",
    "DEP": "Deployment", "CLI": "The client", "VER": "Changes",
}  # fmt: skip

_STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --soft: #57606a; --line: #d0d7de; --page: #fff; --box: #f6f8fa;
  --pass: #1a7f37; --fail: #b42318; --warn: #8a6300; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9198a1; --line: #3d444d; --page: #0d1117;
  --box: #151b23; --pass: #3fb950; --fail: #ff7b72; --warn: #d29922; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .5rem 0; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; }
h3 { font-size: 1rem; margin: 0 0 .5rem; font-weight: 600; }
a { color: inherit; } p { margin: .5rem 0; } small, .soft { color: var(--soft); font-size: .875rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; font-size: .875rem; color: var(--soft); }
td.id { white-space: nowrap; font: .8125rem/1.7 ui-monospace, monospace; }
.pass { color: var(--pass); } .fail, .error { color: var(--fail); } .warn, .inconclusive { color: var(--warn); }
.skipped { color: var(--soft); } .mark { white-space: nowrap; font-size: .875rem; font-weight: 600; }
section.failure { border: 1px solid var(--line); border-left: 4px solid var(--fail); border-radius: 6px;
  padding: 1rem; margin: 1rem 0; }
section.of-warn { border-left-color: var(--warn); } section.of-known { border-left-color: var(--soft); }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .15rem 1rem; margin: .75rem 0; }
dt { color: var(--soft); } dd { margin: 0; }
pre { overflow-x: auto; overflow-wrap: normal; font: .78rem/1.5 ui-monospace, monospace; background: var(--box);
  border-radius: 6px; padding: .75rem; margin: .5rem 0; }
pre b { color: var(--fail); font-weight: 600; }
details { border-bottom: 1px solid var(--line); padding: .4rem 0; } details[open] { padding-bottom: 1rem; }
summary { cursor: pointer; } summary .mark { float: right; }
@media (max-width: 40rem) { td, th { padding-right: .4rem; } dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; }
  table.list tr { display: grid; grid-template-columns: 1fr auto; border-bottom: 1px solid var(--line); }
  table.list td { border: 0; padding: .15rem 0; } table.list td.text { grid-column: 1 / 3; } }
@media print { details:not([open]) > * { display: block; } }
"""


def write(report: Report, path: Path) -> None:
    """Write a report to an HTML file."""
    path.write_text("\n".join(_lines(report)) + "\n", encoding="utf-8", errors="backslashreplace")


def _lines(report: Report) -> Iterator[str]:
    where, name = report.run.subject.values()
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(name or where)}: {escape(report.headline)}</title><style>{_STYLE}</style></head><body>"
    yield from _head(report, where, name)
    yield from _overview(report)
    shown: set[int] = set()
    anchored: set[str] = set()
    for number, section in enumerate(sections(report)):
        yield "" if number else "<h2>Evidence</h2>"
        yield from _failure(report, section, shown, anchored)
    if report.stale:
        yield f'<h2>Stale baseline</h2><p class="fail">These requirements are listed in the baseline, but they hold: {" ".join(report.stale)}</p>'
    yield from _not_judged(report)
    yield "<h2>All requirements</h2>"
    ordered = sorted(report.results.values(), key=lambda each: each.requirement.chapter)
    for _, results in groupby(ordered, key=lambda each: each.requirement.chapter):
        yield from _chapter([*results])
    yield "<h2>All checks</h2>"
    in_order = sorted(report.run.verdicts, key=lambda each: each.check)
    for area, verdicts in groupby(in_order, key=lambda each: each.check.partition(".")[0]):
        yield from _area(area, [*verdicts])
    yield "</body></html>"


def _head(report: Report, where: str, name: str) -> Iterator[str]:
    run = report.run
    yield f"<header>{badge.badge(*badge.summary(report))}<h1>{escape(report.headline)}</h1>"
    yield f"<p>{escape(name) or 'Unnamed'} at <code>{escape(where)}</code></p>"
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    plan = f"patience {run.plan.patience:g}, seed {run.plan.seed}" + (
        f", {run.plan.repeat} repetitions" if run.plan.repeat > 1 else ""
    )
    yield f'<p class="soft">Tested with the tidewire conformance suite on {when}: {len(run.verdicts)} checks, '
    yield f"{run.requests} requests, {run.seconds:.1f} s; {plan}.</p>"
    if report.part:
        yield f'<p class="warn">Only a part of the suite was run: {escape(report.part)}</p>'
    if run.cut_short:
        yield f'<p class="warn">The run ended early: {escape(run.cut_short)}</p>'
    yield "<table><tr><th>profile<th>MUST<th>SHOULD<th></tr>"
    for each in report.grades:
        mark = ("pass", "met") if each.is_whole else ("fail", "not met") if each.total else ("skipped", "–")
        yield f"<tr><td>{each.profile}<td>{each.held}/{each.total}<td>{each.advice_held}/{each.advice_total}"
        yield f'<td class="mark {mark[0]}">{mark[1]}</tr>'
    yield "</table></header>"


def _overview(report: Report) -> Iterator[str]:
    found = ordered(report)
    if not found:
        if report.exit_code == 0:
            yield '<p class="pass">No tested requirement failed.</p>'
        return
    title = "Failed requirements" if report.failures else "Recommendations not followed"
    yield f'<h2>{title}</h2><p class="soft">{fix_first(found)}</p><table class="list">'
    for each in found:
        word = "known" if each.requirement.id in report.known else each.outcome.value
        yield f'<tr><td class="id"><a href="#{each.requirement.id}">{each.requirement.id}</a>'
        yield f'<td class="mark {each.outcome.value}">{word} · {len(each.broken)} ×'
        yield f'<td class="text">{_text(each.requirement.text)}</tr>'
    yield "</table>"


def _failure(report: Report, section: Section, shown: set[int], anchored: set[str]) -> Iterator[str]:
    """Yield the HTML for a failed requirement with its symptoms.

    Args:
        report: Report that the page shows.
        section: Failed requirement with its symptoms.
        shown: `id()` values of the transcripts that the page already contains.
        anchored: Ids of the requirements that already have a link target on the page.
    """
    requirement, known = section.result.requirement, report.known.get(section.result.requirement.id)
    kind = "known" if known else section.result.outcome.value
    yield f'<section class="failure of-{kind}"><h3{_anchor(requirement.id, anchored)}>{_text(requirement.text)}</h3>'
    yield f"<small>{requirement.id} · {report.run.profile_of(requirement)}</small>"
    if known:
        yield f"<p>Known: {escape(known)}</p>"
    for symptom in section.symptoms:
        yield from _symptom(symptom, requirement.id, shown, anchored)
    if section.omission:
        yield f'<p class="soft">{escape(section.omission)}</p>'
    yield "</section>"


def _symptom(symptom: Symptom, requirement: str, shown: set[int], anchored: set[str]) -> Iterator[str]:
    for verdict, assertion in symptom.shown:
        yield f"<dl><dt>check<dd>{escape(verdict.check)}<br><small>{_text(verdict.about)}</small>"
        yield f"<dt>expected<dd>{escape(assertion.expected)}"
        yield f"<dt>got<dd>{escape(assertion.got)}</dl>" if assertion.got else "</dl>"
        record = id(assertion.exchange or assertion.transcript)
        if record not in shown:
            yield f"<pre>{chr(10).join(map(_frame, frames(assertion)))}</pre>"
            if assertion.exchange is not None:
                yield f"<pre>{escape(curl(assertion.exchange))}</pre>"
        shown.add(record)
    if symptom.others:
        yield f"<p>Same symptom in: {escape(some(symptom.others))}</p>"
    if others := [each for each in symptom.requirements if each != requirement]:
        named = " ".join(f"<span{_anchor(each, anchored)}>{each}</span>" for each in others)
        yield f"<p>Requirements with the same symptom: {named}</p>"


def _anchor(requirement: str, anchored: set[str]) -> str:
    """Return an `id` attribute for the first element that names a requirement, or an empty text for later elements."""
    if requirement in anchored:
        return ""
    anchored.add(requirement)
    return f' id="{requirement}"'


def _frame(line: str) -> str:
    return f"<b>{escape(line)}</b>" if line.endswith("←") else escape(line)


def _not_judged(report: Report) -> Iterator[str]:
    unjudged = [each for each in report.results.values() if each.counts and not each.holds]
    unjudged = [each for each in unjudged if each.outcome not in {Outcome.FAIL, Outcome.WARN}]
    if unjudged:
        yield "<h2>Not judged (counted as not met)</h2>"
        yield from _table(unjudged)


def _chapter(results: list[RequirementResult]) -> Iterator[str]:
    area = results[0].requirement.id[3:6]
    counted = [each for each in results if each.counts]
    held = sum(each.holds for each in counted)
    mark = "skipped" if not counted else "pass" if held == len(counted) else "fail"
    yield f"<details><summary>{_CHAPTERS.get(area, area)}"
    yield f'<span class="mark {mark}">{f"{held}/{len(counted)}" if counted else "–"}</span></summary>'
    yield from _table(results)
    yield "</details>"


def _table(results: list[RequirementResult]) -> Iterator[str]:
    yield '<table class="list">'
    for each in results:
        word = str(each.why or each.outcome)
        yield f'<tr><td class="id">{each.requirement.id}<td class="mark {each.outcome.value}">{word}'
        note = f"<br><small>{escape(each.note)}</small>" if each.note else ""
        yield f'<td class="text">{_text(each.requirement.text)}{note}</tr>'
    yield "</table>"


def _area(area: str, verdicts: list[Verdict]) -> Iterator[str]:
    counts = {outcome: sum(each.outcome is outcome for each in verdicts) for outcome in Outcome}
    counts_text = " · ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
    mark = (
        "fail"
        if counts[Outcome.FAIL] + counts[Outcome.ERROR]
        else "pass"
        if counts[Outcome.PASS]
        else "skipped"
    )
    yield f'<details><summary>{escape(area)}<span class="mark {mark}">{counts_text}</span></summary><table class="list">'
    for each in verdicts:
        note = f"<br><small>{escape(each.note)}</small>" if each.note else ""
        name = escape(each.check.partition(".")[2].replace("_", " "))
        yield f'<tr><td>{name}<td class="mark {each.outcome.value}">{each.why or each.outcome}'
        yield f'<td class="text">{_text(each.about)}{note}</tr>'
    yield "</table></details>"


def _text(text: str) -> str:
    """Escape text for HTML, and render the parts in backquotes as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
