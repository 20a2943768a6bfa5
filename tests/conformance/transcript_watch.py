"""What holds for all that a server sends, whatever it is asked: judged over every run of a transcript.

One rule a function, with the sentences of the specification that it judges. It shares no code with client or server:
states are folded by the plain client's `plain_state`, which was written from the specification alone.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urljoin, urlsplit

from conformance.plain_state import MalformedError, State, UnknownError, demand, parse
from unit.spec_document import SCHEMA_OF_EVENT, SPEC, breaches

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
        return next((talk.json for talk in self.talks if _is_discovery(talk)), None)

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
        bodies = [body for talk in self.talks for body in _job_bodies(talk)]
        return {body["id"]: body["endpoint"] for body in bodies if {"id", "endpoint"} <= body.keys()}


def _is_discovery(talk: Talk) -> bool:
    return talk.path.endswith("/v1") and talk.status == 200 and isinstance(talk.json, dict)


def _job_bodies(talk: Talk) -> Iterator[dict[str, Any]]:
    body = talk.json
    if talk.is_of_jobs and talk.status < 300 and isinstance(body, dict):
        yield from (one for one in (*body.get("jobs", ()), body) if "cursor" in one)


class Step(NamedTuple):
    """One logged event of a connection, and the state before and after it; None where that is not known."""

    job: str
    event: Event
    before: Any
    after: Any
    why: str = ""
    """Why it cannot be applied."""


def _fold(talks: Iterable[Talk]) -> Iterator[tuple[Talk, list[Step]]]:
    known: dict[tuple[str, str], tuple[Any, list[str]]] = {}
    for talk in talks:
        for body in _job_bodies(talk):
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
        state = State(data["state"], data["columns"])
        return state.value, state.columns
    if held is None:
        return None
    state = State(*held)
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


def breaches_of(run: Run) -> list[str]:
    """Every breach of every rule, with the name of the rule and its sentences."""
    return [
        f"{name} ({', '.join(rule.sentences)}): {breach}"
        for name, rule in RULES.items()
        for breach in rule.judge(run)
    ]


# ---- bytes of event streams ----------------------------------------------------------------------------------------

_FIELDS = {"id", "event", "data", "retry"}


@judges("TW-FRM-009", "TW-FRM-011", "TW-FRM-012", "TW-FRM-013", "TW-FRM-016")
def streams_are_framed_as_written(run):
    """UTF-8, LF, no byte order mark, one data line of JSON, no empty id, an empty line after each event."""
    for talk in (talk for talk in run.talks if talk.is_stream):
        try:
            text = talk.received.decode() if talk.ended else talk.received.decode(errors="ignore")
        except UnicodeDecodeError as error:
            yield f"{talk.where}: {error}"
            continue
        if "\r" in text or text.startswith("\ufeff"):
            yield f"{talk.where}: a CR or a byte order mark"
        *blocks, rest = text.split("\n\n")
        if talk.ended and rest.strip("\n"):
            yield f"{talk.where}: it ends within an event: {rest!r}"
        for block in blocks:
            lines = [line for line in block.split("\n") if line and not line.startswith(":")]
            names = [line.partition(":")[0] for line in lines]
            if len(names) != len(set(names)) or not set(names) <= _FIELDS or set(names) == {"id"}:
                yield f"{talk.where}: {block!r}"
            if "id:" in lines or ("data" not in names and names not in ([], ["retry"])):
                yield f"{talk.where}: an empty id, or no data: {block!r}"


@judges("TW-FRM-014", "TW-FRM-015", "TW-FRM-043", "TW-FRM-044")
def events_are_those_of_the_table(run):
    """Known types, data by its schema, an id for the logged ones alone."""
    for talk in run.talks:
        for event in talk.events:
            schema = SCHEMA_OF_EVENT.get(event.type)
            fatal = event.type == "problem" and event.id == "0-1"
            if schema is None:
                yield f"{talk.where}: an event of the type {event.type!r}"
            elif found := breaches(schema, event.data):
                yield f"{talk.where}: {event.fields}: {found[0]}"
            if event.is_logged != bool(event.id) and not fatal:
                yield f"{talk.where}: an id at the wrong event, or none: {event.fields}"


_ID = re.compile(r"[1-9][0-9]{0,9}-[1-9][0-9]{0,14}")


def _key(name: str) -> tuple[int, int]:
    epoch, _, seq = name.partition("-")
    return int(epoch), int(seq)


@judges("TW-RES-001", "TW-RES-003", "TW-RES-006", "TW-RES-008")
def ids_go_up_without_a_gap(run):
    """Within an epoch by one, or as far as the base that a merged diff names; a snapshot may pass over some."""
    for talk in run.talks:
        last = None
        for event in (event for event in talk.events if event.is_logged):
            if not _ID.fullmatch(event.id):
                yield f"{talk.where}: the id {event.id!r}"
                continue
            epoch, seq = _key(event.id)
            data = event.data
            base = data.get("on", seq - 1) if event.type == "message" and isinstance(data, dict) else seq - 1
            is_snapshot = event.type == "snapshot"
            if last is not None and not (is_snapshot and data["reason"] == "rewound"):
                up = (epoch, seq) > last and seq > last[1]
                if not (up if is_snapshot else (epoch, base) == last):
                    yield f"{talk.where}: {event.id} after {last[0]}-{last[1]}"
            last = epoch, seq


@judges("TW-FRM-007", "TW-FRM-054", "TW-FRM-055", "TW-RES-023")
def what_ends_a_stream_is_its_last_event(run):
    """Nothing after `done`, `goaway` or `problem`, and no end of the answer without one of them."""
    ends = {"done", "goaway", "problem"}
    for talk in (talk for talk in run.talks if talk.is_stream):
        kinds = [event.type for event in talk.events]
        if ends & set(kinds[:-1]):
            yield f"{talk.where}: {kinds[-3:]}"
        if talk.ended and not (kinds and kinds[-1] in ends):
            yield f"{talk.where}: it ends without one of {sorted(ends)}: {kinds[-1:]}"


@judges("TW-FRM-057", "TW-FRM-058", "TW-FRM-061", "TW-DIF-009")
def streams_begin_with_hello(run):
    """`hello` first, `retry` in or before it, no diff before a snapshot where no cursor was given."""
    for talk in (talk for talk in run.talks if talk.is_stream and talk.events):
        first, *_ = talk.events
        if first.type not in {"hello", "problem"}:
            yield f"{talk.where}: the first event is {first.type}"
        if first.type == "hello" and b"retry:" not in talk.received.partition(b"\n\nid:")[0]:
            yield f"{talk.where}: no retry"
        cursor = talk.asked.get("last-event-id") or "after=" in talk.url
        logged = [event.type for event in talk.events if event.is_logged]
        if logged and logged[0] == "message" and (talk.method == "POST" or not cursor):
            yield f"{talk.where}: a diff before a snapshot"


@judges("TW-FRM-069")
def pings_name_what_was_sent(run):
    """The head of a ping is no id that a stream that came to its end did not send."""
    for talk in (talk for talk in run.talks if talk.is_stream and talk.ended):
        sent = [_key(event.id) for event in talk.events if event.is_logged]
        heads = [_key(event.data["head"]) for event in talk.events if event.type == "hello"]
        for event in (event for event in talk.events if event.type == "ping"):
            if _key(event.data["head"]) > max(sent + heads):
                yield f"{talk.where}: a ping of {event.data['head']}"


@judges("TW-FRM-047", "TW-FRM-048", "TW-FRM-049")
def events_are_no_longer_than_discovery_says(run):
    """A snapshot up to `max_state_bytes`, all else up to `max_event_bytes`."""
    limits = (run.discovery or {}).get("limits", {})
    for talk in run.talks:
        for event in talk.events:
            size = len(event.fields["data"].encode())
            name = "max_state_bytes" if event.type == "snapshot" else "max_event_bytes"
            if size > limits.get(name, size):
                yield f"{talk.where}: {event.type} {event.id} has {size} bytes, {name} is {limits[name]}"


# ---- states --------------------------------------------------------------------------------------------------------


@judges("TW-DIF-001", "TW-DIF-012", "TW-DIF-048", "TW-DIF-049", "TW-DIF-055", "TW-DIF-057")
def histories_fold(run):
    """Each diff applies, its checks hold, `stable` is kept, the digest is right, and what comes of it is a state."""
    for step in run.steps:
        if step.why:
            yield f"{step.event.id}: {step.why}"
        elif step.after is not None and (found := breaches("state", step.after)):
            yield f"{step.event.id}: {found[0]}"


@judges("TW-RES-007", "TW-DIF-043", "TW-DIF-066", "TW-JOB-039")
def an_id_has_one_state(run):
    """Whoever reads it, merged or not, as a snapshot or by diffs, from the stream or from the job."""
    found: dict[tuple[str, str], Any] = {}
    for step in run.steps:
        if step.after is not None and found.setdefault((step.job, step.event.id), step.after) != step.after:
            yield f"{step.job} {step.event.id}: {step.after} and {found[step.job, step.event.id]}"
    for talk in run.talks:
        for body in _job_bodies(talk):
            at = body.get("id"), body.get("cursor")
            if "state" in body and found.setdefault(at, body["state"]) != body["state"]:
                yield f"{talk.where}: {body['state']}, and the stream {found[at]}"


def _texts(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, child in pairs:
            yield from _texts(child, f"{at}/{name}")


@judges("TW-DIF-058", "TW-DIF-059")
def stable_goes_up_within_its_text(run):
    """A number in `stable` is no greater than its text, and is neither lowered nor deleted within an epoch."""
    for talk, steps in run.folded:
        held: dict[tuple[int, int, str], int] = {}
        for step in (step for step in steps if step.after is not None):
            epoch, _ = _key(step.event.id)
            for index, item in enumerate(step.after["items"]):
                texts, stable = dict(_texts(item["value"])), item.get("stable", {})
                for path in {name for e, i, name in held if (e, i) == (epoch, index)} | stable.keys():
                    number = stable.get(path, -1)
                    if not held.get((epoch, index, path), 0) <= number <= len(texts.get(path, "")):
                        yield f"{talk.where}: {step.event.id}: stable {path!r} is {number}"
                    held[epoch, index, path] = number


@judges("TW-DIF-002", "TW-DIF-035")
def columns_and_items_stay(run):
    """The number of items, and the columns of an epoch, wherever they are told."""
    items: dict[str, int] = {}
    columns: dict[tuple[str, int], Any] = {}
    for step in run.steps:
        if step.after is not None and items.setdefault(step.job, len(step.after["items"])) != len(
            step.after["items"]
        ):
            yield f"{step.job} {step.event.id}: another number of items"
        if step.event.type == "snapshot":
            told, place = step.event.data["columns"], (step.job, _key(step.event.id)[0])
            if columns.setdefault(place, told) != told:
                yield f"{step.job} {step.event.id}: columns {told}, before {columns[place]}"
    for talk in run.talks:
        for body in _job_bodies(talk):
            place = (body["id"], _key(body["cursor"])[0])
            if columns.setdefault(place, body["columns"]) != body["columns"]:
                yield f"{talk.where}: columns {body['columns']}, before {columns[place]}"


_MOVES = {
    ("queued", "running"), ("queued", "failed"), ("queued", "cancelled"),
    ("running", "succeeded"), ("running", "failed"), ("running", "cancelled"),
}  # fmt: skip
_ENDS = {"succeeded", "failed", "cancelled"}


@judges("TW-OVR-018", "TW-OVR-019", "TW-OVR-020", "TW-OVR-021", "TW-DIF-005")
def items_move_by_the_table(run):
    """Along its rows, never out of an end; a job ends as its items say; who failed has an error."""
    for step in run.steps:
        before, after = step.before, step.after
        if before is None or after is None or step.event.type == "snapshot":
            continue
        for old, new in zip(before["items"], after["items"], strict=False):
            moved = (old["status"], new["status"])
            if moved[0] != moved[1] and moved not in _MOVES:
                yield f"{step.event.id}: an item went from {moved[0]} to {moved[1]}"
            if old["status"] in _ENDS and old != new:
                yield f"{step.event.id}: an item that had ended changed"
            if (new["status"] == "failed") != ("error" in new):
                yield f"{step.event.id}: {new}"
        if step.event.type == "done":
            ends = [item["status"] for item in after["items"]]
            if after["status"] != _end_of(ends):
                yield f"{step.event.id}: {after['status']}, and its items {ends}"


def _end_of(items: list[str]) -> str:
    if not set(items) <= _ENDS:
        return "not ended"
    if "succeeded" in items:
        return "succeeded" if set(items) == {"succeeded"} else "partially_failed"
    return "failed" if "failed" in items else "cancelled"


@judges("TW-RES-004", "TW-RES-033", "TW-RES-034", "TW-RES-035", "TW-RES-036", "TW-RES-037", "TW-RES-038")
def an_epoch_opens_with_its_snapshot(run):
    """Restart or rewound, by 1 to 10000, with a greater seq; what had ended stays; `attempt` goes up with a restart;
    nothing follows `done`.
    """
    lasts: dict[str, tuple[int, int]] = {}
    ends: dict[str, tuple[int, int]] = {}
    restarts: dict[str, set[int]] = {}
    for step in run.steps:
        epoch, seq = _key(step.event.id)
        before_it = lasts.get(step.job, (epoch, 0))
        if epoch > before_it[0]:
            opens = step.event.type == "snapshot" and step.event.data["reason"] in {
                "restart",
                "rewound",
                "compacted",
            }
            if not opens or epoch - before_it[0] > 10_000 or seq <= before_it[1]:
                yield f"{step.job}: {step.event.id} opens an epoch after {before_it}"
        lasts[step.job] = max(before_it, (epoch, seq))
        if epoch > ends.get(step.job, (epoch, 0))[0]:
            yield f"{step.job}: {step.event.id} after done {ends[step.job]}"
        if step.event.type == "done":
            ends[step.job] = epoch, seq
        reason = step.event.data["reason"] if step.event.type == "snapshot" else ""
        if reason == "restart":
            restarts.setdefault(step.job, set()).add(epoch)
            before = step.before["items"] if step.before is not None else []
            for old, new in zip(before, step.after["items"], strict=False):
                if old["status"] in _ENDS and old != new:
                    yield f"{step.event.id}: an item that had ended changed by a restart"
    for talk in run.talks:
        for body in _job_bodies(talk):
            seen = [epoch for epoch in restarts.get(body["id"], ()) if epoch <= _key(body["cursor"])[0]]
            if body["attempt"] < 1 + len(seen):
                yield f"{talk.where}: attempt {body['attempt']} after {len(seen)} restarts"


# ---- JSON ----------------------------------------------------------------------------------------------------------


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


@judges("TW-OVR-007")
def values_are_no_deeper_than_56(run):
    for step in run.steps:
        for item in (step.after or {"items": []})["items"]:
            if _depth(item["value"]) > 56:
                yield f"{step.event.id}: a value of depth {_depth(item['value'])}"


@judges("TW-OVR-001", "TW-OVR-002", "TW-OVR-003", "TW-OVR-004", "TW-OVR-005", "TW-OVR-006", "TW-DIF-032")
def all_json_is_what_the_overview_allows(run):
    """Finite numbers, exact integers, unique members, whole code points, bounded depth."""
    for talk in run.talks:
        texts = [event.fields["data"] for event in talk.events]
        if talk.ended and not talk.is_stream and "json" in talk.headers.get("content-type", ""):
            texts.append(talk.received.decode("utf-8", "replace"))
        for text in texts:
            try:
                parse(text)
            except MalformedError as error:
                yield f"{talk.where}: {error}: {text[:200]}"


_FREE = {"value", "input_schema", "value_schema", "examples"}
"""Members whose content is the endpoint's."""
_NULL_ALLOWED = {"done"}


