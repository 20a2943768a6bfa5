"""Event log of one job in the database, both for the server that runs the job and for all others.

    this server runs the job:   append ──► `append_statements` ──► readers
    another server runs it:     `OpenLogs` ──► `add_rows` ──► readers

`cached_log` serves most readers from memory.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.sse import Decoder
from tidewire_server.store.database.block_rows import BlockRow, Piece, events_after, state_of
from tidewire_server.store.database.cached_log import AppendResult, BlockAppend, CachedLog, record_columns
from tidewire_server.store.database.state_checkpoints import CheckpointSchedule
from tidewire_server.store.frame_buffer import FrameBuffer
from tidewire_server.store.log_interface import MAX_EPOCHS, Block, LogChunk, StateAt
from tidewire_server.store.postgres.append_statements import ADD_PIECE, append_block
from tidewire_server.store.postgres.coalesced_work import CoalescedWork
from tidewire_server.store.postgres.connections import Command
from tidewire_server.store.postgres.database_threads import Threads
from tidewire_server.store.postgres.notifications import EVENTS, Notifier
from tidewire_server.store.records import Extent, JobRecord, Retention
from tidewire_server.store.store_errors import HeadMovedError, StoreError

_MAX_ROWS: Final = 256
"""Number of rows that one query for new events returns."""

INTERVAL: Final = 0.25
"""Minimum time between two writes of progress, in seconds."""

_QUEUE: Final = "queue"
"""Key of the only ephemeral event that is not progress. Each server computes it."""

EXTENT_COLUMNS: Final = """
    j.base_epoch, j.base_seq, j.starts, j.columns, h.epoch, h.last, h.done
"""
EXTENT_TABLES: Final = """
    job j LEFT JOIN LATERAL (SELECT epoch, last, done FROM block WHERE job = j.number ORDER BY last DESC LIMIT 1) h ON true
"""
_EXTENT: Final = f"SELECT {EXTENT_COLUMNS} FROM {EXTENT_TABLES} WHERE j.number = %(job)s"  # noqa: S608

_READ: Final = """
    SELECT b.last, b.ends, b.frames FROM whole_block b JOIN (
        SELECT last, sum(size) OVER (ORDER BY last) - size AS before FROM (
            SELECT last, size FROM whole_block
            WHERE job = %(job)s AND last > %(after)s AND last <= %(head)s ORDER BY last LIMIT 512) w) c
        ON b.job = %(job)s AND b.last = c.last
    WHERE c.before < %(max_bytes)s ORDER BY b.last
"""
_STATE: Final = """
    WITH newest AS (
        SELECT seq, epoch, columns, state FROM whole_state
        WHERE job = %(job)s AND seq <= %(head)s ORDER BY seq DESC LIMIT 1)
    SELECT seq, epoch, columns, state FROM newest
    UNION ALL
    SELECT b.last, b.epoch, NULL, b.frames FROM whole_block b, newest n
        WHERE b.job = %(job)s AND b.last > n.seq AND b.last <= %(head)s AND NOT b.done
"""
_OLDEST_STATE: Final = """
    SELECT seq, epoch, columns, state FROM whole_state WHERE job = %(job)s ORDER BY seq LIMIT 1
"""
_NEW_ROWS: Final = """
    SELECT b.job, b.first, b.last, b.epoch, b.done, b.ends, b.frames
    FROM unnest(%(jobs)s::bigint[], %(heads)s::bigint[]) AS w (job, head)
    JOIN whole_block b ON b.job = w.job AND b.last > w.head
    ORDER BY b.job, b.last LIMIT %(limit)s
"""
_READ_PROGRESS: Final = """
    SELECT w.job, j.number IS NULL, p.events FROM unnest(%(jobs)s::bigint[]) AS w (job)
    LEFT JOIN job j ON j.number = w.job LEFT JOIN progress p ON p.job = w.job AND p.server = j.owner
"""
_SET_PROGRESS: Final = """
    INSERT INTO progress (job, server, events)
    SELECT w.job, %(me)s, w.events FROM unnest(%(jobs)s::bigint[], %(events)s::bytea[]) AS w (job, events)
        JOIN job j ON j.number = w.job AND j.owner = %(me)s
    ORDER BY 1
    ON CONFLICT (job) DO UPDATE SET server = EXCLUDED.server, events = EXCLUDED.events
