"""The three things that a server stores, as interfaces: logs, jobs, and the queue.

A body may keep them in memory, in a file, or in a service that many servers share; nothing else in this package
knows which. Rules that every body keeps:

- An append names the head that it extends and is refused if the head is another: two writers can never both win.
- An append returns when it is as durable as the body's `durability` says. Only then may a reader see it.
- What an append has changed in the job's record is kept together with it.
- `done` is never trimmed, and the state of a log outlives its events.
- Readers are offsets: a reader that is slow or gone costs nothing but its own place.
- A job that has ended costs no memory beyond what the body says.
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
    """An append named a head that is not the log's; somebody else writes, or the log is gone."""


class StoreError(Exception):
    """A store cannot be opened, read or written at the moment; says which, why, and what to do."""


class StateAt(NamedTuple):
    """A job's state up to and including one event."""

    cursor: Cursor
    columns: tuple[str, ...]
    view: View


class Block(NamedTuple):
    """Events that are logged together: their frames, in order, and the state after the last."""

    frames: Sequence[bytes]
    state: StateAt
    done: bool = False
    """The last of them is `done`; `state` is then the one before it."""

    @property
    def last(self) -> Cursor:
        """The id of the last event."""
        epoch, seq = self.state.cursor
        return Cursor(epoch, seq + self.done)

    @property
    def first(self) -> Cursor:
        """The id of the first event."""
        epoch, seq = self.last
        return Cursor(epoch, seq - len(self.frames) + 1)


MAX_EPOCHS: Final = 100
"""Epochs of one job that are told apart once their events are trimmed. A cursor in an older one is an unknown one."""


class Extent(NamedTuple):
    """What a log holds at one moment."""

    base: Cursor
    """Every event after this one is held; its seq is 0 where nothing was trimmed."""
    head: Cursor
    """The id of the last event."""
    ended: bool
    """The last event is `done`."""
    starts: tuple[Cursor, ...]
    """The first id of each known epoch, oldest first. Each epoch ends at the seq before the next one's start."""
    columns: tuple[str, ...]
    """Those of the head's epoch."""

    def id_at(self, seq: int) -> Cursor:
        """The id of the event with a seq; of 0, the place before the first event."""
        if len(self.starts) == 1:  # as nearly always
            return Cursor(self.starts[0].epoch, seq)
        found = bisect_right(self.starts, seq, key=attrgetter("seq"))
        return Cursor(self.starts[max(found - 1, 0)].epoch, seq)

    def logged(self, cursor: Cursor) -> bool:
        """Whether a cursor is the id of an event of this log, held or trimmed."""
        return self.starts[0].seq <= cursor.seq <= self.head.seq and self.id_at(cursor.seq) == cursor

    def holds_after(self, cursor: Cursor) -> bool:
        """Whether every event after a cursor is held, and the cursor is one of this log or the place before it."""
        return self.base.seq <= cursor.seq <= self.head.seq and self.id_at(cursor.seq) == cursor


def next_starts(starts: tuple[Cursor, ...], block: Block, base: Cursor) -> tuple[Cursor, ...]:
    """The starts of a log's epochs once a block is added; `base` as in `Extent`."""
    if starts and starts[-1].epoch == block.last.epoch:
        return starts
    starts = (*starts, block.first)
    while len(starts) > MAX_EPOCHS and starts[1].seq <= base.seq:
        starts = starts[1:]
    return starts


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Some whole events of a log, in their wire form."""

    frames: bytes
    last: Cursor
    ended: bool
    """The last of them is `done`."""


class LogReader(Protocol):
    """One job's log, for a reader. It stays readable while it is held.

    Also after the job was purged or its events have expired: then as a log whose events but `done` were trimmed.
    """

    def extent(self) -> Extent:
        """What is held now."""
        ...

    async def read(self, after: Cursor, max_bytes: int) -> LogChunk | None:
        """Events that follow a cursor which the log holds.

        Args:
            after: From `Extent.base` up to `Extent.head`.
            max_bytes: Events are added while their sum stays within; the first comes whatever its size.

        Returns:
            The events; without frames where nothing follows yet. None where they were trimmed.

        Raises:
            StoreError: They cannot be read now.
        """
        ...

    async def state(self, *, oldest: bool = False) -> StateAt:
        """The state at the head, or at the oldest place that is held. Of an ended log: that before `done`.

        Raises:
            StoreError: It cannot be read now.
        """
        ...

    def told(self, since: int) -> tuple[list[bytes], int]:
        """The latest ephemeral events (queue, progress) told after a version, and the version now; 0 is the start."""
        ...

    def watch(self, wake: Callable[[Block | None], None]) -> Callable[[], None]:
        """Call `wake` on the event loop whenever something was added or told; returns how to stop that.

        It is given the block that was added: whoever stands before it need not read the log.
        """
        ...


class Log(LogReader, Protocol):
    """One job's log, for its one writer."""

    async def append(self, after: Cursor, block: Block) -> None:
        """Add a block, atomically.

        Args:
            after: The head that the block extends.
            block: Seqs that follow that of `after` without a gap. In another epoch than `after` its first event is a
                snapshot.

        Raises:
            HeadMovedError: The head is another; nothing was added.
            StoreError: It could not be written now; the same append may be tried again.
        """
        ...

    def tell(self, key: str, frame: bytes | None) -> None:
        """Make an ephemeral event the latest of its key, or (None) forget that key."""
        ...


