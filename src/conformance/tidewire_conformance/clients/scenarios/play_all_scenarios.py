"""Runner that plays scenarios with one client, several at a time, and collects a verdict for each of them."""

import random
import shlex
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from tidewire_conformance.clients.scenarios import Adapter, Scenario, play
from tidewire_conformance.clients.scenarios.scenario_to_verdict import name_of, profiles, verdict_of
from tidewire_conformance.judging.grade import GradedRun, Settings
from tidewire_conformance.judging.verdict import Outcome, SkipReason, Verdict
from tidewire_conformance.runner import INTERRUPTED, Watch, merge, settle, spent
from tidewire_conformance.specification import Requirement

DEFAULT_CONCURRENCY = 20
"""Default number of scenarios that are played concurrently.

A scenario spends most of its time waiting, so the number may exceed the number of processor cores.
"""
SWITCH_INTERVAL = 0.0005
"""Thread switch interval, in seconds, that `sys.setswitchinterval` sets during a run. It is a tenth of Python's
default.

Each piece of data that the server of a scenario sends costs one thread switch. With the default interval, a server that
sends many small pieces takes longer than any client needs to read them.
"""


@dataclass(frozen=True)
class ScenarioPlan(Settings):
    """Options of a test run with a client."""

    command: str
    """Command line that starts the client program."""
    lanes: int = DEFAULT_CONCURRENCY
    """Number of scenarios that are played concurrently."""


@dataclass(repr=False)
class ScenarioRun(GradedRun):
    """Result of a test run with a client."""

    client_profiles: dict[str, str]
    """Client profile of each requirement for which a scenario was written."""

    def profile_of(self, requirement: Requirement) -> str:
        """Return the profile to which a requirement belongs. A requirement that applies to every request belongs to
        `core`.
        """
        return self.client_profiles.get(requirement.id, self.profiles[0])


def run(
    plan: ScenarioPlan, scenarios: Sequence[Scenario], adapter: Adapter, watch: Watch = lambda *_: None
) -> ScenarioRun:
    """Play scenarios with a client.

    Args:
        plan: Options of the run.
        scenarios: Scenarios to play.
        adapter: Client under test.
        watch: Callback that is called after each scenario.
    """
    began = time.monotonic()
    total = len(scenarios) * plan.repeat
    requests, cut_short = 0, ""
    found: dict[str, list[Verdict]] = {name_of(scenario): [] for scenario in scenarios}

    def play_one(scenario: Scenario) -> tuple[Verdict, int]:
        started = time.monotonic()
        if started - began > plan.budget:
            return _not_played(scenario, spent(plan)), 0
        try:
            played = play(scenario, adapter, patience=plan.patience)
        except Exception as error:  # noqa: BLE001 - an error of the suite in one scenario must not abort the run
            note = f"{type(error).__name__}: {error}"
            verdict = Verdict(name_of(scenario), scenario.requirements, scenario.about, Outcome.ERROR, note)
            return verdict, 0
        verdict = verdict_of(played, _rerun_command(plan, scenario))
        verdict.seconds = time.monotonic() - started
        settle(verdict)
        return verdict, len(played.conversation.requests)

    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    pool = ThreadPoolExecutor(plan.lanes, thread_name_prefix="scenario")
    try:
        tasks: list[Future[tuple[Verdict, int]]] = []
        for number in range(plan.repeat):
            order = random.Random(f"{plan.seed} {number}").sample(scenarios, len(scenarios))
            # Long scenarios determine when the run ends, so they start first.
            order.sort(key=lambda each: -each.patience)
            tasks += [pool.submit(play_one, each) for each in order]
        for done, task in enumerate(as_completed(tasks), 1):
            verdict, asked = task.result()
            requests += asked
            found[verdict.check].append(verdict)
            cut_short = cut_short or spent(plan) * (verdict.note == spent(plan))
            watch(verdict, done, total)
    except KeyboardInterrupt:
        cut_short = INTERRUPTED
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        sys.setswitchinterval(switch_interval)
    about = {name_of(scenario): scenario for scenario in scenarios}
    verdicts = [merge(each or [_not_played(about[name], cut_short)]) for name, each in found.items()]
    seconds = time.monotonic() - began
    subject = {"command": plan.command, "client": adapter.name}
    of_requirements = profiles(scenarios)
    claimed = ["sse"] if any(scenario.is_of_any_client for scenario in scenarios) else ["core", "durable"]
    return ScenarioRun(plan, subject, claimed, verdicts, requests, seconds, cut_short, of_requirements)


def _not_played(scenario: Scenario, why: str) -> Verdict:
    verdict = Verdict(name_of(scenario), scenario.requirements, scenario.about, Outcome.SKIPPED, why)
    verdict.why = SkipReason.UNTESTED
    return verdict


def _rerun_command(plan: ScenarioPlan, scenario: Scenario) -> str:
    words = ["tidewire", "conformance", "--client", plan.command, "--only", name_of(scenario)]
    words += ["--profile", "sse"] if scenario.is_of_any_client else []
    return shlex.join(words)