def _nulls(value: Any, at: str = "") -> Iterator[str]:
    if isinstance(value, list):
        for child in value:
            yield from _nulls(child, at)
    elif isinstance(value, dict):
        for name, child in value.items():
            if child is None and name not in _NULL_ALLOWED | _FREE:
                yield f"{at}/{name}"
            elif name not in _FREE:
                yield from _nulls(child, f"{at}/{name}")


@judges("TW-OVR-026")
def null_stands_only_where_a_table_says_so(run):
    for talk in run.talks:
        if "/vocabulary" in talk.path:
            continue
        bodies = [event.data for event in talk.events if event.type != "message"]
        bodies += [] if talk.json is None else [talk.json]
        for found in (found for body in bodies for found in _nulls(body)):
            yield f"{talk.where}: {found} is null"


# ---- answers -------------------------------------------------------------------------------------------------------


@judges("TW-JOB-004", "TW-FRM-002")
def no_answer_about_jobs_may_be_stored(run):
    for talk in run.talks:
        if talk.is_of_jobs and "no-store" not in talk.headers.get("cache-control", ""):
            yield f"{talk.where}: Cache-Control is {talk.headers.get('cache-control')!r}"


@judges("TW-FRM-001", "TW-FRM-003", "TW-FRM-004")
def streams_have_their_header(run):
    for talk in (talk for talk in run.talks if talk.is_stream):
        media = talk.headers["content-type"].lower().replace(" ", "")
        if media not in {"text/event-stream", "text/event-stream;charset=utf-8"}:
            yield f"{talk.where}: {media}"
        if talk.headers.get("x-accel-buffering") != "no" or "content-encoding" in talk.headers:
            yield f"{talk.where}: {talk.headers}"