@dataclass(slots=True)
class JobRecord:
    """What is known of a job beside its state. Times are seconds since the Unix epoch."""

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
    """What the items that have ended used."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A job that had not ended when the server before this one stopped."""

    record: JobRecord
    submit: bytes
    """The body of its submit."""
    log: "Log"


@dataclass(frozen=True, slots=True)
class Tombstone:
    """That there was a job."""

    id: str
    principal: str


@dataclass(frozen=True, slots=True)
class Key:
    """An idempotency key in its scope."""

    principal: str
    endpoint: str
    text: str


@dataclass(slots=True)
class KeyUse:
    """What an idempotency key was used for."""

    body: bytes
    """SHA-256 of the body that came with it."""
    job: str | None = None
    """None while the first request is under way."""


class Jobs(Protocol):
    """The jobs, their tombstones and their idempotency keys. Each call raises `StoreError` where it cannot be done."""

    async def reserve(self, key: Key, body: bytes) -> KeyUse | None:
        """Take a key for a request that is under way; its earlier use, if there is one, and then nothing changes.

        A reservation does not outlive the process: whoever sent that request repeats it.
        """
        ...

    async def release(self, key: Key) -> None:
        """Give a key back whose request came to nothing."""
        ...

    async def add(self, record: JobRecord, submit: bytes, first: Block, key: Key | None) -> Log:
        """Commit a job, the first block of its log, and its key, all or nothing.

        Args:
            record: The job. Changes to it are kept with the next append to its log, or by `save`.
            submit: The body of its submit, kept until it has ended: what is needed to run it again.
            first: Opens the log.
            key: Was reserved.
        """
        ...

    async def get(self, job: str) -> JobRecord | Tombstone | None:
        """Look a job up."""
        ...

    async def log(self, job: str) -> LogReader | None:
        """The log of a job that is not gone."""
        ...

    async def save(self, record: JobRecord) -> None:
        """Keep what changed in a record; starts its time to live where it has ended."""
        ...

    async def list(self, principal: str, *, before: str | None, limit: int) -> list[JobRecord]:
        """A caller's jobs, newest first, those older than `before`."""
        ...

    async def unfinished(self, principal: str) -> int:
        """How many jobs of a caller have not ended."""
        ...

    async def interrupted(self) -> Sequence[str]:
        """The jobs that had not ended when this store was opened and still have not, oldest first."""
        ...

    async def reopen(self, job: str) -> Interrupted | None:
        """Take up an interrupted job as its one writer; None where it has ended after all, or is gone."""
        ...

    async def delete_job(self, job: str) -> None:
        """Forget a job but for its tombstone."""
        ...

    async def expire(self, now: float) -> float | None:
        """Trim, bury and forget whatever is due; returns when something is due next, None if nothing will be."""
        ...


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One item that waits to run."""

    endpoint: str
    job: str
    index: int
    principal: str
    arrived_at: float
    """When its job was submitted, in seconds since the Unix epoch."""


class Queue(Protocol):
    """Items that wait. Principals take turns; of one principal the first in is the first out."""

    async def put(self, tickets: Sequence[QueueEntry]) -> None:
        """Add items, each at the end of its principal's own."""
        ...

    async def take(
        self, endpoint: str, *, limit: int = 1, fits: Callable[[QueueEntry], bool] | None = None
    ) -> list[QueueEntry]:
        """Remove and return the next items, in their order.

        Args:
            endpoint: Whose items.
            limit: So many at most.
            fits: Asked once of each item whose turn it is; one that does not fit keeps its place, and its principal
                the turn. Without it nothing that stays is looked at.
        """
        ...

    async def discard(self, ticket: QueueEntry) -> None:
        """Remove an item wherever it stands; nothing if it is not there."""
        ...

    def size(self, endpoint: str) -> int:
        """How many items of an endpoint wait."""
        ...

    def waiting(self, endpoint: str) -> Iterator[QueueEntry]:
        """The items of an endpoint in the order in which they would be taken. Ends with the next change."""
        ...


SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Retention:
    """How long and how much a store keeps. Times are seconds; see `Settings` for each."""

    log_ttl: float
    state_ttl: float
    tombstone_ttl: float
    idempotency_ttl: float
    max_retained_jobs: int
    max_tombstones: int
    max_log_bytes: int


class Store(Protocol):
    """The bodies that one server uses."""

    jobs: Jobs
    queue: Queue
    durability: Durability
    secret: bytes
    """What a server signs with whose jobs these are, `SECRET_BYTES` long: what was signed lives as long as they do."""
    clean: bool
    """Whether the server before this one stopped in order."""
    may_have_lost: bool
    """Whether logs may have lost their tails when the server before this one stopped (TW-RES-039)."""

    async def check(self) -> None:
        """Find out whether it can be written.

        Raises:
            StoreError: It cannot.
        """
        ...

    async def close(self, *, clean: bool = True) -> None:
        """Let go of it. Nothing may be asked of it afterwards.

        Args:
            clean: Whether what the server before left was taken up.
        """
        ...
