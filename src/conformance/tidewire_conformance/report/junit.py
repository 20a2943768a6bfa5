"""The report as JUnit XML: a test case for each check, a suite for each area."""

import re
import xml.etree.ElementTree as ET
from itertools import groupby
from pathlib import Path

from tidewire_conformance.grade import Report
from tidewire_conformance.report.frames import curl, frames
from tidewire_conformance.verdict import Assertion, Outcome, Verdict

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(report: Report, path: Path) -> None:
    """Write a report as JUnit XML. A failure that the baseline knows is a skip with its reason."""
    root = ET.Element("testsuites", name="tidewire conformance", time=f"{report.run.seconds:.3f}")
    in_order = sorted(report.run.verdicts, key=lambda verdict: verdict.check)
    for area, verdicts in groupby(in_order, key=lambda verdict: verdict.check.partition(".")[0]):
        _suite(root, area, [*verdicts], report)
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _suite(root: ET.Element, area: str, verdicts: list[Verdict], report: Report) -> None:
    suite = ET.SubElement(root, "testsuite", name=area, tests=str(len(verdicts)))
    counts = {"failures": 0, "skipped": 0, "errors": 0}
    for verdict in verdicts:
        name = verdict.check.partition(".")[2]
        case = ET.SubElement(suite, "testcase", classname=area, name=name, time=f"{verdict.seconds:.3f}")
        kind = _kind(verdict, report)
        if kind is None:
            continue
        counts[{"failure": "failures", "error": "errors"}.get(kind, kind)] += 1
        told = ET.SubElement(case, kind, message=_clean(verdict.note or verdict.about))
        told.text = _clean("\n\n".join(_text(each) for each in verdict.broken[:5]))
    for name, count in counts.items():
        suite.set(name, str(count))


def _kind(verdict: Verdict, report: Report) -> str | None:
    if verdict.outcome is Outcome.FAIL:
        unknown = [
            each
            for each in verdict.broken
            if each.outcome is Outcome.FAIL and each.sentence not in report.known
        ]
        return "failure" if unknown else "skipped"
    kinds = {Outcome.SKIPPED: "skipped", Outcome.ERROR: "error", Outcome.INCONCLUSIVE: "error"}
    return kinds.get(verdict.outcome)


def _text(assertion: Assertion) -> str:
    lines = [
        assertion.sentence,
        f"expected  {assertion.expected}",
        f"got       {assertion.got}",
        *frames(assertion),
    ]
    return "\n".join([*lines, curl(assertion.exchange)] if assertion.exchange else lines)


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("\ufffd", text)
