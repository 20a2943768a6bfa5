"""Every client scenario of the specification with the JavaScript package in Chromium, over plain HTTP on a host other than
localhost, so without `crypto.subtle`.
"""

import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from support.chromium import needs_chromium
from tidewire_conformance.clients.scenarios import Outcome, ProgramAdapter, describe, load_all, play

pytestmark = [*needs_chromium, pytest.mark.timeout(400)]

ADAPTER = (sys.executable, str(Path(__file__).with_name("package_adapter.py")))
PATIENCE = 4.0
CONCURRENT_PLAYS = 12

REDIRECT = "A browser follows a redirect without showing where it leads, or does not follow it. The package does not follow it."
NOT_IN_A_BROWSER = {
    "redirect": REDIRECT,
    "redirect-with-credentials": REDIRECT,
    "redirects-of-all-kinds": REDIRECT,
    "link-of-hello-after-a-redirect": REDIRECT,
}
"""Scenarios that cannot pass in a browser, with the reason."""

ENCODING = ("TW-SEC-023",)
"""Requirement to send `Accept-Encoding: identity`. A browser sets this header itself."""

SCENARIOS = [each for each in load_all() if each.name not in NOT_IN_A_BROWSER]


def judged(scenario, adapter):
    """The verdict, without what a browser decides."""
    verdict = play(scenario, adapter, patience=PATIENCE)
    findings = tuple(finding for finding in verdict.findings if finding.rules != ENCODING)
    passed = verdict.outcome in {Outcome.FAIL, Outcome.WARN} and not findings
    return replace(verdict, outcome=Outcome.PASS if passed else verdict.outcome, findings=findings)


@pytest.fixture(scope="module")
def adapter():
    with contextlib.closing(ProgramAdapter(ADAPTER)) as program:
        yield program


@pytest.fixture(scope="module")
def verdicts(request, adapter):
    tests = {item.name for item in request.session.items}
    test = test_the_package_passes_the_scenario_in_chromium.__name__
    selected = [each for each in SCENARIOS if f"{test}[{each.name}]" in tests]
    selected.sort(key=lambda each: -each.patience)
    with ThreadPoolExecutor(CONCURRENT_PLAYS) as pool:
        yield {each.name: pool.submit(judged, each, adapter) for each in selected}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_the_package_passes_the_scenario_in_chromium(scenario, verdicts):
    verdict = verdicts[scenario.name].result()
    assert verdict.outcome is Outcome.PASS, describe(verdict)


def test_scenarios_that_cannot_pass_in_a_browser_exist():
    assert NOT_IN_A_BROWSER.keys() <= {each.name for each in load_all()}
