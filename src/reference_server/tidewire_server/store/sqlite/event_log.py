"""Event log of one job in SQLite. The file contains the events and periodic checkpoints of the job's state.

    append ──► one transaction: `block` rows, a `state` row if due, changes of the job's record ──► readers
       └─────► before it, one transaction for each piece of a large event or state (`block_rows.Piece`)

`cached_log` serves most readers from memory.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from tidewire.protocol.cursor import Cursor
from tidewire_server.store.database.block_rows import BlockRow, Content, Piece, events_after, state_of
from tidewire_server.store.database.cached_log import AppendResult, BlockAppend, CachedLog
from tidewire_server.store.database.state_checkpoints import CheckpointSchedule
from tidewire_server.store.log_interface import Block, StateAt
from tidewire_server.store.records import Extent, JobRecord, Retention
from tidewire_server.store.sqlite.writer_thread import WriterThread
from tidewire_server.store.store_errors import HeadMovedError, StoreError


class SqliteLog(CachedLog):
    """Event log of one job in SQLite. All methods must be called on one event loop."""

    def __init__(
        self,
        file: WriterThread,
        number: int,
        record: JobRecord,
        extent: Extent,
        schedule: CheckpointSchedule | None,
        state: StateAt | None,
        retention: Retention,
        on_end: Callable[["SqliteLog", int], None],
    ) -> None:
        """Create the object for a log whose first block is in the file.

        Args:
            file: The file.
            number: Number of the job in the file.
            record: Record of the job.
            extent: Extent of the log.
            schedule: Checkpoints of the log, or None if the log has ended.
            state: State after the last event, or None to load it when it is needed.
            retention: Limits on how much the store keeps.
            on_end: Function that is called when the end of the job was committed, before the readers are woken. Its second
                argument is the size of the events and states that the file then contains, in bytes.
        """
        super().__init__(number, record, extent, retention.log_ttl, schedule, state)
        self._file = file
        self._on_end = on_end

    async def _read_stored(self, after: int, max_bytes: int) -> tuple[bytes, int] | None:
        return await self._file.do(lambda db: read_events(db, self.number, after, max_bytes))

    async def _load_state(self, *, oldest: bool = False) -> StateAt:
        return await self._file.do(lambda db: load_state(db, self.number, oldest=oldest))

    # ---- for the writer ----------------------------------------------------------------------------------------

    async def _write(self, append: BlockAppend) -> None:
        def then(written: AppendResult) -> None:
            self._added(append, written)
            if append.ended is not None:
                self._on_end(self, written.kept_bytes)
            self.deliver(append.block)

        await self._file.do(lambda db: write_block(db, append), then, large=append.plan.large)

    async def _write_piece(self, piece: Piece) -> None:
        await self._file.do(lambda db: write_piece(db, self.number, piece), large=True)

    # ---- for the store -----------------------------------------------------------------------------------------

    async def detach(self) -> None:
        """Load the end of the log into memory before the rows are deleted."""
        self._closed = True
        await self._load_end()
        self._extent = self._extent._replace(base=self._extent.id_at(self._tail.base))


# ---- in the writer thread ----------------------------------------------------------------------------------------


_SAVE_RECORD: Final = "UPDATE job SET attempt = :attempt, status = :status, started_at = :started_at, usage = :usage WHERE number = :number"
_SAVE_END: Final = """
    UPDATE job SET attempt = :attempt, status = :status, started_at = :started_at, usage = :usage, ended_at = :ended_at,
        expires_at = :expires_at, done = :done_message, log_until = :log_until WHERE number = :number
"""


def save_kept_bytes(db: sqlite3.Connection, number: int) -> int:
    """Measure the events and states of an ended job, and store and return their size in bytes."""
    columns = (("frames", "block"), ("state", "state"), ("content", "piece"))
    sums = (
        f"(SELECT coalesce(sum(length({column})), 0) FROM {table} WHERE job = :number)"  # noqa: S608
        for column, table in columns
    )
    size: int = db.execute(f"SELECT {' + '.join(sums)}", {"number": number}).fetchone()[0]
    db.execute("UPDATE job SET kept_bytes = ? WHERE number = ?", (size, number))
    return size


_APPEND: Final = """
    INSERT INTO block (job, seq, epoch, done, ends, frames) SELECT ?, ?, ?, ?, ?, ?
    WHERE (SELECT (epoch, seq, done) = (?, ?, 0) FROM block WHERE job = ? ORDER BY seq DESC LIMIT 1)
