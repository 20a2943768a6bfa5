"""Storage protocols of the server: event logs, job records, and the queue of waiting items.

The rest of the server depends only on these protocols. An implementation may keep the data in memory, in a file, or
in a service shared by several servers. Every implementation follows these rules:

- `append` takes the log's expected head and fails if the head has moved, so two concurrent writers cannot both succeed.
- `append` returns once the block is as durable as the store's `durability` attribute promises. Readers see the block
  only after that.
- An append and the changes to the job's record that belong to it are stored atomically.
- The `done` event is never trimmed. A job's state outlives the job's events.
- A reader is only an offset into the log, so a slow or abandoned reader costs no memory beyond that offset.
- A job that has ended uses no memory except what the implementation documents.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, Literal, NamedTuple, Protocol

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document.view import View
from tidewire.protocol.messages import Done, JobStatus

Durability = Literal["process", "host", "replicated"]


class HeadMovedError(Exception):
    """An append's expected head differs from the log's head: another writer appended, or the log was deleted."""


class StoreError(Exception):
    """The store cannot be opened, read or written. The message says which store, why, and how to fix it."""


class StateAt(NamedTuple):
    """A job's state after one event has been applied, with the id of that event."""

    cursor: Cursor
    columns: tuple[str, ...]
    view: View


class Block(NamedTuple):
    """Events that are appended to a log in one step: their encoded frames in order, and the resulting state."""

    frames: Sequence[bytes]
    state: StateAt
    done: bool = False
    """Whether the last event is `done`. If so, `state` is the state before that event."""

    @property
    def last(self) -> Cursor:
        """Id of the last event in the block."""
        epoch, seq = self.state.cursor
        return Cursor(epoch, seq + self.done)

    @property
    def first(self) -> Cursor:
        """Id of the first event in the block."""
        epoch, seq = self.last
        return Cursor(epoch, seq - len(self.frames) + 1)


MAX_EPOCHS: Final = 100
"""Maximum number of epochs that a log remembers after trimming. Cursors in older epochs count as unknown."""


class Extent(NamedTuple):
    """Range of events that a log currently stores."""

    base: Cursor
    """The log stores every event after this id. The seq is 0 if no event was trimmed."""
    head: Cursor
    """Id of the last event."""
    ended: bool
    """Whether the last event is `done`."""
    starts: tuple[Cursor, ...]
    """Id of the first event of each remembered epoch, oldest first. An epoch ends just before the next one starts."""
    columns: tuple[str, ...]
    """Column pointers of the head's epoch."""

    def id_at(self, seq: int) -> Cursor:
        """Return the id of the event with this seq. Seq 0 is the position before the first event."""
        if len(self.starts) == 1:  # fast path: almost every log has a single epoch
            return Cursor(self.starts[0].epoch, seq)
        found = bisect_right(self.starts, seq, key=attrgetter("seq"))
        return Cursor(self.starts[max(found - 1, 0)].epoch, seq)

    def logged(self, cursor: Cursor) -> bool:
        """Return whether the cursor is the id of an event of this log, stored or already trimmed."""
        return self.starts[0].seq <= cursor.seq <= self.head.seq and self.id_at(cursor.seq) == cursor

    def holds_after(self, cursor: Cursor) -> bool:
        """Return whether the log stores every event after the cursor. False for a cursor that is not of this log."""
        return self.base.seq <= cursor.seq <= self.head.seq and self.id_at(cursor.seq) == cursor


