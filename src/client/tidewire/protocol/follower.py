"""How a reader follows one job's stream: the client's table, without sockets, clock or logging.

A `Follower` keeps `(job, document, columns, cursor)` and moves them together, one event at a time. Whoever drives it
reads bytes, decodes events, and does what each outcome says. The table (ids: see `cursor`; HTTP: see `status_table`):

  it sees                                                   | outcome
  ----------------------------------------------------------+--------------------------------------------------------
  a logged event that continues from here                   | Applied
  a logged event at or below mine                           | Ignored, counted (but a `rewound` snapshot goes back)
  a base that is not mine, a malformed event, a failed      | Reconnect(RESYNC): nothing of it is handed over, the
    check or digest, a breach of `stable`, an unknown       |   cursor is dropped. More than `MAX_RESYNCS` without
    logged event or op, a logged event before `hello`       |   `RESYNC_HEALED` applied events between: Fatal
  what would make the state larger than `max_state_bytes`   | Fatal, nothing of it is applied
  `done`                                                    | Applied with `done`: close at once, never reconnect
  `hello` of another protocol or another job                | Fatal
  `goaway`                                                  | Reconnect(GOAWAY) after its `retry_ms`; a failure only
                                                            |   if this connection made no progress
  two pings running whose head is above mine, no logged     | Reconnect(CUT): the subscription is deaf or lags
    event between                                           |
  `problem`: retryable / not                                | Reconnect(CUT) / Fatal
  `queue`, `progress`                                       | Notice
  an unknown event without an id of its own                 | Ignored
  end of file, reset, silence, no `hello`: `lost(...)`      | Reconnect(CUT), with the cursor; never success
  204: `read_job(...)`: ended / still running               | Applied with `done` / Reconnect(CUT) without a cursor

Too many failures in a row without progress are Fatal. Progress is a logged event, not the snapshot that opened a
connection, that moved the cursor forward.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from pydantic import BaseModel, JsonValue

from tidewire.protocol import messages, strict_json
from tidewire.protocol.backoff import Backoff
from tidewire.protocol.cursor import MAX_SEQ, Cursor, CursorError
from tidewire.protocol.diff import DiffError, UnknownOpError
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import IntegrityError, digest, verify
from tidewire.protocol.document.document import TextChange, View
from tidewire.protocol.document.state_size import MAX_STATE_BYTES, cost, room_for_more
from tidewire.protocol.document.versioned_text_and_arrays import LATEST, holds
from tidewire.protocol.event_continuity import Continuity, continuity_of_change, continuity_of_snapshot
from tidewire.protocol.follower_outcomes import (
    Applied,
    Cause,
    Fatal,
    FatalKind,
    Ignored,
    Notice,
    Outcome,
    Reconnect,
)
from tidewire.protocol.messages import ENDED, EPHEMERAL, Done, Goaway, Hello, MessageError, Ping, Snapshot
from tidewire.protocol.problems import Problem
from tidewire.protocol.resources import JobResource
from tidewire.protocol.sse import Event
from tidewire.protocol.state_validity import changes_value, check_shape

__all__ = [
    "Advance",
    "Applied",
    "Cause",
    "Fatal",
    "FatalKind",
    "Follower",
    "Ignored",
    "Notice",
    "Outcome",
    "Reconnect",
    "Told",
]

Advance = Applied
Told = Notice
"""Earlier names of two outcomes, which documented programs import from here."""

MAX_RESYNCS = 3
RESYNC_HEALED = 256
"""Applied events after which earlier resyncs are forgotten."""
SILENT_HEARTBEATS = 2.5
"""Heartbeats without one byte that are a cut."""
HELLO_TIMEOUT = 10.0
"""Seconds without a status line, or without `hello`, that are a cut."""
DEFAULT_HEARTBEAT = 15.0
"""Seconds, until `hello` says otherwise."""


@dataclass(slots=True)
class _Connection:
    """What is forgotten with a connection."""

    hello: bool = False
    opening: bool = True
    """No logged event came yet."""
    progress: bool = False
    pings_above: int = 0
    last_id: str = ""


# What `Applied._make` does, without the Python frame that it costs per event.
_advance_from: Callable[[tuple[Any, ...]], Applied] = partial(tuple.__new__, Applied)


class _Broken(Exception):  # noqa: N818 - never leaves this file
    def __init__(self, why: str, kind: FatalKind = FatalKind.PROTOCOL) -> None:
        super().__init__(why)
        self.kind = kind


@dataclass(slots=True)
class Follower:
    """One job's stream as a reader holds it; see the table at the top of this file."""

    backoff: Backoff = field(default_factory=Backoff)
    job_id: str | None = None
    cursor: Cursor | None = None
    """The id up to which `document` is; None: the next GET asks for a snapshot."""
    document: Document | None = None
    done: Done | None = None
    heartbeat: float = DEFAULT_HEARTBEAT
    """Seconds, from the last `hello`."""
    events_url: str | None = None
    """URI reference from the last `hello`."""
    repeats: int = 0
    """Logged events that were dropped because they were known."""
    resyncs: int = 0
    """Resyncs since the stream last healed."""
    max_state_bytes: int = MAX_STATE_BYTES
    """How large the state may become as JSON; see `document.size_limits`."""
    _room: int = 0
    """Bytes that may come before the state is measured."""
    _healing: int = 0
    _handed: Cursor | None = None
    _connection: _Connection = field(default_factory=_Connection)

    # ---- where it starts ---------------------------------------------------------------------------------------

    def restore(
        self, state: JsonValue, columns: Sequence[str], cursor: Cursor, done: Done | None = None
    ) -> View:
        """Go on from a kept state: that of a checkpoint, or of a job read.

        Raises:
            MessageError: The state has not the shape that the protocol gives it.
        """
        messages.check_state(state, what="state")
        self.document = Document(state, columns)
        self.cursor = self._handed = cursor
        self.done = done
        self._room = 0
        return self.document.view()

    def connected(self) -> None:
        """A new connection begins: what belonged to the last one is forgotten."""
        self._connection = _Connection(last_id="" if self.cursor is None else str(self.cursor))

    @property
    def greeted(self) -> bool:
        """Whether `hello` came on this connection."""
        return self._connection.hello

    # ---- what comes in -----------------------------------------------------------------------------------------

    def receive(self, event: Event) -> Outcome:
        """Judge one event and, if it continues from here, apply it."""
        here = self._connection
        if event[0] == "message" and event[1][:1] == '"' and here.hello and (grown := self._grown(event)):
            return grown
        fresh_id = event.id != here.last_id
        here.last_id = event.id
        try:
            if event.type == "snapshot":
                cursor, snapshot, size = self._logged_id(event), _snapshot_in(event), cost(event.data)
                # Its data may be as long as the document. Nothing may hold it beside what is made of it.
                event = event._replace(data="")
                return self._snapshot(event, snapshot, cursor, size, fresh_id=fresh_id)
            if event.type in messages.LOGGED:
                cursor = self._logged_id(event)
                return self._done(event, cursor) if event.type == "done" else self._diff(event, cursor)
            if event.type in EPHEMERAL:
                return self._ephemeral(event)
        except _Broken as broken:
            return self._resync(str(broken), kind=broken.kind)
        if fresh_id:
            return self._resync(f"unknown logged event {event.type!r}", kind=FatalKind.UNSUPPORTED)
        return Ignored(f"unknown event {event.type!r}")

    def lost(self, why: str, *, at_least: float | None = None, spent: float = 0.0) -> Outcome:
        """The connection ended without `done` or `goaway`, or could not be opened: a cut, never success.

        Args:
            why: What was seen, for people.
            at_least: Seconds that the server asked to wait (Retry-After).
            spent: Seconds that it took to see it, such as a silence.
        """
        self.backoff.spent += spent
        return self._reconnect(Cause.CUT if at_least is None else Cause.BUSY, why, at_least=at_least)

    def malformed(self, why: str) -> Outcome:
        """What came cannot be used: the cursor was refused (400)."""
        return self._resync(why)

    def oversized(self, why: str) -> Outcome:
        """An event is larger than may be held: a snapshot may say the same in less."""
        return self._resync(why, kind=FatalKind.TOO_LARGE)

    def read_job(self, job: JobResource) -> Outcome:
        """The stream had nothing for this cursor (204), so the job was read."""
        if job.done is None:
            self.cursor = None
            return self._reconnect(Cause.CUT, "204 for a job that still runs")
        return self.adopt(job)

    def adopt(self, job: JobResource) -> Outcome:
        """Take the state of a job that was read, as if a snapshot had brought it. An ended one ends the stream."""
        try:
            cursor = Cursor.parse(job.cursor)
            messages.check_state(job.state, what="job")
            if job.done is not None:
                _verify_digest(job.state, job.done)
            document = Document(job.state, job.columns)
        except (CursorError, MessageError, DiffError, IntegrityError) as error:
            return self._resync(f"the job as read: {error}")
        if not self._fits(document, self.max_state_bytes, room=0):
            return self._too_large(f"the job as read, {job.cursor}")
        return self._replace(document, cursor, reason=None, done=job.done)

    # ---- logged events -----------------------------------------------------------------------------------------

    def _logged_id(self, event: Event) -> Cursor:
        if not self._connection.hello:
            raise _Broken(f"{event.type} {event.id} before hello: whose it is nothing has told")
        try:
            return Cursor.parse(event.id)
        except CursorError as error:
            raise _Broken(str(error)) from None

    def _snapshot(
        self, event: Event, snapshot: Snapshot, cursor: Cursor, size: int, *, fresh_id: bool
    ) -> Outcome:
        try:
            state = messages.check_state(snapshot.state, what="snapshot")
            if state.status in ENDED:
                raise _Broken("a snapshot whose job has ended: only done may end a job")
            rewound = snapshot.reason == "rewound"
            # Without an id of its own it has that of the event before, and would replace the state under it.
            if rewound and not fresh_id:
                raise _Broken("a snapshot, rewound, without an id of its own")
            standing = continuity_of_snapshot(self.cursor, cursor, rewound=rewound)
            if standing is Continuity.REPEAT:
                return self._repeat(event)
            document = Document(snapshot.state, snapshot.columns)
        except (MessageError, DiffError) as error:
            raise _Broken(str(error)) from None
        if not self._fits(document, size, room=self.max_state_bytes):
            return self._too_large(f"snapshot {event.id}")
        return self._replace(document, cursor, reason=snapshot.reason)

    def _diff(self, event: Event, cursor: Cursor) -> Outcome:
        try:
            diff = strict_json.loads(event.data)
        except strict_json.StrictJsonError as error:
            raise _Broken(f"diff {event.id}: {error}") from None
        on = diff.get("on") if type(diff) is dict else None
        if on is not None and (type(on) is not int or not 0 <= on < cursor.seq):
            raise _Broken(f"diff {event.id}: on is {on!r}")
        standing = continuity_of_change(self.cursor, cursor, on=on)
        if standing is Continuity.REPEAT:
            return self._repeat(event)
        document = self.document
        if standing is Continuity.BROKEN or document is None:
            raise _Broken(f"diff {event.id} does not continue from {self._place()}")
        before = document.view()
        try:
            document.apply(diff)
        except (DiffError, IntegrityError) as error:
            kind = FatalKind.UNSUPPORTED if isinstance(error, UnknownOpError) else FatalKind.PROTOCOL
            raise _Broken(f"diff {event.id}: {error}", kind) from None
        try:
            check_shape(document, diff)
        except MessageError as error:
            self.document = Document(before.value(), document.columns)
            raise _Broken(str(error)) from None
        if not self._fits(document, cost(event.data), room=self._room):
            self.document = Document(before.value(), document.columns)
            return self._too_large(f"diff {event.id}")
        return self._moved(cursor, document, document.text_changes, visible=changes_value(diff), diff=diff)

    def _grown(self, event: Event) -> Applied | None:
        """Apply the commonest event, a bare string that comes next; None where it is another, and `_diff` judges it."""
        _, data, id_ = event
        document, mine = self.document, self.cursor
        if document is None or mine is None or "\\" in data:
            return None
        epoch, seq = mine
        size = len(data) if data.isascii() else cost(data)
        if id_ != f"{epoch}-{seq + 1}" or seq >= MAX_SEQ or size > self._room:
            return None
        try:
            text, end = scanstring(data, 1)
            if end != len(data):
                return None
            document.apply(text)
        except (ValueError, DiffError, IntegrityError):
            # Nothing was applied: the exact way says what is wrong.
            return None
        self._room -= size
        self._connection.last_id = id_
        return self._moved(Cursor(epoch, seq + 1), document, document.text_changes, visible=True, diff=text)

    def _done(self, event: Event, cursor: Cursor) -> Outcome:
        try:
            done: Done = messages.read(Done, event.data, what="done")
            if done.status == "failed" and done.error is None:
                raise MessageError("done of a job that failed lacks its error")
        except MessageError as error:
            raise _Broken(str(error)) from None
        standing = continuity_of_change(self.cursor, cursor)
        if standing is Continuity.REPEAT:
            return self._repeat(event)
        document = self.document
        if standing is Continuity.BROKEN or document is None:
            raise _Broken(f"done {event.id} does not continue from {self._place()}")
        try:
            verify(document, done.check_)
            _verify_digest({"items": document.in_pieces("/items")}, done)
        except (DiffError, IntegrityError) as error:
            raise _Broken(f"done {event.id}: {error}") from None
        document.apply(_end(done))
        return self._moved(cursor, document, (), visible=False, done=done)

    # ---- ephemeral events --------------------------------------------------------------------------------------

    def _ephemeral(self, event: Event) -> Outcome:
        try:
            message: BaseModel = messages.read(EPHEMERAL[event.type], event.data, what=event.type)
        except MessageError as error:
            raise _Broken(str(error)) from None
        match message:
            case Hello():
                return self._hello(message)
            case Ping():
                return self._ping(message)
            case Goaway():
                wait = message.retry_ms / 1000
                if self._connection.progress and self.backoff.allows(wait):
                    return Reconnect(self.backoff.invited(wait), Cause.GOAWAY, f"goaway: {message.reason}")
                return self._reconnect(Cause.GOAWAY, f"goaway: {message.reason}", at_least=wait)
            case Problem(retryable=True):
                wait = (message.retry_after_ms or 0) / 1000
                return self._reconnect(Cause.BUSY, f"problem: {message.code}", at_least=wait)
            case Problem():
                return Fatal(FatalKind.PROBLEM, message.detail or message.title, message)
            case messages.Queue() | messages.Progress():
                return Notice(message)
            case _:
                return Ignored(f"event {event.type!r}")

    def _hello(self, hello: Hello) -> Outcome:
        if hello.protocol != messages.PROTOCOL:
            why = f"the server speaks {hello.protocol!r}, this client {messages.PROTOCOL!r}"
            return Fatal(FatalKind.UNSUPPORTED, why)
        if self.job_id is not None and hello.job != self.job_id:
            return Fatal(
                FatalKind.PROTOCOL, f"asked for job {self.job_id}, the stream is that of job {hello.job}"
            )
        self.job_id = hello.job
        self.events_url = hello.events
        self.heartbeat = hello.heartbeat_ms / 1000
        self._connection.hello = True
        return Ignored("hello")

    def _ping(self, ping: Ping) -> Outcome:
        try:
            above = self.cursor is None or Cursor.parse(ping.head) > self.cursor
        except CursorError as error:
            raise _Broken(f"ping: {error}") from None
        here = self._connection
        here.pings_above = here.pings_above + 1 if above else 0
        if here.pings_above >= 2:
            return self._reconnect(
                Cause.CUT, f"the head is {ping.head}, but nothing after {self._place()} comes"
            )
        return Ignored("ping")

    # ---- moving, and giving a connection up --------------------------------------------------------------------

    def _replace(
        self, document: Document, cursor: Cursor, *, reason: str | None, done: Done | None = None
    ) -> Outcome:
        before = self.document
        texts = document.changes_since(before)
        if texts:
            visible = True
        elif before is not None:
            old, new = _values(before), _values(document)
            visible = len(old) != len(new) or not all(map(holds, old, new))
        else:
            # What an item holds while it waits is where it starts from, and nothing that it gave.
            visible = document.value("/status") != "queued" and any(
                value is not None for value in _values(document)
            )
        self.document = document
        return self._moved(cursor, document, texts, visible=visible, snapshot=reason, done=done)

    def _moved(
        self,
        cursor: Cursor,
        document: Document,
        texts: tuple[TextChange, ...],
        *,
        visible: bool,
        snapshot: str | None = None,
        done: Done | None = None,
        diff: JsonValue = None,
    ) -> Applied:
        here = self._connection
        if not (here.opening and snapshot is not None) and (self.cursor is None or cursor > self.cursor):
            here.progress = True
            self.backoff.progress()
        here.opening = False
        here.pings_above = 0
        self._healing += 1
        if self._healing >= RESYNC_HEALED:
            self.resyncs = self._healing = 0
        seq = cursor.seq
        first = 1 if self._handed is None else self._handed.seq + 1
        self.cursor = cursor
        self.done = done
        if visible or done is not None:
            self._handed = cursor
        view, columns = document.view(), document.columns
        return _advance_from((min(first, seq), cursor, view, texts, visible, snapshot, done, diff, columns))

    def _repeat(self, event: Event) -> Outcome:
        self.repeats += 1
        return Ignored(f"{event.type} {event.id} is known already")

    def _fits(self, document: Document, size: int, *, room: int) -> bool:
        """Whether a document that grew by so many bytes at most, where there was room for so many, may be held."""
        self._room = room - size
        if self._room < 0:
            measured = document.json_bytes()
            if measured > self.max_state_bytes:
                return False
            self._room = room_for_more(self.max_state_bytes, measured)
        return True

    def _too_large(self, what: str) -> Fatal:
        why = f"{what} would make the job's state larger than max_state_bytes={self.max_state_bytes}"
        return Fatal(FatalKind.TOO_LARGE, why)

    def _resync(self, why: str, *, kind: FatalKind = FatalKind.PROTOCOL) -> Outcome:
        self.resyncs += 1
        self._healing = 0
        self.cursor = None
        if self.resyncs > MAX_RESYNCS:
            return Fatal(kind, f"{why} (after {MAX_RESYNCS} fresh starts)")
        return self._reconnect(Cause.RESYNC, why)

    def _reconnect(self, cause: Cause, why: str, *, at_least: float | None = None) -> Outcome:
        if self.backoff.exhausted:
            return Fatal(FatalKind.EXHAUSTED, f"{why} ({self.backoff.failures} attempts without progress)")
        if not self.backoff.allows(at_least):
            most = self.backoff.policy.max_seconds
            asked = f"asked to wait {at_least:g} s, and the retry policy has {most:g} s in all"
            return Fatal(FatalKind.EXHAUSTED, f"{why} ({asked})")
        return Reconnect(self.backoff.failed(at_least=at_least), cause, why)

    def _place(self) -> str:
        return "nothing" if self.cursor is None else str(self.cursor)


def _snapshot_in(event: Event) -> Snapshot:
    try:
        snapshot: Snapshot = messages.read(Snapshot, event.data, what="snapshot")
    except MessageError as error:
        raise _Broken(str(error)) from None
    return snapshot


def _end(done: Done) -> list[JsonValue]:
    body = messages.to_json(done)
    ops: list[JsonValue] = [["s", "/status", body["status"]], ["s", "/usage", body["usage"]]]
    if done.error is not None:
        ops.append(["s", "/error", done.error.model_dump(mode="json", exclude_unset=True)])
    return ops


def _verify_digest(state: Any, done: Done) -> None:
    found = digest(state["items"])
    if found != done.digest:
        raise IntegrityError(f"the digest of the final items is {found}, done says {done.digest}")


def _values(document: Document) -> list[Any]:
    """What the tree holds as the values of the items, nothing of it copied."""
    items = document.view().node(("items",))
    return [item.get("value") for item in (items if type(items) is list else items.items_at(LATEST))]
