"""What a check is given: callers to talk as, work to ask for, and a place for what it finds."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from tidewire_conformance.judging.server_probe import CLOSE_SECONDS, Server, Work
from tidewire_conformance.judging.state_history import Histories
from tidewire_conformance.judging.verdict import Assertion, SkipReason
from tidewire_conformance.wire.event_stream_decoder import Block
from tidewire_conformance.wire.recorded_exchange import RecordedExchange
from tidewire_conformance.wire.recording_client import Header, Stream, Wire

JOB_SECONDS: Final = 30.0
"""How long a job may take to end, beside what its example took; times `patience`."""
READS: Final = 100
"""Of a job, until something holds of it."""
READ_SECONDS: Final = 0.05
"""Between two of them; times `patience`."""
_SHOWN = 400
"""Characters of a value that are kept as what was got."""

EVENT_STREAM: Final = {"Accept": "text/event-stream"}
JSON: Final = {"Content-Type": "application/json"}
"""Of a body that is given as bytes."""


class Skip(Exception):  # noqa: N818 - nothing went wrong
    """There is nothing to check, or nothing to check it by."""

    def __init__(self, why: SkipReason, reason: str) -> None:
        super().__init__(reason)
        self.why = why


class Unclear(Exception):  # noqa: N818 - nothing was found wrong
    """It cannot be judged."""


@dataclass(frozen=True)
class Hooks:
    """What the command line gives beside the URL."""

    restart: str = ""
    """A command that kills the server and starts it again."""
    expire: str = ""
    """A command that lets the states of ended jobs expire."""
    replica: Wire | None = None
    """Another replica of the server."""
    second: Wire | None = None
    """Another principal."""
    origin: str = ""
    """An origin whose pages the server is set to allow."""


@dataclass(frozen=True)
class Job:
    """A job of this run."""

    id: str
    work: Work
    submit: RecordedExchange

    @property
    def path(self) -> str:
        return f"/v1/jobs/{self.id}"

    @property
    def events(self) -> str:
        return f"{self.path}/events"


@dataclass
class Session:
    """One check's view of a run."""

    wire: Wire
    server: Server
    hooks: Hooks
    rng: random.Random
    folded: dict[int, Histories] = field(default_factory=dict)
    """Histories of the run, by how many exchanges they are of; shared by all checks."""
    assertions: list[Assertion] = field(default_factory=list)

    # ---- findings ----------------------------------------------------------------------------------------------

    def expect(
        self,
        sentence: str,
        holds: object,
        expected: str | tuple[object, ...],
        got: object = "",
        *,
        at: RecordedExchange | None = None,
        block: Block | None = None,
    ) -> bool:
        """Judge one thing; go on, whatever comes of it.

        Args:
            sentence: Its identifier.
            holds: Whether it is as the sentence says.
            expected: What should be, in words; as a tuple, words and values that are put together only where it matters.
            got: What is.
            at: The exchange that shows it.
            block: The event that shows it.

        Returns:
            Whether it holds.
        """
        if holds:
            self.assertions.append(Assertion(sentence, holds=True))
            return True
        wanted = expected if isinstance(expected, str) else " ".join(map(_shown, expected))
        wanted, came = (each if at is None else at.without_secrets(each) for each in (wanted, _shown(got)))
        self.assertions.append(Assertion(sentence, False, _short(wanted), _short(came), at, block))
        return False

    def need(self, holds: object, what: str) -> None:
        """Go no further where something that others judge is not as it should be."""
        if not holds:
            raise Skip(SkipReason.BLOCKED, what)

    def untested(self, reason: str) -> NoReturn:
        """There is nothing at hand to check it by."""
        raise Skip(SkipReason.UNTESTED, reason)

    def not_declared(self, reason: str) -> NoReturn:
        """The server does not claim it."""
        raise Skip(SkipReason.NOT_DECLARED, reason)

    def no_occasion(self, reason: str) -> NoReturn:
        """It binds who does something that this server did not do here."""
        raise Skip(SkipReason.NO_OCCASION, reason)

    def unclear(self, reason: str) -> NoReturn:
        """It was tried, and cannot be judged."""
        raise Unclear(reason)

    def histories(self) -> Histories:
        """All streams of the run so far, folded."""
        count = len(self.wire.record)
        if count not in self.folded:
            self.folded.clear()
            self.folded[count] = Histories(self.wire.record)
        return self.folded[count]

    def streams(self) -> list[RecordedExchange]:
        """The event streams of the run so far of which something came."""
        return [each for each in self.wire.record if each.is_stream and each.chunks]

    def refused(self, sentence: str, answer: RecordedExchange, status: int, code: str, why: str = "") -> None:
        """Judge that a request was refused, and for the right reason."""
        self.expect(sentence, (answer.status, answer.code) == (status, code), f"{status} {code}{why and f' for {why}'}",
                    f"{answer.status} {answer.code}", at=answer)  # fmt: skip

    # ---- work by traits, without which there is nothing to check it by -----------------------------------------

    def some_work(self) -> Work:
        """Work that ends well."""
        return self.server.any_work() or self.untested("no example of an endpoint ended well")

    def growing(self) -> Work:
        """Work with a history that can be cut."""
        return self.server.growing() or self.untested(
            "no example grows by several events; tidewire.script would serve"
        )

    def lasting(self, seconds: float = 0.5) -> Work:
        """Work that grows at once, and can be watched, cut and cancelled before it ends."""
        return self.server.lasting(seconds) or self.untested(
            "no example lasts and grows; tidewire.script would serve"
        )

    def batching(self) -> Work:
        """Work of an endpoint that takes several inputs."""
        return self.server.batching() or self.untested(
            "no endpoint with `batch` has an example that ended well"
        )

    def scripted(self, *steps: dict[str, Any], **members: Any) -> Work:
        """Work that does as it is told."""
        return self.server.script(*steps, **members) or self.untested("needs tidewire.script")

    # ---- requests ----------------------------------------------------------------------------------------------

    async def submit(self, work: Work, *, wire: Wire | None = None, **more: Any) -> Job:
        """Submit work, answered in JSON.

        Args:
            work: What to do.
            wire: The caller; that of the run by default.
            **more: Further members of the body.
        """
        sent = {**work.body, **more}
        answer = await (wire or self.wire).ask(
            "POST", work.submit_to, json=sent, header={"Accept": "application/json"}
        )
        body = answer.json if isinstance(answer.json, dict) else {}
        self.need(
            answer.status == 201 and isinstance(body.get("id"), str),
            f"{answer}: {answer.status} {answer.code}",
        )
        return Job(body["id"], work, answer)

    async def read(self, job: Job, wire: Wire | None = None) -> RecordedExchange:
        """Read the job."""
        return await (wire or self.wire).ask("GET", job.path)

    async def read_until(self, job: Job, holds: Callable[[RecordedExchange], object]) -> RecordedExchange:
        """Read the job until something holds of the answer."""
        answer = await self.read(job)
        for _ in range(READS):
            if holds(answer):
                break
            await asyncio.sleep(READ_SECONDS * self.wire.patience)
            answer = await self.read(job)
        else:
            self.unclear(
                f"{answer} had not come so far after {READS * READ_SECONDS * self.wire.patience:g} s"
            )
        return answer

    async def twin(self, sentence: str, work: Work, why: str) -> None:
        """The same submit without the fault."""
        answer = await self.wire.ask("POST", work.submit_to, json=work.body)
        self.expect(
            sentence, answer.status == 201, f"201 for {why}", f"{answer.status} {answer.code}", at=answer
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
        """Open the stream of a job, with a cursor where one is given."""
        fields = EVENT_STREAM | ({"Last-Event-ID": cursor} if cursor else {}) | dict(header or {})
        async with (wire or self.wire).open(
            "GET", job.events + query, header=fields, read_ahead=read_ahead
        ) as stream:
            yield stream

    async def stream(self, job: Job, cursor: str = "", **options: Any) -> RecordedExchange:
        """The stream of a job from a cursor to its end, or to that of the answer."""
        async with self.follow(job, cursor, **options) as stream:
            ends = await stream.until(
                lambda now: now.ended or now.of_type("done"), JOB_SECONDS + job.work.seconds
            )
            return await stream.to_end(CLOSE_SECONDS) if ends else stream.exchange

    async def history(self, job: Job) -> RecordedExchange:
        """Everything that the log holds once the job has ended: the answer to `0-0`."""
        exchange = await self.stream(job, "0-0")
        self.need(
            exchange.is_stream and exchange.of_type("done"),
            f"{exchange} with the cursor 0-0: {exchange.status}, no `done` ({exchange.ended or 'open'})",
        )
        return exchange

    async def ended(self, work: Work, **more: Any) -> tuple[Job, RecordedExchange]:
        """A job that has run to its end, and its history."""
        job = await self.submit(work, **more)
        return job, await self.history(job)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
