"""Event log of one job in the database, both for the server that runs the job and for all others.

    this server runs the job:   append ──► `append_statements` ──► readers
    another server runs it:     `OpenLogs` ──► `update` ──► readers

`cached_log` serves most readers from memory.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from tidewire.protocol.cursor import Cursor
from tidewire_server.store.database.block_rows import BlockRow, Piece, events_after, state_of
from tidewire_server.store.database.cached_log import AppendResult, BlockAppend, CachedLog, record_columns
from tidewire_server.store.database.state_checkpoints import CheckpointSchedule
from tidewire_server.store.frame_buffer import FrameBuffer
from tidewire_server.store.log_interface import Block, LogChunk, StateAt
from tidewire_server.store.postgres.append_statements import ADD_PIECE, append_block
from tidewire_server.store.postgres.coalesced_work import CoalescedWork
from tidewire_server.store.postgres.connections import Command
from tidewire_server.store.postgres.database_threads import Threads
from tidewire_server.store.postgres.notifications import EVENTS, Notifier
from tidewire_server.store.records import Extent, JobRecord, Retention
from tidewire_server.store.store_errors import HeadMovedError, StoreError

_MAX_LOGS: Final = 64
_MAX_ROWS: Final = 256
"""Maximum number of logs that are read together, and maximum number of new rows that are read together."""

INTERVAL: Final = 0.25
"""Minimum time between two writes of progress, in seconds."""

_QUEUE: Final = "queue"
"""Key of the ephemeral event with the queue position. It is not stored, because each server computes the position."""

EXTENT_COLUMNS: Final = """
    j.base_epoch, j.base_seq, j.starts, j.columns, h.epoch, h.last, h.done
"""
EXTENT_TABLES: Final = """
    job j LEFT JOIN LATERAL (SELECT epoch, last, done FROM block WHERE job = j.number ORDER BY last DESC LIMIT 1) h ON true
"""
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
# The progress of an earlier owner of the job does not count.
_EXTENTS: Final = f"""
    SELECT j.number, p.events, {EXTENT_COLUMNS} FROM {EXTENT_TABLES}
    LEFT JOIN progress p ON p.job = j.number AND p.server = j.owner WHERE j.number = ANY (%(jobs)s::bigint[])
"""  # noqa: S608
_NEW_ROWS: Final = """
    SELECT b.job, b.first, b.last, b.epoch, b.done, b.ends, b.frames
    FROM unnest(%(jobs)s::bigint[], %(heads)s::bigint[]) AS w (job, head)
    JOIN whole_block b ON b.job = w.job AND b.last > w.head
    ORDER BY b.job, b.last LIMIT %(limit)s
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

    The progress of a running job is one row, which the latest progress replaces. The row is valid while the server that has
    written it owns the job. Progress is lost with the process and with the database, so the table is unlogged and its writes
    are not durable. A job that reports its progress a thousand times a second is written four times a second.
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
        """Logs whose latest progress is not stored yet."""
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
        if self._followed.get(log.number) is log:
            del self._followed[log.number]

    def hint(self, jobs: Iterable[int] | None = None) -> None:
        """Look for new events and new progress of jobs soon, or of all jobs if `jobs` is None."""
        self._due |= self._followed.keys() if jobs is None else self._followed.keys() & set(jobs)
        if self._due:
            self._reading.request()

    async def refresh(self, log: "PostgresLog") -> None:
        """Read the extent and the new events of one log now.

        Raises:
            StoreError: The database cannot be read.
        """
        await self._read([log])

    async def _read_due(self) -> None:
        due, self._due = self._due, set()
        logs = [self._followed[number] for number in due if number in self._followed]
        for start in range(0, len(logs), _MAX_LOGS):
            await self._read(logs[start : start + _MAX_LOGS])

    async def _read(self, logs: "Sequence[PostgresLog]") -> None:
        parameters = {
            "jobs": [log.number for log in logs],
            "heads": [log.extent().head.seq for log in logs],
            "limit": _MAX_ROWS,
        }
        # The second statement may return rows that were committed after the first one.
        found, new = await self.threads.feed.do(Command([_EXTENTS, _NEW_ROWS], parameters))
        stored = {number: row for number, *row in found}
        rows = {number: [*own] for number, own in groupby(new, key=lambda row: row[0])}
        for log in logs:
            if log.has_writer or log.is_closed:
                continue
            if log.number not in stored:
                log.close()
                continue
            events, *columns = stored[log.number]
            extent = extent_of(columns, self.place)
            # This server may have written the log in the meantime.
            if extent.head.seq >= log.extent().head.seq:
                log.update(extent, [BlockRow(*row[1:]) for row in rows.get(log.number, ())])
            log.replace_progress({} if events is None else orjson.loads(events))

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


def extent_of(row: Sequence[Any], place: str) -> Extent:
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
            await self._logs.refresh(self)
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

    def replace_progress(self, events: Mapping[str, str]) -> None:
        """Set the progress that another server has stored. If this server runs the job, or it has ended, do nothing."""
        if self.has_writer or self._extent.ended or self._closed:
            return
        for key in self._ephemeral.keys() - events.keys() - {_QUEUE}:
            self.set_ephemeral_event(key, None)
        for key, text in events.items():
            if self._ephemeral.get(key, (0, b""))[1] != (frame := text.encode()):
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
        self.update(extent)

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

    def update(self, extent: Extent, rows: Sequence[BlockRow] = ()) -> None:
        """Set the extent to that of the stored log, and wake the readers if it has changed.

        Args:
            extent: The stored extent.
            rows: New rows in the order of their events. If some are missing, the readers read all of them from the database.
        """
        head = self._extent.head
        if extent == self._extent:
            return
        if extent.head != head:
            new = [row for row in rows if head.seq < row.last <= extent.head.seq]
            if new and (new[0].first, new[-1].last) == (head.seq + 1, extent.head.seq):
                for row in new:
                    self._add_to_tail(row.events())
            else:
                self._tail = FrameBuffer(extent.head.seq)
            self._state = None
            self.set_ephemeral_event(_QUEUE, None)
        self._extent = extent
        if extent.ended:
            self.clear_ephemeral_events()
            self._logs.unfollow(self)
        self.deliver(None)

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
            await self._logs.refresh(self)  # Another server may have deleted the job already.
            if not self._closed:
                raise