def next_starts(starts: tuple[Cursor, ...], block: Block, base: Cursor) -> tuple[Cursor, ...]:
    """Return the epoch starts of a log after a block was added. `base` is the log's `Extent.base`."""
    if starts and starts[-1].epoch == block.last.epoch:
        return starts
    starts = (*starts, block.first)
    while len(starts) > MAX_EPOCHS and starts[1].seq <= base.seq:
        starts = starts[1:]
    return starts


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Consecutive complete events of a log, encoded for the wire."""

    frames: bytes
    last: Cursor
    ended: bool
    """Whether the last event in the chunk is `done`."""


class LogReader(Protocol):
    """Read access to one job's log. Stays usable for as long as the reader holds a reference.

    After the job is deleted or its events have expired, the log reads as if every event except `done` were trimmed.
    """

    def extent(self) -> Extent:
        """Return the range of events that the log stores now."""
        ...

    async def read(self, after: Cursor, max_bytes: int) -> LogChunk | None:
        """Read the events that follow a cursor.

        Args:
            after: Cursor within the stored range, from `Extent.base` to `Extent.head`.
            max_bytes: Size limit of the returned chunk. The first event is returned even if it alone is larger.

        Returns:
            The events, or an empty chunk if the cursor is the head. None if events after the cursor were trimmed.

        Raises:
            StoreError: The events cannot be read at the moment.
        """
        ...

    async def state(self, *, oldest: bool = False) -> StateAt:
        """Return the state at the head of the log, or at the start of the stored range if `oldest` is true.

        For a log that has ended, the head state is the state before `done`.

        Raises:
            StoreError: The state cannot be read at the moment.
        """
        ...

    def ephemeral_events(self, since: int) -> tuple[list[bytes], int]:
        """Return the ephemeral events (`queue`, `progress`) newer than version `since`, and the current version.

        Pass 0 on the first call, and the returned version on the next one.
        """
        ...

    def watch(self, wake: Callable[[Block | None], None]) -> Callable[[], None]:
        """Subscribe to the log: `wake` runs on the event loop after every append and every new ephemeral event.

        `wake` receives the appended block, or None for an ephemeral event. A reader whose cursor is just before the
        block can send the block without reading the log.

        Returns:
            A function that ends the subscription.
        """
        ...


class Log(LogReader, Protocol):
    """Write access to one job's log. A log has exactly one writer."""

    async def append(self, after: Cursor, block: Block) -> None:
        """Append a block atomically.

        Args:
            after: Expected head of the log, which the block extends.
            block: Events whose seqs follow that of `after` without a gap. If the block starts a new epoch, its first
                event is a snapshot.

        Raises:
            HeadMovedError: The log's head is not `after`. Nothing was appended.
            StoreError: The block could not be written. The caller may retry the same append.
        """
        ...

    def set_ephemeral_event(self, key: str, frame: bytes | None) -> None:
        """Set the latest ephemeral event of a key and wake the readers. None removes the key's event."""
        ...


@dataclass(slots=True)
class JobRecord:
    """Metadata of a job, without its state. Times are seconds since the Unix epoch."""

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


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Job that was still unfinished when the previous server process stopped."""

    record: JobRecord
    submit: bytes
    """Body of the submit request."""
    log: "Log"


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Marker for a deleted job, kept so that requests for the job get 410 instead of 404."""

    id: str
    principal: str


@dataclass(frozen=True, slots=True)
class Key:
    """Idempotency key, scoped to a principal and an endpoint."""

    principal: str
    endpoint: str
    text: str


@dataclass(slots=True)
class KeyUse:
    """Request that an idempotency key was first used for."""

    body: bytes
    """SHA-256 of the request body."""
    job: str | None = None
    """Id of the job that the request created. None while the request is still being processed."""


