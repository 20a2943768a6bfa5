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

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document.view import View
from tidewire_server.store.records import (
    BatchBounds,
    BatchItem,
    BatchSlot,
    Extent,
    GlobalLimit,
    JobRecord,
    Key,
    KeyUse,
    QueueEntry,
    QueueLimits,
    RunningBatch,
    Tombstone,
)
from tidewire_server.store.replicas import Replicas

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
    outage = False
    """Whether the store cannot be reached, so that it is unknown whether another process runs the jobs of this one."""

    def copy(self) -> "StoreError":
        """Return an equal exception. The traceback of an exception that several callers raise would grow with each raise."""
        own = type(self)(*self.args)
        own.logged, own.outage = self.logged, self.outage
        return own


class QueueFullError(Exception):
    """A job was not added, because too many items are waiting in the queue of its endpoint.

    Attributes:
        waiting: Number of waiting items, without the items of the rejected job. A store may stop counting at the limit.
        of_principal: Whether only the items of the job's principal exceed a limit (`QueueLimits.items_of_principal`).
    """

    def __init__(self, waiting: int, *, of_principal: bool) -> None:
        super().__init__(waiting)
        self.waiting = waiting
        self.of_principal = of_principal


class TooManyJobsError(Exception):
    """A job was not added, because its principal has as many unfinished jobs as it may have."""


class KeyUsedError(Exception):
    """A job was not added, because another job has its idempotency key.

    Attributes:
        use: The earlier use of the key.
    """

    def __init__(self, use: KeyUse) -> None:
        super().__init__(use.job)
        self.use = use


class StateAt(msgspec.Struct, frozen=True):
    """State of a job after one event has been applied, together with the id of that event."""

    cursor: Cursor
    columns: tuple[str, ...]
    mark: tuple[list[Any], int]
    """Result of `Document.mark` after the event."""

    @property
    def view(self) -> View:
        """View of the state, which is made when it is read, because most states are never read."""
        return View(*self.mark)


class Block(msgspec.Struct, frozen=True):
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


class NewJob(NamedTuple):
    """A job to add to the store, with its items."""

    record: JobRecord
    """Record of the job. Later changes to the record are stored by the next append to the log."""
    submit: bytes
    """Body of the request that submitted the job. It is stored until the job has ended, so that a server can run the job
    again.
    """
    first: Block
    """First block of the log."""
    key: Key | None
    """Idempotency key that `Jobs.reserve_key` has reserved for the request, or None."""
    entries: Sequence[QueueEntry]
    """Queue entries of all items."""
    slots: Sequence[BatchSlot] | None
    """Batch key and cost of each item, or None if the endpoint is not batched. A store of several processes keeps them until
    the job ends, so that an item returns to the queue with them at a process whose code rejects the item's input."""
    limits: QueueLimits
    """Limits that the job must not exceed."""
    deadline: float | None = None
    """Number of seconds after which the unfinished items of the job fail, or None. A store of one process may ignore it, as
    this process has a timer.
    """
    grace: float | None = None
    """Number of seconds without a reader after which the job is cancelled, or None. See `deadline`."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Unfinished job that has no writer, because the process that wrote its log has stopped or has released the job."""

    record: JobRecord
    submit: bytes
    """See `Jobs.submit_body`."""
    log: "Log"
    cancelled: frozenset[int] = frozenset()
    """Indexes of the items that `Jobs.save_cancelled` has stored. Some of these items may have ended."""
    purge: bool = False
    """Whether a client has deleted the job (`save_cancelled`). All items are then in `cancelled`."""
    crashed: bool = False
    """Whether a process that owned the job has crashed, and the job has not started since, so that the attempt counts
    (`max_attempts`). A failure to open the job, and a release before its start, change nothing about this.
    """
    unread: float = 0.0
    """See `Replicas.unread_for`. 0 if only this process uses the store."""


