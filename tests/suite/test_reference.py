"""The reference server passes all checks, and third-party servers fail only the requirements that the pages name."""

import asyncio
import json
import re
from collections import Counter
from dataclasses import replace

import pytest

from interop.appendix import APPENDIX, ROOT
from proof.servers.judge_server import findings, plan
from proof.servers.server_process import running_server
from support.foreign_programs import javascript_server, needs_node, standard_library_server
from tidewire_conformance import registry
from tidewire_conformance.announce_job_counts import announce_checks
from tidewire_conformance.judging.grade import grade
from tidewire_conformance.judging.server_probe import SHORT_TOKENS
from tidewire_conformance.judging.verdict import Outcome, SkipReason
from tidewire_conformance.report import badge
from tidewire_conformance.runner import Plan, run
from tidewire_server import Server
from tidewire_server.script_endpoint import add_script

CHECKS = registry.checks()
BADGES = ROOT / "proof/results/badges"
"""Folder for the badges of the servers that are written from the specification. Git ignores it."""


@pytest.fixture(scope="module")
def reference_url():
    with running_server() as url:
        yield url


def report(plan_of_run, checks=CHECKS):
    return grade(asyncio.run(run(plan_of_run, checks)))


def untested(found):
    return {
        each.check for each in found.run.verdicts if each.why in {SkipReason.UNTESTED, SkipReason.BLOCKED}
    }


@pytest.mark.heavy
@pytest.mark.timeout(120)
def test_the_reference_server_passes_all_checks(reference_url):
    found = report(plan(reference_url))
    assert findings(found) == []
    assert untested(found) == set()
    assert found.headline.startswith("core+batch+logprobs+browser · ")
    assert found.exit_code == 0
    # A stream that is resumed replaces its entry, which it finds by its number.
    assert [each.number for each in found.run.record] == list(range(1, len(found.run.record) + 1))


@pytest.mark.timeout(60)
def test_the_reference_server_ends_a_stream_when_its_token_expires():
    server = Server(stream_token_ttl=2)
    add_script(server)
    expiry = [each for each in CHECKS if each.name == "browser.stream_ends_when_its_token_expires"]
    with server.running() as url:
        (verdict,) = report(Plan(url), expiry).run.verdicts
    assert verdict.outcome is Outcome.PASS, verdict


@pytest.mark.timeout(60)
@pytest.mark.parametrize("decimals", [0, 1, 9])
def test_log_probabilities_may_be_rounded_as_the_example_requests(reference_url, decimals):
    """Rounded log-probabilities can give probabilities that sum to more than 1 (TW-GEN-029)."""
    example = {"prompt": "it was a long day", "top_logprobs": 20, "logprob_decimals": decimals}
    checks = [each for each in CHECKS if each.is_named_by(["logprobs"])]
    found = report(replace(plan(reference_url), examples=(("generate", example),)), checks)
    assert findings(found) == []
    assert {each.outcome for each in found.run.verdicts} == {Outcome.PASS}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("example", "inputs"),
    [
        ({"prompt": "a"}, [{"prompt": "a"}, {"prompt": "a", "max_tokens": SHORT_TOKENS}]),
        ({"max_tokens": 40}, [{"max_tokens": 40}, {"max_tokens": SHORT_TOKENS}]),
        ({"max_tokens": None}, [{"max_tokens": None}, {"max_tokens": SHORT_TOKENS}]),
        ({"max_tokens": SHORT_TOKENS}, [{"max_tokens": SHORT_TOKENS}]),
    ],
)
def test_most_jobs_of_a_text_generation_are_short(reference_url, example, inputs):
    own = replace(plan(reference_url), examples=(("generate", example),), endpoints=("generate",))
    found = report(own, [each for each in CHECKS if each.name == "framing.retry_is_jittered"])
    sent = [
        json.loads(each.sent)["input"] for each in found.run.record if each.path.endswith("generate/jobs")
    ]
    assert sent == inputs


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_most_durable_and_batch_checks_run_without_the_script_endpoint():
    with running_server("no_script_endpoint") as url:
        found = report(replace(plan(url), endpoints=("generate", "talk", "spell")))
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


