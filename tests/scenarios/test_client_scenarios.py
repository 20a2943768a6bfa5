"""Every client scenario of the specification, with each client of this project and two others.

The other clients were written from the specification alone. Faulty clients prove that the scenarios find
faults.
"""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from proof.client_kill_matrix import NOT_BROKEN
from proof.clients.faulty_client import all_faulty_clients
from proof.reimplementations.plain_adapter import PlainAdapter
from scenarios.client_adapters import JAVASCRIPT_CLIENT, PROJECT_CLIENTS
from support.spec_document import SCHEMA_OF_EVENT, SPEC, breaches, document
from tidewire_conformance.clients.scenarios import Outcome, describe, load_all, play
from tidewire_conformance.clients.scenarios.scenario import JOB
from tidewire_conformance.clients.scenarios.scenario_bodies import (
    ENDPOINT,
    discovery_body,
    job_body,
    problem_body,
)
from tidewire_conformance.clients.scenarios.scenario_to_verdict import verdict_of
from tidewire_conformance.runner import settle

SCENARIOS = sorted(load_all(), key=lambda scenario: scenario.patience)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
ASYNCIO_CLIENT, *OTHERS = PROJECT_CLIENTS
INDEPENDENT_CLIENTS = [PlainAdapter(), *([JAVASCRIPT_CLIENT] if shutil.which("node") else [])]
CLIENTS = [*PROJECT_CLIENTS, *INDEPENDENT_CLIENTS]
FAULTY_CLIENTS = list(all_faulty_clients())

CONCURRENT_PLAYS = 24
"""Number of concurrent plays.

A scenario mostly waits, about ten seconds, so all selected scenarios are played concurrently.
"""

PATIENCE = 4.0
"""Factor for time limits.

Many plays at once delay a correct client; only a hanging client uses the whole time.
"""