def _registry() -> dict[str, tuple[int, bool]]:
    text = (SPEC / "09-errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \| (yes|no) \|", text, re.MULTILINE)
    return {code: (int(status), retryable == "yes") for code, status, retryable in rows}


REGISTRY = _registry()


@judges("TW-ERR-001", "TW-ERR-002", "TW-ERR-003", "TW-ERR-004", "TW-ERR-020")
def errors_are_problems_of_the_registry(run):
    for talk in run.talks:
        problems = [event.data for event in talk.events if event.type == "problem"]
        if talk.status >= 400:
            if talk.headers.get("content-type") != "application/problem+json":
                yield f"{talk.where}: {talk.headers.get('content-type')}"
                continue
            body = talk.json if talk.ended else None
            problems += [] if body is None else [body]
            if body is not None and body["status"] != talk.status:
                yield f"{talk.where}: the body says {body['status']}"
        problems += [item["error"] for item in _items(talk) if "error" in item]
        for problem in problems:
            kind = REGISTRY.get(problem["code"])
            if found := breaches("problem", problem):
                yield f"{talk.where}: {found[0]}"
            elif kind is None and not {".", ":"} & set(problem["code"]):
                yield f"{talk.where}: the code {problem['code']!r}"
            elif kind is not None and kind != (problem["status"], problem.get("retryable", False)):
                yield f"{talk.where}: {problem} is not {kind}"


