"""Protocol of the stored jobs (`Jobs`): their records, idempotency keys, owners and retention."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidewire_server.store.log_interface import Block, Log, LogReader
from tidewire_server.store.records import (
    BatchSlot,
    Extent,
    JobRecord,
    Key,
    KeyUse,
    QueueEntry,
    QueueLimits,
    Tombstone,
)


class NewJob(NamedTuple):
    """A job to add to the store, with its items."""

    record: JobRecord
    """Record of the job. Each append to the log also stores the changes to this record. The block that ends the job contains
    the final record (`Block.ended`). Appending this block starts the retention period.
    """
    submit: bytes
    """Body of the request that submitted the job. It is stored until the job has ended, so that a server can run the job
    again.
    """
    first: Block
    """First block of the log."""
    key: tuple[Key, bytes] | None
    """Idempotency key of the request, and the SHA-256 of the request's body. None if the request has no key."""
    entries: Sequence[QueueEntry]
    """Queue entries of all items."""
    slots: Sequence[BatchSlot] | None
    """Batch key and cost of each item, or None if the endpoint is not batched. A store that several processes share keeps them
    until the job ends, because a process that rejects an input needs them to return the item to the queue."""
    limits: QueueLimits
    """Limits that the job must not exceed."""
    deadline: float | None = None
    """Number of seconds after which the unfinished items of the job fail, or None. If only one process uses the store, that
    process has its own timer, and the store may ignore the deadline.
    """
    grace: float | None = None
    """Number of seconds without a reader after which the job is cancelled, or None. The store may ignore it like `deadline`."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Unfinished job whose log no process writes, because the last writer has stopped or has released the job."""

    record: JobRecord
    submit: bytes
    """Body of the request that submitted the job. See `Jobs.submit_body`."""
    log: Log
    cancelled: frozenset[int] = frozenset()
    """Indexes of the items that `Jobs.save_cancelled` has stored. Some of these items may have ended."""
    purge: bool = False
    """Whether a client has deleted the job. If so, `cancelled` contains all items."""
    crashed: bool = False
    """Whether a process that owned the job has crashed since the job last started. If so, the attempt counts towards
    `max_attempts`. A failure to open the job, and a release before its start, do not change this value.
    """
    unread: float = 0.0
    """Number of seconds without a reader (`Replicas.unread_for`). 0 if only this process uses the store."""


class Jobs(Protocol):
    """Job records, tombstones and idempotency keys. Every method raises `StoreError` if the store fails. Each implementation
    documents how much memory an ended job uses.

    A process *owns* a job while it is the writer of the job's log. An unfinished job without an owner waits in the queue.
    In a store that only one process uses, this process owns all unfinished jobs: `add` calls `own`, `claim` and `release`
    return False, and `adopt` returns the unfinished jobs of the previous process.
    """

    async def find_key(self, key: Key) -> KeyUse | None:
        """Return the first request that used an idempotency key, or None if no job has the key."""
        ...

    async def add(self, new: NewJob, own: Callable[[Log], None]) -> None:
        """Commit a new job, the first block of its log, its idempotency key and its queue entries in one transaction.

        Concurrent calls cannot exceed the limits together, with one exception: the queue may exceed its limit if several
        processes commit jobs of different principals at the same moment. Preventing this would need a lock for each endpoint,
        and commits would wait for each other. If several errors apply, the first error in the list below is raised. If the
        caller is cancelled, the job may still be added.

        Args:
            new: The job.
            own: Function that is called if this process owns the new job. The call is on the event loop directly after the
                commit, before an item of the job can be taken, and even if the caller of `add` was cancelled. The function must
                not raise an exception. If it is not called, the job waits in the queue without an owner.

        Raises:
            KeyUsedError: Another job has the idempotency key. Nothing was added.
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
        """Return the log object of a job if this process already writes or reads the log. Otherwise return None. This method is
        synchronous.

        Use it to publish an ephemeral event. Without a reader in this process, the event would be useless.
        """
        ...

    async def save_cancelled(self, job: str, items: Collection[int], *, purge: bool = False) -> bool:
        """Store that a client has cancelled these items of an unfinished job, in addition to the items stored before.

        `reopen` returns the items, so that the next owner of the job ends them and does not run them again. If another
        process owns the job, that process ends the items soon.

        Args:
            job: Id of the job.
            items: Indexes of the items.
            purge: Whether to cancel all items, and to ask the owner to delete the job afterwards. If the job has no owner, a
                process adopts it and gets this request from `Replicas.beat`. Ignored if only one process uses the store.

        Returns:
            Whether the job is unfinished, so that the items end as cancelled. False if it has ended, or is unknown.
        """
        ...

    async def list(self, principal: str, *, before: str | None, limit: int) -> list[tuple[JobRecord, Extent]]:
        """Return up to `limit` jobs of a principal with the extents of their logs, newest first.

        If `before` is the id of a job, return only older jobs.
        """
        ...

    async def unfinished(self, principal: str) -> int:
        """Return the number of unfinished jobs of a principal."""
        ...

    # ---- ownership ---------------------------------------------------------------------------------------------------

    async def adopt(self, known: Collection[str]) -> Sequence[str]:
        """Become the owner of the unfinished jobs of stopped processes, and of waiting jobs with items that have to end now.

        The caller must call `reopen` for each job. No process can take an item of these jobs until the caller calls `release`.

        Args:
            known: Endpoints of this process. A job of another endpoint is adopted only if the job has to end, or waits
                without readers.

        Returns:
            Ids of these jobs, oldest first. Jobs from earlier calls for which `reopen` was not called are included.
        """
        ...

    async def claim(self, job: str) -> bool:
        """Become the owner of an unfinished job that no running process owns, in order to end some of its items.

        The caller must `reopen` the job. Until `release`, no item of the job can be taken.

        Returns:
            Whether this process owns the job now. False if the job has ended or is unknown, if a running process owns it,
            or if only this process uses the store.
        """
        ...

    async def reopen(self, job: str) -> Interrupted | None:
        """Load an unfinished job that this process owns after `adopt`, `claim`, or a `take` of one of its items. The caller
        then continues its log. Return None if the job has ended or was deleted in the meantime.

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
        """Stop taking items of a job that this process owns, because the code of this process rejects an input of the job. The
        caller releases the job afterwards.
        """
        ...

    async def submit_body(self, job: str) -> bytes:
        """Return the body of the request that submitted an unfinished job. It is empty if the store has lost the body."""
        ...

    # ---- retention ---------------------------------------------------------------------------------------------------

    async def delete_job(self, job: str) -> None:
        """Delete a job, and store a tombstone for it. If the job is unfinished, and `save_cancelled` has asked its owner to
        delete it, only store the tombstone: the owner ends the job first, so that its readers receive `done`.
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
