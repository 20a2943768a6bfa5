"""The first failure of a report is the one that is nearest to the cause."""

import asyncio
import random
import sys

import pytest

from proof.servers.faults import FAULTY_SERVERS
from proof.servers.judge_server import judge, leading_check, run_checks
from proof.servers.server_process import running_server
from suite.test_reference import requirements_left_out
from support.foreign_programs import INTEROP, running
from tidewire_conformance import registry
from tidewire_conformance.judging.grade import grade
from tidewire_conformance.judging.verdict import Outcome
from tidewire_conformance.registry import AREAS
from tidewire_conformance.runner import Plan, run

CHECKS = registry.checks()
ANCHOR = '            if cursor != "0-0" and (epoch != 1 or seq > head):\n'
"""Line of the standard-library server before which it knows the position of a cursor."""
OFF_BY_ONE = {
    "skips an event": '            seq += bool(cursor) and cursor != "0-0" and epoch == 1 and seq < head - 1\n',
    "repeats an event": '            seq -= bool(cursor) and cursor != "0-0" and epoch == 1 and 1 < seq <= head\n',
}


def test_each_area_of_checks_has_a_place_in_the_order():
    assert {check.name.partition(".")[0] for check in CHECKS} == {*AREAS}
    assert len({*AREAS}) == len(AREAS)
    assert {check.after for check in CHECKS} <= {*AREAS, ""}
    assert sorted(check.place for check in CHECKS) == [*range(1, len(CHECKS) + 1)]


def test_a_check_that_applies_diffs_comes_after_the_checks_of_diffs():
    places = {check.name: check.place for check in CHECKS}
    assert places["jobs.stream_continues_from_a_read"] > places["state.diffs_apply_and_checks_hold"]


def changed_foreign_server(folder, line):
    """Return a context manager that runs the standard-library server with one more line, and yields its URL."""
    text = (INTEROP / "stdlib_server.py").read_text(encoding="utf-8")
    assert text.count(ANCHOR) == 1
    (folder / "server.py").write_text(text.replace(ANCHOR, line + ANCHOR), encoding="utf-8")
    return running([sys.executable, str(folder / "server.py"), "20"])


@pytest.mark.heavy
@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", OFF_BY_ONE)
def test_a_resume_that_is_off_by_one_leads_with_the_check_of_resume(fault, tmp_path):
    broken_anyway = requirements_left_out()["yes"]
    checks = [check for check in CHECKS if not broken_anyway & {*check.requirements}]
    with changed_foreign_server(tmp_path, OFF_BY_ONE[fault]) as url:
        report = grade(asyncio.run(run(Plan(url), checks)))
    assert len(report.failures) > 3
    assert leading_check(report) == "resume.ended_job_resumes_from_every_id"


# ---- faulty servers that make checks of several areas fail --------------------------------------------------------------

QUICK_AREAS = [
    "framing",
    "json_and_times",
    "errors",
    "jobs",
    "resume",
    "cursors_in_urls",
    "state",
    "snapshots",
]
NOISY = ["event_after_cursor_skipped", "event_with_empty_data", "newline_in_an_id"]
"""Faulty servers whose fault is seen by checks of several areas."""
SAMPLE = 40
MIN_LEADING = 36
"""Minimum number of servers of the sample whose report begins with the check that the fault names.

Some faults are seen first by another check that is as near to the cause.
"""


@pytest.mark.heavy
@pytest.mark.parametrize("name", NOISY)
def test_a_report_leads_with_the_check_that_the_fault_names(name):
    checks = [check for check in CHECKS if check.is_named_by(QUICK_AREAS) and not check.seconds]
    with running_server(name) as url:
        report = run_checks(url, checks)
    assert len([each for each in report.run.verdicts if each.broken]) > 1
    assert leading_check(report) == FAULTY_SERVERS[name].check


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "broken", "not_broken"),
    [
        ("item_running_at_done", {"TW-OVR-021"}, {"TW-OVR-020"}),
        ("item_cancel_cancels_all_items", {"TW-JOB-056", "TW-JOB-090"}, {"TW-JOB-052"}),
    ],
)
def test_a_fault_is_not_reported_as_another_one(name, broken, not_broken):
    fault = FAULTY_SERVERS[name]
    checks = [check for check in CHECKS if check.name in {fault.check, *fault.also_run}]
    with running_server(name) as url:
        report = run_checks(url, checks)
    failed = {result.requirement.id for result in report.failures}
    assert failed & (broken | not_broken) == broken


@pytest.mark.heavy
def test_a_server_that_keeps_no_log_is_not_an_error_of_the_suite():
    checks = [check for check in CHECKS if check.name == "resume.running_job_resumes_from_earlier_ids"]
    with running_server("no_log") as url:
        (verdict,) = run_checks(url, checks).run.verdicts
    assert verdict.outcome is Outcome.SKIPPED


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_most_reports_of_the_whole_suite_lead_with_the_check_that_the_fault_names():
    faulty = sorted(name for name, server in FAULTY_SERVERS.items() if not server.is_benign)
    others = {}
    for name in random.Random(0).sample(faulty, SAMPLE):
        lead = leading_check(judge(FAULTY_SERVERS[name], whole=True))
        if lead != FAULTY_SERVERS[name].check:
            others[name] = lead
    assert SAMPLE - len(others) >= MIN_LEADING, others
