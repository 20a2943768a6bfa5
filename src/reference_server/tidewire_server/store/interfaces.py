"""Storage protocols of the server: event logs, job records, and the queue of waiting items.

The rest of the server depends only on these protocols. An implementation may keep the data in memory, in a file, or
in a service shared by several servers. Every implementation follows these rules:

- The head of a log is its last event. The caller of `append` passes the head that it expects, and the call fails if
  another writer has appended events in the meantime. Two concurrent writers therefore cannot both succeed.
- `append` returns when the events are as durable as the store's `durability` attribute promises. Readers do not see the
  events earlier.
- An append stores the events together with the changes to the job's record, in one atomic step.
- The `done` event is never trimmed. The state of a job is kept longer than its other events.
- For a reader, only an offset into the log is stored, so a slow or abandoned reader uses no other memory.
- An ended job uses no more memory than the documentation of the implementation says.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document.view import View
from tidewire_server.store.records import Extent, JobRecord, Key, KeyUse, Tombstone

Durability = Literal["process", "host", "replicated"]


class HeadMovedError(Exception):
    """An append failed because the log's last event is not the expected one.

    Another writer has appended events, or the log was deleted.
    """


class StoreError(Exception):
    """The store cannot be opened, read or written. The message names the store, the reason, and a possible fix."""

    logged = False
    """Whether the error is already in the server's log. If so, a request that fails with this error does not log the
    error again.
    """


class StateAt(NamedTuple):
    """State of a job after one event has been applied, together with the id of that event."""

    cursor: Cursor
    columns: tuple[str, ...]
    view: View


class Block(NamedTuple):
    """Events that are appended to a log in one step. A block contains the encoded events and the state after them."""

    frames: Sequence[bytes]
    state: StateAt
    done: bool = False
    """Whether the last event is `done`. If so, `state` is the state before that event."""
    ended: JobRecord | None = None
    """Record of the ended job, if the last event is `done`. A persistent store commits it together with the block, so that
    `Jobs.save` has nothing left to write."""
    state_bytes: int = 0
    """Upper bound of the size of the state as JSON, if the last event is `done`."""

    @property
    def last(self) -> Cursor:
        """Id of the last event in the block."""
        epoch, seq = self.state.cursor
        return Cursor(epoch, seq + self.done)

    @property
    def first(self) -> Cursor:
        """Id of the first event in the block."""
        epoch, seq = self.state.cursor
        return Cursor(epoch, seq + self.done - len(self.frames) + 1)


MAX_EPOCHS: Final = 100
"""Maximum number of epochs that a log remembers after its oldest events were trimmed.