def _items(talk: Talk) -> Iterator[Any]:
    for body in _job_bodies(talk):
        yield from body.get("state", {"items": []})["items"]


@judges("TW-ERR-006", "TW-ERR-007")
def who_has_to_wait_is_told_how_long(run):
    for talk in (talk for talk in run.talks if talk.status in {409, 429, 503}):
        seconds, wait = talk.headers.get("retry-after", ""), (talk.json or {}).get("retry_after_ms")
        if not re.fullmatch(r"[1-9][0-9]*", seconds) or type(wait) is not int or wait > 1000 * int(seconds):
            yield f"{talk.where}: Retry-After {seconds!r}, retry_after_ms {wait!r}"


_INSIDES = re.compile(r'Traceback|File \\?"|site-packages|\.py\b|/(?:home|usr|root|tmp|work|var)/')


@judges("TW-ERR-008")
def nothing_of_the_insides_gets_out(run):
    """No stack trace and no path of the server's file system in a problem."""
    for talk in run.talks:
        texts = [json.dumps(event.data) for event in talk.events if event.type == "problem"]
        texts += [json.dumps(item["error"]) for item in _items(talk) if "error" in item]
        texts += [talk.received.decode("utf-8", "replace")] if talk.status >= 400 else []
        for text in texts:
            if found := _INSIDES.search(text):
                yield f"{talk.where}: {found[0]!r} in {text[:300]}"


