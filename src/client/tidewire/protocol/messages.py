"""What the events of a stream carry, as models, and their wire form.

Diffs have no model: they are JSON that `tidewire.protocol.diff` judges, one per token on the hot path.
"""

from typing import Any, Final, Literal, get_args

from pydantic import BaseModel, Field, JsonValue, ValidationError

from tidewire.protocol import strict_json
from tidewire.protocol.base_model import Count, Number, Positive, WireModel
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.problems import Problem
from tidewire.protocol.sse import encode

PROTOCOL: Final = "tidewire/1"

ItemStatus = Literal["queued", "running", "succeeded", "failed", "cancelled"]
JobStatus = Literal["queued", "running", "succeeded", "partially_failed", "failed", "cancelled"]
SnapshotReason = Literal["start", "compacted", "restart", "rewound"]
GoawayReason = Literal["restart", "rotate", "slow_consumer", "auth_expired"]

ENDED: Final = frozenset({"succeeded", "partially_failed", "failed", "cancelled"})
"""The statuses in which a job or an item has ended."""

ITEM_STATUSES: Final = frozenset(get_args(ItemStatus))

LOGGED: Final = frozenset({"snapshot", "message", "done"})
"""The types of the events that carry an id; `message` is a diff, which SSE's default type names."""


class MessageError(ValueError):
    """An event or a body is not what its type demands; says which, where, and what is wrong."""


class BatchPlace(WireModel):
    """How one input was batched with others on the server."""

    size: Positive
    row: Count
    wait_ms: Count


class Item(WireModel):
    """One input's part of a job's state."""

    status: ItemStatus
    value: Any = None
    error: Problem | None = None
    stable: dict[str, Count] = Field(default_factory=dict)
    """JSON Pointer within `value` → code points at its start that are never truncated within an epoch."""
    batch: BatchPlace | None = None


class Note(WireModel):
    """What a function wants its user to read."""

    level: str
    text: str


class State(WireModel):
    """The whole JSON of a job: what a snapshot carries and what diffs change."""

    status: JobStatus
    items: list[Item] = Field(min_length=1)
    usage: dict[str, Any] = Field(default_factory=dict)
    notes: list[Note] = Field(default_factory=list)
    error: Problem | None = None


class Snapshot(WireModel):
    """Data of a `snapshot` event. `state` stays the JSON that came: a model per item would cost more than it tells."""

    state: dict[str, JsonValue]
    columns: list[str]
    reason: SnapshotReason


class Done(WireModel):
    """Data of `done`, the only terminal event. It sets the state's `/status`, `/usage` and `/error`."""

    status: Literal["succeeded", "partially_failed", "failed", "cancelled"]
    usage: dict[str, Any] = Field(default_factory=dict)
    error: Problem | None = None
    check_: list[Any] = Field(default_factory=list, alias="check")
    digest: str
    """First 16 hex digits of SHA-256 over the RFC 8785 form of the final `items`."""
    expires_at: str | None = None


class Hello(WireModel):
    """Data of `hello`, first on every connection that has a job."""

    protocol: str
    job: str
    events: str
    head: str
    heartbeat_ms: Positive


class Queue(WireModel):
    """Data of `queue`: `position` 1 is next."""

    position: Positive
    eta_ms: Count | None = None


class Progress(WireModel):
    """Data of `progress`; `item` tells which item of a batch it is about."""

    current: Number | None = None
    total: Number | None = None
    unit: str | None = None
    phase: str | None = None
    item: Count | None = None


class Ping(WireModel):
    """Data of `ping`: `head` is what this server will send or has sent on this connection, never more."""

    head: str


class Goaway(WireModel):
    """Data of `goaway`, a planned close: come back after `retry_ms`."""

    reason: str
    retry_ms: Count


EPHEMERAL: Final[dict[str, type[BaseModel]]] = {
    "hello": Hello,
    "queue": Queue,
    "progress": Progress,
    "ping": Ping,
    "goaway": Goaway,
    "problem": Problem,
}
"""The events without an id, which may be lost, and their models."""


def read(model: type[BaseModel], data: str | bytes, *, what: str) -> Any:
    """Read the JSON of one event or body as its model.

    Args:
        model: One of the models of this package.
        data: The JSON text.
        what: Names the event or body in the error.

    Raises:
        MessageError: It is not JSON as the protocol takes it, or not of this shape.
    """
    try:
        return model.model_validate(strict_json.loads(data))
    except strict_json.StrictJsonError as error:
        raise MessageError(f"{what}: {error}") from None
    except ValidationError as error:
        raise MessageError(f"{what}: {describe(error)}") from None


def check_state(state: JsonValue, *, what: str) -> State:
    """Judge a state's shape.

    Raises:
        MessageError: The state has not the shape that the protocol gives it.
    """
    try:
        return State.model_validate(state)
    except ValidationError as error:
        raise MessageError(f"{what}: {describe(error)}") from None


def describe(error: ValidationError) -> str:
    """One line for the first breach: where it is and what is wrong, and how many more there are."""
    first, *more = error.errors(include_url=False, include_context=False)
    where = "/" + "/".join(str(part) for part in first["loc"]) if first["loc"] else "the whole"
    rest = f" (and {len(more)} more)" if more else ""
    return f"{where}: {first['msg']}{rest}"


# ---- wire form -------------------------------------------------------------------------------------------------


def snapshot_frame(cursor: Cursor, state: JsonValue, columns: list[str], reason: SnapshotReason) -> bytes:
    """A `snapshot` event in its wire form."""
    data = strict_json.dumps({"state": state, "columns": list[str](columns), "reason": reason})  # type: ignore[dict-item]
    return encode(data, id=str(cursor), event="snapshot")


def diff_frame(cursor: Cursor, diff: JsonValue) -> bytes:
    """A diff in its wire form: two short lines for the commonest one."""
    return encode(strict_json.dumps(diff), id=str(cursor))


def done_frame(cursor: Cursor, done: Done) -> bytes:
    """The `done` event in its wire form."""
    return encode(to_text(done), id=str(cursor), event="done")


def ephemeral_frame(
    event: str,
    message: BaseModel,
    *,
    id: str | None = None,  # noqa: A002 - the name that SSE gives the field
    retry_ms: int | None = None,
) -> bytes:
    """An event without an id (but for a fatal `problem`), with a `retry:` field where one is due."""
    return encode(to_text(message), event=event, id=id, retry_ms=retry_ms)


def to_json(message: BaseModel) -> dict[str, Any]:
    """A message as JSON members; what is not known (None) is left out."""
    return message.model_dump(mode="json", by_alias=True, exclude_none=True)


def to_text(message: BaseModel) -> str:
    """A message as compact JSON text."""
    return message.model_dump_json(by_alias=True, exclude_none=True)
