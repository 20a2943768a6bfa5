"""The client's state machine for one job's event stream, without sockets, clock or logging.

A `Follower` has the job's state (`document`) and the id of the last event that was applied to this state (`cursor`), and
always updates both together. The caller reads bytes from the network, decodes the events, passes each event to `receive`,
and carries out the outcome that `receive` returns. The module `cursor` describes event ids, and the module
`http_status_actions` describes the reactions to HTTP responses. A logged event is an event with an id, that is a snapshot, a
diff or `done`. This table shows the outcome of each event:

  event                                                     | outcome
  ----------------------------------------------------------+--------------------------------------------------------
  a logged event that continues from the cursor             | Applied
  a logged event at or before the cursor                    | Ignored; but a snapshot with reason `rewound` is Applied
                                                            |   and moves the cursor back
  a logged event that does not continue from the cursor,    | Reconnect(RESYNC): the event is discarded, and the next
    that is malformed, unknown, or received before `hello`; |   request has no cursor. After more than `MAX_RESYNCS`
    an unknown op; a failed check or digest; an event that  |   such events, the outcome is Fatal. The count starts
    changes a stable prefix                                 |   again when `RESYNC_HEALED` events in a row were Applied
  an event that would make the state larger than            | Fatal; the event is not applied
    `max_state_bytes`                                       |
  `done`                                                    | Applied with `done`: the caller closes the connection and
                                                            |   never reconnects
  `hello` of another protocol version or another job        | Fatal
  `goaway`                                                  | Reconnect(GOAWAY) after its `retry_ms`; counted as a
                                                            |   failure only if this connection made no progress
  two pings in a row without a logged event between them,   | Reconnect(CUT): the connection delivers no events
    if their heads or the head of `hello` are after the     |
    cursor                                                  |
  `problem`, retryable or not                               | Reconnect(BUSY) or Fatal
  `queue`, `progress`                                       | Notice
  an unknown event without a new id                         | Ignored
  the connection ends, is reset or is silent, or `hello`    | Reconnect(CUT) with the cursor, even if the server closed
    does not arrive: the caller calls `lost`                |   the connection properly
  a response asks the client to wait: the caller calls      | Reconnect(BUSY)
    `busy`                                                  |
  the server rejects the cursor: the caller calls           | Reconnect(RESYNC), or Fatal after too many resyncs
    `malformed`; an event is larger than the caller         |
    accepts: the caller calls `oversized`                   |
  the stream delivers nothing: the caller reads the job     | Applied if its state is newer, Applied with `done` if the
    and calls `poll`                                        |   job has ended, otherwise Ignored
  the response is 204: the caller reads the job and         | Applied with `done` if the job has ended, otherwise
    calls `read_job`                                        |   Reconnect(CUT) without a cursor

The outcome is also Fatal if the retry policy allows no further attempt. The client makes progress when a logged event
moves the cursor forward, except if the event is the snapshot at the beginning of a connection.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tidewire.following.check_state_after_diff import changes_value, check_shape
from tidewire.following.event_continuity import Continuity, continuity_of_change, continuity_of_snapshot
from tidewire.following.follower_outcomes import (
    Applied,
    Cause,
    Fatal,
    FatalKind,
    Ignored,
    Notice,
    Outcome,
    Reconnect,
)
from tidewire.following.request_policy import GiveUp, Interruption, RequestPolicy
from tidewire.protocol import messages, strict_json
from tidewire.protocol.cursor import MAX_SEQ, Cursor, CursorError
from tidewire.protocol.diff import DiffError, UnknownOpError
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import IntegrityError, digest, verify
from tidewire.protocol.document.document import TextChange, View
from tidewire.protocol.document.json_values import same
from tidewire.protocol.document.state_size import MAX_STATE_BYTES, cost, room_for_more
from tidewire.protocol.document.versioned_text_and_arrays import LATEST, materialize
from tidewire.protocol.messages import ENDED, EPHEMERAL, Done, Goaway, Hello, Ping, Snapshot
from tidewire.protocol.problems import Problem
from tidewire.protocol.resources import JobResource
from tidewire.protocol.sse import Event
from tidewire.protocol.strict_json import JsonValue
from tidewire.protocol.wire_model import MessageError

__all__ = [
    "Applied",
    "Cause",
    "Fatal",
    "FatalKind",
    "Follower",
    "Ignored",
    "Notice",
    "Outcome",
    "Reconnect",
]

MAX_RESYNCS = 3
"""Maximum number of resyncs. In a resync, the client discards its cursor and requests a new snapshot. A further resync
ends the stream with an error."""
RESYNC_HEALED = 256
"""Number of events after which the count of resyncs is reset to zero. The events must be applied in a row, without a
resync between them."""
MAX_EVENT_OPS = 10_000
"""Maximum number of ops of a diff. An op can take time in proportion to the length of its array, so this limit bounds the
time for one diff."""
DEFAULT_HEARTBEAT = 15.0
"""Heartbeat interval that the client assumes until `hello` has arrived, in seconds."""


@dataclass(slots=True)
class _Connection:
    """State of the current connection. It is reset when the client reconnects."""

    hello: bool = False
    head: Cursor | None = None
    """Head of the log when the connection was opened, from `hello`."""
    opening: bool = True
    """Whether the connection has yet to deliver its first logged event."""
    progress: bool = False
    """Whether an event after the opening snapshot has moved the cursor forward."""
    pinged: bool = False
    """Whether the last ping, or `hello`, had a head after the cursor at that time."""
    pinged_at: Cursor | None = None
    """The cursor at the time of the last ping or `hello`."""
    last_id: str = ""


_decode_text: Final = msgspec.json.Decoder(str).decode


class _Broken(Exception):  # noqa: N818 - never leaves this file
    def __init__(self, why: str, kind: FatalKind = FatalKind.PROTOCOL) -> None:
        super().__init__(why)
        self.kind = kind


@dataclass(slots=True)
class Follower:
    """The client's state machine for one job's event stream. The table in the module's docstring describes its
    outcomes.
    """

    policy: RequestPolicy = field(default_factory=RequestPolicy)
    """Counters of the failures and waits of this stream, with the limits of the user's retry policy."""
    job_id: str | None = None
    cursor: Cursor | None = None
    """Id of the last event that was applied to `document`. None if the next request for the stream must have no cursor,
    so that the server sends a snapshot."""
    document: Document | None = None
    done: Done | None = None
    heartbeat: float = DEFAULT_HEARTBEAT
    """Heartbeat interval in seconds, from the last `hello` event."""
    events_url: str | None = None
    """URI reference of the event stream, from the last `hello` event."""
    resyncs: int = 0
    """Number of resyncs. If `RESYNC_HEALED` events in a row were applied before a resync, the count starts again."""
    max_state_bytes: int = MAX_STATE_BYTES
    """Maximum size of the state as JSON, in bytes. The module `document.state_size` describes how it is measured."""
    _room: int = 0
    """Number of bytes that events may add to the state before the size of the state must be measured again."""
    _healing: int = 0
    """Number of events that were applied in a row without a resync."""
    _delivered: int = 0
    """Seq of the last event that was visible to the application (`Applied.visible`)."""
    _next_piece: str | None = None
    """Id of the next event if the job has one column and this connection has made progress, otherwise None."""
    _connection: _Connection = field(default_factory=_Connection)

    # ---- start ---------------------------------------------------------------------------------------

    def restore(self, state: JsonValue, columns: Sequence[str], cursor: Cursor) -> View:
        """Continue from the state in a checkpoint.

        Raises:
            MessageError: The state does not have the members that the protocol requires.
        """
        messages.check_state(state, what="state")
        self.document = Document(state, columns)
        self.cursor, self._delivered = cursor, cursor.seq
        self._room = 0
        return self.document.view()

    def connected(self) -> None:
        """Reset the state that belongs to a connection, because a new connection was opened."""
        self._connection = _Connection(last_id="" if self.cursor is None else str(self.cursor))
        self._next_piece = None

    @property
    def greeted(self) -> bool:
        """Whether the event `hello` has already arrived on the current connection."""
        return self._connection.hello

    @property
    def delivered_nothing(self) -> bool:
        """Whether the current connection has not delivered a logged event yet."""
        return self._connection.opening

    # ---- events and losses -----------------------------------------------------------------------------------------

    def receive(self, event: Event) -> Outcome:
        """Process one event and return its outcome. The table in the module's docstring describes the outcomes."""
        type_, data, id_ = event
        here, mine, document = self._connection, self.cursor, self.document
        # Fast path for the next piece of a text stream: 6 function calls from `Decoder.feed` on, instead of 50.
        is_piece = id_ == self._next_piece and data[:1] == '"' and type_ == "message" and type(event) is Event
        size = len(data) if data.isascii() else 4 * len(data)
        if (
            is_piece
            and mine is not None
            and mine.seq < MAX_SEQ
            and document is not None
            and size <= self._room
        ):
            columns = document.columns
            try:
                text = _decode_text(data)
                document.append(columns[0], text)
            except ValueError:
                pass  # Nothing was applied. The general path below reports the error.
            else:
                epoch, seq = mine.epoch, mine.seq + 1
                self.cursor, self._next_piece, here.last_id = Cursor(epoch, seq), f"{epoch}-{seq + 1}", id_
                first, self._delivered = min(self._delivered + 1, seq), seq
                self._room -= size
                self._healing += 1
                texts = (TextChange(columns[0], 0, text),) if text else ()
                view = document.view()
                return Applied(first, self.cursor, view, texts, visible=True, diff=text, columns=columns)
        fresh_id = event.has_id and id_ != here.last_id
        here.last_id = id_
        try:
            if event.type == "snapshot":
                cursor, snapshot, size = self._logged_id(event), _snapshot_in(event), cost(event.data)
                # Free the event's data before the document is created, because both can be as large as `max_state_bytes`.
                event, data = event._replace(data=""), ""
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

    def lost(self, why: str, *, silence: float = 0.0) -> Outcome:
        """Handle a connection that ended without `done` or `goaway`, or that could not be opened.

        Args:
            why: Description of the failure for logs and errors.
            silence: Time in seconds during which the live stream sent nothing.
        """
        return self._reconnect(Cause.CUT, why, silence=silence)

    def busy(self, why: str, *, asked: float | None) -> Outcome:
        """Handle a response that asks the client to wait.

        Args:
            why: Description of the response for logs and errors.
            asked: Time in seconds that the server asked for with `Retry-After`. None if it named no time.
        """
        return self._reconnect(Cause.BUSY, why, Interruption.BUSY, asked=asked)

    def malformed(self, why: str) -> Outcome:
        """Handle the rejection of the cursor with the status 400. The client then requests a snapshot."""
        return self._resync(why)

    def oversized(self, why: str) -> Outcome:
        """Handle an event that exceeds the size limit. The client then requests a snapshot, which may be smaller."""
        if self.cursor is None:
            return Fatal(FatalKind.TOO_LARGE, why)  # The event was the snapshot itself.
        return self._resync(why, kind=FatalKind.TOO_LARGE)

    def read_job(self, job: JobResource) -> Outcome:
        """Handle the job resource that the caller has read with GET.

        The caller reads the job when the server responds with 204 to the request for the stream. This status means that
        the log has no events after the cursor.
        """
        if job.done is None:
            self.cursor = None
            return self._reconnect(Cause.CUT, "204 for a job that still runs")
        return self.adopt(job)

    def poll(self, job: JobResource) -> Outcome:
        """Handle a job that the caller has read with GET, because the job's stream delivers nothing.

        A state that is not newer than the state of this follower is ignored.
        """
        self.connected()
        try:
            is_new = self.cursor is None or Cursor.parse(job.cursor) > self.cursor
        except CursorError as error:
            return self._resync(f"the job that was read: {error}")
        return (
            self.adopt(job) if is_new or job.done is not None else Ignored(f"no event after {self._place()}")
        )

    def adopt(self, job: JobResource) -> Outcome:
        """Replace the state of this follower by the state of a job that the caller has read with GET. Treat the job
        like a snapshot.

        If the job has ended, the stream ends.
        """
        try:
            cursor = Cursor.parse(job.cursor)
            state: Any = job.state
            messages.check_state(state, what="job")
            if job.done is not None:
                _verify_digest(state["items"], job.done)
            document = Document(state, job.columns)
        except (CursorError, MessageError, DiffError, IntegrityError) as error:
            return self._resync(f"the job that was read: {error}")
        if not self._fits(document, self.max_state_bytes, room=0):
            return self._too_large(f"the job that was read, at {job.cursor},")
        return self._replace(document, cursor, reason=None, done=job.done)

    # ---- logged events -----------------------------------------------------------------------------------------

    def _logged_id(self, event: Event) -> Cursor:
        if not self._connection.hello:
            raise _Broken(f"received {event.type} {event.id} before hello, so its job is unknown")
        # The event's id may come from an earlier block without data. [TW-CLI-060]
        if not event.has_id:
            raise _Broken(f"{event.type} has no id field in its own block")
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
                raise _Broken(
                    f"snapshot {event.id} has the final status {state.status!r}; only a done event may end a job"
                )
            rewound = snapshot.reason == "rewound"
            # A snapshot without an `id` line has the id of the previous event, according to the rules of SSE. Such a
            # snapshot must not move the cursor back.
            if rewound and not fresh_id:
                raise _Broken("a snapshot has the reason `rewound`, but no new id")
            continuity = continuity_of_snapshot(self.cursor, cursor, rewound=rewound)
            if continuity is Continuity.REPEAT:
                return _repeated(event)
            document = Document(snapshot.state, snapshot.columns, keep_values=True)
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
        on, ops = (diff.get("on"), diff.get("ops")) if type(diff) is dict else (None, diff)
        if type(ops) is list and len(ops) > MAX_EVENT_OPS:
            raise _Broken(f"diff {event.id} has {len(ops)} ops, but a diff has at most {MAX_EVENT_OPS}")
        if on is not None and (type(on) is not int or not 0 <= on < cursor.seq):
            raise _Broken(f"diff {event.id}: on is {on!r}")
        continuity = continuity_of_change(self.cursor, cursor, on=on)
        if continuity is Continuity.REPEAT:
            return _repeated(event)
        document = self.document
        if continuity is Continuity.BROKEN or document is None:
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

    def _done(self, event: Event, cursor: Cursor) -> Outcome:
        try:
            done = messages.read(Done, event.data, what="done")
            if done.status == "failed" and done.error is None:
                raise MessageError("done has the status failed, but no error")
        except MessageError as error:
            raise _Broken(str(error)) from None
        continuity = continuity_of_change(self.cursor, cursor)
        if continuity is Continuity.REPEAT:
            return _repeated(event)
        document = self.document
        if continuity is Continuity.BROKEN or document is None:
            raise _Broken(f"done {event.id} does not continue from {self._place()}")
        try:
            verify(document, done.check)
            _verify_digest(document.node("/items"), done)
        except (DiffError, IntegrityError) as error:
            raise _Broken(f"done {event.id}: {error}") from None
        document.apply(_done_ops(done, event.data))
        return self._moved(cursor, document, (), visible=False, done=done)

    # ---- ephemeral events --------------------------------------------------------------------------------------

    def _ephemeral(self, event: Event) -> Outcome:
        try:
            message = messages.read(EPHEMERAL[event.type], event.data, what=event.type)
        except MessageError as error:
            raise _Broken(str(error)) from None
        match message:
            case Hello():
                return self._hello(message)
            case Ping():
                return self._ping(message)
            case Goaway():
                wait = message.retry_ms / 1000
                planned = Interruption.GOAWAY if self._connection.progress else Interruption.EARLY_GOAWAY
                return self._reconnect(Cause.GOAWAY, f"goaway: {message.reason}", planned, asked=wait)
            case Problem(retryable=True):
                wait_ms = message.retry_after_ms
                asked = None if wait_ms is None else wait_ms / 1000
                return self.busy(f"problem: {message.code}", asked=asked)
            case Problem():
                return Fatal(FatalKind.PROBLEM, message.detail or message.title, message)
            case messages.Queue() | messages.Progress():
                return Notice(message)
            case _:
                return Ignored(f"event {event.type!r}")

    def _hello(self, hello: Hello) -> Outcome:
        if hello.protocol != messages.PROTOCOL:
            why = f"the server uses protocol {hello.protocol!r}, but this client uses {messages.PROTOCOL!r}"
            return Fatal(FatalKind.UNSUPPORTED, why)
        if self.job_id is not None and hello.job != self.job_id:
            return Fatal(
                FatalKind.PROTOCOL,
                f"requested job {self.job_id}, but the server sent the event stream of job {hello.job}",
            )
        try:
            head = Cursor.parse(hello.head)
        except CursorError as error:
            raise _Broken(f"hello: {error}") from None
        self._connection.head = head
        self.job_id = hello.job
        self.events_url = hello.events
        self.heartbeat = hello.heartbeat_ms / 1000
        self._connection.hello = True
        self.policy.live()
        return Ignored("hello")

    def _ping(self, ping: Ping) -> Outcome:
        try:
            head = Cursor.parse(ping.head)
        except CursorError as error:
            raise _Broken(f"ping: {error}") from None
        here = self._connection
        head = head if here.head is None else max(head, here.head)
        above = self.cursor is None or head > self.cursor
        is_repeated = above and here.pinged and here.pinged_at == self.cursor
        here.pinged, here.pinged_at = above, self.cursor
        if here.hello and head == self.cursor:
            # Otherwise a job without events would be given up if a proxy limits the time of each response.
            self.policy.confirmed()
        if is_repeated:
            return self._reconnect(
                Cause.CUT,
                f"the log of the server ends at event {head}, but no event after {self._place()} has arrived",
            )
        return Ignored("ping")

    # ---- transitions --------------------------------------------------------------------

    def _replace(
        self, document: Document, cursor: Cursor, *, reason: str | None, done: Done | None = None
    ) -> Outcome:
        before = self.document
        texts = document.changes_since(before)
        if texts:
            visible = True
        elif before is not None:
            old, new = _values(before), _values(document)
            visible = len(old) != len(new) or not all(map(_same, old, new))
        else:
            # While the job is queued, the items have initial values, which are not the output of a function.
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
        is_later = self.cursor is None or cursor > self.cursor
        if not here.progress and is_later and not (here.opening and snapshot is not None):
            here.progress = True
            self.policy.progress()
        here.opening = False
        self._healing += 1
        self.cursor = cursor
        self.done = done
        first = min(self._delivered + 1, cursor.seq)
        if visible or done is not None:
            self._delivered = cursor.seq
        columns = document.columns
        is_ready = here.progress and len(columns) == 1
        self._next_piece = f"{cursor.epoch}-{cursor.seq + 1}" if is_ready else None
        return Applied(first, cursor, document.view(), texts, visible, snapshot, done, diff, columns)

    def _fits(self, document: Document, size: int, *, room: int) -> bool:
        """Whether the size of a document is within the limit.

        Args:
            document: The document, after an event was applied.
            size: Upper bound of the bytes that the event added.
            room: Number of bytes that could still be added without measuring the document. This was determined before
                the event was applied.
        """
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
        self.resyncs = self.resyncs + 1 if self._healing < RESYNC_HEALED else 1
        self._healing = 0
        self.cursor = None
        self._next_piece = None
        if self.resyncs > MAX_RESYNCS:
            return Fatal(kind, f"{why} (after {MAX_RESYNCS} resyncs)")
        return self._reconnect(Cause.RESYNC, why)

    def _reconnect(
        self,
        cause: Cause,
        why: str,
        interruption: Interruption = Interruption.FAILURE,
        *,
        asked: float | None = None,
        silence: float = 0.0,
    ) -> Outcome:
        wait = self.policy.retry(interruption, asked=asked, silence=silence)
        if isinstance(wait, GiveUp):
            return Fatal(FatalKind.EXHAUSTED, f"{why} ({wait.why})")
        return Reconnect(wait, cause, why)

    def _place(self) -> str:
        return "nothing" if self.cursor is None else str(self.cursor)


