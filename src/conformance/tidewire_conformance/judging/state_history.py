"""State histories of event streams, with the state before and after each logged event.

If an event does not apply to the state before it, the history contains the id of the violated requirement.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidewire_conformance.judging import apply_diffs
from tidewire_conformance.judging.apply_diffs import InvalidDiffError, State
from tidewire_conformance.wire.event_stream_decoder import Block
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

Key = tuple[int, int]
"""Event id as a pair of its epoch and its sequence number."""


def key(name: str | None) -> Key | None:
    """Parse an event id into its epoch and its sequence number. Returns None if the id is not valid."""
    epoch, _, seq = (name or "").partition("-")
    sound = all(part.isascii() and part.isdigit() and len(part) <= 15 for part in (epoch, seq))
    return (int(epoch), int(seq)) if sound else None


class Step(NamedTuple):
    """Logged event that was received in a stream, with the state before and after the event."""

    job: str
    exchange: RecordedExchange
    block: Block
    before: State | None
    """State before the event, or None if that state is unknown."""
    after: State | None
    error: InvalidDiffError | None
    """Error that says why the event does not apply, or None if it applies."""

    @property
    def epoch(self) -> int:
        found = key(self.block.id)
        return found[0] if found else 0


@dataclass
class Histories:
    """State histories of all recorded event streams.

    The streams are processed in order. If a stream resumes after an event, and the state at that event is known from an
    earlier stream or response, the history of the stream starts from that state.
    """

    record: Sequence[RecordedExchange]

    def __post_init__(self) -> None:
        self._known: dict[tuple[str, str], State] = {}
        self.streams: list[tuple[RecordedExchange, list[Step]]] = []
        for exchange in self.record:
            self._remember_states(exchange)
            if exchange.is_stream and (steps := list(self._steps(exchange))):
                self.streams.append((exchange, steps))

    @property
    def steps(self) -> Iterator[Step]:
        for _, steps in self.streams:
            yield from steps

    def _remember_states(self, exchange: RecordedExchange) -> None:
        """Remember the states in the job resources that a response contains."""
        for body in job_bodies(exchange):
            if "state" in body and body.get("done") is None and isinstance(body.get("columns"), list):
                state = State(body["state"], tuple(body["columns"]))
                self._known.setdefault((str(body.get("id")), str(body.get("cursor"))), state)

    def _steps(self, exchange: RecordedExchange) -> Iterator[Step]:
        job = job_of(exchange)
        held = self._known.get((job, exchange.cursor))
        place = key(exchange.cursor)
        for block in exchange.logged:
            before, fault = held, None
            try:
                held = _applied(block, held, place)
            except InvalidDiffError as error:
                held, fault = None, error
            place = key(block.id)
            if held is not None and block.type != "done":
                self._known.setdefault((job, block.id or ""), held)
            yield Step(job, exchange, block, before, held, fault)


def _applied(block: Block, held: State | None, place: Key | None) -> State | None:
    data = block.json
    if block.type == "snapshot":
        sound = isinstance(data, dict) and isinstance(data.get("columns"), list) and "state" in data
        return State(data["state"], tuple(data["columns"])) if sound else None
    if held is None:
        return None
    own = key(block.id)
    base = own and (own[0], data["on"] if isinstance(data, dict) and "on" in data else own[1] - 1)
    if place is not None and base != place:
        raise InvalidDiffError(
            "TW-RES-030",
            f"the event {block.id} continues from {base}, but the reader has the state at {place}",
        )
    if block.type == "message":
        return apply_diffs.apply(held, data)
    if not isinstance(data, dict):
        return None
    apply_diffs.verify(held, data.get("check", []), "TW-DIF-049")
    if isinstance(held.value, dict) and isinstance(data.get("digest"), str):
        true = apply_diffs.digest(held.value.get("items"))
        if true != data["digest"]:
            raise InvalidDiffError(
                "TW-DIF-055", f"the digest is {data['digest']}, but the items have the digest {true}"
            )
        ending = {name: data[name] for name in ("status", "usage", "error") if name in data}
        return State({**held.value, **ending}, held.columns)
    return None


def job_of(exchange: RecordedExchange) -> str:
    """Return the id of the job that a request is about, or an empty string if the request is not about a job."""
    place = exchange.response_header("location") if exchange.method == "POST" else ""
    path = place or exchange.path
    return path.partition("/v1/jobs/")[2].partition("/")[0].partition("?")[0]


def job_bodies(exchange: RecordedExchange) -> Iterator[dict[str, Any]]:
    """Yield the job resources that the body of a response contains."""
    about_jobs = "/v1/jobs" in exchange.path or exchange.path.endswith("/jobs")
    if not (about_jobs and exchange.is_whole and 200 <= exchange.status < 300 and not exchange.is_stream):
        return
    body = exchange.json
    found = body.get("jobs", [body]) if isinstance(body, dict) else []
    yield from (each for each in found if isinstance(each, dict) and "id" in each)