"""
_ADD: Final = "INSERT INTO block (job, seq, epoch, done, ends, frames) VALUES (?, ?, ?, ?, ?, ?)"


_ADD_PIECE: Final = """
    INSERT OR IGNORE INTO piece (job, seq, is_state, key, number, content)
    SELECT :job, :seq, :is_state, :key, :number, :content WHERE EXISTS (SELECT 1 FROM job WHERE number = :job)
"""


def write_piece(db: sqlite3.Connection, job: int, piece: Piece) -> None:
    """Insert one piece of a large block before the block itself. If the job was deleted, do nothing."""
    db.execute(_ADD_PIECE, {"job": job, **piece._asdict()})


def delete_pieces(db: sqlite3.Connection, number: int, to: int) -> None:
    """Delete the pieces of the events up to and including the sequence number `to`, and of the states before it."""
    db.execute("DELETE FROM piece WHERE job = ? AND (seq < ? OR seq = ? AND NOT is_state)", (number, to, to))


def delete_unused_pieces(db: sqlite3.Connection, number: int, head: int) -> None:
    """Delete the pieces of an append that the previous process has not committed. The last event of the log is `head`."""
    db.execute("DELETE FROM piece WHERE job = ? AND seq > ?", (number, head))


def _rows(number: int, rows: Sequence[BlockRow]) -> list[tuple[Any, ...]]:
    return [(number, row.last, row.epoch, row.done, row.ends, row.frames) for row in rows]


def write_first(db: sqlite3.Connection, number: int, block: Block) -> int:
    """Insert the first block of a log and return the size of its state checkpoint."""
    content = Content.of(block, with_state=True)
    db.execute("INSERT INTO epoch VALUES (?, ?, ?)", (number, block.first.seq, block.first.epoch))
    db.executemany(_ADD, _rows(number, content.rows))
    _write_state(db, number, block.state, content.state)
    return content.state_bytes or 0


def write_block(db: sqlite3.Connection, append: BlockAppend) -> AppendResult:
    """Insert a block. The last event of the log must be the event `append.after`.

    Raises:
        HeadMovedError: The log's last event is not `append.after`.
    """
    number, after, block, plan, content = append.job, append.after, append.block, append.plan, append.content
    rows = _rows(number, content.rows)
    if not db.execute(_APPEND, (*rows[0], *after, number)).rowcount:
        newest = db.execute(
            "SELECT * FROM block WHERE job = ? ORDER BY seq DESC LIMIT 1", (number,)
        ).fetchone()
        # After a failed COMMIT, it is unknown whether the block was stored. If the stored block is the same, this
        # append is a retry and has succeeded.
        if newest == rows[-1]:
            return AppendResult(kept_bytes=save_kept_bytes(db, number) if block.ended else 0)
        raise HeadMovedError(f"{after} is no longer the log's last event: another writer has appended events")
    if len(rows) > 1:
        db.executemany(_ADD, rows[1:])
    if block.first.epoch != after.epoch:
        db.execute(
            "INSERT OR IGNORE INTO epoch VALUES (?, ?, ?)", (number, block.first.seq, block.first.epoch)
        )
    if plan.write:
        _write_state(db, number, block.state, content.state)
    if plan.cut is not None:
        cut_events(db, number, plan.cut.cursor)
    kept_bytes = 0
    if append.ended is not None:
        db.execute(_SAVE_END, append.record | append.ended | {"number": number})
        db.execute("DELETE FROM submit WHERE job = ?", (number,))
        kept_bytes = save_kept_bytes(db, number)
    elif append.record_changed:
        db.execute(_SAVE_RECORD, {**append.record, "number": number})
    return AppendResult(content.state_bytes, kept_bytes)


def _write_state(db: sqlite3.Connection, number: int, at: StateAt, state: bytes | None) -> None:
    row = (number, at.cursor.seq, at.cursor.epoch, orjson.dumps(at.columns), state)
    db.execute("INSERT OR IGNORE INTO state (job, seq, epoch, columns, state) VALUES (?, ?, ?, ?, ?)", row)


def cut_events(db: sqlite3.Connection, number: int, to: Cursor) -> None:
    """Delete the events of a log up to and including a cursor. There must be a state checkpoint at the cursor."""
    db.execute("DELETE FROM block WHERE job = ? AND seq <= ?", (number, to.seq))
    db.execute("DELETE FROM state WHERE job = ? AND seq < ?", (number, to.seq))
    delete_pieces(db, number, to.seq)
    db.execute("UPDATE job SET base_epoch = ?, base_seq = ? WHERE number = ?", (*to, number))


def read_events(db: sqlite3.Connection, number: int, after: int, max_bytes: int) -> tuple[bytes, int] | None:
    """Read events for `LogReader.read`. The argument `after` is the sequence number after which to start.

    Returns:
        The events and the sequence number of the last of these events, or None if the first event to read was trimmed.
    """
    rows = db.execute(
        "SELECT seq, ends, frames FROM whole_block WHERE job = ? AND seq > ? ORDER BY seq", (number, after)
    )
    found = events_after(rows, after, max_bytes)
    rows.close()
    return found


def load_state(db: sqlite3.Connection, number: int, *, oldest: bool = False) -> StateAt:
    """Load the state after the last event of a log, or the oldest state checkpoint if `oldest` is true.

    Raises:
        StoreError: The checkpoint is missing, or the events after it cannot be applied.
    """
    order = "ASC" if oldest else "DESC"
    query = f"SELECT seq, epoch, columns, state FROM whole_state WHERE job = ? ORDER BY seq {order} LIMIT 1"  # noqa: S608
    found = db.execute(query, (number,)).fetchone()
    if found is None:
        raise StoreError(
            f"job number {number} has no state checkpoint; either the file is damaged, or the job was deleted"
        )
    blocks = "SELECT seq, epoch, frames FROM whole_block WHERE job = ? AND seq > ? AND done = 0 ORDER BY seq"
    rows = [] if oldest else db.execute(blocks, (number, found[0])).fetchall()
    return state_of(found, rows, f"job number {number}")


def load_extent(db: sqlite3.Connection, number: int) -> Extent:
    """Load the extent of a log.

    Raises:
        StoreError: Rows of the log are missing.
    """
    job = db.execute("SELECT base_epoch, base_seq FROM job WHERE number = ?", (number,)).fetchone()
    newest = "SELECT epoch, seq, done FROM block WHERE job = ? ORDER BY seq DESC LIMIT 1"
    head = db.execute(newest, (number,)).fetchone()
    starts = db.execute("SELECT epoch, seq FROM epoch WHERE job = ? ORDER BY seq", (number,)).fetchall()
    columns = db.execute(
        "SELECT columns FROM state WHERE job = ? ORDER BY seq DESC LIMIT 1", (number,)
    ).fetchone()
    if job is None or head is None or not starts or columns is None:
        raise StoreError(f"rows of the log of job number {number} are missing, so the file is damaged")
    base = Cursor(starts[0][0], starts[0][1] - 1) if job[1] is None else Cursor(*job)
    return Extent(
        base,
        Cursor(*head[:2]),
        bool(head[2]),
        tuple(Cursor(*start) for start in starts),
        tuple(orjson.loads(columns[0])),
    )


def load_schedule(db: sqlite3.Connection, number: int, max_bytes: int) -> CheckpointSchedule:
    """Load the state checkpoints of an unfinished log, which only the log's writer needs. The argument `max_bytes` is the size
    limit of the log.
    """
    pieces = "(SELECT coalesce(sum(length(content)), 0) FROM piece p WHERE p.job = r.job AND p.seq = r.seq AND is_state = {})"
    states = db.execute(
        f"SELECT seq, epoch, length(state) + {pieces.format(1)} FROM state r WHERE job = ? ORDER BY seq",  # noqa: S608
        (number,),
    ).fetchall()
    rows = db.execute(
        f"SELECT seq, length(frames) + {pieces.format(0)} FROM block r WHERE job = ? ORDER BY seq",  # noqa: S608
        (number,),
    ).fetchall()
    return CheckpointSchedule.of_rows(max_bytes, rows, states)