@judges("TW-SEC-003")
def who_is_unknown_is_told_how_to_introduce_himself(run):
    for talk in (talk for talk in run.talks if talk.status == 401):
        if "www-authenticate" not in talk.headers:
            yield f"{talk.where}: no WWW-Authenticate"


@judges("TW-BRW-005", "TW-BRW-006", "TW-BRW-007", "TW-BRW-009", "TW-BRW-011")
def pages_of_the_allowed_origins_may_read_every_answer(run):
    """…errors included, and those of no other."""
    for talk in run.talks:
        origin, allowed = talk.asked.get("origin"), talk.headers.get("access-control-allow-origin")
        may = origin is not None and (origin in run.origins or "*" in run.origins)
        if may != (allowed in {origin, "*"} and allowed is not None):
            yield f"{talk.where}: from {origin}, Access-Control-Allow-Origin is {allowed!r}"
        if allowed == "*" and talk.headers.get("access-control-allow-credentials") == "true":
            yield f"{talk.where}: any page, with credentials"
        if allowed not in {None, "*"} and "origin" not in talk.headers.get("vary", "").lower():
            yield f"{talk.where}: no Vary"
        exposed = {"location", "content-location", "retry-after", "idempotency-replayed"}
        if may and not exposed <= set(re.split(r"[ ,]+", _exposed(talk).lower())):
            yield f"{talk.where}: exposed are {_exposed(talk)!r}"


