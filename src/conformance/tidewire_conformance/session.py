"""Session of a check: HTTP clients, sample requests to submit, and the list of assertions.

Each check receives its own `Session`. All sessions of a run share one record of exchanges.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from tidewire_conformance.judging.server_probe import CLOSE_SECONDS, SampleRequest, Server
from tidewire_conformance.judging.state_history import Histories
from tidewire_conformance.judging.verdict import Assertion, SkipReason
from tidewire_conformance.wire.event_stream_decoder import Block
from tidewire_conformance.wire.recorded_exchange import RecordedExchange
from tidewire_conformance.wire.recording_client import Header, Stream, Wire

JOB_SECONDS: Final = 30.0
"""Timeout for a job, in addition to the duration of its example; multiplied by `patience`."""
MAX_READS: Final = 100
"""Maximum number of reads of a job in `Session.read_until`."""
READ_INTERVAL: Final = 0.05
"""Interval between two reads in `Session.read_until`, multiplied by `patience`."""
_SHOWN = 400
"""Maximum number of characters of a value that an assertion keeps."""

EVENT_STREAM: Final = {"Accept": "text/event-stream"}
JSON: Final = {"Content-Type": "application/json"}
"""Header for a JSON body that is passed as bytes."""


class Skip(Exception):  # noqa: N818 - a skip is not an error
    """Raised to skip a check, with the reason."""

    def __init__(self, why: SkipReason, reason: str) -> None:
        super().__init__(reason)
        self.why = why


class Inconclusive(Exception):  # noqa: N818 - an inconclusive check is not an error
    """Raised when the outcome of a check cannot be judged."""


@dataclass(frozen=True)
class Hooks:
    """Optional aids from the command line: commands for restart and expiry, a replica, a second principal, an origin."""

    restart: str = ""
    """Shell command that kills the server and starts it again."""
    expire: str = ""
    """Shell command that makes the states of ended jobs expire."""
    replica: Wire | None = None
    """Client for another replica of the server."""
    second: Wire | None = None
    """Client with the credentials of another principal."""
    origin: str = ""
    """Origin whose pages the server is configured to allow."""


@dataclass(frozen=True)
class Job:
    """Job submitted in this run."""

    id: str
    sample: SampleRequest
    submit: RecordedExchange

    @property
    def path(self) -> str:
        return f"/v1/jobs/{self.id}"

    @property
    def events(self) -> str:
        return f"{self.path}/events"


@dataclass
class Session:
    """Access of one check to the server, and its assertions."""

    wire: Wire
    server: Server
    hooks: Hooks
    rng: random.Random
    history_cache: dict[int, Histories] = field(default_factory=dict)
    """Cache of state histories, keyed by the number of recorded exchanges; shared by all sessions of a run."""
    assertions: list[Assertion] = field(default_factory=list)

    # ---- assertions --------------------------------------------------------------------------------------------

    def expect(
        self,
        requirement: str,
        holds: object,
        expected: str | tuple[object, ...],
        got: object = "",
        *,
        at: RecordedExchange | None = None,
        block: Block | None = None,
    ) -> bool:
        """Record an assertion about a requirement. A failed assertion does not end the check.

        Args:
            requirement: Id of the requirement.
            holds: Whether the requirement holds here.
            expected: Expected result. Parts of a tuple are joined only if the assertion fails.
            got: Actual result.
            at: Exchange that shows the result.
            block: Event that shows the result.

        Returns:
            Whether the requirement holds.
        """
        if holds:
            self.assertions.append(Assertion(requirement, holds=True))
            return True
        wanted = expected if isinstance(expected, str) else " ".join(map(_shown, expected))
        wanted, came = (each if at is None else at.without_secrets(each) for each in (wanted, _shown(got)))
        self.assertions.append(Assertion(requirement, False, _short(wanted), _short(came), at, block))
        return False

    def skip_unless(self, holds: object, what: str) -> None:
        """Skip the rest of the check as blocked if a precondition that other checks judge does not hold."""
        if not holds:
            raise Skip(SkipReason.BLOCKED, what)

    def skip_untested(self, reason: str) -> NoReturn:
        """Skip the check because the suite has no means to test it."""
        raise Skip(SkipReason.UNTESTED, reason)

    def skip_not_declared(self, reason: str) -> NoReturn:
        """Skip the check because the server does not declare the feature."""
        raise Skip(SkipReason.NOT_DECLARED, reason)

    def skip_no_occasion(self, reason: str) -> NoReturn:
        """Skip the check because the condition of its requirement did not occur in this run."""
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
        """Return the event streams recorded so far that are not empty."""
        return [each for each in self.wire.record if each.is_stream and each.chunks]

    def expect_refused(
        self, requirement: str, answer: RecordedExchange, status: int, code: str, why: str = ""
    ) -> None:
        """Assert that a request was refused with the expected status and problem code."""
        self.expect(requirement, (answer.status, answer.code) == (status, code), f"{status} {code}{why and f' for {why}'}",
                    f"{answer.status} {answer.code}", at=answer)  # fmt: skip

    # ---- sample requests; a check without a suitable one is skipped as untested ----------------------------------

    def any_sample(self) -> SampleRequest:
        """Return a sample request that succeeds, or skip the check."""
        return self.server.any_sample() or self.skip_untested("no example of an endpoint succeeded")

    def growing_sample(self) -> SampleRequest:
        """Return a sample request whose stream can be cut between events, or skip the check."""
        return self.server.growing_sample() or self.skip_untested(
            "no example starts a job whose value grows in several events; an endpoint tidewire.script would unlock this check"
        )

    def long_running_sample(self, seconds: float = 0.5) -> SampleRequest:
        """Return a sample request whose job can be observed, cut and cancelled while it runs, or skip the check."""
        return self.server.long_running_sample(seconds) or self.skip_untested(
            "no example starts a job that runs long enough while its value grows; an endpoint tidewire.script would unlock this check"
        )

    def batch_sample(self) -> SampleRequest:
        """Return a sample request for an endpoint that accepts several inputs, or skip the check."""
        return self.server.batch_sample() or self.skip_untested(
            "no endpoint with `batch` has an example that succeeded"
        )

    def script_sample(self, *steps: dict[str, Any], **members: Any) -> SampleRequest:
        """Return a request for `tidewire.script` with these steps, or skip the check."""
        return self.server.script_sample(*steps, **members) or self.skip_untested(
            "needs the endpoint tidewire.script"
        )

    # ---- requests ----------------------------------------------------------------------------------------------

    async def submit(self, sample: SampleRequest, *, wire: Wire | None = None, **more: Any) -> Job:
        """Submit a job and request a JSON response.

        Args:
            sample: Sample request to submit.
            wire: HTTP client to use; that of the session by default.
            **more: Additional members of the request body.
        """
        sent = {**sample.body, **more}
        answer = await (wire or self.wire).request(
            "POST", sample.submit_to, json=sent, header={"Accept": "application/json"}
        )
        body = answer.json if isinstance(answer.json, dict) else {}
        self.skip_unless(
            answer.status == 201 and isinstance(body.get("id"), str),
            f"{answer} returned {answer.status} {answer.code}",
        )
        return Job(body["id"], sample, answer)

    async def read(self, job: Job, wire: Wire | None = None) -> RecordedExchange:
        """Read the job resource."""
        return await (wire or self.wire).request("GET", job.path)

    async def read_until(self, job: Job, holds: Callable[[RecordedExchange], object]) -> RecordedExchange:
        """Read the job resource until a condition holds for the response."""
        answer = await self.read(job)
        for _ in range(MAX_READS):
            if holds(answer):
                break
            await asyncio.sleep(READ_INTERVAL * self.wire.patience)
            answer = await self.read(job)
        else:
            self.inconclusive(
                f"{answer} did not reach the expected state within {MAX_READS * READ_INTERVAL * self.wire.patience:g} s"
            )
        return answer

    async def expect_accepted(self, requirement: str, sample: SampleRequest, why: str) -> None:
        """Assert, as a control, that the server accepts the same submit without the fault."""
        answer = await self.wire.request("POST", sample.submit_to, json=sample.body)
        self.expect(
            requirement, answer.status == 201, f"201 for {why}", f"{answer.status} {answer.code}", at=answer
        )

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
        """Open the event stream of a job, with a cursor if one is passed."""
        fields = EVENT_STREAM | ({"Last-Event-ID": cursor} if cursor else {}) | dict(header or {})
        async with (wire or self.wire).open(
            "GET", job.events + query, header=fields, read_ahead=read_ahead
        ) as stream:
            yield stream

    async def stream(self, job: Job, cursor: str = "", **options: Any) -> RecordedExchange:
        """Read the event stream of a job from a cursor until `done` or the end of the response."""
        async with self.follow(job, cursor, **options) as stream:
            ends = await stream.until(
                lambda now: now.ended or now.of_type("done"), JOB_SECONDS + job.sample.seconds
            )
            return await stream.to_end(CLOSE_SECONDS) if ends else stream.exchange

    async def history(self, job: Job) -> RecordedExchange:
        """Read the complete log of a job: the stream from the cursor `0-0` until `done`."""
        exchange = await self.stream(job, "0-0")
        self.skip_unless(
            exchange.is_stream and exchange.of_type("done"),
            f"{exchange} with the cursor 0-0 returned {exchange.status} without `done` ({exchange.ended or 'open'})",
        )
        return exchange

    async def run_to_end(self, sample: SampleRequest, **more: Any) -> tuple[Job, RecordedExchange]:
        """Submit a job and read its complete log."""
        job = await self.submit(sample, **more)
        return job, await self.history(job)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
