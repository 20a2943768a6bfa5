"""The reference server is all green, with the programmable endpoint and without; strangers are judged truthfully."""

import asyncio
from dataclasses import replace

import pytest

from proof.servers.judge_server import findings, plan
from proof.servers.server_process import running_server
from support.foreign_programs import javascript_server, needs_node, standard_library_server
from tidewire_conformance import registry
from tidewire_conformance.judging.grade import grade
from tidewire_conformance.judging.verdict import Outcome, SkipReason
from tidewire_conformance.runner import Plan, run

CHECKS = registry.checks()


def report(one, checks=CHECKS):
    return grade(asyncio.run(run(one, checks)), checks)


def untested(found):
    return {
        each.check for each in found.run.verdicts if each.why in {SkipReason.UNTESTED, SkipReason.BLOCKED}
    }


@pytest.mark.timeout(120)
def test_the_reference_is_all_green():
    with running_server() as url:
        found = report(plan(url))
    assert findings(found) == []
    assert untested(found) == set()
    assert found.headline.startswith("core+batch+logprobs+browser · ")
    assert found.exit_code == 0


@pytest.mark.timeout(120)
def test_most_of_what_is_durable_and_of_batches_is_tried_by_one_function_and_the_text_endpoint():
    with running_server("no_script_endpoint") as url:
        found = report(replace(plan(url), endpoints=("generate", "talk")))
    assert findings(found) == []
    assert found.headline.startswith("core+durable+batch+logprobs+browser · ") or untested(found)
    for area in ("resume", "durable", "batch"):
        found_there = (each for each in found.run.verdicts if each.check.startswith(f"{area}."))
        own = [
            each for each in found_there if each.why not in {SkipReason.NO_OCCASION, SkipReason.NOT_DECLARED}
        ]
        assert own, area
        assert sum(each.outcome is Outcome.PASS for each in own) * 2 >= len(own), area
    of = {check.name: check.profiles for check in CHECKS}
    both = [each for each in found.run.verdicts if of[each.check] & {"durable", "batch"}]
    passed = [each for each in both if each.outcome is Outcome.PASS]
    assert len(passed) * 2 >= len(both) > 0


@pytest.mark.timeout(120)
def test_a_server_of_150_lines_is_judged_for_what_it_has():
    with standard_library_server() as url:
        found = report(Plan(url, examples=(("words", {"text": "né 😀 and on and on", "delay_ms": 60}),)))
    assert {each.requirement.id for each in found.failures} | BY_CHANCE == LACKING[
        "standard-library"
    ] | BY_CHANCE
    assert not found.errors


@needs_node
@pytest.mark.timeout(120)
def test_a_server_in_another_language_is_judged_for_what_it_has():
    with javascript_server(heartbeat_ms=400) as url:
        found = report(Plan(url))
    assert {each.requirement.id for each in found.failures} == LACKING["javascript"]
    assert not found.errors


BY_CHANCE = {"TW-DSC-012", "TW-JOB-008", "TW-SEC-014", "TW-JOB-069", "TW-JOB-070"}
"""What shows only where a job of half a second still runs, or an answer comes before its connection closes."""
LACKING = {
    # By its own words it leaves out 406, 415, bodies in chunks, deadlines, other members of a submit, and rules of JSON.
    "standard-library": {
        "TW-OVR-002", "TW-OVR-003", "TW-OVR-004", "TW-OVR-005",
        "TW-FRM-008", "TW-JOB-008", "TW-JOB-009", "TW-JOB-010", "TW-JOB-017", "TW-JOB-069", "TW-JOB-070", "TW-JOB-079",
        "TW-JOB-080", "TW-JOB-083",
    },
    "javascript": set(),
}  # fmt: skip
"""Sentences that they break."""