def _exposed(talk: Talk) -> str:
    return talk.headers.get("access-control-expose-headers", "")


@judges("TW-OVR-013", "TW-OVR-014")
def links_lead_to_the_protocol(run):
    """Resolved against the URL of their answer they stay at its origin, below one root, and have no raw space."""
    roots = set()
    for talk in run.talks:
        links = [talk.headers[name] for name in ("location", "content-location") if name in talk.headers]
        links += [event.data["events"] for event in talk.events if event.type == "hello"]
        body = talk.json if isinstance(talk.json, dict) and talk.status < 300 else {}
        for part in (body, *body.get("jobs", ())):
            links += [*part.get("links", {}).values()]
        links += [one["href"] for one in body.get("endpoints", ())] + [
            body[n] for n in ("next",) if n in body
        ]
        for link in links:
            place = urljoin(f"http://here{talk.url}", link)
            if not place.startswith("http://here/") or "/v1" not in place or re.search(r"[^!-~]", link):
                yield f"{talk.where}: the link {link!r}"
            else:
                roots.add(urlsplit(place).path.partition("/v1")[0])
    if len(roots) > 1:
        yield f"links lead to {sorted(roots)}"


# ---- what a server says of itself ----------------------------------------------------------------------------------


@judges("TW-DSC-005")
def discovery_stays(run):
    told = [talk.json for talk in run.talks if _is_discovery(talk) and "colour" not in talk.url]
    for one in told[1:]:
        if {**one, "endpoints": 0} != {**told[0], "endpoints": 0}:
            yield f"discovery says {one}, and before {told[0]}"


@judges("TW-DSC-014", "TW-DSC-015")
def limits_leave_room(run):
    limits = (run.discovery or {}).get("limits")
    if limits is not None and (
        limits["max_depth"] != 64 or min(limits["max_event_bytes"], limits["max_state_bytes"]) < 1024
    ):
        yield f"{limits}"


