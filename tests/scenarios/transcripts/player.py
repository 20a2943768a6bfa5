"""Plays the specification's transcripts against a server, over raw sockets, and tells where the two differ.

It shares no code with client or server, so that no bug of theirs can hide in it.
"""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPResponse
from types import TracebackType
from typing import Any, Self

from scenarios.transcripts.invariants import Run, Talk
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
"""Seconds that an answer, or a condition between two requests, may take."""
SHOWN_BYTES = 4000
"""Bytes of an answer that a difference shows at most."""
EPHEMERAL = frozenset({"queue", "progress", "ping"})
"""Events that a server may send between those that are shown."""


class DifferenceError(AssertionError):
    """What the server sent is not what the transcript shows."""


# ---- the wire ----------------------------------------------------------------------------------------------------


class Answer:
    """One request on a connection of its own, and what comes back."""

    def __init__(self, address: tuple[str, int], target: str, fields: list[str], body: bytes) -> None:
        """Send it. The header of the answer is read when it is first asked for.

        Args:
            address: Where the server listens.
            target: Method and path, and perhaps ` HTTP/1.0`.
            fields: Lines of the header. `Transfer-Encoding: chunked` sends the body in chunks of seven bytes, a
                `Content-Length` is sent as it stands.
            body: The body.
        """
        self.target = target
        self.fields = fields
        self.body = body
        self.received = b""
        """The body so far."""
        self.ended = False
        """Whether the server has ended the answer."""
        self.at = 0.0
        """Seconds since 1970, when the header of the answer had come."""
        self.retry = False
        """Whether a `retry` field has come."""
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
        # A server that refuses a body may answer before it has come whole.
        with contextlib.suppress(OSError):
            self._socket.sendall("\r\n".join([*head, "", ""]).encode() + body)

    @property
    def response(self) -> HTTPResponse:
        """The answer, from its header on."""
        if not self.at:
            try:
                self._response.begin()
            except (OSError, HTTPException) as error:
                self.close()
                raise DifferenceError(f"{self.target}: no answer: {error!r}") from error
            self.at = time.time()
        return self._response

    def talk(self) -> Talk:
        """What was said, for the watch."""
        method, url, *_ = self.target.split(" ")
        asked = dict(field.split(": ", 1) for field in self.fields)
        headers = {name.lower(): value for name, value in self._response.getheaders()}
        return Talk(
            method,
            url,
            {name.lower(): value for name, value in asked.items()},
            self.body,
            self._response.status,
            headers,
            self.received,
            self.ended,
            self.at,
        )

    def close(self) -> None:
        """Hang up."""
        self._response.close()
        self._socket.close()

    def block(self) -> dict[str, str] | None:
        """The fields of the next event, or a `retry` by itself; None at the end of the answer.

        Raises:
            DifferenceError: The stream breaks off, or is not framed as the specification says.
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
        """All that is left of the body."""
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
    """Plays transcripts as their client. To be entered; hangs up at the end."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        cues: Mapping[str, Callable[["Player"], None]] | None = None,
        names: Names | None = None,
    ) -> None:
        """Get ready.

        Args:
            address: Where the server listens.
            cues: What happens at remarks: their text → what is done, beyond those that `CUES` has.
            names: What names stand for already.
        """
        self.address = address
        self.names = names or Names()
        self.job = ""
        """The id of the job that was named last."""
        self._cues = CUES | dict(cues or {})
        self.tell_to_stop: Callable[[], None] | None = None
        """Tells the server to stop, where the scene can."""
        self.asked: list[Answer] = []
        """Every request, for the watch."""
        self._answers: dict[str, Answer] = {}
        self._awaits_retry: set[str] = set()
        self._skips: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for answer in self.asked:
            answer.close()

    def play(self, text: str) -> None:
        """Play a transcript to its end.

        Raises:
            DifferenceError: The server differs; says at which line, how, and by which bytes.
            TranscriptError: The text is no transcript.
        """
        for step in read(text):
            try:
                self._take(step)
            except DifferenceError as error:
                answer = None if isinstance(step, Remark) else self._answers.get(step.channel)
                raise DifferenceError(_told(text, step.line, error, answer)) from None

    def ask(self, target: str, body: Any = None, *headers: str) -> Answer:
        """Send a request that is in no transcript."""
        fields = [*headers] if body is None else [*headers, "Content-Type: application/json"]
        if "token" in self.names.values:
            fields.append(f"Authorization: Bearer {self.names.values['token']}")
        answer = self._ask(target, fields, b"" if body is None else json.dumps(body).encode())
        assert answer.response is not None, "the server has answered before anything else is done"
        return answer

    def submit(self, *inputs: Any) -> str:
        """Submit inputs of `tidewire.script`; returns the id of the job."""
        with contextlib.closing(self.ask(f"POST {SCRIPTS}", {"inputs": inputs})) as answer:
            job: str = json.loads(answer.whole())["id"]
            self.job = job
            return job

    def state(self, job: str) -> dict[str, Any]:
        """A job as it is."""
        with contextlib.closing(self.ask(f"GET /v1/jobs/{job}")) as answer:
            found: dict[str, Any] = json.loads(answer.whole())
            return found

    def run(self) -> Run:
        """All that was said, for the watch."""
        return Run([answer.talk() for answer in self.asked if answer.at])

    def _ask(self, target: str, fields: list[str], body: bytes) -> Answer:
        answer = Answer(self.address, target, fields, body)
        self.asked.append(answer)
        return answer

    def _take(self, step: Step) -> None:
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
            # In the answer it may stand here, or within the event that follows.
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
        """What follows, without events that need not be shown."""
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


def _told(text: str, line: int, error: DifferenceError, answer: Answer | None) -> str:
    lines = [f"line {line} of the transcript: {text.splitlines()[line - 1]}", str(error)]
    if answer is not None and answer.at:
        lines += [answer.target, f"{answer.response.status} {dict(answer.response.getheaders())}"]
        lines.append(repr(answer.received[-SHOWN_BYTES:]))
    return "\n".join(lines)


# ---- what happens between ----------------------------------------------------------------------------------------


def job_ends(player: Player) -> None:
    """Wait for the end of the job that was named last: that of its stream."""
    with contextlib.closing(player.ask(f"GET /v1/jobs/{player.job}/events")) as answer:
        if b"\nevent:done\n" not in b"\n" + answer.whole():
            raise DifferenceError("the stream of the job ends without `done`")


def every_item_has_a_value(player: Player) -> None:
    """Wait until each item of the job that was named last has given something."""
    deadline = time.monotonic() + PATIENCE
    while True:
        items = player.state(player.job)["state"]["items"]
        if all(item["value"] for item in items):
            return
        if time.monotonic() > deadline:
            raise DifferenceError(f"an item has given nothing in {PATIENCE:g} s: {items}")


CUES: Mapping[str, Callable[[Player], None]] = {
    "The job ends.": job_ends,
    "The first text has arrived.": every_item_has_a_value,
    "Both items run and have produced their first text.": every_item_has_a_value,
}
"""Remarks that any player acts upon. What else a remark says is for people."""