def _snapshot_in(event: Event) -> Snapshot:
    try:
        snapshot = messages.read(Snapshot, event.data, what="snapshot")
    except MessageError as error:
        raise _Broken(str(error)) from None
    return snapshot


def _repeated(event: Event) -> Ignored:
    return Ignored(f"{event.type} {event.id} was applied before")


def _done_ops(done: Done, data: str) -> list[JsonValue]:
    """Return the ops with which a `done` event changes the state. `data` is the JSON text of the event."""
    body = messages.to_json(done)
    ops: list[JsonValue] = [["s", "/status", body["status"]], ["s", "/usage", body["usage"]]]
    if done.error is not None:
        # Write the error as the server sent it, without defaults, so that all clients have the same final state.
        sent: Any = strict_json.loads(data)
        unknown = done.error.model_extra
        error = {name: value for name, value in sent["error"].items() if value is not None or name in unknown}
        ops.append(["s", "/error", error])
    return ops


def _verify_digest(items: Any, done: Done) -> None:
    found = digest(items)
    if found != done.digest:
        raise IntegrityError(
            f"the digest of the final items is {found}, but the digest in done is {done.digest}"
        )


def _values(document: Document) -> list[Any]:
    """Return the values of all items without copying them. The values are nodes of the document's tree."""
    items = document.view().node(("items",))
    return [item.get("value") for item in (items if type(items) is list else items.items_at(LATEST))]


def _same(old: Any, new: Any) -> bool:
    return same(materialize(old, LATEST), materialize(new, LATEST))
