"""Runs checks against one server, several at a time, and says what came of each."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidewire_conformance.history import Histories
from tidewire_conformance.probe import ProbeError, Server, probe
from tidewire_conformance.registry import Check
from tidewire_conformance.session import Hooks, Session, Skip, Unclear
from tidewire_conformance.specification import Sentence
from tidewire_conformance.verdict import Outcome, Verdict, Why, worst
from tidewire_conformance.wire import Exchange, NoAnswerError, Wire

LANES = 6
"""Checks that run at a time."""
CHECK_SECONDS = 120.0
"""How long one check may take, times `patience`."""


@dataclass(frozen=True)
class Plan:
    """What to run, and how."""

    base_url: str
    header: tuple[tuple[str, str], ...] = ()
    hooks: Hooks = field(default_factory=Hooks)
    endpoints: tuple[str, ...] = ()
    """Endpoints to look at; all by default."""
    seed: int = 0
    repeat: int = 1
    patience: float = 1.0
    budget: float = 300.0
    """Seconds after which no further check begins."""
    lanes: int = LANES
    examples: tuple[tuple[str, Any], ...] = ()
    """Endpoints and inputs of them, in place of the examples of their descriptions."""


# Without a repr: that of a task that has ended is made by asyncio.run, and would spell out every byte of the record.
@dataclass(repr=False)
class Run:
    """What came of it."""

    plan: Plan
    server: Server
    verdicts: list[Verdict]
    record: list[Exchange]
    seconds: float = 0.0
    left_out: list[str] = field(default_factory=list)
    """Checks that were not to run."""

    @property
    def subject(self) -> dict[str, str]:
        """Who was judged."""
        return {"url": self.plan.base_url, "server": str(self.server.says.get("server", ""))}

    @property
    def requests(self) -> int:
        """How many the suite made."""
        return len(self.record)

    @property
    def profiles(self) -> list[str]:
        """Those that the server has, by the table of section 1.3."""
        has, says = self.server.capabilities, self.server.says
        new_attempt = any(
            block.type == "snapshot"
            and isinstance(block.json, dict)
            and block.json.get("reason") == "restart"
            for exchange in self.record
            for block in exchange.logged
        )
        claims = {
            "core": True,
            "durable": says.get("durability") != "process" or new_attempt,
            "batch": "batches" in has,
            "logprobs": "logprobs" in has,
            "browser": bool(has & {"inband_problems", "stream_tokens"}) or bool(self.plan.hooks.origin),
        }
        return [profile for profile, claimed in claims.items() if claimed]

    def profile_of(self, sentence: Sentence) -> str:
        """The profile that a sentence counts to."""
        return sentence.profile


Watch = Callable[[Verdict, int, int], None]
"""Told of each check that has ended, how many have, and of how many."""


async def run(plan: Plan, checks: Sequence[Check], watch: Watch = lambda *_: None) -> Run:
    """Probe a server, then run checks.

    Args:
        plan: What to run, and how.
        checks: Those to run, in this order, as far as they run one after the other.
        watch: Told of each check that has ended.

    Raises:
        ProbeError: There is no server of this protocol.
    """
    began = time.monotonic()
    wire = Wire(plan.base_url, header=plan.header, patience=plan.patience, began=began)
    try:
        server = await probe(wire, plan.endpoints, plan.examples)
    except NoAnswerError as error:
        raise ProbeError(str(error)) from None
    rounds = [await _round(plan, checks, wire, server, number, watch) for number in range(plan.repeat)]
    verdicts = [merge(list(each)) for each in zip(*rounds, strict=True)]
    return Run(plan, server, verdicts, wire.record, time.monotonic() - began)


async def _round(
    plan: Plan, checks: Sequence[Check], wire: Wire, server: Server, number: int, watch: Watch
) -> list[Verdict]:
    verdicts: dict[str, Verdict] = {}
    lanes = asyncio.Semaphore(plan.lanes)
    folded: dict[int, Histories] = {}
    total = len(checks) * plan.repeat

    async def take(check: Check) -> None:
        async with lanes:
            verdict = await _run(plan, check, wire, server, number, folded)
        verdicts[check.name] = verdict
        watch(verdict, number * len(checks) + len(verdicts), total)

    together = [check for check in checks if not check.alone and not check.over_all]
    async with asyncio.TaskGroup() as group:
        for check in together:
            group.create_task(take(check))
    for check in (check for check in checks if check not in together):
        await take(check)
    return [verdicts[check.name] for check in checks]


async def _run(
    plan: Plan, check: Check, wire: Wire, server: Server, number: int, folded: dict[int, Histories]
) -> Verdict:
    verdict = Verdict(check.name, check.sentences, check.about)
    began = time.monotonic()
    rng = random.Random(f"{plan.seed}{check.name}{number}")
    session = Session(wire.as_check(check.name), server, plan.hooks, rng, folded)
    try:
        if wire.now() > plan.budget:
            raise Skip(Why.UNTESTED, f"the budget of {plan.budget:g} s was spent")
        for capability in check.needs:
            if capability not in server.capabilities:
                raise Skip(Why.NOT_DECLARED, f"the capability {capability}")
        async with asyncio.timeout(CHECK_SECONDS * plan.patience):
            await check.run(session)
        if check.over_all and not session.assertions:
            raise Skip(Why.NO_OCCASION, "nothing in this run to judge it by")
    except Skip as skip:
        verdict.outcome, verdict.why, verdict.note = Outcome.SKIPPED, skip.why, str(skip)
    except (NoAnswerError, Unclear) as unclear:
        verdict.outcome, verdict.note = Outcome.INCONCLUSIVE, str(unclear)
    except TimeoutError:
        verdict.outcome = Outcome.INCONCLUSIVE
        verdict.note = f"it had not ended after {CHECK_SECONDS * plan.patience:g} s"
    except Exception as error:  # noqa: BLE001 - a fault of one check must not take the others with it
        verdict.outcome, verdict.note = Outcome.ERROR, f"{type(error).__name__}: {error}"
    verdict.assertions = session.assertions
    verdict.seconds = time.monotonic() - began
    settle(verdict)
    return verdict


def settle(verdict: Verdict) -> None:
    """Let what was asserted decide."""
    found = {each.outcome for each in verdict.broken}
    if Outcome.FAIL in found:
        # Once something is broken, what came of the rest of the check may be due to that.
        verdict.outcome = Outcome.FAIL
    elif verdict.outcome is Outcome.PASS and found:
        verdict.outcome = Outcome.WARN
    elif verdict.outcome is Outcome.PASS and not verdict.assertions:
        verdict.outcome, verdict.note = Outcome.ERROR, "it ended without having asserted anything"


def merge(rounds: list[Verdict]) -> Verdict:
    """The verdict on a check that was run several times: the worst, with how often it was that."""
    chosen = worst(each.outcome for each in rounds)
    verdict = next(each for each in rounds if each.outcome is chosen)
    verdict.rounds = len(rounds)
    times = sum(each.outcome is chosen for each in rounds)
    if times < len(rounds):
        verdict.note = f"{times} of {len(rounds)} times. {verdict.note}".rstrip()
    return verdict
