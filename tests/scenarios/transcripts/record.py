"""What was said in one run of a transcript, and the histories that it tells, folded.

It shares no code with client or server: states are folded by the plain client's `plain_state`, which was written from
the specification alone. Rules that judge a run are entered here, and stand in the files `*_invariants`.
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
    """One event as it stands on the wire: the values of its fields."""

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
class Talk:
    """One request, and what came back of the answer."""

    method: str
    url: str
    """Path and query, as they were sent."""
    asked: dict[str, str]
    """The header of the request, names in lower case."""
    sent: bytes
    """The body of the request."""
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    received: bytes
    ended: bool
    """Whether the server ended the answer."""
    at: float = 0.0
    """Seconds since 1970, when the header of the answer came."""

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
        """The body, where it is JSON and came whole; else None."""
        if not self.ended or self.is_stream or not self.received:
            return None
        return parse(self.received.decode()) if "json" in self.headers.get("content-type", "") else None

    @cached_property
    def events(self) -> list[Event]:
        """The events that came whole."""
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
    """All that was said in one run, in the order of the requests."""

    talks: list[Talk]
    endpoints: dict[str, Any] = field(default_factory=dict)
    """Name → description of each endpoint that jobs of this run are of, where the server could still be asked."""
    origins: frozenset[str] = frozenset()
    """The origins that the server is set to allow."""

    @cached_property
    def discovery(self) -> Any:
        """What the server says of itself; None where it was not asked."""
        return next((talk.json for talk in self.talks if is_discovery(talk)), None)

    @cached_property
    def folded(self) -> list[tuple[Talk, list["Step"]]]:
        return list(_fold(self.talks))

    @property
    def steps(self) -> Iterator["Step"]:
        for _, steps in self.folded:
            yield from steps

    @cached_property
    def jobs(self) -> dict[str, str]:
        """Job → its endpoint, as bodies tell."""
        bodies = [body for talk in self.talks for body in job_bodies(talk)]
        return {body["id"]: body["endpoint"] for body in bodies if {"id", "endpoint"} <= body.keys()}


def is_discovery(talk: Talk) -> bool:
    return talk.path.endswith("/v1") and talk.status == 200 and isinstance(talk.json, dict)


def job_bodies(talk: Talk) -> Iterator[dict[str, Any]]:
    body = talk.json
    if talk.is_of_jobs and talk.status < 300 and isinstance(body, dict):
        yield from (one for one in (*body.get("jobs", ()), body) if "cursor" in one)


ENDS = {"succeeded", "failed", "cancelled"}
"""The statuses in which an item has ended."""


def key_of(name: str) -> tuple[int, int]:
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
    """One logged event of a connection, and the state before and after it; None where that is not known."""

    job: str
    event: Event
    before: Any
    after: Any
    why: str = ""
    """Why it cannot be applied."""


class _Told(State):
    """What a history leads to. A promise that is lowered is judged by a rule of its own. [TW-DIF-059]"""

    def verify_not_lowered(self, new: Any, path: str, n: int) -> None:
        pass


def _fold(talks: Iterable[Talk]) -> Iterator[tuple[Talk, list[Step]]]:
    known: dict[tuple[str, str], tuple[Any, list[str]]] = {}
    for talk in talks:
        for body in job_bodies(talk):
            if {"state", "columns", "cursor"} <= body.keys() and body.get("done") is None:
                known[body["id"], body["cursor"]] = body["state"], body["columns"]
        steps: list[Step] = []
        job = next((event.data["job"] for event in talk.events if event.type == "hello"), "")
        place = talk.asked.get("last-event-id") or parse_qs(urlsplit(talk.url).query).get("after", [""])[0]
        held = known.get((job, place))
        for event in (event for event in talk.events if event.is_logged):
            before, why = held, ""
            try:
                held = _applied(event, held)
            except (MalformedError, UnknownError, KeyError, TypeError) as error:
                held, why = None, f"{error!r}"
            steps.append(Step(job, event, before and before[0], held and held[0], why))
            if held is not None and event.type != "done":
                known[job, event.id] = held
        if steps:
            yield talk, steps


def _applied(event: Event, held: tuple[Any, list[str]] | None) -> tuple[Any, list[str]] | None:
    data = parse(event.fields["data"])
    if event.type == "snapshot":
        state = _Told(data["state"], data["columns"])
        return state.value, state.columns
    if held is None:
        return None
    state = _Told(*held)
    if event.type == "message":
        return state.apply(data).value, held[1]
    state.verify(data.get("check", []))
    demand(state.digest() == data["digest"], "the digest")
    ending = {name: data[name] for name in ("status", "usage", "error") if name in data}
    return {**held[0], **ending}, held[1]


# ---- the rules -----------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """What is judged, and by which sentences."""

    judge: Callable[[Run], Iterator[str]]
    sentences: tuple[str, ...]


RULES: dict[str, Rule] = {}
"""Name of the function → the rule."""


def judges(*sentences: str) -> Callable[[Callable[[Run], Iterator[str]]], Callable[[Run], Iterator[str]]]:
    def enter(function: Callable[[Run], Iterator[str]]) -> Callable[[Run], Iterator[str]]:
        RULES[function.__name__] = Rule(function, sentences)
        return function

    return enter
