"""Runs checks against one server, several at a time, and says what came of each."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidewire_conformance.judging.server_probe import ProbeError, Server, probe
from tidewire_conformance.judging.state_history import Histories
from tidewire_conformance.judging.verdict import Outcome, SkipReason, Verdict, worst
from tidewire_conformance.registry import Check
from tidewire_conformance.session import Hooks, Session, Skip, Unclear
from tidewire_conformance.specification import Requirement
from tidewire_conformance.wire.recorded_exchange import RecordedExchange
from tidewire_conformance.wire.recording_client import NoAnswerError, Wire

LANES = 8
"""Checks that run at a time."""
CHECK_SECONDS = 120.0
"""How long one check may take, times `patience`."""
INTERRUPTED = "it was interrupted"
"""Why a run was cut short by who asked for it."""
GONE_TRIES, GONE_SECONDS = 3, 1.0
"""After an answer that did not come: how often the server is asked whether it is there, and how far apart."""


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
class SuiteRun:
    """What came of it."""

    plan: Plan
    server: Server
    verdicts: list[Verdict]
    record: list[RecordedExchange]
    seconds: float = 0.0
    cut_short: str = ""
    """Why it ended before its time; empty where it did not."""

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

    def profile_of(self, sentence: Requirement) -> str:
        """The profile that a sentence counts to."""
        return sentence.profile


Watch = Callable[[Verdict, int, int], None]
"""Told of each check that has ended, how many have, and of how many."""


async def run(plan: Plan, checks: Sequence[Check], watch: Watch = lambda *_: None) -> SuiteRun:
    """Probe a server, then run checks.

    Args:
        plan: What to run, and how.
        checks: Those to run, in this order, as far as they run one after the other.
        watch: Told of each check that has ended.

    Raises:
        ProbeError: There is no server of this protocol.
    """
    course = CheckProgress(plan, checks, watch)
    await course.go()
    return course.run()


class CheckProgress:
    """A run on its way: what there is of it can be taken at any time, so that an interrupt loses nothing."""

    def __init__(self, plan: Plan, checks: Sequence[Check], watch: Watch = lambda *_: None) -> None:
        """Nothing is asked yet; the arguments are those of `run`."""
        self.plan, self.checks = plan, checks
        self.cut_short = ""
        """Why it ended before its time."""
        self.server: Server | None = None
        """None until it was probed."""
        self._wire = Wire(plan.base_url, header=plan.header, patience=plan.patience)
        self._watch = watch
        self._rounds: list[dict[str, Verdict]] = []
        self._gone = ""
        self._asking = asyncio.Lock()

    async def go(self) -> None:
        """Probe, then run all checks.

        Raises:
            ProbeError: There is no server of this protocol.
        """
        try:
            self.server = await probe(self._wire, self.plan.endpoints, self.plan.examples)
        except NoAnswerError as error:
            raise ProbeError(str(error)) from None
        for number in range(self.plan.repeat):
            await self._round(self.server, number)
        if any(each.note == spent(self.plan) for done in self._rounds for each in done.values()):
            self.cut_short = spent(self.plan)

    def run(self) -> SuiteRun:
        """What came of it so far; a check that did not end is untested.

        Raises:
            ProbeError: It has not got as far as to know the server.
        """
        if self.server is None:
            raise ProbeError(
                f"{self.cut_short or 'it ended'} before {self.plan.base_url} had told what it is"
            )
        rounds = self._rounds or [{}]
        verdicts = [
            merge([done[check.name] for done in rounds if check.name in done] or [self._not_run(check)])
            for check in self.checks
        ]
        return SuiteRun(
            self.plan,
            self.server,
            verdicts,
            self._wire.record,
            self._wire.now(),
            self.cut_short or self._gone,
        )

    async def _round(self, server: Server, number: int) -> None:
        verdicts: dict[str, Verdict] = {}
        self._rounds.append(verdicts)
        lanes = asyncio.Semaphore(self.plan.lanes)
        folded: dict[int, Histories] = {}
        total = len(self.checks) * self.plan.repeat

        async def take(check: Check) -> None:
            async with lanes:
                if self._gone and not check.whole_run:
                    verdict = self._not_run(check)
                else:
                    verdict = await _run(self.plan, check, self._wire, server, number, folded)
                if verdict.outcome is Outcome.INCONCLUSIVE:
                    await self._look(check)
            verdicts[check.name] = verdict
            self._watch(verdict, number * len(self.checks) + len(verdicts), total)

        together = [check for check in self.checks if not check.serial and not check.whole_run]
        async with asyncio.TaskGroup() as group:
            for check in together:
                group.create_task(take(check))
        for check in (check for check in self.checks if check not in together):
            await take(check)

    async def _look(self, check: Check) -> None:
        """Whether the server still answers, after an answer that did not come: what is left can be spared."""
        async with self._asking:
            for attempt in range(0 if self._gone else GONE_TRIES):
                await asyncio.sleep(GONE_SECONDS * self.plan.patience * bool(attempt))
                try:
                    await self._wire.as_check(check.name).ask("GET", "/v1")
                except NoAnswerError as error:
                    fault = str(error)
                else:
                    return
            if not self._gone:
                answered = [each for each in self._wire.record if each.status]
                last = (
                    f"the last answer was that to {answered[-1]}, for {answered[-1].check}"
                    if answered
                    else ""
                )
                self._gone = f"the server does not answer any more ({fault}); {last}"

    def _not_run(self, check: Check) -> Verdict:
        verdict = Verdict(check.name, check.sentences, check.about, Outcome.SKIPPED)
        verdict.why = SkipReason.BLOCKED if self._gone else SkipReason.UNTESTED
        verdict.note = self._gone or self.cut_short or "it was not run"
        return verdict


class Budget(Protocol):
    """What has one."""

    @property
    def budget(self) -> float: ...


def spent(plan: Budget) -> str:
    """What is said of a check for which there was no time."""
    return f"the budget of {plan.budget:g} s was spent"


async def _run(
    plan: Plan, check: Check, wire: Wire, server: Server, number: int, folded: dict[int, Histories]
) -> Verdict:
    verdict = Verdict(check.name, check.sentences, check.about)
    began = time.monotonic()
    rng = random.Random(f"{plan.seed}{check.name}{number}")
    session = Session(wire.as_check(check.name), server, plan.hooks, rng, folded)
    try:
        if wire.now() > plan.budget:
            raise Skip(SkipReason.UNTESTED, spent(plan))
        for capability in check.needs:
            if capability not in server.capabilities:
                raise Skip(SkipReason.NOT_DECLARED, f"the capability {capability}")
        async with asyncio.timeout(CHECK_SECONDS * plan.patience):
            await check.run(session)
        if check.whole_run and not session.assertions:
            raise Skip(SkipReason.NO_OCCASION, "nothing in this run to judge it by")
    except Skip as skip:
        verdict.outcome, verdict.why, verdict.note = Outcome.SKIPPED, skip.why, str(skip)
    except (NoAnswerError, Unclear) as unclear:
        verdict.outcome, verdict.note = Outcome.INCONCLUSIVE, str(unclear)
    except TimeoutError:
        verdict.outcome = Outcome.INCONCLUSIVE
        verdict.note = f"it had not ended after {CHECK_SECONDS * plan.patience:g} s"
    except Exception as error:  # noqa: BLE001 - a fault of one check must not take the others with it
        verdict.outcome, verdict.note = Outcome.ERROR, f"{type(error).__name__}: {error}"
        if cut := _last_cut(wire, check):
            verdict.outcome = Outcome.INCONCLUSIVE
            verdict.note = f"{cut} broke off after {len(cut.body)} bytes: {cut.fault}"
    verdict.assertions = session.assertions
    verdict.seconds = time.monotonic() - began
    settle(verdict)
    return verdict


def _last_cut(wire: Wire, check: Check) -> RecordedExchange | None:
    """The last answer to a check that the server, or what took it away, broke off; None where there is none.

    What such an answer lacks is why the check could not go on, and no fault of its own.
    """
    own = (each for each in reversed(wire.record) if each.check == check.name)
    return next((each for each in own if each.ended == "cut"), None)


def settle(verdict: Verdict) -> None:
    """Let what was asserted decide."""
    found = {each.outcome for each in verdict.broken}
    if Outcome.FAIL in found:
        # Once something is broken, what came of the rest of the check may be due to that.
        verdict.outcome, verdict.why = Outcome.FAIL, None
    elif verdict.outcome is Outcome.PASS and found:
        verdict.outcome = Outcome.WARN
    elif verdict.outcome is Outcome.PASS and not verdict.assertions:
        verdict.outcome, verdict.note = Outcome.ERROR, "it ended without having asserted anything"


def merge(rounds: list[Verdict]) -> Verdict:
    """The verdict on a check that was run several times: the worst, with how often it was that.

    Where there was no time for it any more, what it said before stands.
    """
    rounds = [each for each in rounds if each.why is not SkipReason.UNTESTED] or rounds
    chosen = worst(each.outcome for each in rounds)
    verdict = next(each for each in rounds if each.outcome is chosen)
    verdict.rounds = len(rounds)
    # What another time broke is broken, even where this time is the one that is shown.
    verdict.assertions = [
        *verdict.assertions, *(broken for each in rounds if each is not verdict for broken in each.broken)
    ]  # fmt: skip
    times = sum(each.outcome is chosen for each in rounds)
    if times < len(rounds):
        verdict.note = f"{times} of {len(rounds)} times. {verdict.note}".rstrip()
    return verdict
