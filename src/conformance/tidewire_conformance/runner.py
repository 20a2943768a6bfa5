"""Runner of the conformance checks. It runs them concurrently against one server and collects their verdicts."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from tidewire_conformance.announce_job_counts import announce_checks, announce_examples
from tidewire_conformance.idle_stream import idle_stream
from tidewire_conformance.judging.grade import GradedRun, Settings
from tidewire_conformance.judging.leftover_jobs import cancel_leftover_jobs
from tidewire_conformance.judging.server_probe import ProbeError, Server, probe
from tidewire_conformance.judging.state_history import Histories
from tidewire_conformance.judging.verdict import Assertion, Outcome, SkipReason, Verdict, worst
from tidewire_conformance.registry import Check
from tidewire_conformance.session import JOBS_PER_CHECK, STREAMS_PER_CHECK, Hooks, Inconclusive, Session, Skip
from tidewire_conformance.wire.recorded_exchange import RecordedExchange
from tidewire_conformance.wire.recording_client import BUSY_TRIES, IncompleteResponseError, Wire
from tidewire_conformance.wire.typed_json import MalformedJsonError

DEFAULT_CONCURRENCY = 16
"""Default number of checks that run concurrently."""
CHECK_SECONDS = 120.0
"""Timeout of one check, in seconds. The option `--patience` multiplies it."""
_REACHED_LIMITS = {
    "too_many_jobs": "max_jobs_per_principal",
    "too_many_streams": "max_streams_per_principal",
}
"""Problem codes with which a server refuses too many jobs or streams, each with the limit that the suite has reached."""
INTERRUPTED = "the run was interrupted"
"""Value of `cut_short` if the user interrupted the run with Ctrl-C."""
LIVENESS_TRIES, LIVENESS_SECONDS = 3, 1.0
"""Number of attempts to reach a server that stopped responding, and the delay between two attempts in seconds. After
the last attempt, the suite gives up.
"""


@dataclass(frozen=True)
class Plan(Settings):
    """Options of a test run against a server."""

    base_url: str
    header: tuple[tuple[str, str], ...] = ()
    hooks: Hooks = field(default_factory=Hooks)
    endpoints: tuple[str, ...] = ()
    """Names of the endpoints to use. By default, all endpoints are used."""
    lanes: int = DEFAULT_CONCURRENCY
    examples: tuple[tuple[str, Any], ...] = ()
    """Pairs of endpoint name and input that replace the examples in the descriptions."""


@dataclass(repr=False)
class SuiteRun(GradedRun):
    """Result of a test run against a server."""

    server: Server
    record: list[RecordedExchange]


def _claimed_profiles(plan: Plan, server: Server, record: Sequence[RecordedExchange]) -> list[str]:
    """Return the profiles that a server claims to meet, according to the table in section 1.3."""
    has = server.capabilities
    new_attempt = any(
        block.type == "snapshot" and block.member("reason") == "restart"
        for exchange in record
        for block in exchange.logged
    )
    claims = {
        "stream": True,
        "core": True,
        "durable": server.survives_restarts or new_attempt,
        "batch": "batches" in has,
        "logprobs": "logprobs" in has,
        "browser": bool(has & {"inband_problems", "stream_tokens"}) or bool(plan.hooks.origin),
    }
    return [profile for profile, claimed in claims.items() if claimed]


def _max_lanes(server: Server) -> float:
    """Return how many checks may run concurrently, so that their jobs and streams and the idle job stay below the server's limits."""
    shares = {"max_jobs_per_principal": JOBS_PER_CHECK, "max_streams_per_principal": STREAMS_PER_CHECK}
    limits = {name: server.limits[name] for name in shares if name in server.limits}
    return min(((limit - 1) // shares[name] for name, limit in limits.items()), default=math.inf)


Watch = Callable[[Verdict, int, int], None]
"""Callback for each finished check or scenario. Its arguments are the verdict, the number of finished ones, and the total
number.
"""


async def run(plan: Plan, checks: Sequence[Check], watch: Watch = lambda *_: None) -> SuiteRun:
    """Probe a server and run checks.

    Args:
        plan: Options of the run.
        checks: Checks to run. Their order matters only for serial checks, and for checks that judge the whole run.
        watch: Callback that is called for each finished check.

    Raises:
        ProbeError: The URL is not that of a Tidewire server.
    """
    progress = CheckProgress(plan, checks, watch)
    await progress.go()
    return progress.run()


class CheckProgress:
    """Test run in progress.

    The result so far is available at any time, so an interrupt loses no verdict of a finished check.
    """

    def __init__(
        self,
        plan: Plan,
        checks: Sequence[Check],
        watch: Watch = lambda *_: None,
        announce: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Create the test run without sending a request.

        Args:
            plan: Options of the run.
            checks: Checks to run.
            watch: Callback that is called for each finished check.
            announce: Callback that is called with a message about the next jobs, before the suite starts them.
        """
        self.plan, self.checks = plan, checks
        self.cut_short = ""
        """Reason why the run ended early."""
        self.server: Server | None = None
        """Server under test, or None until the probe is complete."""
        self._wire = Wire(plan.base_url, header=plan.header, patience=plan.patience)
        self._watch = watch
        self._announce = announce
        self._rounds: list[dict[str, Verdict]] = []
        self._gone = ""
        self._liveness_lock = asyncio.Lock()

    async def go(self) -> None:
        """Probe the server, run all checks, and cancel the jobs that are still running.

        Raises:
            ProbeError: The URL is not that of a Tidewire server.
        """
        try:
            await self._probe_and_check()
        finally:
            if not self._gone:
                await cancel_leftover_jobs(self._wire)

    async def _probe_and_check(self) -> None:
        try:
            self.server = await probe(
                self._wire,
                self.plan.endpoints,
                self.plan.examples,
                lambda server: self._announce(announce_examples(server, self.plan.examples)),
                self._announce,
            )
        except IncompleteResponseError as error:
            raise ProbeError(str(error)) from None
        self._announce(announce_checks(self.server, self.checks, self.plan.repeat))
        for number in range(self.plan.repeat):
            await self._round(self.server, number)
        if any(each.note == spent(self.plan) for done in self._rounds for each in done.values()):
            self.cut_short = spent(self.plan)

    def run(self) -> SuiteRun:
        """Return the result of the run so far. Unfinished checks count as untested.

        Raises:
            ProbeError: The run ended before the server was probed.
        """
        if self.server is None:
            raise ProbeError(
                f"{self.cut_short or 'the run ended'} before the server at {self.plan.base_url} was probed"
            )
        plan, server, record = self.plan, self.server, self._wire.record
        rounds = self._rounds or [{}]
        verdicts = [
            merge([done[check.name] for done in rounds if check.name in done] or [self._not_run(check)])
            for check in self.checks
        ]
        return SuiteRun(
            plan,
            {"url": plan.base_url, "server": str(server.discovery_body.get("server", ""))},
            _claimed_profiles(plan, server, record),
            verdicts,
            len(record),
            self._wire.now(),
            self.cut_short or self._gone,
            server,
            record,
        )

    async def _round(self, server: Server, number: int) -> None:
        verdicts: dict[str, Verdict] = {}
        self._rounds.append(verdicts)
        lanes = max(1, int(min(self.plan.lanes, _max_lanes(server))))
        slots = asyncio.Semaphore(lanes)
        history_cache: dict[int, Histories] = {}
        total = len(self.checks) * self.plan.repeat

        async def take(check: Check) -> None:
            async with slots:
                if self._gone and not check.whole_run:
                    verdict = self._not_run(check)
                else:
                    verdict = await _run(self.plan, check, self._wire, server, number, history_cache)
                if verdict.outcome is Outcome.INCONCLUSIVE:
                    await self._check_liveness(check)
            verdicts[check.name] = verdict
            self._watch(verdict, number * len(self.checks) + len(verdicts), total)

        together = [check for check in self.checks if not check.serial and not check.whole_run]
        serial = [check for check in self.checks if check.serial and not check.alone]
        async with AsyncExitStack() as stack:
            # If a server allows only two streams, a check that compares two readers needs both of them.
            idle_fits = server.limits.get("max_streams_per_principal", math.inf) > STREAMS_PER_CHECK
            if idle_fits and any(check.idle_stream for check in self.checks):
                await stack.enter_async_context(idle_stream(self._wire, server))
            async with asyncio.TaskGroup() as group:
                for check in together:
                    group.create_task(take(check))
            for check in serial:
                await take(check)
        for check in (check for check in self.checks if check not in together + serial):
            await take(check)

    async def _check_liveness(self, check: Check) -> None:
        """Probe the server after a response did not arrive. If the server is gone, the remaining checks are skipped."""
        async with self._liveness_lock:
            for attempt in range(0 if self._gone else LIVENESS_TRIES):
                await asyncio.sleep(LIVENESS_SECONDS * self.plan.patience * bool(attempt))
                try:
                    await self._wire.as_check(check.name).request("GET", "/v1")
                except IncompleteResponseError as error:
                    fault = str(error)
                else:
                    return
            if not self._gone:
                answered = [each for each in self._wire.record if each.status]
                last = (
                    f"the last response was to {answered[-1]}, sent by {answered[-1].check}"
                    if answered
                    else ""
                )
                self._gone = f"the server has stopped responding ({fault}); {last}"

    def _not_run(self, check: Check) -> Verdict:
        verdict = new_verdict(check)
        verdict.outcome = Outcome.SKIPPED
        verdict.why = SkipReason.BLOCKED if self._gone else SkipReason.UNTESTED
        verdict.note = self._gone or self.cut_short or "the check did not run"
        return verdict


def new_verdict(check: Check) -> Verdict:
    """Return the verdict of a check that has not run yet."""
    return Verdict(check.name, check.requirements, check.about, place=check.place, whole_run=check.whole_run)


def spent(plan: Settings) -> str:
    """Return the note for a check that did not start because the time budget was used up."""
    return f"the time budget of {plan.budget:g} s was used up"


async def _run(
    plan: Plan, check: Check, wire: Wire, server: Server, number: int, history_cache: dict[int, Histories]
) -> Verdict:
    verdict = new_verdict(check)
    began = time.monotonic()
    rng = random.Random(f"{plan.seed}{check.name}{number}")
    session = Session(wire.as_check(check.name), server, plan.hooks, rng, history_cache)
    try:
        if wire.now() > plan.budget and not check.whole_run:
            raise Skip(SkipReason.UNTESTED, spent(plan))
        for capability in check.needs:
            if capability not in server.capabilities:
                raise Skip(SkipReason.NOT_DECLARED, f"the capability {capability}")
        async with asyncio.timeout(CHECK_SECONDS * plan.patience):
            await check.run(session)
        if check.whole_run and not session.assertions:
            raise Skip(SkipReason.NO_OCCASION, "this run had no request to which this check applies")
    except Skip as skip:
        verdict.outcome, verdict.why, verdict.note = Outcome.SKIPPED, skip.why, str(skip)
    except (IncompleteResponseError, Inconclusive) as unclear:
        verdict.outcome, verdict.note = Outcome.INCONCLUSIVE, str(unclear)
    except TimeoutError:
        verdict.outcome = Outcome.INCONCLUSIVE
        verdict.note = f"the check was still running after {CHECK_SECONDS * plan.patience:g} s"
    except MalformedJsonError as error:
        verdict.outcome, verdict.why, verdict.note = Outcome.SKIPPED, SkipReason.BLOCKED, str(error)
    except Exception as error:  # noqa: BLE001 - an error in one check must not end the others
        _explain(verdict, error, wire, check)
    if _max_lanes(server) <= 1 and not (check.alone or check.whole_run):
        _excuse_own_jobs(verdict, session.assertions)
    verdict.assertions = [each for each in session.assertions if each.requirement not in check.left_out]
    if verdict.outcome is Outcome.PASS and len(verdict.assertions) < len(session.assertions):
        failed = any(not each.holds for each in session.assertions if each.requirement in check.left_out)
        # The failure at a requirement of another profile may have kept the check from judging its own requirements.
        verdict.why = SkipReason.BLOCKED if failed else SkipReason.NO_OCCASION
        verdict.outcome = Outcome.PASS if verdict.assertions else Outcome.SKIPPED
        verdict.note = "the check judged requirements of other profiles"
    verdict.seconds = time.monotonic() - began
    settle(verdict)
    return verdict


def _excuse_own_jobs(verdict: Verdict, assertions: list[Assertion]) -> None:
    """Make a check inconclusive instead of failed if a request was refused because of the suite's other jobs or streams.

    This happens only if the server's limit is too low for two concurrent checks. The suite stays below a higher limit.
    """
    refused = [
        each
        for each in assertions
        if not each.holds and each.exchange and each.exchange.code in _REACHED_LIMITS
    ]
    if refused:
        assertions[:] = [each for each in assertions if each not in refused]
        verdict.outcome, verdict.why = Outcome.INCONCLUSIVE, None
        exchange = refused[0].exchange
        code = exchange.code if exchange else ""
        verdict.note = (
            f"{exchange} returned 429 {code} {BUSY_TRIES} times, because the suite itself reached {_REACHED_LIMITS[code]}; "
            "raise the limit for the run"
        )


def _explain(verdict: Verdict, error: Exception, wire: Wire, check: Check) -> None:
    """Set the outcome of a check whose code raised an exception.

    If a response of the check broke off, the check is inconclusive, because it may have needed the missing events.
    """
    own = (each for each in reversed(wire.record) if check.whole_run or each.check == check.name)
    if cut := next((each for each in own if each.ended == "cut"), None):
        verdict.outcome = Outcome.INCONCLUSIVE
        verdict.note = f"the response to {cut} broke off after {len(cut.body)} bytes: {cut.fault}"
    else:
        verdict.outcome, verdict.note = Outcome.ERROR, f"{type(error).__name__}: {error}"


def settle(verdict: Verdict) -> None:
    """Derive the outcome of a verdict from its assertions."""
    found = {each.outcome for each in verdict.broken}
    if Outcome.FAIL in found:
        # A violation takes precedence over a later skip or error, because it may have caused the skip or error.
        verdict.outcome, verdict.why = Outcome.FAIL, None
    elif verdict.outcome is Outcome.PASS and found:
        verdict.outcome = Outcome.WARN
    elif verdict.outcome is Outcome.PASS and not verdict.assertions:
        verdict.outcome, verdict.note = Outcome.ERROR, "the check ended without an assertion"


def merge(rounds: list[Verdict]) -> Verdict:
    """Merge the verdicts of a repeated check. The result is the worst verdict, with a note of how often it occurred.

    Repetitions that were skipped as untested are ignored, unless all repetitions were.
    """
    rounds = [each for each in rounds if each.why is not SkipReason.UNTESTED] or rounds
    chosen = worst(each.outcome for each in rounds)
    verdict = next(each for each in rounds if each.outcome is chosen)
    verdict.rounds = len(rounds)
    # Keep the violations from all repetitions, although the verdict comes from only one of them.
    verdict.assertions = [
        *verdict.assertions, *(broken for each in rounds if each is not verdict for broken in each.broken)
    ]  # fmt: skip
    times = sum(each.outcome is chosen for each in rounds)
    if times < len(rounds):
        verdict.note = f"{times} of {len(rounds)} times. {verdict.note}".rstrip()
    return verdict