def _used(talk: Talk) -> Iterator[tuple[str, bool]]:
    """The capabilities that a request needs, and whether it was served."""
    query = parse_qs(urlsplit(talk.url).query)
    served = talk.status < 300
    if talk.path.endswith("/v1/jobs") and talk.method == "GET":
        yield "list", served
    if talk.method == "DELETE" and "/v1/jobs/" in talk.path:
        yield "delete", served
    if talk.path.endswith("/stream-token") and talk.method == "POST":
        yield "stream_tokens", served
    if query.get("diffs") == ["0"]:
        yield "snapshots_only", served
    if query.get("errors") == ["inband"]:
        yield "inband_problems", served
    if talk.is_submit and b'"inputs"' in talk.sent:
        yield "batches", served


@judges("TW-DSC-003", "TW-DSC-011")
def capabilities_are_those_that_are_named(run):
    """What is used with success is named; what is named is not refused as if it were not there."""
    named = (run.discovery or {}).get("capabilities")
    if named is None:
        return
    refusals = {"not_found", "method_not_allowed", "bad_parameter"}
    for talk in run.talks:
        for capability, served in _used(talk):
            code = talk.json.get("code") if isinstance(talk.json, dict) else None
            absent = code in refusals and not re.search("after|min_interval|limit=", talk.url)
            if (served and capability not in named) or (absent and capability in named):
                yield f"{talk.where}: {capability}, and named are {named}"


@judges("TW-RES-026", "TW-RES-028")
def a_job_is_gone_only_when_it_was_purged_or_its_time_is_over(run):
    """410 needs a DELETE, or a time after `expires_at`; `expires_at` is `state_ttl_s` after the end at least."""
    ttl = (run.discovery or {}).get("limits", {}).get("state_ttl_s", 0)
    purged: set[str] = set()
    due: dict[str, float] = {}
    for talk in run.talks:
        name = talk.path.partition("/v1/jobs/")[2].partition("/")[0]
        if talk.method == "DELETE" and talk.status == 204:
            purged.add(name)
        for body in _job_bodies(talk):
            if "expires_at" in body:
                due[body["id"]] = _seconds(body["expires_at"])
                if due[body["id"]] - _seconds(body["ended_at"]) < ttl - 1:
                    yield f"{talk.where}: {body['ended_at']} to {body['expires_at']}, state_ttl_s is {ttl}"
        if talk.status == 410 and name and name not in purged and talk.at < due.get(name, 0) - 1:
            yield f"{talk.where}: before its time is over"


