"""Base class of a job's event log in a database (`CachedLog`). Its subclasses contain the SQL statements.

Most readers need only the newest events, which are cached in memory. All other readers are served from the database.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import orjson

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.messages import Done, to_json
from tidewire_server.store.database.block_rows import Content, Piece
from tidewire_server.store.database.state_checkpoints import CheckpointPlan, CheckpointSchedule
from tidewire_server.store.frame_buffer import FrameBuffer
from tidewire_server.store.log_interface import Block, LogChunk, StateAt, extent_after
from tidewire_server.store.records import Extent, JobRecord
from tidewire_server.store.store_errors import HeadMovedError
from tidewire_server.store.subscribers import Subscribers

TAIL_BYTES: Final = 256 * 1024
"""Size of the cache that keeps the newest events of an unfinished job's log in memory."""


RECORD_COLUMNS: Final = (
    *("id", "endpoint", "principal", "batch", "created_at", "attempt", "status", "started_at", "ended_at"),
    *("expires_at", "done", "usage", "traceparent"),
)
"""SQL columns of a job record, in the order in which `record_of` expects them."""


def record_of(row: tuple[Any, ...]) -> JobRecord:
    """Return the job record of a row with the values of `RECORD_COLUMNS`."""
    job, endpoint, principal, batch, *columns, done, usage, traceparent = row
    ended = None if done is None else Done.model_validate(orjson.loads(done))
    members = (job, endpoint, principal, bool(batch), *columns, ended, orjson.loads(usage), traceparent)
    return JobRecord(*members)


def record_columns(record: JobRecord) -> dict[str, Any]:
    """Return the values of a job record that can change while the job runs, by SQL column."""
    usage = orjson.dumps(record.usage)
    return {
        "attempt": record.attempt,
        "status": record.status,
        "started_at": record.started_at,
        "usage": usage,
    }


def new_columns(record: JobRecord) -> dict[str, Any]:
    """Return the record values of a new job by SQL column."""
    fixed = ("id", "principal", "endpoint", "batch", "created_at", "traceparent")
    return {name: getattr(record, name) for name in fixed} | record_columns(record)


def end_columns(record: JobRecord, log_ttl: float) -> dict[str, Any]:
    """Return the values that change in a job's row when the job ends, by SQL column. The column `done_message` contains `done`."""
    ended_at = record.ended_at or 0.0
    done = None if record.done is None else orjson.dumps(to_json(record.done))
    return {
        "ended_at": ended_at,
        "expires_at": record.expires_at,
        "done_message": done,
        "log_until": ended_at + log_ttl,
    }


class BlockAppend(NamedTuple):
    """A block to append, and the other changes in the same transaction."""

    job: int
    """Number of the job in the database."""
    after: Cursor
    block: Block
    plan: CheckpointPlan
    record: dict[str, Any]
    """Values of `record_columns`."""
    record_changed: bool
    """Whether the values in `record` have changed, or the block ends the job."""
    ended: dict[str, Any] | None
    """Values of `end_columns`, if the block ends the job and contains the record."""
    extent: Extent
    """Extent of the log after the append."""
    divided: Content | None = None
    """Content whose pieces were already written, or None if the block was not divided."""

    @property
    def content(self) -> Content:
        """Content to store for the block."""
        return self.divided or Content.of(self.block, with_state=self.plan.write)


class AppendResult(NamedTuple):
    """Sizes in bytes of the data that an append has written."""

    state_bytes: int | None = None
    """Size of the state checkpoint, or None if no checkpoint was written."""
    kept_bytes: int = 0
    """Size of all events and states of the job, if the block has ended it."""


