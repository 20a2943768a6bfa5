"""Recording of one run of a transcript, and the job states that follow from its events.

The module shares no code with client or server. The plain client's `plain_state`, written from the
specification alone, computes the states. Rules in the modules `*_invariants` register themselves here.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from proof.reimplementations.plain_state import MalformedError, State, UnknownError, demand, parse

# ---- what was said -------------------------------------------------------------------------------------------------


class Event(NamedTuple):
    """The field values of one received event."""

    fields: dict[str, str]

    @property
    def type(self) -> str:
        return self.fields.get("event", "message")

    @property
    def id(self) -> str:
        return self.fields.get("id", "")

    @property
    def data(self) -> Any:
        return json.loads(self.fields["data"])

    @property
    def is_logged(self) -> bool:
        return self.type in {"snapshot", "message", "done"}


@dataclass
class Exchange:
    """One request and the received part of its response."""

    method: str
    url: str
    """Path and query as sent."""
    request_headers: dict[str, str]
    """Request header fields, with names in lower case."""
    request_body: bytes
    """The request body."""
    status: int
    headers: dict[str, str]
    """Response header names are in lower case."""
    received: bytes
    ended: bool
    """Whether the server ended the response."""
    at: float = 0.0
    """Seconds since 1970 at which the head of the response arrived."""

    @property
    def path(self) -> str:
        return urlsplit(self.url).path

    @property
    def where(self) -> str:
        return f"{self.method} {self.url}: {self.status}"

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def is_submit(self) -> bool:
        return self.method == "POST" and bool(re.search(r"/v1/endpoints/[^/]+/jobs$", self.path))

    @property
    def is_of_jobs(self) -> bool:
        return self.is_submit or "/v1/jobs" in self.path

    @cached_property
    def json(self) -> Any:
        """The body if it is JSON and complete, otherwise None."""
        if not self.ended or self.is_stream or not self.received:
            return None
        return parse(self.received.decode()) if "json" in self.headers.get("content-type", "") else None

    @cached_property
    def events(self) -> list[Event]:
        """The complete events."""
        if not self.is_stream:
            return []
        found = (event_of(block) for block in self.received.decode().split("\n\n")[:-1])
        return [event for event in found if "data" in event.fields]


def event_of(block: str) -> Event:
    lines = [line for line in block.split("\n") if line and not line.startswith(":")]
    return Event(
        {name: value.removeprefix(" ") for name, _, value in (line.partition(":") for line in lines)}
    )


@dataclass
class Run:
    """All exchanges of one run, in the order of the requests."""

    exchanges: list[Exchange]
    endpoints: dict[str, Any] = field(default_factory=dict)
    """Name → description of the endpoints of this run's jobs.

    Empty if the server was already down at the end.
    """
    origins: frozenset[str] = frozenset()
    """The CORS origins that the server is configured to allow."""

    @cached_property
    def discovery(self) -> Any:
        """The discovery document, or None if it was not requested."""
        return next((exchange.json for exchange in self.exchanges if is_discovery(exchange)), None)

    @cached_property
    def folded(self) -> list[tuple[Exchange, list["Step"]]]:
        return list(_fold(self.exchanges))

    @property
    def steps(self) -> Iterator["Step"]:
        for _, steps in self.folded:
            yield from steps

    @cached_property
    def jobs(self) -> dict[str, str]:
        """Job id → endpoint name, from the job resources."""
        bodies = [body for exchange in self.exchanges for body in job_bodies(exchange)]
        return {body["id"]: body["endpoint"] for body in bodies if {"id", "endpoint"} <= body.keys()}


def is_discovery(exchange: Exchange) -> bool:
    return exchange.path.endswith("/v1") and exchange.status == 200 and isinstance(exchange.json, dict)


def job_bodies(exchange: Exchange) -> Iterator[dict[str, Any]]:
    body = exchange.json
    if exchange.is_of_jobs and exchange.status < 300 and isinstance(body, dict):
        yield from (one for one in (*body.get("jobs", ()), body) if "cursor" in one)


ENDS = {"succeeded", "failed", "cancelled"}
"""Final statuses of an item."""


def parse_id(name: str) -> tuple[int, int]:
    epoch, _, seq = name.partition("-")
    return int(epoch), int(seq)


def texts_of(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, child in pairs:
            yield from texts_of(child, f"{at}/{name}")


class Step(NamedTuple):
    """One logged event of a connection, with the states before and after it; None if a state is unknown."""

    job: str
    event: Event
    before: Any
    after: Any
    why: str = ""
    """Reason why the event cannot be applied."""


class _HistoryState(State):
    """State that follows from a history of events.

    A separate rule checks for lowered `stable` values. [TW-DIF-059]
    """

    def verify_not_lowered(self, new: Any, path: str, n: int) -> None:
        pass


def _fold(exchanges: Iterable[Exchange]) -> Iterator[tuple[Exchange, list[Step]]]:
    known: dict[tuple[str, str], tuple[Any, list[str]]] = {}
    for exchange in exchanges:
        for body in job_bodies(exchange):
            if {"state", "columns", "cursor"} <= body.keys() and body.get("done") is None:
                known[body["id"], body["cursor"]] = body["state"], body["columns"]
        steps: list[Step] = []
        job = next((event.data["job"] for event in exchange.events if event.type == "hello"), "")
        place = (
            exchange.request_headers.get("last-event-id")
            or parse_qs(urlsplit(exchange.url).query).get("after", [""])[0]
        )
        held = known.get((job, place))
        for event in (event for event in exchange.events if event.is_logged):
            before, why = held, ""
            try:
                held = _applied(event, held)
            except (MalformedError, UnknownError, KeyError, TypeError) as error:
                held, why = None, f"{error!r}"
            steps.append(Step(job, event, before and before[0], held and held[0], why))
            if held is not None and event.type != "done":
                known[job, event.id] = held
        if steps:
            yield exchange, steps


def _applied(event: Event, held: tuple[Any, list[str]] | None) -> tuple[Any, list[str]] | None:
    data = parse(event.fields["data"])
    if event.type == "snapshot":
        state = _HistoryState(data["state"], data["columns"])
        return state.value, state.columns
    if held is None:
        return None
    state = _HistoryState(*held)
    if event.type == "message":
        return state.apply(data).value, held[1]
    state.verify(data.get("check", []))
    demand(state.digest() == data["digest"], "the digest")
    ending = {name: data[name] for name in ("status", "usage", "error") if name in data}
    return {**held[0], **ending}, held[1]


# ---- the rules -----------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """A check function and the requirements that it checks."""

    judge: Callable[[Run], Iterator[str]]
    requirements: tuple[str, ...]


RULES: dict[str, Rule] = {}
"""Function name → rule."""


def checks(*requirements: str) -> Callable[[Callable[[Run], Iterator[str]]], Callable[[Run], Iterator[str]]]:
    def enter(function: Callable[[Run], Iterator[str]]) -> Callable[[Run], Iterator[str]]:
        RULES[function.__name__] = Rule(function, requirements)
        return function

    return enter
