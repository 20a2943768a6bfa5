"""A few cases of the proof, and properties of all faulty servers and clients.

`make proof` runs every case.
"""

import ast
import asyncio
import sys
from collections import defaultdict
from dataclasses import replace
from fnmatch import filter as filter_names
from pathlib import Path

import pytest

import proof
from proof import client_kill_matrix, server_kill_matrix
from proof.server_kill_matrix import ServerRow, merge_runs
from proof.servers import faults
from proof.servers.faults import FAULTY_SERVERS
from proof.servers.judge_server import (
    findings,
    findings_by_check,
    is_noticed,
    leading_check,
    plan,
    run_checks,
)
from proof.servers.server_process import running_server
from tidewire_conformance import registry, specification
from tidewire_conformance.judging.grade import grade
from tidewire_conformance.judging.verdict import Outcome
from tidewire_conformance.runner import run

SERVERS = {
    "stream_without_done": "the end of a stream is missing: framing",
    "cursor_event_sent_again": "an event comes twice: resume",
    "lengths_in_utf16_units": "text is counted in other units: state",
    "item_cancel_cancels_all_items": "items of a batch are not separate: batch",
    "idempotency_key_ignored": "a retry runs twice: idempotency",
    "any_caller_can_read_any_job": "access control is missing: ownership",
    "candidates_ascending": "values of a model are in another order: logprobs",
    "expired_job_gets_404": "a response after expiry is wrong, which takes the expiry hook: durable",
}
"""Faulty server → the area that the case covers."""

BENIGN = {"ops_instead_of_bare_strings": "every text change is written in another form"}
"""Benign variant → the area that the case covers."""
BENIGN_AREAS = [
    "framing",
    "queue_progress_ping_goaway",
    "sizes",
    "resume",
    "state",
    "json_and_times",
    "text_checks_due",
    "slow_readers",
]

CLIENTS = {
    "SendsNoCursor": "it reads again from the start: reconnecting",
    "DoesNotVerifyDigest": "it believes a wrong state: verification",
    "SendsCredentialsToOtherOrigins": "it sends credentials to another host: security",
}
"""Faulty client → the area that the case covers."""


@pytest.mark.heavy
@pytest.mark.parametrize("name", SERVERS)
def test_a_faulty_server_fails_only_for_the_expected_reason(name):
    server = FAULTY_SERVERS[name]
    area = server.check.partition(".")[0]
    chosen = [each for each in registry.checks() if each.is_named_by([area, *server.also_run])]
    with running_server(name) as url:
        report = run_checks(url, chosen)
    assert is_noticed(server, report)
    assert leading_check(report) == server.check
    assert server_kill_matrix.fault_of(server, findings_by_check(report, warnings=True)) == ""


