"""Types of the records in a store: jobs, tombstones, idempotency keys, event ranges of logs, waiting items and batches. The
module also defines the limits on the size of a store (`Retention`, `QueueLimits`).
"""

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final, NamedTuple

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.messages import Done, JobStatus


@dataclass(slots=True)
class JobRecord:
    """Metadata of a job, without the job's state. Times are in seconds since the Unix epoch."""

    id: str
    endpoint: str
    principal: str
    batch: bool
    created_at: float
    attempt: int = 1
    status: JobStatus = "queued"
    started_at: float | None = None
    ended_at: float | None = None
    expires_at: float | None = None
    done: Done | None = None
    usage: dict[str, int | float] = field(default_factory=dict)
    """Sum of the usage reported by the items that have ended."""
    traceparent: str | None = None
    """Value of the W3C `traceparent` header for the span of the submit request. None if the job has no trace."""

    def ended(self, done: Done, ended_at: float, expires_at: float) -> "JobRecord":
        """Return the record of the ended job."""
        return replace(self, status=done.status, ended_at=ended_at, expires_at=expires_at, done=done)


class Tombstone(NamedTuple):
    """Marker for a deleted job, kept so that requests for the job get 410 instead of 404."""

    id: str
    principal: str


class Key(NamedTuple):
    """Idempotency key, scoped to a principal and an endpoint."""

    principal: str
    endpoint: str
    text: str


class KeyUse(NamedTuple):
    """The first request that used an idempotency key."""

    body: bytes
    """SHA-256 of the request body."""
    job: str
    """Id of the job that the request created."""


class Extent(NamedTuple):
    """Range of events that a log currently stores."""

    base: Cursor
    """Id of the event just before the oldest stored event. Its seq is 0 if no event was trimmed."""
    head: Cursor
    """Id of the last event."""
    ended: bool
    """Whether the last event is `done`."""
    starts: tuple[Cursor, ...]
    """Id of the first event of each epoch that the log remembers, oldest first."""
    columns: tuple[str, ...]
    """Column pointers of the newest epoch."""

    def id_at(self, seq: int) -> Cursor:
        """Return the id of the event with this sequence number. The number 0 means the position before the first
        event.
        """
        if len(self.starts) == 1:  # Return early, because almost every log has a single epoch.
            return Cursor(self.starts[0].epoch, seq)
        found = bisect_right(self.starts, seq, key=attrgetter("seq"))
        return Cursor(self.starts[max(found - 1, 0)].epoch, seq)

    def logged(self, cursor: Cursor) -> bool:
        """Return whether the cursor is the id of an event of this log, even if that event has been trimmed."""
        return self.starts[0].seq <= cursor.seq <= self.head.seq and self.id_at(cursor.seq) == cursor

    def holds_after(self, cursor: Cursor) -> bool:
        """Return whether the log still stores every event after the cursor. If the cursor belongs to another log,
        return False.
        """
        return self.base.seq <= cursor.seq <= self.head.seq and self.id_at(cursor.seq) == cursor


class QueueEntry(NamedTuple):
    """An item that waits in the queue until it can run."""

    endpoint: str
    job: str
    index: int  # type: ignore[assignment]  # replaces the method `tuple.index`
    principal: str
    arrived_at: float
    """Time at which the job was submitted, in seconds since the Unix epoch."""


class EndpointLoad(NamedTuple):
    """Load of an endpoint, as reported by a process that runs its functions."""

    slots: float = 1.0
    """Concurrency limit of the endpoint or of its group, which may be infinite."""
    running: int = 0
    """Number of running calls of the endpoint or of its group."""
    mean_duration: float | None = None
    """Mean duration of recent calls in seconds, or None if no call has ended."""
    mean_rows: float = 1.0
    """Mean number of items of recent calls."""


class OwnedJob(NamedTuple):
    """Unfinished job that this process owns, with the requests that clients have sent to other processes."""

    id: str
    cancelled: frozenset[int]
    """Indexes of the items that clients have cancelled. Some of them may have ended."""
    purge: bool
    """Whether a client has deleted the job. The owner must cancel the job, and then delete it."""


class Beat(NamedTuple):
    """Result of `Replicas.beat`: the state of the database after a process has renewed its lease."""

    owned: Sequence[OwnedJob]
    lost: Sequence[str]
    """Ids of jobs whose logs this process wrote until another process adopted the jobs. These logs now refuse its appends."""
    others: Sequence[Mapping[str, EndpointLoad]]
    """For each other process with a valid lease, the endpoints whose functions it runs."""


class GlobalLimit(NamedTuple):
    """Limit on the running calls of an endpoint, or of a group of endpoints, over all processes."""

    name: str
    """Key under which all processes count their running calls, such as `endpoint generate` or `group gpu`."""
    calls: int


class QueueLimits(NamedTuple):
    """Limits that a new job must not exceed. They include the job's own items, and may be infinite."""

    items: float
    """Maximum number of waiting items of the job's endpoint."""
    items_of_principal: float
    """Maximum number of waiting items of the job's endpoint that belong to the job's principal."""
    jobs_of_principal: float
    """Maximum number of unfinished jobs of the job's principal."""


class BatchSlot(NamedTuple):
    """Batch key and cost of an item. They decide which other items can be in the same batch."""

    key: Hashable = None
    """Batch key of the item. Only items with equal batch keys share a batch."""
    cost: float = 0.0
    """Cost of the item. The items of a batch cost at most `max_cost` in total."""


SHARED_ATTEMPTS: Final = 2
"""The items of a job may share batches with other jobs in its first attempts, up to this number."""


class BatchBounds(NamedTuple):
    """Limits of the batches of one endpoint. `Server.endpoint` documents them."""

    max_size: int
    max_cost: float
    timeout: float
    """Maximum number of seconds that an item waits for other items of its batch key."""

    def are_reached(self, items: int, cost: float) -> bool:
        """Return whether this many items with this total cost fill a batch, so that the batch can start before `timeout`."""
        return items >= self.max_size or cost >= self.max_cost


class RunningBatch(NamedTuple):
    """Running batch that other items may join. `rows` and `cost` count only its unfinished items."""

    key: Hashable
    rows: int
    cost: float


class BatchItem(NamedTuple):
    """An item that was taken from the queue to run in a batch."""

    entry: QueueEntry
    slot: BatchSlot
    waited: float
    """Number of seconds since the batch key and the cost of the item became known to the queue."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits on how much a store keeps, and for how long. Times are in seconds. `Settings` describes each limit."""

    log_ttl: float
    state_ttl: float
    tombstone_ttl: float
    idempotency_ttl: float
    max_retained_jobs: int
    max_retained_bytes: int
    max_tombstones: int
    max_log_bytes: int