class Jobs(Protocol):
    """Job records, tombstones and idempotency keys. Every method raises `StoreError` if the store fails."""

    async def reserve(self, key: Key, body: bytes) -> KeyUse | None:
        """Reserve an idempotency key for a request that is being processed.

        A reservation is lost when the process ends. The client then retries the request with the same key.

        Returns:
            None if the key is now reserved, or the earlier use of the key. In that case nothing changes.
        """
        ...

    async def release(self, key: Key) -> None:
        """Release the reservation of a key whose request did not create a job."""
        ...

    async def add(self, record: JobRecord, submit: bytes, first: Block, key: Key | None) -> Log:
        """Commit a new job, the first block of its log, and its idempotency key in one transaction.

        Args:
            record: The job's record. Later changes are stored by the next append to the log, or by `save`.
            submit: Body of the submit request. Stored until the job has ended, so that the job can be run again.
            first: Block that opens the log.
            key: Idempotency key that was reserved for the request.
        """
        ...

    async def get(self, job: str) -> JobRecord | Tombstone | None:
        """Return a job's record, its tombstone if the job was deleted, or None for an unknown id."""
        ...

    async def log(self, job: str) -> LogReader | None:
        """Return a job's log, or None if the job is unknown or deleted."""
        ...

    async def save(self, record: JobRecord) -> None:
        """Store the changes to a record. If the job has ended, its retention period starts."""
        ...

    async def list(self, principal: str, *, before: str | None, limit: int) -> list[JobRecord]:
        """Return a principal's jobs that are older than job `before`, newest first."""
        ...

    async def unfinished(self, principal: str) -> int:
        """Return the number of unfinished jobs of a principal."""
        ...

    async def interrupted(self) -> Sequence[str]:
        """Return the ids of jobs that were unfinished when the store was opened and still are, oldest first."""
        ...

    async def reopen(self, job: str) -> Interrupted | None:
        """Load an interrupted job and become its log's writer. None if the job has ended meanwhile, or was deleted."""
        ...

    async def delete_job(self, job: str) -> None:
        """Delete a job and leave a tombstone."""
        ...

    async def expire(self, now: float) -> float | None:
        """Apply retention: trim logs, delete jobs, and remove tombstones and keys whose time is over.

        Returns:
            Time at which the next entry expires, or None if no entry will.
        """
        ...


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """Item of a job that waits to run."""

    endpoint: str
    job: str
    index: int
    principal: str
    arrived_at: float
    """Time at which the job was submitted, in seconds since the Unix epoch."""


class Queue(Protocol):
    """Waiting items. Principals take turns. Items of one principal leave in the order in which they arrived."""

    async def put(self, entries: Sequence[QueueEntry]) -> None:
        """Add items, each behind the items of the same principal."""
        ...

    async def take(
        self, endpoint: str, *, limit: int = 1, fits: Callable[[QueueEntry], bool] | None = None
    ) -> list[QueueEntry]:
        """Remove and return the next items of an endpoint, in the order of their turns.

        Args:
            endpoint: Name of the endpoint.
            limit: Maximum number of items.
            fits: Predicate, called once for each item whose turn it is. An item that does not fit keeps its position,
                and the turn passes to the principal's next item. Without a predicate every item fits.
        """
        ...

    async def discard(self, entry: QueueEntry) -> None:
        """Remove an item from any position. Does nothing if the item is not in the queue."""
        ...

    def size(self, endpoint: str) -> int:
        """Return the number of waiting items of an endpoint."""
        ...

    def waiting(self, endpoint: str) -> Iterator[QueueEntry]:
        """Iterate over an endpoint's items in the order of their turns, until the queue changes."""
        ...


SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits on how long and how much a store keeps. Times are in seconds. `Settings` describes each limit."""

    log_ttl: float
    state_ttl: float
    tombstone_ttl: float
    idempotency_ttl: float
    max_retained_jobs: int
    max_tombstones: int
    max_log_bytes: int


class Store(Protocol):
    """Storage of one server: its jobs and its queue."""

    jobs: Jobs
    queue: Queue
    durability: Durability
    secret: bytes
    """Default key for signing stream tokens, `SECRET_BYTES` long. Lives as long as the stored jobs."""
    clean: bool
    """Whether the previous server process closed the store cleanly."""
    may_have_lost: bool
    """Whether a crash of the previous server process may have lost the last events of some logs [TW-RES-039]."""

    async def check(self) -> None:
        """Check that the store can be written.

        Raises:
            StoreError: The store cannot be written.
        """
        ...

    async def close(self, *, clean: bool = True) -> None:
        """Release the store. No other method may be called afterwards.

        Args:
            clean: Whether to record a clean shutdown. False if recovery of interrupted jobs has not finished.
        """
        ...