@pytest.mark.heavy
@pytest.mark.timeout(120)
def test_the_standard_library_server_breaks_exactly_the_requirements_that_the_appendix_lists():
    with standard_library_server() as url:
        found = report(Plan(url))
    listed = requirements_left_out()
    broken = {each.requirement.id for each in found.failures}
    assert broken - listed["yes"] == set()
    assert listed["yes"] - broken <= TIMING_DEPENDENT
    assert not broken & listed["no"]
    assert not found.errors
    assert re.match(r"stream \(\d+ checks not tried\) · ", found.headline)


@pytest.mark.heavy
@pytest.mark.timeout(120)
def test_the_standard_library_server_conforms_to_the_profile_stream():
    """The checks that the suite does not try need `tidewire.script`, small limits or commands of the operator."""
    checks = [each for each in (check.narrowed(["stream"]) for check in CHECKS) if each.requirements]
    with standard_library_server() as url:
        found = grade(asyncio.run(run(Plan(url), checks)), profiles=["stream"])
    assert [each.requirement.id for each in found.failures] == []
    assert found.exit_code == 0
    assert re.match(r"stream \(\d+ checks not tried\) · ", found.headline)
    assert_badge(found, "stream", "appendix-server.svg")


def assert_badge(found, profile, name):
    """Assert the summary of a report, and write its badge in the same way as the option `--badge`."""
    text, color = badge.summary(found)
    assert (text.split(" ")[0], color) == (profile, badge.YELLOW), (
        "checks that were not tried make a badge yellow"
    )
    BADGES.mkdir(parents=True, exist_ok=True)
    badge.write(found, BADGES / name)
    assert text in (BADGES / name).read_text(encoding="utf-8")


def requirements_left_out():
    """The requirements in the table of the appendix, by whether the suite reports them."""
    rows = re.findall(
        r"^\| [^|]+ \| (TW-[^|]+) \| (yes|no) \|$", APPENDIX.read_text(encoding="utf-8"), re.MULTILINE
    )
    return {
        answer: {name for names, each in rows if each == answer for name in names.split(", ")}
        for answer in ("yes", "no")
    }


@pytest.mark.heavy
@needs_node
@pytest.mark.timeout(120)
def test_the_javascript_server_fails_no_requirement():
    with javascript_server(heartbeat_ms=400) as url:
        found = report(Plan(url))
    assert_announced_jobs_are_about_right(found.run)
    assert [each.requirement.id for each in found.failures] == []
    assert not found.errors
    assert re.match(r"core \(\d+ checks not tried\) · ", found.headline)
    assert_badge(found, "core", "node-server.svg")


def assert_announced_jobs_are_about_right(suite_run):
    announced = announce_checks(suite_run.server, CHECKS, 1)
    expected = {name: int(count) for count, name in re.findall(r"about (\d+) on (\S+)", announced)}
    started = Counter(name for name, check in started_jobs(suite_run) if check != AT_THE_LIMIT)
    assert expected.keys() <= started.keys(), announced
    assert sum(expected.values()) / 2 <= started.total() <= sum(expected.values()) * 2, (announced, started)


AT_THE_LIMIT = "limits_per_caller.anonymous_caller_at_the_job_limit_does_not_lock_out_others"


def started_jobs(suite_run):
    """The endpoint and the check of each request that started a job."""
    return [
        (match[1], each.check)
        for each in suite_run.record
        if each.status in {200, 201}
        and each.method == "POST"
        and (match := re.search(r"/endpoints/([^/]+)/jobs", each.path))
    ]


@needs_node
@pytest.mark.parametrize("limit", [5, 101])
def test_long_jobs_that_reach_the_limit_of_a_caller_are_announced(limit):
    """They run at the endpoint whose jobs are the longest, and perhaps the most expensive."""
    check = next(each for each in CHECKS if each.name == AT_THE_LIMIT)
    with javascript_server(max_jobs=limit) as url:
        found = report(Plan(url, examples=(("count", {"n": 10, "delay_ms": 100}),)), [check])
    started = [name for name, each in started_jobs(found.run) if each == AT_THE_LIMIT]
    announced = re.findall(r"may start (\d+) more on count", announce_checks(found.run.server, [check], 1))
    assert announced == (["7"] if limit == 5 else [])
    assert (5 <= len(started) <= 7) if limit == 5 else not started


TIMING_DEPENDENT = {"TW-DSC-012", "TW-JOB-008", "TW-SEC-014"}
"""Requirements whose violation depends on the time at which a connection is closed."""
