"""Session of a check: HTTP clients, sample requests to submit jobs, and the list of assertions.

Each check gets a new `Session`. All sessions of a run share the record of requests and responses.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar, Unpack

from tidewire_conformance.judging.server_probe import CLOSE_SECONDS, SampleRequest, Server
from tidewire_conformance.judging.state_history import Histories, job_of, log_fault
from tidewire_conformance.judging.verdict import Assertion, SkipReason
from tidewire_conformance.schema_violations import MAX_LISTED, json_text, schema_violation
from tidewire_conformance.wire.event_stream_decoder import Block
from tidewire_conformance.wire.recorded_exchange import RecordedExchange
from tidewire_conformance.wire.recording_client import RESPONSE_SECONDS, Header, RequestOptions, Stream, Wire

JOB_SECONDS: Final = 30.0
"""Timeout, in seconds, for a job to end. The duration that was observed for the job's example is added to it, and the
sum is multiplied by `--patience`.
"""
STREAMS_PER_CHECK: Final = 2
"""Number of streams that most checks have open at the same time. A check that opens more repeats refused requests."""
MAX_READS: Final = 300
"""Maximum number of times that `Session.read_until` reads a job."""
JOBS_PER_CHECK: Final = 4
"""Maximum number of jobs that `Session.concurrently` runs at the same time, so that a check leaves places to others."""
READ_INTERVAL: Final = 0.05
"""Delay between two reads in `Session.read_until`, in seconds. The option `--patience` multiplies it."""
_SHOWN = 400
"""Maximum length, in characters, of a line of an expected or actual value in an assertion. Longer lines are truncated."""

A = TypeVar("A")
R = TypeVar("R")

Requirements = str | tuple[str, ...]
"""Id of a requirement, or the ids of several requirements that the same fact decides."""

EVENT_STREAM: Final = {"Accept": "text/event-stream"}
JSON: Final = {"Content-Type": "application/json"}
"""Headers for a request whose JSON body is passed as bytes."""


class Skip(Exception):  # noqa: N818 - a skip is not an error
    """Raised to skip the rest of a check. The exception contains the reason."""

    def __init__(self, why: SkipReason, reason: str) -> None:
        super().__init__(reason)
        self.why = why


class Inconclusive(Exception):  # noqa: N818 - an inconclusive check is not an error
    """Raised if a check cannot reach a verdict. The outcome of the check is then inconclusive."""


@dataclass(frozen=True)
class Hooks:
    """Values of the command line options that only some checks need, such as `--restart-cmd`.

    If an option is missing, its value here is empty. Checks then skip what they cannot test without the option.
    """

    restart: str = ""
    """Shell command that kills the server and starts it again."""
    expire: str = ""
    """Shell command that makes the server delete its ended jobs."""
    replica: str = ""
    """Base URL of a second replica of the server."""
    second: tuple[tuple[str, str], ...] = ()
    """Header fields with the credentials of a second user."""
    origin: str = ""
    """Origin whose pages the server is configured to allow."""


@dataclass(frozen=True)
class Job:
    """Job that the suite submitted in this run."""

    id: str
    sample: SampleRequest
    submit: RecordedExchange

    @property
    def path(self) -> str:
        return f"/v1/jobs/{self.id}"

    @property
    def events(self) -> str:
        return f"{self.path}/events"


@dataclass(frozen=True)
class Evidence:
    """Assertions that are proved by the same exchange, or by one event in it.

    The check continues even if an assertion fails. Each method returns whether the requirement holds.
    """

    assertions: list[Assertion]
    """List to which the methods add assertions."""
    exchange: RecordedExchange | None = None
    block: Block | None = None

    def expect(
        self, requirement: Requirements, holds: object, expected: str | tuple[object, ...], got: object = ""
    ) -> bool:
        """Record an assertion about a requirement.

        Args:
            requirement: Id of the requirement, or of several requirements.
            holds: Whether the requirement holds here.
            expected: Description of the expected result. The parts of a tuple are joined only if the assertion fails.
            got: Actual result.
        """
        names = (requirement,) if isinstance(requirement, str) else requirement
        if holds:
            self.assertions.extend(Assertion(each, holds=True) for each in names)
            return True
        wanted = expected if isinstance(expected, str) else " ".join(map(_shown, expected))
        hide = self.exchange.without_secrets if self.exchange is not None else str
        wanted, came = (_short(hide(each)) for each in (wanted, _shown(got)))
        self.assertions.extend(
            Assertion(each, False, wanted, came, self.exchange, self.block) for each in names
        )
        return False

    def equal(
        self, requirement: Requirements, got: object, wanted: object, expected: str | tuple[object, ...] = ""
    ) -> bool:
        """Assert that a result equals the wanted one. Without `expected`, the wanted result describes the expectation."""
        return self.expect(requirement, got == wanted, expected or (wanted,), got)

    def empty(self, requirement: Requirements, found: object, expected: str) -> bool:
        """Assert that no violation was found: `found` is empty, None or false."""
        return self.expect(requirement, not found, expected, found)

    def response(self, requirement: Requirements, holds: object, expected: str | tuple[object, ...]) -> bool:
        """Record an assertion about a response, whose status and problem code are the actual result."""
        return self.expect(requirement, holds, expected, self._answer.outcome)

    def status(self, requirement: Requirements, status: int, why: str = "") -> bool:
        """Assert that the response has a status."""
        return self.response(requirement, self._answer.status == status, f"{status} {why}".rstrip())

    def body(self, requirement: str, status: int, schema: str) -> bool:
        """Assert that the response has a status and a body that fits a schema."""
        violation = schema_violation(schema, self._answer.json)
        return self.expect(
            requirement,
            self._answer.status == status and not violation,
            f"{status} and a body that fits {schema}.schema.json",
            f"{self._answer.status} {violation}",
        )

    def media_type(self, requirement: str, wanted: str) -> bool:
        """Assert that the response has a media type."""
        return self.expect(
            requirement,
            self._answer.media_type == wanted,
            wanted,
            self._answer.response_header("content-type"),
        )

    def refused(self, requirement: Requirements, status: int, code: str, why: str = "") -> bool:
        """Assert that the request was refused with the expected status and problem code."""
        wanted = f"{status} {code}"
        return self.response(
            requirement, self._answer.outcome == wanted, f"{wanted} for {why}" if why else wanted
        )

    @property
    def _answer(self) -> RecordedExchange:
        if self.exchange is None:
            raise ValueError("an assertion about a response needs its exchange")
        return self.exchange


@dataclass
class Session:
    """Access to the server for one check, and the assertions of that check."""

    wire: Wire
    server: Server
    hooks: Hooks
    rng: random.Random
    history_cache: dict[int, Histories] = field(default_factory=dict)
    """Cache of state histories, keyed by the number of recorded exchanges. All sessions of a run share the cache."""
    assertions: list[Assertion] = field(default_factory=list)

    # ---- assertions --------------------------------------------------------------------------------------------

    def at(self, exchange: RecordedExchange | None, block: Block | None = None) -> "Evidence":
        """Return assertions whose evidence is an exchange, or one event in it."""
        return Evidence(self.assertions, exchange, block)

    def expect(
        self, requirement: Requirements, holds: object, expected: str | tuple[object, ...], got: object = ""
    ) -> bool:
        """Record an assertion that no single exchange proves, as `Evidence.expect` does."""
        return Evidence(self.assertions).expect(requirement, holds, expected, got)

    def skip_unless(self, holds: object, what: str) -> None:
        """If a precondition does not hold, skip the rest of the check as blocked. Other checks judge the precondition."""
        if not holds:
            raise Skip(SkipReason.BLOCKED, what)

    def skip_untested(self, reason: str) -> NoReturn:
        """Skip the check because the suite has no way to test the requirement on this server."""
        raise Skip(SkipReason.UNTESTED, reason)

    def skip_not_declared(self, reason: str) -> NoReturn:
        """Skip the check because the server does not declare the feature that the check tests."""
        raise Skip(SkipReason.NOT_DECLARED, reason)

    def skip_no_occasion(self, reason: str) -> NoReturn:
        """Skip the check because the condition of the requirement did not occur in this run."""
        raise Skip(SkipReason.NO_OCCASION, reason)

    def inconclusive(self, reason: str) -> NoReturn:
        """End the check as inconclusive."""
        raise Inconclusive(reason)

    def histories(self) -> Histories:
        """Return the state histories of all streams recorded so far."""
        count = len(self.wire.record)
        if count not in self.history_cache:
            self.history_cache.clear()
            self.history_cache[count] = Histories(self.wire.record)
        return self.history_cache[count]

    def streams(self) -> list[RecordedExchange]:
        """Return the recorded event streams that are not empty."""
        return [each for each in self.wire.record if each.is_stream and each.chunks]

    def connections(self, stream: RecordedExchange) -> list[RecordedExchange]:
        """Return the responses that make up a stream of this check. If the server sent `goaway`, there are several."""
        own = (each for each in self.wire.record[stream.number - 1 :] if each.check == self.wire.check)
        return [each for each in own if each.is_stream]

    # ---- sample requests; without a suitable sample, these methods skip the check as untested ------------------------

    def any_sample(self) -> SampleRequest:
        """Return a sample request for a job that succeeds."""
        failed = [f": {each.why}" for each in self.server.failed_examples[:1]]
        return self.server.any_sample() or self._skip_without_sample(
            "".join(["no example of an endpoint succeeded", *failed])
        )

    def any_request(self) -> SampleRequest:
        """Return a sample request for a job that need not succeed."""
        return self.server.any_request() or self.skip_untested("no endpoint has an example")

    def growing_sample(self) -> SampleRequest:
        """Return a sample request for a job whose stream can be cut between events."""
        return self.server.growing_sample() or self._skip_without_sample(
            "no example starts a job whose value grows in several events; add the endpoint tidewire.script to run this check"
        )

    def long_running_sample(self, seconds: float = 0.5) -> SampleRequest:
        """Return a sample request for a job that runs long enough to be observed and cancelled."""
        return self.server.long_running_sample(seconds) or self._skip_without_sample(
            "no example starts a job that grows for long enough; add the endpoint tidewire.script to run this check"
        )

    def batch_sample(self) -> SampleRequest:
        """Return a sample request for an endpoint that accepts several inputs. Without such an endpoint, skip the check."""
        return self.server.batch_sample() or self._skip_without_sample(
            "no example of an endpoint that declares `batch` succeeded"
        )

    def script_sample(self, *steps: dict[str, Any], **members: Any) -> SampleRequest:
        """Return a request for the test endpoint `tidewire.script` with these steps. Without this endpoint, skip the check."""
        return self.server.script_sample(*steps, **members) or self._skip_without_sample(
            "needs the endpoint tidewire.script"
        )

    def _skip_without_sample(self, reason: str) -> NoReturn:
        """Skip the check. If the jobs of all examples run without an end, which another check reports, the reason is blocked."""
        endless = self.server.endless_example
        self.skip_unless(endless is None, f"no job of an example ended: {endless.why if endless else ''}")
        self.skip_untested(reason)

    def reserved_cursors(self) -> list[str]:
        """Return the cursors that get 204 for every job: `0-1`, the id of in-band problems, if the server supports these."""
        return ["0-1"] if "inband_problems" in self.server.capabilities else []

    # ---- requests ----------------------------------------------------------------------------------------------

    async def submit(self, sample: SampleRequest, *, wire: Wire | None = None, **more: Any) -> Job:
        """Submit a job, and ask for JSON instead of a stream in the response.

        Args:
            sample: Sample request to submit.
            wire: HTTP client to use. By default, the client of the session is used.
            **more: Further members of the request body.
        """
        sent = {**sample.body, **more}
        answer = await (wire or self.wire).request(
            "POST", sample.submit_to, json=sent, header={"Accept": "application/json"}
        )
        return self.job(sample, answer)

    def job(self, sample: SampleRequest, answer: RecordedExchange) -> Job:
        """Return the job that a request has submitted. The response may be the job or its stream. If it names no job, skip
        the rest of the check.
        """
        job_id = job_of(answer) if answer.is_stream else answer.member("id", "")
        accepted = answer.is_stream or answer.status == 201
        self.skip_unless(accepted and job_id, f"{answer} returned {answer.outcome} and no job")
        return Job(job_id, sample, answer)

    async def get(self, place: str, **sent: Unpack[RequestOptions]) -> RecordedExchange:
        """Send a GET request."""
        return await self.wire.request("GET", place, **sent)

    async def post(
        self, sample: SampleRequest, *, seconds: float = RESPONSE_SECONDS, **sent: Unpack[RequestOptions]
    ) -> RecordedExchange:
        """Send a request to submit a job. By default, its body is that of the sample. The response may be an error."""
        if "json" not in sent and "body" not in sent:
            sent["json"] = sample.body
        return await self.wire.request("POST", sample.submit_to, seconds=seconds, **sent)

    async def cancel(self, job: Job, **sent: Unpack[RequestOptions]) -> RecordedExchange:
        """Send a request to cancel a job."""
        return await self.wire.request("POST", f"{job.path}/cancel", **sent)

    async def read(self, job: Job, wire: Wire | None = None) -> RecordedExchange:
        """Read the job resource with a GET request."""
        return await (wire or self.wire).request("GET", job.path)

    def items(self, answer: RecordedExchange) -> list[dict[str, Any]]:
        """Return the items of the job in a response. If the response has no valid state, skip the rest of the check."""
        state = answer.member("state")
        violation = schema_violation("state", state)
        self.skip_unless(
            not violation, f"{answer} returned {answer.status} without a valid state: {violation}"
        )
        return [{"value": None, **item} for item in state["items"]]

    async def read_until(
        self, job: Job, holds: Callable[[RecordedExchange], object], *, interval: float = READ_INTERVAL
    ) -> RecordedExchange:
        """Read the job resource repeatedly until its state is valid and a condition holds for the response. The `interval`
        between two reads is in seconds. For a long job, it becomes longer.
        """
        seconds = max(MAX_READS * interval, JOB_SECONDS + job.sample.seconds)
        answer = await self.read(job)
        for number in range(MAX_READS):
            if self.items(answer) and holds(answer):
                break
            # The job may be slow or wait in a queue, so spread the second half of the reads over the whole timeout.
            pause = interval if number < MAX_READS / 2 else 2 * seconds / MAX_READS - interval
            await asyncio.sleep(pause * self.wire.patience)
            answer = await self.read(job)
        else:
            self.inconclusive(
                f"{answer} did not show the expected state within {seconds * self.wire.patience:g} s"
            )
        return answer

    @asynccontextmanager
    async def follow(
        self,
        job: Job,
        cursor: str = "",
        *,
        query: str = "",
        header: Header | None = None,
        wire: Wire | None = None,
        read_ahead: int = 65536,
    ) -> AsyncIterator[Stream]:
        """Open the event stream of a job. If a cursor is passed, the stream starts after that event."""
        fields = EVENT_STREAM | ({"Last-Event-ID": cursor} if cursor else {}) | dict(header or {})
        async with (wire or self.wire).open(
            "GET", job.events + query, header=fields, read_ahead=read_ahead
        ) as stream:
            yield stream

    async def stream(self, job: Job, cursor: str = "", **options: Any) -> RecordedExchange:
        """Read the event stream of a job until `done` or the end of the response."""
        async with self.follow(job, cursor, **options) as stream:
            ends = await stream.until(
                lambda now: now.ended or now.of_type("done"), JOB_SECONDS + job.sample.seconds
            )
            return await stream.to_end(CLOSE_SECONDS) if ends else stream.exchange

    async def final_status(self, job: Job) -> str:
        """Return the status of the event `done` of a job, or `no done`. The check is inconclusive without a whole stream."""
        end = await self.stream(job)
        self.require_whole(end)
        return next((str(block.member("status")) for block in end.of_type("done")), "no done")

    def require_whole(self, stream: RecordedExchange) -> None:
        """End the check as inconclusive if a stream was refused or ended before `done`, which other checks judge."""
        broke_off = stream.ended in {"cut", "whole"} and not stream.of_type("done")
        if broke_off or not stream.is_stream:
            self.inconclusive(f"{stream} returned {stream.status} without `done` {stream.fault}".rstrip())

    async def history(self, job: Job, *, sound: bool = True) -> RecordedExchange:
        """Read the complete log of a job, that is the stream from the cursor `0-0` until `done`.

        Args:
            job: The job.
            sound: Whether to skip the rest of the check if the log itself has a fault. A check that judges the log
                passes False.
        """
        exchange = await self.stream(job, "0-0")
        self.skip_unless(
            exchange.is_stream and exchange.of_type("done"),
            f"{exchange} with the cursor 0-0 returned {exchange.status} without `done` ({exchange.ended or 'open'})",
        )
        fault = log_fault(exchange) if sound else ""
        self.skip_unless(not fault, f"the log of a job, which other checks judge, has a fault: {fault}")
        return exchange

    async def run_to_end(
        self, sample: SampleRequest, *, sound: bool = True, **more: Any
    ) -> tuple[Job, RecordedExchange]:
        """Submit a job and read its complete log, as `history` does."""
        job = await self.submit(sample, **more)
        return job, await self.history(job, sound=sound)

    async def concurrently(
        self,
        function: Callable[[A], Awaitable[R]],
        arguments: Iterable[A],
        *,
        at_once: int = JOBS_PER_CHECK,
    ) -> list[R]:
        """Call a function with each argument, up to `at_once` calls at the same time, and return the results in order.

        If a call raises an exception, the other calls are cancelled.
        """
        slots = asyncio.Semaphore(at_once)

        async def call(argument: A) -> R:
            async with slots:
                return await function(argument)

        calls = [asyncio.create_task(call(each)) for each in arguments]
        try:
            return await asyncio.gather(*calls)
        finally:
            for each in calls:
                each.cancel()


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json_text(value)


def _short(text: str) -> str:
    lines = text.split("\n")[: MAX_LISTED + 2]
    return "\n".join(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…" for line in lines)
