"""Whatever JSON, bytes, status or header a third-party server sends, the suite reports findings and raises no exception."""

import ast
import asyncio
import io
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from proof.servers.judge_server import CALLER, SECOND_CALLER, plan
from proof.servers.server_process import ORIGIN, running_server
from support.replayed_server import mutated_conversation, mutated_description, recorded, replayed_server
from tidewire_conformance import checks as package
from tidewire_conformance import registry
from tidewire_conformance.judging.grade import grade
from tidewire_conformance.judging.server_probe import ProbeError
from tidewire_conformance.judging.verdict import Outcome, SkipReason
from tidewire_conformance.report import json_report, terminal_report
from tidewire_conformance.runner import Plan, run
from tidewire_conformance.session import Hooks

CHECKS = registry.checks()
WHOLE_RUN = [check for check in CHECKS if check.whole_run]
ALONE = [check for check in CHECKS if not check.whole_run]
PATIENCE, SHORT_PATIENCE = 0.2, 0.02
"""Factors of all timeouts, without and with mutations. A replayed response arrives at once or never."""
QUICK, ALL = 6, 2000
"""Number of mutated conversations, and of mutated descriptions, in `make test` and in `make slow`. `make test` mutates the
conversations of the checks in `QUICK_AREA` only."""
QUICK_AREA = "resume."
QUICK_CHECKS = [check for check in ALONE if check.name.startswith(QUICK_AREA)]
NEEDS_TIME = {
    "deadlines.job_without_readers_is_cancelled_after_its_grace_period",
    "queue_progress_ping_goaway.idle_stream_receives_pings",
    "waiting_jobs.waiting_job_receives_pings",
    "snapshots_only.diffs_0_returns_snapshots_and_done",
    "snapshots_only.min_interval_ms_is_raised_to_the_minimum",
    "limits_per_caller.job_above_the_limit_returns_429",
    "limits_per_caller.stream_above_the_limit_returns_429",
    "log_contents.continuous_changes_are_merged",
    "errors.head_and_options_need_no_body",
    "catch_up.no_event_is_lost_between_replay_and_live_events",
    "requests_with_several_errors.refused_submit_starts_no_job",
}
"""Checks that judge delays, concurrent streams, other methods or the list of jobs, which a replay does not have."""


ENDPOINTS = ("generate", "report", "shout", "square")
"""Endpoints whose examples run, in addition to `tidewire.script`."""


def conversations_with(server, area):
    with running_server(server) as url:
        chosen = [check for check in CHECKS if check.name.startswith(area)]
        return recorded(asyncio.run(run(replace(plan(url, 100.0), endpoints=ENDPOINTS), chosen)).record)


@pytest.fixture(scope="module")
def conversations():
    """The recorded responses of a run against the reference server, by check."""
    return conversations_with("", "")


@pytest.fixture(scope="module")
def few_conversations():
    """Those of the checks in one area."""
    return conversations_with("", QUICK_AREA)


@pytest.fixture(scope="module")
def durable_conversations():
    """Those of the checks of durable jobs, against a server that restarts."""
    return conversations_with("restart_loses_running_jobs", "durable.")


async def judged(server, url, checks, responses, patience=SHORT_PATIENCE):
    """Run checks against a server that replays these responses, and build the reports."""
    server.play(responses)
    hooks = Hooks("true", "true", url, SECOND_CALLER, ORIGIN)
    report = grade(await run(Plan(url, CALLER, hooks, ENDPOINTS, patience=patience), checks))
    terminal_report.show(report, Console(file=io.StringIO(), width=100), everything=True)
    json_report.content(report)
    return report


def faults_of_the_suite(report):
    return [f"{each.check}: {each.note}" for each in report.run.verdicts if each.outcome is Outcome.ERROR]


async def judge_conversations(conversations, numbers, checks=ALONE):
    found = Counter()
    async with replayed_server() as (server, url):
        for number in numbers:
            check = checks[number % len(checks)]
            own = mutated_conversation(conversations[check.name], random.Random(number))
            responses = [*conversations["discovery"], *own]
            report = await judged(server, url, [check, *WHOLE_RUN], responses)
            assert faults_of_the_suite(report) == [], number
            found.update(each.outcome for each in report.run.verdicts[:1])
    return found


async def judge_descriptions(conversations, numbers, checks=ALONE):
    found = Counter()
    async with replayed_server() as (server, url):
        for number in numbers:
            rng = random.Random(number)
            check = checks[number % len(checks)]
            described = mutated_description(conversations["discovery"], rng)
            responses = [*described, *conversations[check.name]]
            try:
                report = await judged(server, url, [check, *WHOLE_RUN], responses)
            except ProbeError:  # the discovery document cannot be read, or lacks an endpoint of the plan
                continue
            assert faults_of_the_suite(report) == [], number
            found.update(each.outcome for each in report.run.verdicts)
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_check_reads_its_replayed_conversation_to_the_end(conversations):
    """Without mutations, the checks pass, so the mutations reach the code that reads the responses."""

    async def judge_all():
        async with replayed_server() as (server, url):
            for check in ALONE:
                responses = [*conversations["discovery"], *conversations[check.name]]
                report = await judged(server, url, [check], responses, PATIENCE)
                yield report.run.verdicts[0]

    async def collect():
        return [verdict async for verdict in judge_all()]

    without_need = {SkipReason.NO_OCCASION, SkipReason.NOT_DECLARED}
    found = asyncio.run(collect())
    unread = {
        each.check for each in found if each.outcome is not Outcome.PASS and each.why not in without_need
    }
    assert unread <= NEEDS_TIME


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_mutated_conversations_raise_no_exception(few_conversations):
    found = asyncio.run(judge_conversations(few_conversations, range(QUICK), QUICK_CHECKS))
    assert found[Outcome.FAIL] > 0


@pytest.mark.timeout(300)
def test_mutated_descriptions_raise_no_exception(few_conversations):
    found = asyncio.run(judge_descriptions(few_conversations, range(QUICK), QUICK_CHECKS))
    assert found[Outcome.FAIL] > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_mutated_conversations_raise_no_exception(conversations):
    asyncio.run(judge_conversations(conversations, range(ALL)))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mutated_conversations_about_durable_jobs_raise_no_exception(durable_conversations):
    durable = [check for check in ALONE if check.name.startswith("durable.")]
    found = asyncio.run(judge_conversations(durable_conversations, range(len(ALONE)), durable))
    assert found[Outcome.FAIL] > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_mutated_descriptions_raise_no_exception(conversations):
    asyncio.run(judge_descriptions(conversations, range(ALL)))


@pytest.mark.parametrize("module", sorted(Path(package.__path__[0]).glob("*.py")), ids=lambda path: path.stem)
def test_checks_read_members_only_with_their_types(module):
    """`answer.json["x"]` and `answer.json.get("x")` raise an exception if the server sends JSON of another type."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    untyped = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript | ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "json"
    ]
    assert untyped == []
