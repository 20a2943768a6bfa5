"""Plays transcripts of the specification against a server through the suite's HTTP client, and reports differences.

The player shares no code with client or server, so their bugs cannot hide in it.
"""

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from scenarios.transcripts.notation import (
    Block,
    Body,
    Cut,
    Eof,
    Head,
    Names,
    Remark,
    Request,
    Rest,
    Step,
    read,
    read_json,
)
from tidewire_conformance.wire.event_stream_decoder import Block as ReceivedBlock
from tidewire_conformance.wire.recorded_exchange import RecordedExchange
from tidewire_conformance.wire.recording_client import IncompleteResponseError, Stream, Wire

SCRIPTS = "/v1/endpoints/tidewire.script/jobs"
PATIENCE = 10.0
"""Time limit in seconds for a response, or for a condition between two requests."""
SHOWN_BYTES = 4000
"""Maximum number of response bytes in the message of a difference."""
EPHEMERAL = frozenset({"queue", "progress", "ping"})
"""Events that a server may send between the shown events."""


class DifferenceError(AssertionError):
    """The server's response differs from the transcript."""


# ---- the wire ----------------------------------------------------------------------------------------------------


class Answer:
    """One request on its own connection, and the response."""

    def __init__(
        self, portal: BlockingPortal, wire: Wire, target: str, fields: list[str], body: bytes
    ) -> None:
        """Start to send the request.

        Args:
            portal: Portal to the event loop of the HTTP client.
            wire: The HTTP client.
            target: Method and path, optionally followed by ` HTTP/1.0`.
            fields: Header lines. `Transfer-Encoding: chunked` sends the body in chunks of seven bytes. A
                `Content-Length` is sent unchanged.
            body: The request body.
        """
        self.target = target
        self.retry = False
        """Whether a `retry` field has arrived."""
        self._portal = portal
        self._blocks_read = 0
        method, path, *version = target.split(" ")
        header = dict(field.split(": ", 1) for field in fields)
        chunks = [body[at : at + 7] for at in range(0, len(body), 7)]
        sent = chunks if header.pop("Transfer-Encoding", "") == "chunked" else body or None
        self._context = wire.open(method, path, header=header, body=sent, once=True, old=bool(version))
        self._opening = portal.start_task_soon(self._context.__aenter__)

    @property
    def stream(self) -> Stream:
        """The response, after reading its head."""
        try:
            return self._opening.result()
        except IncompleteResponseError as error:
            raise DifferenceError(f"{self.target}: no answer: {error}") from None

    @property
    def exchange(self) -> RecordedExchange:
        """The recorded request and response, after reading the head of the response."""
        return self.stream.exchange

    def close(self) -> None:
        """Close the connection."""
        if self._context is None or self._opening.cancel() or self._opening.exception() is not None:
            return
        context, self._context = self._context, None
        self._portal.call(context.__aexit__, None, None, None)

    def block(self) -> ReceivedBlock | None:
        """The next event; None at the end of the response.

        Raises:
            DifferenceError: The stream breaks off.
        """
        blocks = self.exchange.blocks
        while True:
            while self._blocks_read < len(blocks):
                block = blocks[self._blocks_read]
                self._blocks_read += 1
                self.retry = self.retry or block.retry is not None
                if block.is_event:
                    return block
            if not self._portal.call(self.stream.next, PATIENCE):
                self._require_complete()
                return None

    def whole(self) -> bytes:
        """The complete body."""
        self._portal.call(self.stream.to_end, PATIENCE)
        self._require_complete()
        return self.exchange.body

    def _require_complete(self) -> None:
        if not self.exchange.is_whole:
            raise DifferenceError(f"the answer breaks off: {self.exchange.fault or 'nothing more arrives'}")


# ---- playing -----------------------------------------------------------------------------------------------------


