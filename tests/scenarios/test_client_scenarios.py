"""Every scenario of the specification, with each form of our client and with two that were written from its text alone;
and the proof that the scenarios find faults.
"""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from proof.client_kill_matrix import NOT_BROKEN
from proof.clients.faulty_client import all_faulty_clients
from proof.reimplementations.plain_adapter import PlainAdapter
from scenarios.client_adapters import AsyncAdapter, BlockingAdapter, JavaScriptAdapter
from support.spec_document import SCHEMA_OF_EVENT, SPEC, breaches, document
from tidewire_conformance.clients.client_mode.scenario_verdicts import verdict_of
from tidewire_conformance.clients.player import Outcome, describe, load_all, play
from tidewire_conformance.clients.player.scenario import JOB
from tidewire_conformance.clients.player.scenario_bodies import (
    ENDPOINT,
    discovery_body,
    job_body,
    problem_body,
)
from tidewire_conformance.runner import settle

SCENARIOS = sorted(load_all(), key=lambda scenario: scenario.patience)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
ASYNCIO, *OTHERS = OURS = [AsyncAdapter("asyncio"), AsyncAdapter("trio"), BlockingAdapter()]
JAVASCRIPT = JavaScriptAdapter()
STRANGERS = [PlainAdapter(), *([JAVASCRIPT] if shutil.which("node") else [])]
CLIENTS = [*OURS, *STRANGERS]
WRONG = list(all_faulty_clients())

AT_THE_SAME_TIME = 24
"""Most of a scenario is waiting, some ten seconds: all that is selected is played at once, and each test takes its own."""

PATIENCE = 4.0
"""So many plays at once, on a busy machine, take a right client longer: only one that hangs waits it out."""


def pairs():
    """Each scenario with each client. The quick run holds all of them with one form of our client; with each form one
    for every sentence on the behaviour of clients; and of the others each scenario with one client in turn.
    """
    rows = {}
    for scenario in SCENARIOS:
        if "-CLI-" in scenario.requirements[0]:
            rows.setdefault(scenario.requirements[0], scenario)
    for number, scenario in enumerate(SCENARIOS):
        turn = (*OTHERS, *STRANGERS)[number % (len(OTHERS) + len(STRANGERS))]
        for client in CLIENTS:
            row = client in OURS and scenario in rows.values()
            quick = client in {ASYNCIO, turn} or row
            yield pytest.param(
                scenario,
                client,
                id=f"{scenario.name}-{client.name}",
                marks=() if quick else pytest.mark.slow,
            )


def wrong(share=1):
    """Each client with a fault; the quick run holds one of so many, and none that takes seconds to catch."""
    for number, client in enumerate(WRONG):
        is_slow = client.is_costly or number % share
        yield pytest.param(client, id=client.__name__, marks=pytest.mark.slow if is_slow else ())


def breaks(client):
    return client.breaks or BY_NAME[client.scenario].requirements[0]


def patience_with(client):
    """A factor. Who takes a lie for true waits for more: that shows at once. What comes later may take a busy machine long."""
    hangs = client.kind in {"hung", "promptness", "never"} or BY_NAME[client.scenario].area == "resync"
    return client.patience or (0.3 if hangs else 1.0)


ALWAYS = {"TW-CLI-008", "TW-CLI-049", "TW-DIF-033", "TW-JOB-036", "TW-SEC-012", "TW-SEC-023"}
"""Sentences that every scenario judges."""

FAULTS: dict[str, str] = {}
"""Where our client is known to be wrong, and how. It is an error once it is right: then the line goes."""


@pytest.fixture(scope="module")
def verdicts(request):
    """The verdicts of the selected tests by their names, in the making; those that last begin first."""
    right = test_client_does_what_the_scenario_demands.__name__
    wrong = test_wrong_client_is_caught_for_its_reason.__name__
    plays = {
        f"{right}[{scenario.name}-{client.name}]": (scenario, client, PATIENCE)
        for scenario in SCENARIOS
        for client in CLIENTS
    }
    for client in WRONG:
        plays[f"{wrong}[{client.__name__}]"] = (
            BY_NAME[client.scenario],
            PlainAdapter(client),
            patience_with(client),
        )
    selected = [item.name for item in request.session.items if item.name in plays]
    with ThreadPoolExecutor(AT_THE_SAME_TIME) as pool:
        yield {
            name: pool.submit(play, plays[name][0], plays[name][1], patience=plays[name][2])
            for name in sorted(selected, key=lambda name: -plays[name][0].patience)
        }
    JAVASCRIPT.close()


