"""JSON report. Its schema is `report.schema.json` in the same folder."""

import json
from pathlib import Path
from typing import Any

from tidewire_conformance.judging.grade import Report, RequirementResult
from tidewire_conformance.judging.verdict import Assertion, Verdict
from tidewire_conformance.report.failure_evidence import curl, frames

FORMAT = "tidewire-conformance/1"
SHOWN = 20
"""Maximum number of failures that are written for one check. A fault in every stream can cause hundreds of failures."""


def write(report: Report, path: Path) -> None:
    """Write a report to a JSON file."""
    path.write_text(
        json.dumps(content(report), ensure_ascii=False, indent=1) + "\n",
        encoding="utf-8",
        errors="backslashreplace",
    )


def content(report: Report) -> dict[str, Any]:
    """Convert a report to a value that can be serialized as JSON."""
    plan = report.run.plan
    return {
        "format": FORMAT,
        **report.run.subject,
        "headline": report.headline,
        "part": report.part,
        "cut_short": report.run.cut_short,
        "exit_code": report.exit_code,
        "seconds": round(report.run.seconds, 3),
        "requests": report.run.requests,
        "plan": {"seed": plan.seed, "repeat": plan.repeat, "patience": plan.patience, "budget": plan.budget},
        "profiles": [
            {
                "profile": each.profile, "met": each.is_whole, "must": each.total, "must_held": each.held,
                "should": each.advice_total, "should_held": each.advice_held, "checks_not_tried": each.untried,
            }
            for each in report.grades
        ],
        "sentences": [_requirement(report, each) for each in report.results.values()],
        "checks": [_check(each) for each in report.run.verdicts],
        "stale": report.stale,
    }  # fmt: skip


def _requirement(report: Report, result: RequirementResult) -> dict[str, Any]:
    requirement = result.requirement
    found = {
        "id": requirement.id,
        "level": requirement.level,
        "profile": report.run.profile_of(requirement),
        "text": requirement.text,
        "outcome": result.outcome.value,
        "why": None if result.why is None else result.why.value,
        "counts": result.counts,
        "broken": len(result.broken),
        "checks": [each.check for each in result.verdicts],
    }
    return found | ({"known": report.known[requirement.id]} if requirement.id in report.known else {})


def _check(verdict: Verdict) -> dict[str, Any]:
    return {
        "name": verdict.check,
        "about": verdict.about,
        "sentences": [*verdict.requirements],
        "outcome": verdict.outcome.value,
        "why": None if verdict.why is None else verdict.why.value,
        "note": verdict.note,
        "seconds": round(verdict.seconds, 3),
        "rounds": verdict.rounds,
        "assertions": len(verdict.assertions),
        "times_broken": len(verdict.broken),
        "broken": [_broken(each) for each in verdict.broken[:SHOWN]],
    }


def _broken(assertion: Assertion) -> dict[str, Any]:
    return {
        "sentence": assertion.requirement,
        "expected": assertion.expected,
        "got": assertion.got,
        "frames": [*frames(assertion)],
        "curl": None if assertion.exchange is None else curl(assertion.exchange),
    }
