"""JUnit XML report with a test suite for each area and a test case for each check."""

import re
import socket
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from tidewire_conformance.judging.grade import Report
from tidewire_conformance.judging.verdict import Outcome, Verdict
from tidewire_conformance.report.failure_evidence import failure_text

SHOWN = 5
"""Maximum number of failures that are written for one check."""
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COUNTED = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def write(report: Report, path: Path) -> None:
    """Write a report as JUnit XML.

    A failure that is listed in the baseline becomes a skipped test case with the reason from the baseline. An
    inconclusive check becomes an error. A check that violates only SHOULD requirements passes, and its output contains
    the evidence.
    """
    root = ET.Element("testsuites", name="tidewire conformance", time=f"{report.run.seconds:.3f}")
    in_order = sorted(report.run.verdicts, key=lambda verdict: verdict.check)
    for area, verdicts in groupby(in_order, key=lambda verdict: verdict.check.partition(".")[0]):
        _suite(root, area, [*verdicts], report)
    for name in ("tests", *_COUNTED.values()):
        root.set(name, str(sum(int(suite.get(name, 0)) for suite in root)))
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _suite(root: ET.Element, area: str, verdicts: list[Verdict], report: Report) -> None:
    suite = ET.SubElement(root, "testsuite", name=area, tests=str(len(verdicts)))
    counts = dict.fromkeys(_COUNTED.values(), 0)
    for verdict in verdicts:
        name = verdict.check.partition(".")[2]
        seconds = f"{verdict.seconds:.3f}"
        case = ET.SubElement(suite, "testcase", classname=f"tidewire.{area}", name=name, time=seconds)
        text = _clean("\n\n".join(failure_text(verdict, each) for each in verdict.broken[:SHOWN]))
        kind, message = _kind(verdict, report)
        if kind:
            counts[_COUNTED[kind]] += 1
            element = ET.SubElement(case, kind, message=_clean(message))
            element.text = text
            if kind != "skipped":
                element.set("type", verdict.outcome.value)
        elif text:
            ET.SubElement(case, "system-out").text = text
    for name, count in counts.items():
        suite.set(name, str(count))
    suite.set("time", f"{sum(each.seconds for each in verdicts):.3f}")
    suite.set("timestamp", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    suite.set("hostname", socket.gethostname())


def _kind(verdict: Verdict, report: Report) -> tuple[str, str]:
    """Return the name and message of the XML element for an outcome. If the check passed, both are empty."""
    match verdict.outcome:
        case Outcome.FAIL:
            failed = [each for each in verdict.broken if each.outcome is Outcome.FAIL]
            new = [each for each in failed if each.requirement not in report.known]
            if not new:
                known = dict.fromkeys(report.known[each.requirement] for each in failed)
                return "skipped", f"known: {'; '.join(known)}"
            got = f", got {new[0].got}" if new[0].got else ""
            return "failure", f"{new[0].requirement}: expected {new[0].expected}{got}"
        case Outcome.SKIPPED:
            return "skipped", f"{verdict.why}: {verdict.note}" if verdict.why else verdict.note
        case Outcome.ERROR | Outcome.INCONCLUSIVE:
            return "error", f"{verdict.outcome}: {verdict.note}"
    return "", ""


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("\ufffd", text)
