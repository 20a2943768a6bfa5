"""Plays transcripts of the specification against a server over raw sockets and reports differences.

The player shares no code with client or server, so their bugs cannot hide in it.
"""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPResponse
from types import TracebackType
from typing import Any, Self

from scenarios.transcripts.invariants import Exchange, Run
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

    def __init__(self, address: tuple[str, int], target: str, fields: list[str], body: bytes) -> None:
        """Send the request.

        The head of the response is read on first access.

        Args:
            address: Address of the server.
            target: Method and path, optionally followed by ` HTTP/1.0`.
            fields: Header lines. `Transfer-Encoding: chunked` sends the body in chunks of seven bytes. A
                `Content-Length` is sent unchanged.
            body: The request body.
        """
        self.target = target
        self.fields = fields
        self.body = body
        self.received = b""
        """The response body received so far."""
        self.ended = False
        """Whether the server has ended the response."""
        self.at = 0.0
        """Seconds since 1970 at which the head of the response arrived."""
        self.retry = False
        """Whether a `retry` field has arrived."""
        self._buffer = b""
        self._socket = socket.create_connection(address, PATIENCE)
        self._response = HTTPResponse(self._socket, method=target.partition(" ")[0])
        line = target if target.endswith("HTTP/1.0") else f"{target} HTTP/1.1"
        head = [line, f"Host: {address[0]}:{address[1]}", "Connection: close", *fields]
        if "Transfer-Encoding: chunked" in fields:
            pieces = [body[at : at + 7] for at in range(0, len(body), 7)]
            body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        elif not any(field.startswith("Content-Length:") for field in fields):
            head.append(f"Content-Length: {len(body)}")
        # A server that refuses a body may respond before the whole body has arrived.
        with contextlib.suppress(OSError):
            self._socket.sendall("\r\n".join([*head, "", ""]).encode() + body)

    @property
    def response(self) -> HTTPResponse:
        """The response, after reading its head."""
        if not self.at:
            try:
                self._response.begin()
            except (OSError, HTTPException) as error:
                self.close()
                raise DifferenceError(f"{self.target}: no answer: {error!r}") from error
            self.at = time.time()
        return self._response

    def exchange(self) -> Exchange:
        """The exchange, for the invariants."""
        method, url, *_ = self.target.split(" ")
        request_headers = dict(field.split(": ", 1) for field in self.fields)
        headers = {name.lower(): value for name, value in self._response.getheaders()}
        return Exchange(
            method,
            url,
            {name.lower(): value for name, value in request_headers.items()},
            self.body,
            self._response.status,
            headers,
            self.received,
            self.ended,
            self.at,
        )

    def close(self) -> None:
        """Close the connection."""
        self._response.close()
        self._socket.close()

    def block(self) -> dict[str, str] | None:
        """The fields of the next event, or a single `retry` field; None at the end of the response.

        Raises:
            DifferenceError: The stream breaks off, or its framing violates the specification.
        """
        while b"\n\n" not in self._buffer:
            chunk = self._read()
            if not chunk:
                if self._buffer.strip(b"\n"):
                    raise DifferenceError("the stream ends within an event")
                return None
            self._buffer += chunk
        raw, _, self._buffer = self._buffer.partition(b"\n\n")
        fields: dict[str, str] = {}
        for line in raw.decode().split("\n"):
            name, _, value = line.partition(":")
            if name and (name not in {"id", "event", "data", "retry"} or name in fields or "\r" in line):
                raise DifferenceError(f"a line that has no place in an event: {line!r}")
            fields[name] = value.removeprefix(" ")
        fields.pop("", None)
        self.retry = self.retry or fields.get("retry", "").isdigit()
        return fields if "data" in fields else self.block()

    def whole(self) -> bytes:
        """The remaining body."""
        return b"".join(iter(self._read, b""))

    def _read(self) -> bytes:
        try:
            chunk = self.response.read1(65536)
        except (OSError, HTTPException) as error:
            raise DifferenceError(f"the answer breaks off: {error!r}") from error
        self.received += chunk
        self.ended = self.ended or not chunk
        return chunk


# ---- playing -----------------------------------------------------------------------------------------------------


class Player:
    """Plays transcripts as a client. A context manager that closes its connections on exit."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        cues: Mapping[str, Callable[["Player"], None]] | None = None,
        names: Names | None = None,
    ) -> None:
        """Prepare a player.

        Args:
            address: Address of the server.
            cues: Actions at remarks, in addition to those in `CUES`: text of the remark → action.
            names: Names that are already bound.
        """
        self.address = address
        self.names = names or Names()
        self.job = ""
        """The id of the most recently named job."""
        self._cues = CUES | dict(cues or {})
        self.request_shutdown: Callable[[], None] | None = None
        """Asks the server to shut down, if the scene supports it."""
        self.sent_requests: list[Answer] = []
        """All requests, for the invariants."""
        self._answers: dict[str, Answer] = {}
        self._awaits_retry: set[str] = set()
        self._skips: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for answer in self.sent_requests:
            answer.close()

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
        assert answer.response is not None, "the server has answered before anything else is done"
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

    def run(self) -> Run:
        """All exchanges, for the invariants."""
        return Run([answer.exchange() for answer in self.sent_requests if answer.at])

    def _ask(self, target: str, fields: list[str], body: bytes) -> Answer:
        answer = Answer(self.address, target, fields, body)
        self.sent_requests.append(answer)
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
                    raise DifferenceError(f"the end of the answer is shown, and there came {left}")
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
        response = self._answers[step.channel].response
        if response.status != step.status:
            self._answers[step.channel].whole()
            raise DifferenceError(f"the status is {response.status}, not {step.status}")
        for name, value in step.fields:
            got = response.getheader(name)
            if got is None or not self.names.match(value, got):
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
            skipped = step.channel in self._skips and got.get("event", "message") in {"message", "snapshot"}
            if got.get("event") not in EPHEMERAL and not skipped:
                raise DifferenceError(f"{difference}\n  got    {got}\n  shown  {step.fields}")
        self._skips.discard(step.channel)
        self.names = names
        if kind == "hello":
            self.job = json.loads(got["data"]).get("job", "")
        if kind == "hello" and step.channel in self._awaits_retry and not self._answers[step.channel].retry:
            raise DifferenceError("no `retry` has come before or in `hello`")

    def _next(self, channel: str) -> dict[str, str] | None:
        """The next event, skipping ephemeral events."""
        while True:
            got = self._answers[channel].block()
            if got is None or got.get("event") not in EPHEMERAL:
                return got


def _differs(shown: dict[str, str], got: dict[str, str], names: Names) -> str:
    kinds = [one.get("event", "message") for one in (shown, got)]
    if kinds[0] != kinds[1]:
        return f"the event is {kinds[1]!r}, not {kinds[0]!r}"
    ids = [one.get("id", "") for one in (shown, got)]
    if ids[0] != ids[1] and not (names.match_id(*ids) or (ids[0] == "{id}" and names.match(*ids))):
        return f"the id is {ids[1] or 'absent'}, not {ids[0] or 'absent'}"
    try:
        data = json.loads(got["data"])
    except ValueError:
        return "the data is no JSON"
    return names.compare(read_json(shown["data"]), data, whole=kinds[0] != "problem")


def difference_message(text: str, line: int, error: DifferenceError, answer: Answer | None) -> str:
    lines = [f"line {line} of the transcript: {text.splitlines()[line - 1]}", str(error)]
    if answer is not None and answer.at:
        lines += [answer.target, f"{answer.response.status} {dict(answer.response.getheaders())}"]
        lines.append(repr(answer.received[-SHOWN_BYTES:]))
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