class Jobs(Protocol):
    """Job records, tombstones and idempotency keys. Every method raises `StoreError` if the store fails.

    A process *owns* a job while it is the writer of the job's log. An unfinished job without an owner waits in the queue.
    In a store that only one process uses, this process owns all unfinished jobs: `add` calls `own`, `claim` and `release`
    return False, and `adopt` returns the jobs that the previous process has left.
    """

    async def reserve_key(self, key: Key, body: bytes) -> KeyUse | None:
        """Reserve an idempotency key for a request that is being processed.

        Reservations are kept only in memory. If the process ends, the client can retry the request with the same key. In a
        store of several processes, two processes can reserve the same key. `add` then raises `KeyUsedError` in one of
        them.

        Args:
            key: The key.
            body: SHA-256 of the request body, which `add` stores with the key.

        Returns:
            None if the key is now reserved. Otherwise, the earlier use of the key.
        """
        ...

    async def release_key(self, key: Key) -> None:
        """Release the reservation of a key whose request did not create a job."""
        ...

    async def add(self, new: NewJob, own: Callable[[Log], None]) -> None:
        """Commit a new job, the first block of its log, its idempotency key and its queue entries in one transaction.

        Concurrent calls cannot exceed the limits together. If several errors apply, the one that is listed first below is
        raised. If the caller is cancelled, the job may still be added.

        Args:
            new: The job.
            own: Function that is called on the event loop directly after the commit, before an item of the job can be
                taken, if this process owns the job. It is called even if the caller of `add` was cancelled. It must not
                raise an exception. If `own` is not called, the job waits in the queue without an owner.

        Raises:
            KeyUsedError: Another job has the idempotency key. Nothing was added, and the reservation of the key has ended.
            TooManyJobsError: The principal has too many unfinished jobs. Nothing was added.
            QueueFullError: The queue has no room for the items. Nothing was added.
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

    def log_in_use(self, job: str) -> Log | None:
        """Return the log object of a job if this process uses the log already, as its writer or for a reader. Otherwise
        return None. This method is synchronous.

        Use it to publish an ephemeral event, which is needed only if the log has a reader.
        """
        ...

    async def save(self, record: JobRecord) -> None:
        """Store the record of a job that has ended, unless it was stored together with the block that contains `done`. The
        job's retention period starts.
        """
        ...

    async def save_cancelled(self, job: str, items: Collection[int], *, purge: bool = False) -> bool:
        """Store that a client has cancelled these items of an unfinished job, in addition to the items stored before.

        `reopen` returns the items, so that the next owner of the job ends them and does not run them again. If another
        process owns the job, that process ends the items soon.

        Args:
            job: Id of the job.
            items: Indexes of the items.
            purge: Whether to cancel all items, and to ask the owner to delete the job afterwards. If no process owns it, `adopt`
                of some process returns it, and `Replicas.beat` of this process then contains the request. Ignored if only this
                process uses the store.

        Returns:
            Whether the job is unfinished, so that the items end as cancelled. False if it has ended, or is unknown.
        """
        ...

    async def list(self, principal: str, *, before: str | None, limit: int) -> list[tuple[JobRecord, Extent]]:
        """Return up to `limit` jobs of a principal with the extents of their logs, newest first.

        If `before` is set, return only jobs that are older than this job.
        """
        ...

    async def unfinished(self, principal: str) -> int:
        """Return the number of unfinished jobs of a principal."""
        ...

    # ---- ownership ---------------------------------------------------------------------------------------------------

    async def adopt(self, known: Collection[str] | None = None) -> Sequence[str]:
        """Own the unfinished jobs that processes that have stopped have left, and the waiting jobs some of whose items have to
        end now. Return the ids of these jobs, the oldest job first, including those of an earlier call that were not reopened
        yet.

        The caller must `reopen` each job. Until `release`, no item of these jobs can be taken.

        Args:
            known: Endpoints whose jobs this process can open, also if it takes none of their items. By default, those whose
                items it takes (`Queue.serve`).
        """
        ...

    async def claim(self, job: str) -> bool:
        """Own an unfinished job that no running process owns, in order to end some of its items.

        The caller must `reopen` the job. Until `release`, no item of the job can be taken.

        Returns:
            Whether this process owns the job now. False if the job has ended or is unknown, if a running process owns it,
            or if only this process uses the store.
        """
        ...

    async def reopen(self, job: str) -> Interrupted | None:
        """Load an unfinished job that this process owns since `adopt`, `claim`, or a `take` of one of its items, in order to
        continue its log. Return None if the job has ended or was deleted in the meantime.

        If the caller fails to continue or to `release` the job, it may reopen the job again.
        """
        ...

    async def release(self, job: str, entries: Sequence[QueueEntry]) -> bool:
        """Return a reopened job to the queue, so that any process can take its items. The caller must not use the job's log
        as a writer afterwards.

        Args:
            job: Id of the job.
            entries: Queue entries of the items that wait. Other items of the job are removed from the queue.

        Returns:
            Whether the job was released. False if only this process uses the store: the job stays here, and the caller
            puts the entries into the queue.
        """
        ...

    async def refuse(self, job: str) -> None:
        """Take no more items of a job that this process owns, because its code rejects an input of the job. The caller
        releases the job afterwards.
        """
        ...

    async def submit_body(self, job: str) -> bytes:
        """Return the body of the request that submitted an unfinished job. It is empty if the store has lost the body."""
        ...

    # ---- retention ---------------------------------------------------------------------------------------------------

    async def delete_job(self, job: str) -> None:
        """Delete a job, and store a tombstone for it. If it is unfinished, and its owner was asked to delete it
        (`save_cancelled`), it only gets the tombstone. Its owner then ends and deletes it, so that its readers receive `done`.
        """
        ...

    async def expire(self, now: float) -> float | None:
        """Trim the logs and delete the jobs, tombstones and idempotency keys whose retention time is over. If there are
        more ended jobs than `max_retained_jobs`, or if their states and events exceed `max_retained_bytes`, also delete
        some of them (see `EndedJobs`).

        Returns:
            Time at which the next entry expires, or None if no entry is waiting to expire.
        """
        ...


class Queue(Protocol):
    """Queue of waiting items. Principals take turns, and the items of each principal are taken in the order in which
    they arrived.

    Items of a batched endpoint are *placed* when their batch keys and costs are known. Only placed items are taken for
    batches. `memory_batches` describes when a batch is ready, and which items it contains.

    `due` and `size` are synchronous. In a store in memory, `put`, `take`, `take_batch`, `discard` and `waiting` never
    suspend. No method raises `StoreError`: while the store fails, `take`, `take_batch` and `waiting` return nothing, and
    `due` is about a second later.
    """

    def serve(
        self,
        endpoints: Mapping[str, BatchBounds | None],
        wake: Callable[[str], None],
        limits: Mapping[str, GlobalLimit] = MappingProxyType({}),
    ) -> None:
        """Set the endpoints whose items this process takes. It is called once, on the event loop, before any other method.

        Args:
            endpoints: For each endpoint, the bounds of its batches, or None if it is not batched. Empty in a process
                that runs no functions: `take` then returns nothing, and `due` is infinite.
            wake: Function that the queue calls on the event loop with the name of an endpoint when `due` has become
                earlier for a reason other than a call of this object or of `Jobs.add`.
            limits: Limits over all processes, by the name of the endpoint. `take` and `take_batch` return nothing while as many
                calls run. A store that only one process uses ignores them, because the process has the same limits.
        """
        ...

    async def put(self, entries: Sequence[QueueEntry], slots: Sequence[BatchSlot] | None = None) -> None:
        """Add items to the queue. Each item waits behind the earlier items of the same principal. An item that is already in
        the queue keeps its position. An item that was taken before keeps its turn only in a store of one process. In a store of
        several processes, it waits behind all items of its principal.

        Args:
            entries: Items of one job.
            slots: Batch key and cost of each item, with which the items of a batched endpoint are placed. None if they are
                those of `NewJob.slots`, which only a store of several processes knows, or are not known yet: a later call with
                the same items places them.
        """
        ...

    async def take(self, endpoint: str, *, limit: int = 1, skip: Collection[str] = ()) -> list[QueueEntry]:
        """Remove the next items of an endpoint that is not batched from the queue, and return them in the order in which they
        were to run.

        This process owns the jobs of the returned items. If it has not opened such a job yet, it must `reopen` the job.

        Args:
            endpoint: Name of the endpoint.
            limit: Maximum number of items.
            skip: Principals whose items keep their positions.
        """
        ...

    async def take_batch(self, endpoint: str, running: RunningBatch | None = None) -> list[BatchItem]:
        """Remove the items of the next batch of a batched endpoint from the queue, and return them. They have the same batch
        key. Return an empty list if no batch is ready.

        See `take` about the jobs of the items.

        Args:
            endpoint: Name of the endpoint.
            running: A running batch. If it is set, take items that join this batch (late joiners).
        """
        ...

    def end_call(self, endpoint: str) -> None:
        """Record the end of a call. Each item that `take` returns is one call, and all items that `take_batch` returns for a
        new batch are one call. This method is synchronous.
        """
        ...

    async def discard(self, entry: QueueEntry) -> None:
        """Remove an item from the queue, at any position. If the item is not in the queue, do nothing."""
        ...

    async def refused(self, endpoint: str) -> Collection[str]:
        """Return the waiting jobs of an endpoint that every live process that runs the endpoint has refused
        (`Jobs.refuse`).
        """
        ...

    def due(self, endpoint: str) -> float:
        """Return the time, by the event loop's clock, from which `take` or `take_batch` may return items of an endpoint. The
        result is minus infinity if they may return items now, and infinity if nothing waits that this process can take.
        """
        ...

    def size(self, endpoint: str) -> int:
        """Return the number of waiting items of an endpoint. In a store of several processes, the number may be a second
        old. This method can be called from any thread.
        """
        ...

    async def waiting(
        self, endpoint: str, *, limit: int | None = None, skip: Collection[str] = ()
    ) -> list[QueueEntry]:
        """Return the first waiting items of an endpoint, in the order in which they will run.

        Args:
            endpoint: Name of the endpoint.
            limit: Maximum number of items, or None for all items.
            skip: Principals whose items are omitted.
        """
        ...


SECRET_BYTES: Final = 32

SWEEP_INTERVAL: Final = 0.02
"""`Store.sweep_interval` of a store in which a sweep costs little."""


class Store(Protocol):
    """Storage of one server, which contains the server's jobs and its queue."""

    jobs: Jobs
    queue: Queue
    durability: Durability
    secret: bytes
    """Default key for signing stream tokens, `SECRET_BYTES` long. The store keeps the key as long as it keeps jobs."""
    replicas: Replicas | None
    """Liveness of the processes that share the store. None if only this process uses it."""
    may_have_lost: bool
    """Whether a crash of the previous server process may have lost the last events of some logs [TW-RES-039]."""
    merge_window: float
    """Minimum of the setting `merge_window` with this store, in seconds."""
    sweep_interval: float
    """Minimum number of seconds between two calls of `Jobs.expire`."""

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