A cursor from an epoch that the log has forgotten is treated as unknown.
"""


def extent_after(extent: Extent, block: Block) -> Extent:
    """Return the new extent of a log after a block was appended to the log. Only epochs that ended before the extent's base
    can be forgotten.
    """
    starts = extent.starts
    if starts[-1].epoch != block.last.epoch:
        starts = (*starts, block.first)
        while len(starts) > MAX_EPOCHS and starts[1].seq <= extent.base.seq:
            starts = starts[1:]
    return Extent(extent.base, block.last, block.done, starts, block.state.columns)


class LogChunk(NamedTuple):
    """Consecutive events of a log, in the encoding in which they are sent to clients. A chunk contains only complete
    events.
    """

    frames: bytes
    last: Cursor
    ended: bool
    """Whether the last event in the chunk is `done`."""


class LogReader(Protocol):
    """Read access to one job's log.

    A reader may keep using the log after the job is deleted or its events have expired. The log then behaves as if all
    events except `done` had been trimmed.
    """

    def extent(self) -> Extent:
        """Return the range of events that the log stores now."""
        ...

    async def read(self, after: Cursor, max_bytes: int) -> LogChunk | None:
        """Read the events that follow a cursor.

        Args:
            after: Id of the event after which to start. It must be in the range from `Extent.base` to `Extent.head`.
            max_bytes: Maximum size of the returned events. The first event is returned even if it alone is larger.

        Returns:
            The events, or an empty chunk if `after` is the last event. None if events after `after` were trimmed.

        Raises:
            StoreError: The events cannot be read at the moment.
        """
        ...

    async def state(self, *, oldest: bool = False) -> StateAt:
        """Return the state after the last event of the log. If `oldest` is true, return the oldest available state
        instead.

        If the log has ended, return the state before the `done` event, which does not change the stored state.

        Raises:
            StoreError: The state cannot be read at the moment.
        """
        ...

    def ephemeral_events(self, since: int) -> tuple[list[bytes], int]:
        """Return the ephemeral events (`queue`, `progress`) that are newer than the version `since`, and the current
        version.

        Pass 0 as `since` on the first call. On later calls, pass the version that the previous call returned.
        """
        ...

    def watch(self, wake: Callable[[Block | None], None]) -> Callable[[], None]:
        """Subscribe to the log. After every append and every new ephemeral event, the function `wake` is called on the
        event loop.

        The argument of `wake` is the appended block, or None for an ephemeral event. A reader that has already sent all
        earlier events can send the block without reading the log.

        Returns:
            A function that ends the subscription.
        """
        ...


class Log(LogReader, Protocol):
    """Write access to one job's log. A log has exactly one writer."""

    async def append(self, after: Cursor, block: Block) -> None:
        """Append a block atomically.

        Args:
            after: Id that the caller expects the log's last event to have.
            block: Events to append. Their sequence numbers continue from `after` without a gap. If the block starts a
                new epoch, its first event is a snapshot.

        Raises:
            HeadMovedError: The log's last event is not `after`. Nothing was appended.
            StoreError: The block could not be written. The caller may retry the same append.
        """
        ...

    def set_ephemeral_event(self, key: str, frame: bytes | None) -> None:
        """Set the latest ephemeral event of a key and wake the readers. If `frame` is None, the event is removed."""
        ...


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Job that was unfinished when the previous server process stopped."""

    record: JobRecord
    submit: bytes
    """See `Jobs.submit_body`."""
    log: "Log"
    cancelled: frozenset[int] = frozenset()
    """Indexes of the items that `Jobs.save_cancelled` has stored. Some of these items may have ended."""


class Jobs(Protocol):
    """Job records, tombstones and idempotency keys. Every method raises `StoreError` if the store fails."""

    async def reserve(self, key: Key, body: bytes) -> KeyUse | None:
        """Reserve an idempotency key for a request that is being processed.

        Reservations are kept only in memory. If the process ends, the client can retry the request with the same key.

        Returns:
            None if the key is now reserved. Otherwise, the earlier use of the key.
        """
        ...

    async def release(self, key: Key) -> None:
        """Release the reservation of a key whose request did not create a job."""
        ...

    async def add(self, record: JobRecord, submit: bytes, first: Block, key: Key | None) -> Log:
        """Commit a new job, the first block of its log, and its idempotency key in one transaction.

        Args:
            record: Record of the job. Later changes to the record are stored by the next append to the log.
            submit: Body of the request that submitted the job. It is stored until the job has ended, so that the server
                can run the job again after a restart.
            first: First block of the log.
            key: Idempotency key that was reserved for the request, or None.
        """
        ...

    async def get(self, job: str) -> JobRecord | Tombstone | None:
        """Return the record of a job. If the job was deleted, return its tombstone. If the id is unknown, return
        None.
        """
        ...

    async def log(self, job: str) -> LogReader | None:
        """Return a job's log, or None if the job is unknown or deleted."""
        ...

    async def save(self, record: JobRecord) -> None:
        """Store the record of a job that has ended, unless it was stored together with the block that contains `done`. The
        job's retention period starts.
        """
        ...

    async def save_cancelled(self, job: str, items: Collection[int]) -> None:
        """Store that a client has cancelled these items of an unfinished job, in addition to the items stored before.

        After a restart of the server, `reopen` returns the items, so that the restarted server ends them and does not run
        them again. If the job has ended, do nothing.

        Args:
            job: Id of the job.
            items: Indexes of the items.
        """
        ...

    async def list(self, principal: str, *, before: str | None, limit: int) -> list[JobRecord]:
        """Return up to `limit` jobs of a principal, newest first.

        If `before` is set, return only jobs that are older than this job.
        """
        ...

    async def unfinished(self, principal: str) -> int:
        """Return the number of unfinished jobs of a principal."""
        ...

    async def interrupted(self) -> Sequence[str]:
        """Return the ids of the jobs that the previous server process left unfinished and that were not reopened yet.

        The oldest job comes first.
        """
        ...

    async def reopen(self, job: str) -> Interrupted | None:
        """Load an interrupted job in order to continue its log. Return None if the job was deleted in the meantime."""
        ...

    async def submit_body(self, job: str) -> bytes:
        """Return the body of the request that submitted an unfinished job. It is empty if the store has lost the body."""
        ...

    async def delete_job(self, job: str) -> None:
        """Delete a job, and store a tombstone for it."""
        ...

    async def expire(self, now: float) -> float | None:
        """Trim the logs and delete the jobs, tombstones and idempotency keys whose retention time is over. If there are
        more ended jobs than `max_retained_jobs`, or if their states and events exceed `max_retained_bytes`, also delete
        some of them (see `EndedJobs`).

        Returns:
            Time at which the next entry expires, or None if no entry is waiting to expire.
        """
        ...