@pytest.mark.parametrize(("scenario", "client"), [*pairs()])
def test_client_does_what_the_scenario_demands(scenario, client, verdicts, request):
    verdict = verdicts[request.node.name].result()
    if scenario.name in FAULTS and client in OURS:
        assert verdict.outcome is not Outcome.PASS, (
            f"{scenario.name} is mended: take it from the list of faults"
        )
    else:
        assert verdict.outcome is Outcome.PASS, describe(verdict)


# ---- the scenarios find faults ---------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [*wrong(share=2)])
def test_wrong_client_is_caught_for_its_reason(wrong, verdicts, request):
    verdict = verdicts[request.node.name].result()
    assert verdict.outcome in {Outcome.FAIL, Outcome.WARN}, describe(verdict)
    assert wrong.kind in {finding.kind for finding in verdict.findings}, describe(verdict)
    told = verdict_of(verdict)
    settle(told)
    assert told.outcome in {Outcome.FAIL, Outcome.WARN}
    assert breaks(wrong) in {*verdict.scenario.requirements, *ALWAYS}
    assert breaks(wrong) in {each.requirement for each in told.broken}


@pytest.mark.parametrize("wrong", [*wrong(share=10)])
def test_wrong_client_passes_a_scenario_that_is_about_something_else(wrong):
    verdict = play(BY_NAME[wrong.control], PlainAdapter(wrong), patience=PATIENCE)
    assert verdict.outcome is Outcome.PASS, describe(verdict)
    assert verdict_of(verdict).broken == []


def test_each_sentence_of_a_scenario_is_broken_by_a_wrong_client_or_cannot_be():
    named = {name for scenario in SCENARIOS for name in scenario.requirements}
    assert named - {breaks(client) for client in WRONG} == NOT_BROKEN.keys()


# ---- the scenarios are what they say ---------------------------------------------------------------------------


def steps_of(scenario):
    for exchange in scenario.lanes.get("streams", ()):
        yield from exchange.get("events", ())
    yield from scenario.log


def messages_of(scenario):
    """Type and data of each event that is not a lie."""
    for step in steps_of(scenario):
        if "lie" in step:
            continue
        if "hello" in step:
            default = {"protocol": "tidewire/1", "events": "/x", "head": "1-1", "heartbeat_ms": 15000}
            yield "hello", default | step["hello"] | {"job": JOB}
        elif "data" in step:
            yield step.get("event", "message"), step["data"]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_events_fit_their_schemas_unless_they_lie(scenario):
    for kind, data in messages_of(scenario):
        if kind in SCHEMA_OF_EVENT:
            assert breaches(SCHEMA_OF_EVENT[kind], data) == [], (kind, data)
        else:
            assert "." in kind, "an extension has a dot in its name"


def test_bodies_fit_their_schemas():
    assert breaches("endpoint", ENDPOINT) == []
    for scenario in SCENARIOS:
        if "protocol" not in scenario.discovery:
            assert breaches("discovery", discovery_body(scenario.discovery)) == [], scenario.name
        for exchange in (one for lane in scenario.lanes.values() for one in lane):
            if "job" in exchange:
                assert breaches("job", job_body(exchange["job"])) == [], scenario.name
            if "problem" in exchange:
                problem = problem_body(exchange["problem"], exchange["status"])
                assert breaches("problem", problem) == [], scenario.name


def test_scenarios_name_sentences_that_clients_have_to_keep():
    roles = {one.id: one.role for one in document.requirements}
    for scenario in SCENARIOS:
        assert {roles.get(name) for name in scenario.requirements} <= {"client", "both"}, scenario.name


def test_each_row_of_the_table_of_clients_has_a_scenario():
    table = (
        (SPEC / "13-client.md").read_text(encoding="utf-8").partition("## 13.2")[2].partition("## 13.3")[0]
    )
    rows = [re.findall(r"TW-[A-Z]{3}-\d{3}", line) for line in table.splitlines()]
    rows = [row for row in rows if row]
    assert len(rows) >= 19
    named = {name for scenario in SCENARIOS for name in scenario.requirements}
    assert [row for row in rows if not set(row) <= named] == []


def test_each_sentence_on_clients_has_a_scenario_or_is_not_seen_on_the_wire():
    text = (SPEC / "README.md").read_text(encoding="utf-8")
    unseen = text.partition("## Not seen on the wire")[2].partition("\n## ")[0]
    named = {name for scenario in SCENARIOS for name in scenario.requirements}
    chapter = {one.id for one in document.requirements if one.chapter == "13-client"}
    assert [name for name in sorted(chapter - named) if name not in unseen] == []
