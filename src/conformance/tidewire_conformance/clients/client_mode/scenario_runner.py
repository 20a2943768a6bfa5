"""Plays scenarios to one client, several at a time, and says what came of each."""

import random
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, field

from tidewire_conformance.clients.client_mode.scenario_verdicts import name_of, profiles, verdict_of
from tidewire_conformance.clients.player import Adapter, Scenario, play
from tidewire_conformance.judging.verdict import Outcome, SkipReason, Verdict
from tidewire_conformance.runner import INTERRUPTED, merge, settle, spent
from tidewire_conformance.specification import Requirement

LANES = 20
"""Scenarios that are played at a time: most of their time is spent waiting."""
LASTING = 30.0
"""Seconds of patience from which on a scenario waits for a time that a sentence states, and so ends last."""
TURN = 0.0005
"""Seconds after which a thread that waits for its turn gets it. Each piece that a server sends costs one: with those of
Python, which are ten times as long, many small pieces take longer to send than any client to read."""
HEAD_START = 0.3
"""Seconds by which those begin before the others: the run is over when they are."""


@dataclass(frozen=True)
class ScenarioPlan:
    """What to run, and how."""

    command: str
    """What starts the client."""
    seed: int = 0
    """Of the order in which scenarios are played."""
    repeat: int = 1
    patience: float = 1.0
    budget: float = 300.0
    """Seconds after which no further scenario begins."""
    lanes: int = LANES


@dataclass(frozen=True)
class Trial:
    """A scenario as a check of the suite, with the sentences that it judged."""

    name: str
    requirements: tuple[str, ...]


@dataclass
class ScenarioRun:
    """What came of it."""

    plan: ScenarioPlan
    client: str
    verdicts: list[Verdict]
    requests: int = 0
    """How many the client made."""
    seconds: float = 0.0
    cut_short: str = ""
    """Why it ended before its time; empty where it did not."""
    _profiles: dict[str, str] = field(default_factory=dict)

    @property
    def subject(self) -> dict[str, str]:
        """Who was judged."""
        return {"command": self.plan.command, "client": self.client}

    @property
    def trials(self) -> list[Trial]:
        """What was judged, for a grade."""
        return [Trial(verdict.check, verdict.requirements) for verdict in self.verdicts]

    @property
    def profiles(self) -> list[str]:
        """Each client is judged by both."""
        return ["core", "durable"]

    def profile_of(self, requirement: Requirement) -> str:
        """The profile that a sentence counts to; what holds for every request is core."""
        return self._profiles.get(requirement.id, "core")


Watch = Callable[[Verdict, int, int], None]
"""Told of each scenario that has been played, how many have, and of how many."""


def run(
    plan: ScenarioPlan, scenarios: Sequence[Scenario], adapter: Adapter, watch: Watch = lambda *_: None
) -> ScenarioRun:
    """Play scenarios to a client.

    Args:
        plan: What to run, and how.
        scenarios: Those to play.
        adapter: The client.
        watch: Told of each that has been played.
    """
    began = time.monotonic()
    total = len(scenarios) * plan.repeat
    requests, cut_short = 0, ""
    found: dict[str, list[Verdict]] = {name_of(scenario): [] for scenario in scenarios}

    def take(scenario: Scenario) -> tuple[Verdict, int]:
        started = time.monotonic()
        if started - began > plan.budget:
            return _not_played(scenario, spent(plan)), 0
        try:
            played = play(scenario, adapter, patience=plan.patience)
        except Exception as error:  # noqa: BLE001 - a fault of the suite in one scenario must not take the others with it
            note = f"{type(error).__name__}: {error}"
            verdict = Verdict(name_of(scenario), scenario.requirements, scenario.about, Outcome.ERROR, note)
            return verdict, 0
        verdict = verdict_of(played, _again(plan, scenario))
        verdict.seconds = time.monotonic() - started
        settle(verdict)
        return verdict, len(played.conversation.talks)

    turn = sys.getswitchinterval()
    sys.setswitchinterval(TURN)
    pool = ThreadPoolExecutor(plan.lanes, thread_name_prefix="scenario")
    try:
        tasks: list[Future[tuple[Verdict, int]]] = []
        for number in range(plan.repeat):
            order = random.Random(f"{plan.seed} {number}").sample(scenarios, len(scenarios))
            order.sort(key=lambda each: -each.patience)
            lasting = [pool.submit(take, each) for each in order if each.patience >= LASTING]
            wait(lasting, HEAD_START)
            tasks += [*lasting, *(pool.submit(take, each) for each in order if each.patience < LASTING)]
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
        sys.setswitchinterval(turn)
    about = {name_of(scenario): scenario for scenario in scenarios}
    verdicts = [merge(each or [_not_played(about[name], cut_short)]) for name, each in found.items()]
    seconds = time.monotonic() - began
    return ScenarioRun(plan, adapter.name, verdicts, requests, seconds, cut_short, profiles(scenarios))


def _not_played(scenario: Scenario, why: str) -> Verdict:
    verdict = Verdict(name_of(scenario), scenario.requirements, scenario.about, Outcome.SKIPPED, why)
    verdict.why = SkipReason.UNTESTED
    return verdict


def _again(plan: ScenarioPlan, scenario: Scenario) -> str:
    words = ["tidewire", "conformance", "--client", plan.command, "--only", name_of(scenario)]
    return shlex.join(words)