def pairs():
    """Pairs of scenario and client; those outside the quick run are marked as slow.

    The quick run plays every scenario with `AsyncClient` on asyncio, and every fourth one also with one of the other
    clients in turn. With each client of this project it also plays one scenario for every requirement on clients.
    """
    rows = {}
    for scenario in SCENARIOS:
        if "-CLI-" in scenario.requirements[0]:
            rows.setdefault(scenario.requirements[0], scenario)
    for number, scenario in enumerate(SCENARIOS):
        others = (*OTHERS, *INDEPENDENT_CLIENTS)
        turn = ASYNCIO_CLIENT if number % 4 else others[number // 4 % len(others)]
        for client in CLIENTS:
            row = client in PROJECT_CLIENTS and scenario in rows.values()
            quick = client in {ASYNCIO_CLIENT, turn} or row
            yield pytest.param(
                scenario,
                client,
                id=f"{scenario.name}-{client.name}",
                marks=() if quick else pytest.mark.slow,
            )


def faulty(share=1):
    """Each faulty client.

    The quick run takes every `share`-th client and none whose fault takes seconds to find.
    """
    for number, client in enumerate(FAULTY_CLIENTS):
        is_slow = client.is_costly or number % share
        yield pytest.param(client, id=client.__name__, marks=pytest.mark.slow if is_slow else ())


def broken_requirement(client):
    return client.breaks or BY_NAME[client.scenario].requirements[0]


def patience_with(client):
    """Factor for the time limits of a faulty client.

    A client that believes a false event hangs, which is visible early, so the factor is small. Other faults
    may take long to appear on a busy machine.
    """
    hangs = client.kind in {"hung", "promptness", "never"} or BY_NAME[client.scenario].area == "resync"
    return client.patience or (0.3 if hangs else 1.0)


ALWAYS = {"TW-CLI-008", "TW-CLI-041", "TW-CLI-049", "TW-DIF-033", "TW-JOB-036", "TW-SEC-012", "TW-SEC-023"}
"""Requirements that every scenario checks."""

FAULTS: dict[str, str] = {}
"""Scenarios that the clients of this project are known to fail, with the reason.

A listed scenario that passes fails its test.
"""


@pytest.fixture(scope="module")
def verdicts(request):
    """Futures of the verdicts by test name; scenarios with the longest time limits start first."""
    right = test_client_passes_the_scenario.__name__
    faulty = test_faulty_client_fails_for_the_expected_requirement.__name__
    plays = {
        f"{right}[{scenario.name}-{client.name}]": (scenario, client, PATIENCE)
        for scenario in SCENARIOS
        for client in CLIENTS
    }
    for client in FAULTY_CLIENTS:
        plays[f"{faulty}[{client.__name__}]"] = (
            BY_NAME[client.scenario],
            PlainAdapter(client),
            patience_with(client),
        )
    selected = [item.name for item in request.session.items if item.name in plays]
    with ThreadPoolExecutor(CONCURRENT_PLAYS) as pool:
        yield {
            name: pool.submit(play, plays[name][0], plays[name][1], patience=plays[name][2])
            for name in sorted(selected, key=lambda name: -plays[name][0].patience)
        }
    for client in (*PROJECT_CLIENTS, JAVASCRIPT_CLIENT):
        client.close()


@pytest.mark.parametrize(("scenario", "client"), [*pairs()])
def test_client_passes_the_scenario(scenario, client, verdicts, request):
    verdict = verdicts[request.node.name].result()
    if scenario.name in FAULTS and client in PROJECT_CLIENTS:
        assert verdict.outcome is not Outcome.PASS, (
            f"{scenario.name} is mended: take it from the list of faults"
        )
    else:
        assert verdict.outcome is Outcome.PASS, describe(verdict)


# ---- the scenarios find faults ---------------------------------------------------------------------------------


@pytest.mark.parametrize("faulty", [*faulty(share=2)])
def test_faulty_client_fails_for_the_expected_requirement(faulty, verdicts, request):
    verdict = verdicts[request.node.name].result()
    if faulty.kind == "wait" and verdict.outcome is Outcome.PASS:
        # On a busy machine, the requests of a client that does not wait may be far apart.
        verdict = play(BY_NAME[faulty.scenario], PlainAdapter(faulty), patience=patience_with(faulty))
    assert verdict.outcome in {Outcome.FAIL, Outcome.WARN}, describe(verdict)
    # On a busy machine, a client with quadratic run time may not finish before the scenario does.
    kinds = {faulty.kind, "hung"} if faulty.is_costly else {faulty.kind}
    assert kinds & {finding.kind for finding in verdict.findings}, describe(verdict)
    verdict_report = verdict_of(verdict)
    settle(verdict_report)
    assert verdict_report.outcome in {Outcome.FAIL, Outcome.WARN}
    assert broken_requirement(faulty) in {*verdict.scenario.requirements, *ALWAYS}
    assert broken_requirement(faulty) in {each.requirement for each in verdict_report.broken}


@pytest.mark.parametrize(
    ("faulty", "unsent"), [("SendsCursorInWrongHeader", "TW-CLI-007"), ("RequestsAnyMediaType", "")]
)
def test_verdict_names_what_the_client_did_not_send(faulty, unsent):
    (client,) = (each for each in FAULTY_CLIENTS if each.__name__ == faulty)
    verdict = play(BY_NAME[client.scenario], PlainAdapter(client), patience=PATIENCE)
    assert verdict_of(verdict).unsent == unsent


@pytest.mark.parametrize("faulty", [*faulty(share=10)])
def test_faulty_client_passes_an_unrelated_scenario(faulty):
    verdict = play(BY_NAME[faulty.control], PlainAdapter(faulty), patience=PATIENCE)
    assert verdict.outcome is Outcome.PASS, describe(verdict)
    assert verdict_of(verdict).broken == []


def test_each_requirement_of_a_scenario_is_broken_by_a_faulty_client():
    named = {name for scenario in SCENARIOS for name in scenario.requirements}
    assert named - {broken_requirement(client) for client in FAULTY_CLIENTS} == NOT_BROKEN.keys()


# ---- the scenarios conform to the specification ----------------------------------------------------------------


def steps_of(scenario):
    for exchange in scenario.scripts.get("streams", ()):
        yield from exchange.get("events", ())
    yield from scenario.log


def messages_of(scenario):
    """Type and data of each event that is not deliberately wrong."""
    for step in steps_of(scenario):
        if "lie" in step:
            continue
        if "hello" in step:
            default = {"protocol": "tidewire/1", "events": "/x", "head": "1-1", "heartbeat_ms": 15000}
            yield "hello", default | step["hello"] | {"job": JOB}
        elif "data" in step:
            yield step.get("event", "message"), step["data"]


@pytest.mark.heavy
def test_events_validate_against_their_schemas_unless_marked():
    for scenario in SCENARIOS:
        for kind, data in messages_of(scenario):
            if kind in SCHEMA_OF_EVENT:
                assert breaches(SCHEMA_OF_EVENT[kind], data) == [], (scenario.name, kind, data)
            else:
                assert "." in kind, f"{scenario.name}: an extension has a dot in its name"


def test_bodies_validate_against_their_schemas():
    assert breaches("endpoint", ENDPOINT) == []
    for scenario in SCENARIOS:
        if "protocol" not in scenario.discovery:
            assert breaches("discovery", discovery_body(scenario.discovery)) == [], scenario.name
        for exchange in (one for lane in scenario.scripts.values() for one in lane):
            if "job" in exchange:
                assert breaches("job", job_body(exchange["job"])) == [], scenario.name
            if "problem" in exchange:
                problem = problem_body(exchange["problem"], exchange["status"])
                assert breaches("problem", problem) == [], scenario.name


def test_scenarios_name_requirements_on_clients():
    roles = {one.id: one.role for one in document.requirements}
    for scenario in SCENARIOS:
        assert {roles.get(name) for name in scenario.requirements} <= {"client", "both"}, scenario.name


def test_each_row_of_the_client_table_has_a_scenario():
    table = (
        (SPEC / "13-client.md").read_text(encoding="utf-8").partition("## 13.2")[2].partition("## 13.3")[0]
    )
    rows = [re.findall(r"TW-[A-Z]{3}-\d{3}", line) for line in table.splitlines()]
    rows = [row for row in rows if row]
    assert len(rows) >= 19
    named = {name for scenario in SCENARIOS for name in scenario.requirements}
    assert [row for row in rows if not set(row) <= named] == []


def test_each_client_requirement_has_a_scenario_or_is_listed_as_invisible():
    text = (SPEC / "README.md").read_text(encoding="utf-8")
    unseen = text.partition("## Not seen on the wire")[2].partition("\n## ")[0]
    named = {name for scenario in SCENARIOS for name in scenario.requirements}
    chapter = {one.id for one in document.requirements if one.chapter == "13-client"}
    assert [name for name in sorted(chapter - named) if name not in unseen] == []
