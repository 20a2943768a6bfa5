"""State histories of event streams, with the state before and after each logged event.

If an event does not apply to the state before it, the history contains the id of the violated requirement.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidewire_conformance.judging import apply_diffs
from tidewire_conformance.judging.apply_diffs import InvalidDiffError, State
from tidewire_conformance.schema_violations import schema_violation
from tidewire_conformance.wire.event_stream_decoder import Block
from tidewire_conformance.wire.recorded_exchange import RecordedExchange, resolve, without_query

Key = tuple[int, int]
"""Event id as a pair of its epoch and its sequence number."""


def key(name: Any) -> Key | None:
    """Parse an event id into its epoch and its sequence number. Returns None if the id is not valid."""
    epoch, _, seq = name.partition("-") if isinstance(name, str) else ("", "", "")
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
    """Violation of a requirement by the event, or None. Unless only the digest is wrong, `after` is then None."""
    violation: str = ""
    """Violations of the schema by the state after the event. If there are any, `after` is None."""

    @property
    def refusal(self) -> str:
        """Reason why the event does not apply, or an empty string. A wrong digest does not count, because it changes no state."""
        return str(self.error) if self.error is not None and self.after is None else ""


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
                place = str(body.get("id")), str(body.get("cursor"))
                if not schema_violation("state", body["state"]):
                    self._known.setdefault(place, State(body["state"], tuple(body["columns"])))

    def _steps(self, exchange: RecordedExchange) -> Iterator[Step]:
        job = job_of(exchange)
        held = self._known.get((job, exchange.cursor))
        place = key(exchange.cursor)
        before = held
        for block in exchange.logged:
            try:
                held = _applied(block, held, place)
                fault = _wrong_digest(block, held)
            except InvalidDiffError as error:
                held, fault = None, error
            violation = "" if held is None else schema_violation("state", held.value)
            place = key(block.id)
            # The next event is applied even to an invalid state, but no check reads an invalid state.
            after = None if violation else held
            if after is not None and block.type != "done":
                self._known.setdefault((job, block.id or ""), after)
            yield Step(job, exchange, block, before, after, fault, violation)
            before = after


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
            f"the event {block.id} continues from {id_text(base)}, but the reader has the state at {id_text(place)}",
        )
    if block.type == "message":
        return apply_diffs.apply(held, data)
    if not isinstance(data, dict):
        return None
    apply_diffs.verify(held, data.get("check", []), "TW-DIF-049")
    if isinstance(held.value, dict) and isinstance(data.get("digest"), str):
        ending = {name: data[name] for name in ("status", "usage", "error") if name in data}
        return State({**held.value, **ending}, held.columns)
    return None


def _wrong_digest(block: Block, after: State | None) -> InvalidDiffError | None:
    """Return an error if a `done` event has another digest than the items. For any other event, return None."""
    if block.type != "done" or after is None:
        return None
    true, declared = apply_diffs.digest(after.value.get("items")), block.json["digest"]
    why = f"the digest is {declared}, but the items have the digest {true}"
    return None if true == declared else InvalidDiffError("TW-DIF-055", why)


def id_text(place: Key | None) -> str:
    """Return an event id as text."""
    return "none" if place is None else f"{place[0]}-{place[1]}"


def value_has_grown(exchange: RecordedExchange) -> bool:
    """Whether the logged events of a stream show a value that is not empty, or a change of a value.

    The number of events is not enough, because a server may log several changes as one event, or send a snapshot instead.
    """
    snapshots = exchange.of_type("snapshot")
    shown = [_values(block.member("state")) for block in snapshots]
    if any(map(_has_content, snapshots)) or any(each != shown[0] for each in shown):
        return True
    return any(grows(block) for block in exchange.of_type("message"))


def grows(diff: Block) -> bool:
    """Whether a diff changes the value of an item."""
    ops = diff.member("ops") if isinstance(diff.json, dict) else diff.json
    if isinstance(ops, str):
        return True
    pairs = [op for op in ops if isinstance(op, list) and len(op) > 1] if isinstance(ops, list) else []
    return any(str(op[0]) in {"r", "a", "t", "i"} or "/value" in str(op[1]) for op in pairs)


def _values(state: Any) -> list[Any]:
    items = state.get("items") if isinstance(state, dict) else None
    return [each.get("value") for each in items if isinstance(each, dict)] if isinstance(items, list) else []


def _has_content(snapshot: Block) -> bool:
    """Whether a snapshot contains output: a column that is not empty or, without columns, a text or array that is not empty.

    The initial value of an item may contain texts that are not output, next to its empty columns.
    """
    state, columns = snapshot.member("state"), snapshot.member("columns")
    if columns:
        return any(apply_diffs.find(state, column) for column in columns)
    return _is_filled(_values(state))


def _is_filled(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_is_filled, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and bool(value)


def log_fault(exchange: RecordedExchange) -> str:
    """Return the fault that keeps a reader from resuming in a log, or an empty string. The log is a stream from the cursor `0-0`.

    Other checks skip a log with a fault. A fault in every log is then reported only by the checks of the log itself.
    """
    if not all(block.reading.is_json for block in exchange.events):
        return "an event has data that is not JSON"
    ids = [key(block.id) for block in exchange.logged]
    known = [each for each in ids if each is not None]
    if len(known) < max(2, len(ids)) or known != sorted({*known}):
        return f"the ids {[block.id for block in exchange.logged][:8]} do not rise"
    first = exchange.logged[0]
    if first.type != "snapshot":
        return "the log does not begin with a snapshot"
    if first.member("reason") == "start" and first.id != "1-1":
        return f"the log begins with the id {first.id}, not 1-1"
    steps = [step for _, found in Histories([exchange]).streams for step in found]
    return next((step.refusal or step.violation for step in steps if step.refusal or step.violation), "")


def job_of(exchange: RecordedExchange) -> str:
    """Return the id of the job that a request is about, or an empty string if the request is not about a job."""
    place = exchange.response_header("location") if exchange.method == "POST" else ""
    path = without_query(resolve(exchange, place)) if place else exchange.path
    job = path.partition("/v1/jobs/")[2].partition("/")[0]
    if not job and exchange.method == "POST" and exchange.path.endswith("/jobs"):
        # If `Location` is missing, which a check reports, only the body names the job.
        hello = exchange.of_type("hello")
        named = hello[0].member("job") if hello else exchange.member("id")
        return named if isinstance(named, str) else ""
    return job


def job_bodies(exchange: RecordedExchange) -> Iterator[dict[str, Any]]:
    """Yield the job resources that the body of a response contains. Each of them has an `id` that is a string."""
    about_jobs = "/v1/jobs" in exchange.path or exchange.path.endswith("/jobs")
    if not (about_jobs and exchange.is_whole and 200 <= exchange.status < 300 and not exchange.is_stream):
        return
    body = exchange.json
    found = body.get("jobs", [body]) if isinstance(body, dict) else []
    entries = found if isinstance(found, list) else []
    yield from (each for each in entries if isinstance(each, dict) and isinstance(each.get("id"), str))


def items_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the items of a job resource. The list is empty if the resource has no valid state."""
    # A list may have thousands of jobs without a state. Describing each missing state as a violation would be slow.
    return [] if "state" not in body or schema_violation("state", body["state"]) else body["state"]["items"]