class QueueEntry(NamedTuple):
    """An item that waits in the queue until it can run."""

    endpoint: str
    job: str
    index: int  # type: ignore[assignment]  # replaces the method `tuple.index`
    principal: str
    arrived_at: float
    """Time at which the job was submitted, in seconds since the Unix epoch."""


class Queue(Protocol):
    """Queue of waiting items. Principals take turns, and the items of each principal are taken in the order in which
    they arrived.
    """

    async def put(self, entries: Sequence[QueueEntry]) -> None:
        """Add items to the queue. Each item waits behind the earlier items of the same principal."""
        ...

    async def take(
        self,
        endpoint: str,
        *,
        limit: int = 1,
        fits: Callable[[QueueEntry], bool] | None = None,
        skip: Collection[str] = (),
    ) -> list[QueueEntry]:
        """Remove the next items of an endpoint from the queue, and return them in the order in which they were to run.

        Args:
            endpoint: Name of the endpoint.
            limit: Maximum number of items.
            fits: Predicate that is called once for each item whose turn it is. If it returns False, the item keeps its
                position, and the principal's next item gets the turn. If `fits` is None, every item may be taken.
            skip: Principals whose items keep their positions.
        """
        ...

    async def discard(self, entry: QueueEntry) -> None:
        """Remove an item from the queue, at any position. If the item is not in the queue, do nothing."""
        ...

    def size(self, endpoint: str, principal: str | None = None) -> int:
        """Return the number of waiting items of an endpoint, or only of one principal's items."""
        ...

    def waiting(self, endpoint: str, *, skip: Collection[str] = ()) -> Iterator[QueueEntry]:
        """Iterate over the waiting items of an endpoint, in the order in which they will run. Omit the items of the
        principals in `skip`.

        The caller must not use the iterator after the queue has changed.
        """
        ...


SECRET_BYTES: Final = 32


class Store(Protocol):
    """Storage of one server, which contains the server's jobs and its queue."""

    jobs: Jobs
    queue: Queue
    durability: Durability
    secret: bytes
    """Default key for signing stream tokens, `SECRET_BYTES` long. The store keeps the key as long as it keeps jobs."""
    clean: bool
    """Whether the previous server process closed the store cleanly."""
    may_have_lost: bool
    """Whether a crash of the previous server process may have lost the last events of some logs [TW-RES-039]."""

    async def check(self) -> None:
        """Check that the store can be written, by a test write if the store is not in memory.

        Raises:
            StoreError: The store cannot be written.
        """
        ...

    async def close(self, *, clean: bool = True) -> None:
        """Release the store. No other method may be called afterwards.

        Args:
            clean: Whether to record a clean shutdown. Pass False if the recovery of interrupted jobs has not finished.
        """
        ...