def _seconds(time: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(time).timestamp()


# ---- endpoints -----------------------------------------------------------------------------------------------------


@judges("TW-DSC-020")
def values_fit_their_schema(run):
    from jsonschema import Draft202012Validator

    for talk in run.talks:
        for body in _job_bodies(talk):
            endpoint = run.endpoints.get(body.get("endpoint", ""))
            for item in body.get("state", {"items": []})["items"]:
                if endpoint is not None and item["status"] == "succeeded":
                    for error in Draft202012Validator(endpoint["value_schema"]).iter_errors(item["value"]):
                        yield f"{talk.where}: {error.message[:200]}"


def _steps_of_endpoints(run: Run) -> Iterator[tuple[Step, Any]]:
    for step in run.steps:
        endpoint = run.endpoints.get(run.jobs.get(step.job, ""))
        if endpoint is not None and step.event.type == "message" and step.before and step.after:
            yield step, endpoint["capabilities"]


@judges("TW-DSC-023")
def text_is_not_taken_back_where_it_cannot_be(run):
    for step, can in _steps_of_endpoints(run):
        pairs = zip(step.before["items"], step.after["items"], strict=True)
        for old, new in pairs if not can.get("rollback") else ():
            now = dict(_texts(new["value"]))
            for path, text in _texts(old["value"]):
                if not now.get(path, "").startswith(text):
                    yield f"{step.event.id}: {path} was {text!r}, is {now.get(path)!r}"


@judges("TW-DSC-024", "TW-BAT-006")
def a_value_comes_at_once_where_it_does_not_stream(run):
    """One event sets value, status and error."""
    for step, can in _steps_of_endpoints(run):
        pairs = zip(step.before["items"], step.after["items"], strict=True)
        for old, new in pairs if not can.get("streams") else ():
            if old["value"] != new["value"] and new["status"] not in _ENDS:
                yield f"{step.event.id}: a value of an item that is {new['status']}"
            if new["status"] == "succeeded" != old["status"] and "value" not in step.event.fields["data"]:
                yield f"{step.event.id}: an end without its value"


_PER_TOKEN = (
    "token_ids",
    "logprobs",
    "top_ids",
    "top_logprobs",
    "ranks",
    "tie_counts",
    "token_text",
    "top_text",
)


@judges("TW-GEN-011", "TW-GEN-029", "TW-GEN-030")
def columns_of_tokens_fit_each_other(run):
    """Equal lengths after each logged event; candidates in their order, and of at most 1 in all."""
    for step in run.steps:
        for item in (step.after or {"items": []})["items"]:
            value = item["value"]
            if not isinstance(value, dict) or "finish_reason" not in value:
                continue
            if len({len(value[name]) for name in _PER_TOKEN if name in value}) > 1:
                yield f"{step.event.id}: { ({n: len(value[n]) for n in _PER_TOKEN if n in value}) }"
            for ids, found in zip(value.get("top_ids", ()), value.get("top_logprobs", ()), strict=True):
                order = [(-(x if x is not None else -1e9), i) for i, x in zip(ids, found, strict=True)]
                whole = sum(2.718281828459045**x for x in found if x is not None)
                if [x for x, _ in order] != sorted(x for x, _ in order) or whole > 1.001 + len(found) * 1e-4:
                    yield f"{step.event.id}: {ids} {found}"


@judges("TW-GEN-014", "TW-GEN-015", "TW-GEN-038", "TW-GEN-039", "TW-GEN-042")
def text_is_that_of_its_tokens(run):
    """The bytes of the tokens by the vocabulary, without the special ones; each by itself is its `token_text`."""
    known = run.endpoints.get("generate", {}).get("vocabulary", {"tokens": [], "special": []})
    tokens = [base64.b64decode(token, validate=True) for token in known["tokens"]]
    for step in run.steps if tokens else ():
        for value in (item["value"] for item in step.after["items"] if "token_ids" in item["value"]):
            said = [tokens[i] for i in value["token_ids"] if i not in known["special"]]
            whole = b"".join(said).decode("utf-8", "replace")
            # What is held back at the end: a character, or what may become a stop string.
            if not whole.startswith(value["text"].rstrip("\ufffd")):
                yield f"{step.event.id}: {value['text']!r} of the tokens {whole!r}"
            shown = [*zip(value["token_ids"], value.get("token_text", ()), strict=False)]
            shown += [
                pair
                for ids, texts in zip(value.get("top_ids", ()), value.get("top_text", ()), strict=False)
                for pair in zip(ids, texts, strict=True)
            ]
            for token, text in shown:
                if tokens[token].decode("utf-8", "replace") != text:
                    yield f"{step.event.id}: token {token} is {tokens[token]!r}, not {text!r}"


@judges("TW-DIF-004")
def ephemeral_events_hold_nothing_of_a_result(run):
    """No member beyond those of their tables: what belongs to a result stands in the state."""
    known = {
        "queue": {"position", "eta_ms"},
        "progress": {"current", "total", "unit", "phase", "item"},
        "ping": {"head"},
        "goaway": {"reason", "retry_ms"},
        "hello": {"protocol", "job", "events", "head", "heartbeat_ms"},
    }
    for talk in run.talks:
        for event in talk.events:
            if more := set(event.data if event.type in known else ()) - known.get(event.type, set()):
                yield f"{talk.where}: {event.type} with {sorted(more)}"
