"""Models of the events of a job's stream, and functions that encode them.

Diffs have no model, because there is one diff for each token and a model would be slow. `tidewire.protocol.diff`
validates diffs as plain JSON.
"""

from typing import Annotated, Any, Final, Literal, TypeVar, get_args

from msgspec import Meta, field

from tidewire.protocol import strict_json
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.problems import Problem
from tidewire.protocol.sse import encode
from tidewire.protocol.strict_json import JsonValue
from tidewire.protocol.wire_model import (
    Count,
    MessageError,
    Number,
    Positive,
    WireModel,
    build_models,
    members_of,
)

M = TypeVar("M", bound=WireModel)

PROTOCOL: Final = "tidewire/1"

ItemStatus = Literal["queued", "running", "succeeded", "failed", "cancelled"]
JobEnd = Literal["succeeded", "partially_failed", "failed", "cancelled"]
JobStatus = Literal["queued", "running", JobEnd]
SnapshotReason = Literal["start", "compacted", "restart", "rewound"]

ENDED: Final = frozenset(get_args(JobEnd))
"""The statuses in which a job or an item has ended."""

ITEM_STATUSES: Final = frozenset(get_args(ItemStatus))

LOGGED: Final = frozenset({"snapshot", "message", "done"})
"""Types of the events that have an id. Diffs have the type `message`, which is the default event type of SSE."""


class BatchPlace(WireModel, frozen=True, kw_only=True):
    """How the server has batched one input with other inputs. The members are the size of the batch, the index of the
    input in the batch, and the time that the input waited for the batch.
    """

    size: Positive
    row: Count
    wait_ms: Count


class Item(WireModel, frozen=True, kw_only=True):
    """One item in a job's state, which has the status and value for one input."""

    status: ItemStatus
    value: Any = None
    error: Problem | None = None
    stable: dict[str, Count] = field(default_factory=dict)
    """Lengths of the stable prefixes of texts, by the JSON Pointer of the text within `value`. The length is a number
    of code points. As long as the job does not restart, no diff truncates a stable prefix."""
    batch: BatchPlace | None = None


class Note(WireModel, frozen=True, kw_only=True):
    """A message from the endpoint's function to the user, such as a warning."""

    level: str
    text: str


class State(WireModel, frozen=True, kw_only=True):
    """The whole state of a job, which is the JSON document that snapshots contain and diffs change."""

    status: JobStatus
    items: Annotated[list[Item], Meta(min_length=1)]
    usage: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    error: Problem | None = None


class Snapshot(WireModel, frozen=True, kw_only=True):
    """Data of a `snapshot` event. The member `state` is plain JSON, because building a model for every item would be
    expensive.
    """

    state: dict[str, Any]
    columns: list[str]
    reason: SnapshotReason


class Done(WireModel, frozen=True, kw_only=True):
    """Data of a `done` event, which ends the job. The event sets `/status`, `/usage` and `/error` in the job's
    state.
    """

    status: JobEnd
    usage: dict[str, Any] = field(default_factory=dict)
    error: Problem | None = None
    check: list[Any] = field(default_factory=list)
    digest: str
    """First 16 hexadecimal digits of the SHA-256 hash of the final `items`, serialized as RFC 8785 specifies."""
    expires_at: str | None = None


class Hello(WireModel, frozen=True, kw_only=True):
    """Data of a `hello` event, which is the first event on every connection to a job's stream."""

    protocol: str
    job: str
    events: str
    head: str
    heartbeat_ms: Positive


class Queue(WireModel, frozen=True, kw_only=True):
    """Data of a `queue` event. The job at `position` 1 starts next."""

    position: Positive
    eta_ms: Count | None = None
    waits_for: str | None = None
    """What the job waits for in addition to its turn: `worker` if no live process runs its endpoint, or `version` if the code of
    each live process rejects its input. Other values may follow."""


class Progress(WireModel, frozen=True, kw_only=True):
    """Data of a `progress` event. In a job with many inputs, `item` is the index of the item."""

    current: Number | None = None
    total: Number | None = None
    unit: str | None = None
    phase: str | None = None
    item: Count | None = None


class Ping(WireModel, frozen=True, kw_only=True):
    """Data of a `ping` event. `head` is the id of the newest event that this connection has sent or will send."""

    head: str


class Goaway(WireModel, frozen=True, kw_only=True):
    """Data of a `goaway` event, with which the server announces that it closes the connection. The client should
    reconnect after `retry_ms`.
    """

    reason: str
    retry_ms: Count


build_models(globals())

EPHEMERAL: Final[dict[str, type[WireModel]]] = {
    "hello": Hello,
    "queue": Queue,
    "progress": Progress,
    "ping": Ping,
    "goaway": Goaway,
    "problem": Problem,
}
"""Models of the events without an id, by event type. These events may be lost when a client reconnects."""


def read(model: type[M], data: str | bytes, *, what: str) -> M:
    """Parse the JSON of an event or body, and validate it against a model.

    Args:
        model: One of the models of this package.
        data: The JSON text.
        what: Name of the event or body, for error messages.

    Raises:
        MessageError: The text is not valid JSON under the protocol's rules, or does not match the model.
    """
    try:
        return model.model_validate(strict_json.loads(data))
    except (strict_json.StrictJsonError, MessageError) as error:
        raise MessageError(f"{what}: {error}") from None


def check_state(state: JsonValue, *, what: str) -> State:
    """Validate the whole state of a job.

    Raises:
        MessageError: The state does not match the protocol's schema.
    """
    try:
        return State.model_validate(state)
    except MessageError as error:
        raise MessageError(f"{what}: {error}") from None


# ---- encoding --------------------------------------------------------------------------------------------------


def snapshot_frame(cursor: Cursor, state: JsonValue, columns: list[str], reason: SnapshotReason) -> bytes:
    """Encode a `snapshot` event as a server-sent event."""
    data = strict_json.dumps({"state": state, "columns": list[str](columns), "reason": reason})  # type: ignore[dict-item]
    return encode(data, id=str(cursor), event="snapshot")


def diff_frame(cursor: Cursor, diff: JsonValue) -> bytes:
    """Encode a diff as a server-sent event. The event type is omitted because `message` is the default."""
    return encode(strict_json.dumps(diff), id=str(cursor))


def done_frame(cursor: Cursor, done: Done) -> bytes:
    """Encode a `done` event as a server-sent event."""
    return b"id:%d-%d\nevent:done\ndata:%b\n\n" % (*cursor, to_text(done).encode())


def ephemeral_frame(
    event: str,
    message: WireModel,
    *,
    id: str | None = None,  # noqa: A002 - the name that SSE gives the field
    retry_ms: int | None = None,
) -> bytes:
    """Encode an event that is not in the job's log, such as `ping`, as a server-sent event.

    Args:
        event: The event type.
        message: The event's data.
        id: Id of the event. Only a fatal `problem` event has an id.
        retry_ms: Value of the `retry:` field, if the event has one.
    """
    return encode(to_text(message), event=event, id=id, retry_ms=retry_ms)


def to_json(message: WireModel) -> dict[str, Any]:
    """Convert a model to a JSON object, which shares plain JSON with the model. Members that are None are left out."""
    return members_of(message, exclude_none=True)


def to_text(message: WireModel) -> str:
    """Serialize a model as compact JSON text. Members that are None are left out."""
    return message.model_dump_json(exclude_none=True)
