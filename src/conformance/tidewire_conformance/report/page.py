"""The report as one HTML page, without a script and without anything to load."""

from collections.abc import Iterator
from html import escape
from pathlib import Path

from tidewire_conformance.grade import Report, Standing
from tidewire_conformance.report.frames import curl, frames
from tidewire_conformance.verdict import Outcome

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid #8884; }
pre { overflow-x: auto; font-size: 12px; background: #8881; padding: .6rem; }
.fail, .error { color: #c22; } .warn, .inconclusive { color: #b70; } .pass { color: #283; } .skipped { color: #888; }
"""


def write(report: Report, path: Path) -> None:
    """Write a report as a page."""
    path.write_text("\n".join(_lines(report)) + "\n", encoding="utf-8")


def _lines(report: Report) -> Iterator[str]:
    run = report.run
    where, name = run.subject.values()
    title = f"{where}: {report.headline}"
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    yield f"<h1>{escape(report.headline)}</h1>"
    yield f"<p>{escape(name)} at {escape(where)}: {len(run.verdicts)} checks, {run.requests} requests, "
    yield f"{run.seconds:.1f} s, patience {run.plan.patience:g}, seed {run.plan.seed}.</p>"
    yield "<table><tr><th>profile<th>MUST<th>SHOULD</tr>"
    for each in report.grades:
        mark = "pass" if each.is_whole else "skipped" if not each.asked else "warn"
        yield f'<tr class="{mark}"><td>{each.profile}<td>{each.held}/{each.asked}<td>{each.advice_held}/{each.advice_asked}</tr>'
    yield "</table>"
    for standing in report.standings.values():
        if standing.outcome in {Outcome.FAIL, Outcome.WARN}:
            yield from _failure(report, standing)
    yield "<h2>Each sentence</h2><table>"
    for standing in report.standings.values():
        told = standing.outcome.value if standing.counts else "not counted"
        yield f'<tr><td>{standing.sentence.id}<td class="{standing.outcome.value}">{told}'
        yield f"<td>{escape(standing.sentence.text)}<br><small>{escape(standing.note)}</small></tr>"
    yield "</table><h2>Each check</h2><table>"
    for verdict in run.verdicts:
        yield f'<tr><td>{escape(verdict.check)}<td class="{verdict.outcome.value}">{verdict.outcome.value}'
        yield f"<td>{escape(verdict.about)}<br><small>{escape(verdict.note)}</small></tr>"
    yield "</table></html>"


def _failure(report: Report, standing: Standing) -> Iterator[str]:
    sentence = standing.sentence
    known = report.known.get(sentence.id)
    yield f'<h2 class="{standing.outcome.value}">{sentence.id}</h2><p>{escape(sentence.text)}</p>'
    if known:
        yield f"<p>Known: {escape(known)}</p>"
    broken = [
        each for verdict in standing.verdicts for each in verdict.broken if each.sentence == sentence.id
    ]
    for each in broken[:3]:
        yield f"<p>Expected: {escape(each.expected)}<br>Got: {escape(each.got)}</p>"
        told = [*frames(each), *([curl(each.exchange)] if each.exchange else [])]
        yield f"<pre>{escape(chr(10).join(told))}</pre>"