class Player:
    """Plays transcripts as a client. A context manager that closes its connections on exit."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        cues: Mapping[str, Callable[["Player"], None]] | None = None,
    ) -> None:
        """Prepare a player.

        Args:
            address: Address of the server.
            cues: Actions at remarks, in addition to those in `CUES`: text of the remark → action.
        """
        self.address = address
        self.wire = Wire("http://{}:{}".format(*address), resumes=False)
        """HTTP client that records all requests and responses."""
        self.names = Names()
        self.job = ""
        """The id of the most recently named job."""
        self._cues = CUES | dict(cues or {})
        self.request_shutdown: Callable[[], None] | None = None
        """Asks the server to shut down, if the scene supports it."""
        self._answers: dict[str, Answer] = {}
        self._awaits_retry: set[str] = set()
        self._skips: set[str] = set()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.portal = stack.enter_context(start_blocking_portal())
            self._closing = stack.enter_context(contextlib.ExitStack())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def play(self, text: str) -> None:
        """Play a transcript to its end.

        Raises:
            DifferenceError: The server differs; the message has the line, the difference and the received bytes.
            TranscriptError: The text is not a transcript.
        """
        for step in read(text):
            try:
                self._perform(step)
            except DifferenceError as error:
                answer = None if isinstance(step, Remark) else self._answers.get(step.channel)
                raise DifferenceError(difference_message(text, step.line, error, answer)) from None

    def ask(self, target: str, body: Any = None, *headers: str) -> Answer:
        """Send a request that is not part of a transcript."""
        fields = [*headers] if body is None else [*headers, "Content-Type: application/json"]
        if "token" in self.names.values:
            fields.append(f"Authorization: Bearer {self.names.values['token']}")
        answer = self._ask(target, fields, b"" if body is None else json.dumps(body).encode())
        assert answer.exchange.status, "the server has answered before anything else is done"
        return answer

    def submit(self, *inputs: Any) -> str:
        """Submit inputs to `tidewire.script`; returns the id of the job."""
        with contextlib.closing(self.ask(f"POST {SCRIPTS}", {"inputs": inputs})) as answer:
            job: str = json.loads(answer.whole())["id"]
            self.job = job
            return job

    def state(self, job: str) -> dict[str, Any]:
        """The current resource of a job."""
        with contextlib.closing(self.ask(f"GET /v1/jobs/{job}")) as answer:
            found: dict[str, Any] = json.loads(answer.whole())
            return found

    def _ask(self, target: str, fields: list[str], body: bytes) -> Answer:
        answer = Answer(self.portal, self.wire, target, fields, body)
        self._closing.callback(answer.close)
        return answer

    def _perform(self, step: Step) -> None:
        match step:
            case Remark(text=text):
                if text in self._cues:
                    self._cues[text](self)
            case Request():
                self._send(step)
            case Head():
                self._head(step)
            case Body():
                self._body(step)
            case Block():
                self._block(step)
            case Rest():
                self._skips.add(step.channel)
            case Eof():
                left = self._next(step.channel)
                if left is not None:
                    raise DifferenceError(f"the end of the answer is shown, and there came {left.raw!r}")
            case Cut():
                self._answers.pop(step.channel).close()

    def _send(self, step: Request) -> None:
        if before := self._answers.pop(step.channel, None):
            before.close()
        self._awaits_retry.discard(step.channel)
        fields = [self.names.fill(text) for text in step.fields]
        target, body = self.names.fill(step.target), self.names.fill(step.body).encode()
        self._answers[step.channel] = self._ask(target, fields, body)

    def _head(self, step: Head) -> None:
        exchange = self._answers[step.channel].exchange
        if exchange.status != step.status:
            self._answers[step.channel].whole()
            raise DifferenceError(f"the status is {exchange.status}, not {step.status}")
        for name, value in step.fields:
            got = exchange.response_header(name)
            if not self.names.match(value, got):
                raise DifferenceError(f"the header {name} is {got!r}, not {value!r}")

    def _body(self, step: Body) -> None:
        body = self._answers[step.channel].whole()
        try:
            got = json.loads(body)
        except ValueError:
            raise DifferenceError("the body is no JSON") from None
        if difference := self.names.compare(read_json(step.text), got, whole=False):
            raise DifferenceError(difference)
        if "status" in got and type(got.get("id")) is str:
            self.job = got["id"]

    def _block(self, step: Block) -> None:
        if "data" not in step.fields:
            # The response may send `retry` here or within the next event.
            self._awaits_retry.add(step.channel)
            return
        kind = step.fields.get("event", "message")
        while True:
            got = self._answers[step.channel].block()
            if got is None:
                raise DifferenceError("the answer has ended")
            names = self.names.copy()
            difference = _differs(step.fields, got, names)
            if not difference:
                break
            skipped = step.channel in self._skips and got.type in {"message", "snapshot"}
            if got.type not in EPHEMERAL and not skipped:
                raise DifferenceError(f"{difference}\n  got    {got.raw!r}\n  shown  {step.fields}")
        self._skips.discard(step.channel)
        self.names = names
        if kind == "hello":
            self.job = got.members.get("job", "")
        if kind == "hello" and step.channel in self._awaits_retry and not self._answers[step.channel].retry:
            raise DifferenceError("no `retry` has come before or in `hello`")

    def _next(self, channel: str) -> ReceivedBlock | None:
        """The next event, skipping ephemeral events."""
        while True:
            got = self._answers[channel].block()
            if got is None or got.type not in EPHEMERAL:
                return got


def _differs(shown: dict[str, str], got: ReceivedBlock, names: Names) -> str:
    kind, id_, got_id = shown.get("event", "message"), shown.get("id", ""), got.id or ""
    if kind != got.type:
        return f"the event is {got.type!r}, not {kind!r}"
    if id_ != got_id and not (names.match_id(id_, got_id) or (id_ == "{id}" and names.match(id_, got_id))):
        return f"the id is {got_id or 'absent'}, not {id_ or 'absent'}"
    if not got.reading.is_json:
        return "the data is no JSON"
    return names.compare(read_json(shown["data"]), got.json, whole=kind != "problem")


def difference_message(text: str, line: int, error: DifferenceError, answer: Answer | None) -> str:
    lines = [f"line {line} of the transcript: {text.splitlines()[line - 1]}", str(error)]
    with contextlib.suppress(DifferenceError):  # There may be no response.
        if answer is not None:
            exchange = answer.exchange
            lines += [
                answer.target,
                f"{exchange.status} {dict(exchange.header)}",
                repr(exchange.body[-SHOWN_BYTES:]),
            ]
    return "\n".join(lines)


# ---- actions between requests ------------------------------------------------------------------------------------


def wait_for_job_end(player: Player) -> None:
    """Wait until the stream of the most recently named job ends with `done`."""
    with contextlib.closing(player.ask(f"GET /v1/jobs/{player.job}/events")) as answer:
        if b"\nevent:done\n" not in b"\n" + answer.whole():
            raise DifferenceError("the stream of the job ends without `done`")


def wait_for_values(player: Player) -> None:
    """Wait until each item of the most recently named job has a value."""
    deadline = time.monotonic() + PATIENCE
    while True:
        items = player.state(player.job)["state"]["items"]
        if all(item["value"] for item in items):
            return
        if time.monotonic() > deadline:
            raise DifferenceError(f"an item has given nothing in {PATIENCE:g} s: {items}")


CUES: Mapping[str, Callable[[Player], None]] = {
    "The job ends.": wait_for_job_end,
    "The first text has arrived.": wait_for_values,
    "Both items run and have produced their first text.": wait_for_values,
}
"""Remarks that every player acts upon. Other remarks are for human readers."""