class CachedLog(Subscribers, ABC):
    """Event log of one job, with its newest events in memory. All methods must be called on one event loop."""

    def __init__(
        self,
        number: int,
        record: JobRecord,
        extent: Extent,
        log_ttl: float,
        schedule: CheckpointSchedule | None = None,
        state: StateAt | None = None,
    ) -> None:
        """Create the object for a log that is in the database.

        Args:
            number: Number of the job in the database.
            record: Record of the job.
            extent: Extent of the log.
            log_ttl: Number of seconds for which events are kept after the end of the job.
            schedule: Checkpoints of the log, or None if this process does not write it.
            state: State after the last event, or None to load it when it is needed.
        """
        super().__init__()
        self.number = number
        self.record = record
        self._saved = record_columns(record)
        self._log_ttl = log_ttl
        self._extent = extent
        self._tail = FrameBuffer(extent.head.seq)
        self._state = state
        self._schedule = schedule
        self._closed = False
        self._large_append: asyncio.Task[None] | None = None
        """Task of the last large append. The event loop itself has only weak references to tasks."""

    @abstractmethod
    async def _read_stored(self, after: int, max_bytes: int) -> tuple[bytes, int] | None:
        """Read events from the database. See `events_after`."""

    @abstractmethod
    async def _write(self, append: BlockAppend) -> None:
        """Commit an append, even if the caller is cancelled. See `Log.append`."""

    @abstractmethod
    async def _write_piece(self, piece: Piece) -> None:
        """Write one piece of a large block before the block itself. If the piece is stored already, do nothing.

        Raises:
            HeadMovedError: The job was deleted.
            StoreError: The piece could not be written.
        """

    @abstractmethod
    async def _load_state(self, *, oldest: bool = False) -> StateAt:
        """Load a state from the database. See `LogReader.state`."""

    # ---- for readers -------------------------------------------------------------------------------------------

    def extent(self) -> Extent:
        return self._extent

    async def read(self, after: Cursor, max_bytes: int) -> LogChunk | None:
        if not self._extent.holds_after(after):
            return None
        if after.seq >= self._tail.base:
            frames, seq = self._tail.read(after.seq, max_bytes)
        else:
            found = await self._read_stored(after.seq, max_bytes)
            if found is None:
                return None
            frames, seq = found
        extent = self._extent
        last = extent.id_at(seq)
        return LogChunk(frames, last, ended=extent.ended and bool(frames) and last == extent.head)

    async def state(self, *, oldest: bool = False) -> StateAt:
        if oldest:
            return await self._load_state(oldest=True)
        while self._state is None:
            head = self._extent.head
            state = await self._load_state()
            if self._extent.head == head:
                self._state = state
            elif not self._extent.ended:
                # Events were added in the meantime. After `done`, the state must be the final one.
                return state
        return self._state

    # ---- for the writer ----------------------------------------------------------------------------------------

    def _prepare(self, after: Cursor, block: Block) -> BlockAppend:
        """Return the changes that the append of a block makes.

        Raises:
            HeadMovedError: The last event is not `after`, or this process does not write the log.
        """
        head, schedule = self._extent.head, self._schedule
        if self._closed or schedule is None or after != head or self._extent.ended:
            raise HeadMovedError(
                f"the append expected {after} to be the log's last event, but the last event is {head}, or the log has ended, "
                "or this server does not write it any more"
            )
        plan = schedule.plan(after, block, sum(map(len, block.frames)))
        record = record_columns(block.ended or self.record)
        changed = record != self._saved or block.ended is not None
        ended = None if block.ended is None else end_columns(block.ended, self._log_ttl)
        extent = extent_after(self._extent, block)
        if plan.cut is not None:
            extent = extent._replace(base=plan.cut.cursor)
        return BlockAppend(self.number, after, block, plan, record, changed, ended, extent)

    async def append(self, after: Cursor, block: Block) -> None:
        append = self._prepare(after, block)
        if not append.plan.large:
            await self._write(append)
            return
        self._large_append = task = asyncio.ensure_future(self._write_in_pieces(append))
        task.add_done_callback(
            lambda ended: ended.cancelled() or ended.exception()
        )  # the caller may be cancelled
        await asyncio.shield(task)

    async def _write_in_pieces(self, append: BlockAppend) -> None:
        """Write the pieces of an append one by one, and then the append itself."""
        seq = append.block.state.cursor.seq
        # Use a thread, because computing the hashes would block the event loop.
        content, pieces = await asyncio.to_thread(lambda: append.content.divided(seq))
        for piece in pieces:
            await self._write_piece(piece)
        del pieces
        await self._write(append._replace(divided=content))

    def _added(self, append: BlockAppend, written: AppendResult) -> None:
        """Update this object after the commit of an append."""
        block = append.block
        assert self._schedule is not None  # noqa: S101 - guaranteed by `_prepare`
        self._schedule.added(block, sum(map(len, block.frames)), append.plan, written.state_bytes)
        self._add_to_tail(block.frames)
        self._extent, self._state = append.extent, block.state
        self._saved = append.record

    def _add_to_tail(self, frames: Iterable[bytes]) -> None:
        self._tail.add(list(frames))
        if self._tail.size > TAIL_BYTES:
            # Trim half of the cache at once. Each trim moves all remaining bytes, so frequent small trims would be slow.
            self._tail.cut_to(TAIL_BYTES // 2)

    # ---- for the store -----------------------------------------------------------------------------------------

    def forget_events(self) -> None:
        """Update this object after all events except `done` were deleted from the database."""
        before = self._extent.head.seq - 1
        self._tail.cut(max(before, self._tail.base))
        self._extent = self._extent._replace(base=self._extent.id_at(before))
        self.clear_ephemeral_events()

    async def _load_end(self) -> None:
        """Load the final state and the `done` event of an ended log into memory, because open readers still need both after the
        rows are deleted.
        """
        if self._extent.ended and not len(self._tail):
            await self.state()
            before = self._extent.head.seq - 1
            found = await self._read_stored(before, 1)
            if found is not None:
                self._tail = FrameBuffer(before)
                self._tail.add([found[0]])