def test_the_page_says_in_how_many_runs_a_server_was_noticed():
    noticed = ServerRow("wrong_crc", "", {"state.some": "TW-DIF-001"}, 1.0)
    missed = ServerRow("wrong_crc", "not noticed", {}, 1.0)
    passed = ServerRow("crlf_line_ends", "", {}, 1.0)
    rows = [merge_runs([noticed] * 3, busy=True), merge_runs([passed] * 3, busy=True)]
    page = server_kill_matrix.page(rows)
    assert "| yes; noticed in 3 of 3 |" in page
    assert "| yes; passed in 3 of 3 |" in page
    assert "several times against 2 of these servers, 2 of them with every CPU core busy" in page
    page = server_kill_matrix.page([merge_runs([noticed, missed, noticed], busy=True)])
    assert "| **no** not noticed; noticed in 2 of 3 |" in page
    assert "noticed in" not in server_kill_matrix.page([noticed]).partition("## Faulty servers")[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", BENIGN)
def test_a_benign_variant_passes(name):
    with running_server(name) as url:
        chosen = [each for each in registry.checks() if each.is_named_by(BENIGN_AREAS)]
        assert findings(run_checks(url, chosen)) == []


@pytest.mark.heavy
def test_relative_links_are_resolved():
    """Links such as `../../jobs/<id>` and `events` are URI references (TW-OVR-013)."""
    checks = {
        "framing.streams_begin_with_hello", "resume.running_job_resumes_after_each_disconnect",
        "resume.disconnect_does_not_affect_the_job", "resume.ids_are_consecutive", "state.diffs_reconstruct_the_value",
        "jobs.submit_returns_the_job", "jobs.submit_can_return_the_stream", "jobs.links_resolve_to_their_resources",
    }  # fmt: skip
    with running_server("relative_links") as url:
        report = run_checks(url, [each for each in registry.checks() if each.name in checks])
    assert {each.check for each in report.run.verdicts if each.outcome is Outcome.PASS} == checks


@pytest.mark.parametrize("name", CLIENTS)
def test_a_faulty_client_fails_only_for_the_expected_reason(name):
    row = client_kill_matrix.judge_client_briefly(name)
    assert row.fault == ""
    assert row.red


def verdict_on(name, check):
    """The verdict of one check on a faulty server."""
    with running_server(name) as url:
        (verdict,) = run_checks(url, [each for each in registry.checks() if each.name == check]).run.verdicts
    return verdict


def test_a_batch_with_one_item_instead_of_several_fails():
    verdict = verdict_on("submit_body_ignored", "batch.items_end_independently")
    assert verdict.outcome is Outcome.FAIL, verdict.note


def test_streams_are_opened_before_the_job_of_an_example_ends():
    verdict = verdict_on(
        "responses_delayed_by_60_ms_without_a_script",
        "limits_per_caller.stream_above_the_limit_returns_429",
    )
    assert verdict.outcome is Outcome.PASS, verdict.note


def test_a_token_in_the_url_may_get_the_response_of_an_anonymous_caller():
    """A server of anonymous callers answers 404, because the job is that of another caller (TW-JOB-044)."""
    verdict = verdict_on(
        "stream_limit_shared_by_anonymous_callers", "ownership.credentials_in_the_url_are_not_accepted"
    )
    assert verdict.outcome is Outcome.PASS, verdict.note


def test_a_wrong_digest_is_reported_as_received_not_as_expected():
    verdict = verdict_on("wrong_digest", "state.diffs_reconstruct_the_value")
    (finding,) = [each for each in verdict.broken if each.requirement == "TW-DIF-055"]
    assert "the digest is 0123456789abcdef" in finding.got
    assert "0123456789abcdef" not in finding.expected


@pytest.mark.heavy
@pytest.mark.parametrize(
    "name", ["resume_skips_an_event_of_one_endpoint", "running_job_resume_far_behind_skips_an_event"]
)
def test_a_resume_that_skips_an_event_only_in_some_jobs_is_noticed(name):
    server = FAULTY_SERVERS[name]
    assert server.requirement in {each.requirement for each in verdict_on(name, server.check).broken}


@pytest.mark.heavy
def test_a_response_that_stays_open_after_done_has_complete_events():
    checks = [each for each in registry.checks() if each.name == "framing.stream_closes_after_done"]
    with running_server("connection_open_after_done") as url:
        report = grade(asyncio.run(run(replace(plan(url), endpoints=("square",)), checks)))
    assert {each.requirement.id for each in report.failures} == {"TW-FRM-007"}


@pytest.mark.heavy
def test_a_wrong_digest_violates_no_other_requirement():
    areas = ["framing", "jobs", "state", "catch_up", "resume"]
    with running_server("wrong_digest") as url:
        report = run_checks(url, [each for each in registry.checks() if each.is_named_by(areas)])
    # The digest in the job resource is right, so that it differs from the one in the stream (TW-JOB-042).
    assert {each.requirement.id for each in report.failures} == {"TW-DIF-055", "TW-JOB-042"}


def test_each_faulty_server_names_a_check_that_names_its_requirement():
    checks = {check.name: check for check in registry.checks()}
    for server in FAULTY_SERVERS.values():
        assert server.description, server.name
        if not server.is_benign:
            assert server.requirement in checks[server.check].requirements, server.name
            assert {*server.also_run} <= checks.keys(), server.name


def test_a_faulty_server_is_defined_in_the_module_of_its_area():
    folder = Path(faults.__file__).parent
    for name, server in FAULTY_SERVERS.items():
        area = server.check.partition(".")[0] or "benign"
        text = (folder / f"{area}.py").read_text(encoding="utf-8")
        stem = name.rstrip("0123456789")  # a loop adds the number
        assert f'"{stem}' in text or f"def {stem}" in text, name


def test_each_check_is_failed_by_a_faulty_server():
    proved = {server.check for server in FAULTY_SERVERS.values()}
    assert {check.name for check in registry.checks()} - proved == set(), (
        "a check that no faulty server proves"
    )
    judged = {requirement for check in registry.checks() for requirement in check.requirements}
    assert judged <= specification.requirements().keys()


def test_expected_side_failures_name_existing_checks():
    names = [check.name for check in registry.checks()]
    for server in FAULTY_SERVERS.values():
        for why, patterns in server.also_fails.items():
            assert why
            assert all(filter_names(names, pattern) for pattern in patterns.split()), server.name


# ---- the proof package -------------------------------------------------------------------------------------------

FILES = [*Path(proof.__file__).parent.rglob("*.py")]


def test_the_proof_does_not_import_tests():
    tests = {path.stem for path in Path(__file__).parents[1].iterdir()} | {"pytest", "tests"}
    tests -= sys.stdlib_module_names  # The standard library has a module `typing`, too.
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & tests, file


def test_names_of_modules_and_classes_are_unique():
    found = defaultdict(list)
    for file in FILES:
        if not file.stem.startswith("__"):
            found[file.stem].append(file)
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(file)
    assert {name: files for name, files in found.items() if len(files) > 1} == {}