"""


class OpenLogs:
    """Logs that this server uses. All methods must be called on one event loop.

    A notification of a commit, or a poll, starts one query for the new rows of all logs that have readers here and that other
    servers write. One query runs at a time; further notifications wait for it and are then served together.

    The progress of a running job is one row, which the latest progress replaces. It counts while the server that has written it owns
    the job. Progress is lost with the process and with the database, so the table is unlogged and its writes are not durable. A job
    that reports its progress a thousand times a second is written four times a second.
    """

    def __init__(self, threads: Threads, notifier: Notifier, place: str, retention: Retention) -> None:
        self.threads = threads
        self.notifier = notifier
        self.place = place
        """URL of the database, for messages."""
        self.retention = retention
        self.in_use: WeakValueDictionary[str, PostgresLog] = WeakValueDictionary()
        """All logs, by the ids of their jobs."""
        self.written: dict[str, PostgresLog] = {}
        """Logs that this server writes, by the ids of their jobs."""
        self._followed: dict[int, PostgresLog] = {}
        """Logs whose events other servers append, and that have readers here."""
        self._due: set[int] = set()
        """Numbers of the jobs that may have new events or new progress."""
        self._reading = CoalescedWork(self._read_due, "read the events of jobs that other servers run")
        self._changed: dict[int, PostgresLog] = {}
        """Logs whose progress differs from their rows."""
        self._writing = CoalescedWork(self._write_progress, "store the progress of jobs", pause=INTERVAL)

    async def close(self) -> None:
        """Stop reading events and writing progress."""
        await self._writing.close()
        await self._reading.close()

    # ---- jobs that run elsewhere -------------------------------------------------------------------------------

    def follow(self, log: "PostgresLog") -> None:
        """Deliver the events of a log from now on, including events that were appended since the log was opened."""
        if log.number not in self._followed:
            self._followed[log.number] = log
            self.notifier.listen()
            self.hint([log.number])

    def unfollow(self, log: "PostgresLog") -> None:
        """Stop delivering the events of a log."""
        if self._followed.get(log.number) is log:
            del self._followed[log.number]

    def hint(self, jobs: Iterable[int] | None = None) -> None:
        """Look for new events and new progress of jobs soon, or of all jobs if `jobs` is None."""
        self._due |= self._followed.keys() if jobs is None else self._followed.keys() & set(jobs)
        if self._due:
            self._reading.request()

    async def refresh(self, log: "PostgresLog") -> None:
        """Read the new events of one log now, so that its extent is that of the database.

        Raises:
            StoreError: The database cannot be read.
        """
        await self._read({log.number: log})

    async def _read_due(self) -> None:
        due, self._due = self._due, set()
        await self._read({number: self._followed[number] for number in due if number in self._followed})

    async def _read(self, logs: "dict[int, PostgresLog]") -> None:
        while logs:
            numbers = list(logs)
            heads = [logs[number].extent().head.seq for number in numbers]
            parameters = {"jobs": numbers, "heads": heads, "limit": _MAX_ROWS}
            rows, others = await self.threads.feed.do(Command([_NEW_ROWS, _READ_PROGRESS], parameters))
            for number, own in groupby(rows, key=lambda row: row[0]):
                log = logs[number]
                if not log.add_rows(BlockRow(*row[1:]) for row in own):
                    await log.reload()
            for number, is_deleted, events in others:
                if is_deleted:
                    logs[number].close()
                else:
                    found = {} if events is None else orjson.loads(events)
                    logs[number].replace_progress({key: frame.encode() for key, frame in found.items()})
            # The query has returned its maximum number of rows, so the rows of the last job may be incomplete.
            logs = {} if len(rows) < _MAX_ROWS else {n: log for n, log in logs.items() if n >= rows[-1][0]}

    # ---- progress of jobs that run here ------------------------------------------------------------------------

    def progress_changed(self, log: "PostgresLog") -> None:
        """Schedule a write of the progress of a log."""
        # If there is no other server, the rows have no reader. A server that starts later gets only later progress.
        if self.notifier.enabled:
            self._changed[log.number] = log
            self._writing.request()

    async def _write_progress(self) -> None:
        changed, self._changed = self._changed, {}
        written = {number: orjson.dumps(log.progress()) for number, log in changed.items() if log.has_writer}
        if not written:
            return
        parameters = {"me": self.notifier.server, "jobs": [*written], "events": [*written.values()]}
        try:
            await self.threads.control.run(_SET_PROGRESS, **parameters)
        except StoreError:
            self._changed = changed | self._changed
            self._writing.request()
            raise
        for number in written:
            self.notifier.send(EVENTS, number)


def extent_of(row: tuple[Any, ...], place: str) -> Extent:
    """Return the extent of a log from the values of `EXTENT_COLUMNS`.

    Raises:
        StoreError: Rows of the log are missing.
    """
    base_epoch, base_seq, flat, columns, epoch, last, done = row
    if last is None or not flat:
        raise StoreError(
            f"log {place}: rows of a job's log are missing, so the database is damaged; restore a backup"
        )
    starts = tuple(Cursor(*pair) for pair in zip(flat[::2], flat[1::2], strict=True))
    base = Cursor(starts[0].epoch, starts[0].seq - 1) if base_seq is None else Cursor(base_epoch, base_seq)
    return Extent(base, Cursor(epoch, last), done, starts, tuple(orjson.loads(columns)))


class PostgresLog(CachedLog):
    """Event log of one job in the database. All methods must be called on one event loop."""

    def __init__(self, logs: OpenLogs, number: int, record: JobRecord, extent: Extent) -> None:
        """Create the object for a log that is in the database, and that this server does not write. See `CachedLog`."""
        super().__init__(number, record, extent, logs.retention.log_ttl)
        self.deleted = False
        """Whether a client has deleted the job. Its log then only has the readers that it had before."""
        self.cancelled: list[int] | None = None
        """Items that clients had cancelled when this server became the writer, as stored."""
        self._logs = logs
        self._vanished = False
        """Whether the job was deleted, and this server will never receive its end."""

    # ---- for readers -------------------------------------------------------------------------------------------

    async def read(self, after: Cursor, max_bytes: int) -> LogChunk | None:
        if self._vanished and after.seq >= self._extent.head.seq and self._extent.holds_after(after):
            raise StoreError(f"job {self.record.id} was deleted before this server had received its end")
        return await super().read(after, max_bytes)

    async def _read_stored(self, after: int, max_bytes: int) -> tuple[bytes, int] | None:
        head = self._extent.head.seq
        rows = await self._logs.threads.reads.run(
            _READ, job=self.number, after=after, head=head, max_bytes=max(max_bytes, 1)
        )
        found = events_after(rows, after, max_bytes)
        if found is None:  # The events were trimmed, perhaps by another server.
            await self.reload()
        return found

    async def _load_state(self, *, oldest: bool = False) -> StateAt:
        sql, place = _OLDEST_STATE if oldest else _STATE, self._logs.place
        rows = await self._logs.threads.reads.run(sql, job=self.number, head=self._extent.head.seq)
        rows.sort(key=lambda row: (row[2] is None, row[0]))
        if not rows or rows[0][2] is None:
            raise StoreError(
                f"log {place}: job {self.record.id} has no state checkpoint; either the database is damaged, or the job was "
                "deleted"
            )
        events = ((last, epoch, frames) for last, epoch, _, frames in rows[1:])
        return state_of(rows[0], events, f"job {self.record.id} in {place}")

    def watch(self, wake: Callable[[Block | None], None]) -> Callable[[], None]:
        stop = super().watch(wake)
        self._follow()

        def end() -> None:
            stop()
            if not self._watchers:
                self._logs.unfollow(self)

        return end

    @property
    def is_closed(self) -> bool:
        """Whether the job was deleted."""
        return self._closed

    # ---- for the writer ----------------------------------------------------------------------------------------

    @property
    def has_writer(self) -> bool:
        """Whether this server is the writer of the log."""
        return self._schedule is not None

    async def _write(self, append: BlockAppend) -> None:
        schedule, threads = self._schedule, self._logs.threads

        def then(written: AppendResult) -> None:
            self._logs.notifier.send(EVENTS, self.number)
            if self._schedule is not schedule:
                # The response arrived after this server had given up the log, and perhaps opened it again. The feed delivers
                # this block, or has already delivered it.
                return
            self._added(append, written)
            if append.ended is not None:
                self.stop_writing()
            self.deliver(append.block)

        try:
            thread = threads.large_appends if append.plan.large else threads.appends
            await append_block(thread, append, then)
        except HeadMovedError:
            # Another server is the new owner of the job, or its old owner while this server adopted it. In the second case, the next
            # call of `Jobs.adopt` returns the job again.
            self.stop_writing()
            raise

    async def _write_piece(self, piece: Piece) -> None:
        await self._logs.threads.large_appends.run(ADD_PIECE, job=self.number, **piece._asdict())

    # ---- progress ----------------------------------------------------------------------------------------------

    def set_ephemeral_event(self, key: str, frame: bytes | None) -> None:
        changes = frame is not None or key in self._ephemeral
        super().set_ephemeral_event(key, frame)
        if changes and key != _QUEUE and self.has_writer:
            self._logs.progress_changed(self)

    def progress(self) -> dict[str, str]:
        """Return the latest progress events by their keys."""
        return {key: frame.decode() for key, (_, frame) in self._ephemeral.items() if key != _QUEUE}

    def replace_progress(self, events: Mapping[str, bytes]) -> None:
        """Set the progress that another server has stored. If this server runs the job, or it has ended, do nothing."""
        if self.has_writer or self._extent.ended or self._closed:
            return
        for key in self._ephemeral.keys() - events.keys() - {_QUEUE}:
            self.set_ephemeral_event(key, None)
        for key, frame in events.items():
            if self._ephemeral.get(key, (0, b""))[1] != frame:
                self.set_ephemeral_event(key, frame)

    # ---- for the store -----------------------------------------------------------------------------------------

    def start_writing(self, record: JobRecord, extent: Extent, schedule: CheckpointSchedule) -> None:
        """Make this server the writer of the log.

        Args:
            record: The stored record of the job.
            extent: Extent of the stored log.
            schedule: Checkpoints of the stored log.
        """
        self.replace_progress({})  # Otherwise this server would store the progress of an earlier owner.
        self.record, self._saved = record, record_columns(record)
        self._schedule, self._closed = schedule, False
        self._logs.written[record.id] = self
        self._logs.unfollow(self)
        self.replace_extent(extent)

    def stop_writing(self) -> None:
        """Make this server a reader of the log, because the job has ended, or another server may become its writer. The readers
        then get the events of the server that continues the job. If this server does not write the log, do nothing.
        """
        if self._logs.written.pop(self.record.id, None) is not None:
            self._schedule = None
            self._follow()

    def _follow(self) -> None:
        if self._watchers and not (self.has_writer or self._extent.ended or self._closed):
            self._logs.follow(self)

    def replace_extent(self, extent: Extent) -> None:
        """Update the extent from the stored log, because this object may have missed some events."""
        if extent.head != self._extent.head:
            self._tail, self._state = FrameBuffer(extent.head.seq), None
        moved, self._extent = extent != self._extent, extent
        if moved:
            self.deliver(None)

    def add_rows(self, rows: Iterable[BlockRow]) -> bool:
        """Add events that another server has appended, and wake the readers.

        Returns:
            Whether the events follow the last event of this object. If not, the caller must `reload` the log.
        """
        before = self._extent.head
        for row in rows:
            head = self._extent.head
            if row.last <= head.seq:
                continue
            if row.first != head.seq + 1 or self.has_writer:
                return self.has_writer
            events = row.events()
            starts, columns = self._extent.starts, self._extent.columns
            if row.epoch != head.epoch:
                starts = (*starts, Cursor(row.epoch, row.first))[-MAX_EPOCHS:]
                columns = _columns_of_snapshot(events[0])
            self._extent = Extent(self._extent.base, Cursor(row.epoch, row.last), row.done, starts, columns)
            self._add_to_tail(events)
        if self._extent.head != before:
            self._state = None
            self.set_ephemeral_event(_QUEUE, None)
            if self._extent.ended:
                self.clear_ephemeral_events()
                self._logs.unfollow(self)
            self.deliver(None)
        return True

    async def reload(self) -> None:
        """Load the extent, because events were trimmed or the job was deleted. If this server is the log's writer, do
        nothing.
        """
        rows = await self._logs.threads.reads.run(_EXTENT, job=self.number)
        if self.has_writer or self._closed:
            return
        if rows:
            self.replace_extent(extent_of(rows[0], self._logs.place))
        else:
            self.close()

    def close(self, *, written_here: bool = False) -> None:
        """Reject further appends, because the job was deleted. Readers can still read the data in memory.

        Args:
            written_here: Whether this server was the writer of the log.
        """
        self._closed, self._schedule = True, None
        self._vanished = not written_here and not self._extent.ended
        self._logs.unfollow(self)
        self._extent = self._extent._replace(base=self._extent.id_at(self._tail.base))
        self.deliver(None)

    async def detach(self) -> None:
        """Load the final state and the `done` event into memory before the job is deleted, because open readers still need
        both.
        """
        if self._closed:
            return
        try:
            await self.state()
            await self._load_end()
        except StoreError:
            await self.reload()  # Another server may have deleted the job already.
            if not self._closed:
                raise


def _columns_of_snapshot(event: bytes) -> tuple[str, ...]:
    (snapshot,) = Decoder().feed(event)
    columns: list[str] = orjson.loads(snapshot.data)["columns"]
    return tuple(columns)
