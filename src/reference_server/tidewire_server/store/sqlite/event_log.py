"""One job's log in a file: a row for each block, the newest events in memory as well, a state now and then.

    append ──► rows of `block`, `state` if one is due, what changed in the record: one transaction ──► readers

A reader near the head, as most are, is served from memory, any other one from the file. A state is kept whenever the
events since the last one outweigh it: so a fold never takes longer than reading a state, and what is written at most
doubles. A log that is too long is cut at one of these states.
"""

import sqlite3
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, Self

import orjson

from tidewire.protocol import strict_json
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.sse import Decoder
from tidewire_server.store.frame_buffer import FrameBuffer
from tidewire_server.store.interfaces import (
    Block,
    Extent,
    HeadMovedError,
    JobRecord,
    LogChunk,
    StateAt,
    StoreError,
    next_starts,
)
from tidewire_server.store.sqlite.writer_thread import WriterThread
from tidewire_server.store.subscribers import Subscribers

TAIL_BYTES: Final = 256 * 1024
"""Of the newest events of a log whose job runs, that are kept in memory as well."""

ROW_BYTES: Final = 64 * 1024
"""Of a block above which it takes several rows: a reader gets no more than it asked for from the file."""

STATE_EVERY: Final = 256 * 1024
"""Bytes of events between two states that are kept, at least."""

MARKS: Final = 8
"""Places at which a short log can be cut."""


class Packed(NamedTuple):
    """Events one after the other."""

    frames: bytes
    ends: list[int]
    """Where each event ends."""

    @classmethod
    def of(cls, frames: Sequence[bytes]) -> Self:
        """Pack events."""
        return cls(b"".join(frames), list(accumulate(map(len, frames))))


class Mark(NamedTuple):
    """A state that is kept in the file, at which the log can be cut."""

    cursor: Cursor
    written: int
    """Bytes of events up to here."""


class Shape(NamedTuple):
    """What is known of a log without its events."""

    extent: Extent
    written: int
    marks: tuple[Mark, ...]
    state_bytes: int
    """What the newest state takes."""


class _Plan(NamedTuple):
    """What else an append does."""

    keep_state: bool
    cut: Mark | None
    record: tuple[Any, ...] | None


class SqliteLog(Subscribers):
    """One job's log. All calls are made on one event loop."""

    def __init__(
        self,
        file: WriterThread,
        number: int,
        record: JobRecord,
        shape: Shape,
        state: StateAt | None,
        max_bytes: int,
    ) -> None:
        super().__init__()
        self.number = number
        self._file = file
        self._record = record
        self._saved = record_columns(record)
        extent = shape.extent
        self._base, self._head, self._ended = extent.base, extent.head, extent.ended
        self._starts, self._columns = extent.starts, extent.columns
        self._tail = FrameBuffer(self._head.seq)
        self._state = state
        self._marks = deque(shape.marks)
        self._written = shape.written
        self._state_bytes = shape.state_bytes
        self._cut = 0
        self._max_bytes = max_bytes
        self._closed = False

    # ---- for readers -------------------------------------------------------------------------------------------

    def extent(self) -> Extent:
        return Extent(self._base, self._head, self._ended, self._starts, self._columns)

    async def read(self, after: Cursor, max_bytes: int) -> LogChunk | None:
        extent = self.extent()
        if not extent.holds_after(after):
            return None
        if after.seq >= self._tail.base:
            frames, seq = self._tail.read(after.seq, max_bytes)
        else:
            found = await self._file.do(lambda db: read_events(db, self.number, after.seq, max_bytes))
            if found is None:
                return None
            frames, seq = found
        last = self.extent().id_at(seq)
        return LogChunk(frames, last, ended=self._ended and bool(frames) and last == self._head)

    async def state(self, *, oldest: bool = False) -> StateAt:
        if not oldest:
            if self._state is None:
                self._state = await self._file.do(lambda db: load_state(db, self.number))
            return self._state
        return await self._file.do(lambda db: load_state(db, self.number, oldest=True))

    # ---- for the writer ----------------------------------------------------------------------------------------

    async def append(self, after: Cursor, block: Block) -> None:
        if self._closed or after != self._head or self._ended:
            raise HeadMovedError(f"the head is {self._head}, not {after}")
        packed = Packed.of(block.frames)
        plan = self._plan(after, block, len(packed.frames))

        def work(db: sqlite3.Connection) -> int | None:
            return write_block(db, self.number, after, block, packed, plan)

        def then(state_bytes: int | None) -> None:
            self._added(block, packed, plan, state_bytes)

        await self._file.do(work, then)

    def _plan(self, after: Cursor, block: Block, size: int) -> _Plan:
        written = self._written + size
        since = written - (self._marks[-1].written if self._marks else 0)
        least = min(STATE_EVERY, self._max_bytes // MARKS)
        due = max(least, min(self._state_bytes, self._max_bytes // 2))
        keep_state = block.done or block.first.epoch != after.epoch or since >= due
        cut = None
        if written - self._cut > self._max_bytes:
            fitting = (mark for mark in self._marks if written - mark.written <= self._max_bytes)
            cut = next(fitting, self._marks[-1] if self._marks else None)
        changed = record_columns(self._record)
        return _Plan(keep_state, cut, changed if changed != self._saved else None)

    def _added(self, block: Block, packed: Packed, plan: _Plan, state_bytes: int | None) -> None:
        self._tail.add_joined(*packed)
        if self._tail.size > TAIL_BYTES:
            self._tail.cut_to(TAIL_BYTES // 2)  # by half: what is left moves to the front
        self._written += len(packed.frames)
        self._starts = next_starts(self._starts, block, self._base)
        self._head, self._state, self._columns = block.last, block.state, block.state.columns
        self._ended = block.done
        if state_bytes is not None:
            self._state_bytes = state_bytes
            self._marks.append(Mark(block.state.cursor, self._written))
        if plan.cut is not None:
            self._base, self._cut = plan.cut.cursor, plan.cut.written
            while self._marks and self._marks[0].written <= self._cut:
                self._marks.popleft()
        if plan.record is not None:
            self._saved = plan.record
        self.wake(block)

    # ---- for the store -----------------------------------------------------------------------------------------

    def forget_events(self) -> None:
        """The events of this log but `done` have gone from the file."""
        before = self._head.seq - 1
        self._tail.cut(max(before, self._tail.base))
        self._base = self.extent().id_at(before)
        self.forget_told()

    async def detach(self) -> None:
        """Take into memory what a reader that holds this log still gets when its rows go: the state, and `done`."""
        self._closed = True
        if self._ended and not len(self._tail):
            await self.state()
            found = await self._file.do(lambda db: read_events(db, self.number, self._head.seq - 1, 1))
            if found is not None:
                self._tail = FrameBuffer(self._head.seq - 1)
                self._tail.add([found[0]])
        self._base = self.extent().id_at(self._tail.base)


# ---- in the file's thread ----------------------------------------------------------------------------------------


def record_columns(record: JobRecord) -> tuple[Any, ...]:
    """What may change in a record while its job runs."""
    return (record.attempt, record.status, record.started_at, orjson.dumps(record.usage))


_APPEND: Final = """
    INSERT INTO block (job, seq, epoch, done, ends, frames) SELECT ?1, ?2, ?3, ?4, ?5, ?6
    WHERE (SELECT (epoch, seq, done) = (?7, ?8, 0) FROM block WHERE job = ?1 ORDER BY seq DESC LIMIT 1)
"""
_ADD: Final = "INSERT INTO block (job, seq, epoch, done, ends, frames) VALUES (?, ?, ?, ?, ?, ?)"


def _rows(number: int, block: Block, packed: Packed) -> Iterator[tuple[Any, ...]]:
    epoch, seq = block.last
    frames, ends = packed
    if len(frames) <= ROW_BYTES:
        yield number, seq, epoch, block.done, array("I", ends).tobytes(), frames
        return
    seq -= len(ends)
    begin = done = 0
    while done < len(ends):
        until = max(done + 1, bisect_right(ends, begin + ROW_BYTES))
        own = array("I", [end - begin for end in ends[done:until]])
        yield number, seq + until, epoch, block.done, own.tobytes(), frames[begin : ends[until - 1]]
        begin, done = ends[until - 1], until


def write_first(db: sqlite3.Connection, number: int, block: Block) -> int:
    """Open a log; returns the bytes of its first state."""
    db.execute("INSERT INTO epoch VALUES (?, ?, ?)", (number, block.first.seq, block.first.epoch))
    db.executemany(_ADD, _rows(number, block, Packed.of(block.frames)))
    return _write_state(db, number, block.state)


def write_block(
    db: sqlite3.Connection, number: int, after: Cursor, block: Block, packed: Packed, plan: _Plan
) -> int | None:
    """Add a block where the head is still the one that it extends; returns the bytes of the state that was kept.

    Raises:
        HeadMovedError: It is another.
    """
    rows = list(_rows(number, block, packed))
    if not db.execute(_APPEND, (*rows[0], *after)).rowcount:
        newest = db.execute(
            "SELECT * FROM block WHERE job = ? ORDER BY seq DESC LIMIT 1", (number,)
        ).fetchone()
        if (
            newest == rows[-1]
        ):  # tried again, and it had been committed after all: an error of a commit does not say
            return None
        raise HeadMovedError(f"the head is no longer {after}")
    if len(rows) > 1:
        db.executemany(_ADD, rows[1:])
    if block.first.epoch != after.epoch:
        db.execute(
            "INSERT OR IGNORE INTO epoch VALUES (?, ?, ?)", (number, block.first.seq, block.first.epoch)
        )
    state_bytes = _write_state(db, number, block.state) if plan.keep_state else None
    if plan.record is not None:
        update = "UPDATE job SET attempt = ?, status = ?, started_at = ?, usage = ? WHERE number = ?"
        db.execute(update, (*plan.record, number))
    if plan.cut is not None:
        cut_events(db, number, plan.cut.cursor)
    return state_bytes


def _write_state(db: sqlite3.Connection, number: int, at: StateAt) -> int:
    state = orjson.dumps(at.view.value())
    row = (number, at.cursor.seq, at.cursor.epoch, orjson.dumps(at.columns), state)
    db.execute("INSERT OR IGNORE INTO state (job, seq, epoch, columns, state) VALUES (?, ?, ?, ?, ?)", row)
    return len(state)


def cut_events(db: sqlite3.Connection, number: int, to: Cursor) -> None:
    """Trim a log up to a place whose state is kept."""
    db.execute("DELETE FROM block WHERE job = ? AND seq <= ?", (number, to.seq))
    db.execute("DELETE FROM state WHERE job = ? AND seq < ?", (number, to.seq))
    db.execute("UPDATE job SET base_epoch = ?, base_seq = ? WHERE number = ?", (*to, number))


def read_events(db: sqlite3.Connection, number: int, after: int, max_bytes: int) -> tuple[bytes, int] | None:
    """Events as `LogReader.read` gives them, and the seq of the last; None where the next one is not there."""
    rows = db.execute(
        "SELECT seq, ends, frames FROM block WHERE job = ? AND seq > ? ORDER BY seq", (number, after)
    )
    parts: list[bytes] = []
    last, room = after, max_bytes
    for seq, packed, frames in rows:
        ends = array("I", packed)
        before = seq - len(ends)
        if before > last:
            break
        skip = last - before
        start = ends[skip - 1] if skip else 0
        end = bisect_right(ends, start + room, skip)
        if end == skip and not parts:
            end += 1
        if end == skip:
            break
        parts.append(frames[start : ends[end - 1]])
        room -= len(parts[-1])
        last = before + end
        if end < len(ends) or room <= 0:
            break
    rows.close()
    return (b"".join(parts), last) if parts else None


def load_state(db: sqlite3.Connection, number: int, *, oldest: bool = False) -> StateAt:
    """The state at the head, or at the oldest place that is held.

    Raises:
        StoreError: What is there makes no state.
    """
    order = "ASC" if oldest else "DESC"
    query = f"SELECT seq, epoch, columns, state FROM state WHERE job = ? ORDER BY seq {order} LIMIT 1"  # noqa: S608
    found = db.execute(query, (number,)).fetchone()
    if found is None:
        raise StoreError(
            f"the state of a job (number {number}) is not in the file: it is damaged, or the job has gone"
        )
    seq, epoch, columns, state = found
    document = Document(orjson.loads(state), orjson.loads(columns))
    if oldest:
        return StateAt(Cursor(epoch, seq), document.columns, document.view())
    blocks = "SELECT seq, epoch, frames FROM block WHERE job = ? AND seq > ? AND done = 0 ORDER BY seq"
    for last, its_epoch, frames in db.execute(blocks, (number, seq)).fetchall():
        try:
            document = _fold(document, frames)
        except ValueError as error:
            raise StoreError(
                f"the events of a job (number {number}) make no state: it is damaged: {error}"
            ) from None
        epoch, seq = its_epoch, last
    return StateAt(Cursor(epoch, seq), document.columns, document.view())


def _fold(document: Document, frames: bytes) -> Document:
    for event in Decoder().feed(frames):
        data: Any = strict_json.loads(event.data)
        if event.type == "snapshot":
            document = Document(data["state"], data["columns"])
        else:
            document.apply(data)
    return document


def load_shape(db: sqlite3.Connection, number: int) -> Shape:
    """What is known of a log without its events.

    Raises:
        StoreError: There is none.
    """
    job = db.execute("SELECT base_epoch, base_seq FROM job WHERE number = ?", (number,)).fetchone()
    newest = "SELECT epoch, seq, done FROM block WHERE job = ? ORDER BY seq DESC LIMIT 1"
    head = db.execute(newest, (number,)).fetchone()
    starts = db.execute("SELECT epoch, seq FROM epoch WHERE job = ? ORDER BY seq", (number,)).fetchall()
    columns = db.execute(
        "SELECT columns FROM state WHERE job = ? ORDER BY seq DESC LIMIT 1", (number,)
    ).fetchone()
    if job is None or head is None or not starts or columns is None:
        raise StoreError(f"the log of a job (number {number}) is not whole: the file is damaged")
    base = Cursor(starts[0][0], starts[0][1] - 1) if job[1] is None else Cursor(*job)
    extent = Extent(
        base,
        Cursor(*head[:2]),
        bool(head[2]),
        tuple(Cursor(*start) for start in starts),
        tuple(orjson.loads(columns[0])),
    )
    return Shape(extent, 0, (), 0)


def load_marks(db: sqlite3.Connection, number: int, shape: Shape) -> Shape:
    """What a writer needs to know beside that: how long the log is, and where it can be cut."""
    states = db.execute(
        "SELECT seq, epoch, length(state) FROM state WHERE job = ? ORDER BY seq", (number,)
    ).fetchall()
    sizes = db.execute(
        "SELECT seq, length(frames) FROM block WHERE job = ? ORDER BY seq", (number,)
    ).fetchall()
    ends = list(accumulate(size for _, size in sizes))
    seqs = [seq for seq, _ in sizes]
    marks = []
    for seq, epoch, _ in states:
        place = bisect_right(seqs, seq)
        marks.append(Mark(Cursor(epoch, seq), ends[place - 1] if place else 0))
    return shape._replace(written=ends[-1], marks=tuple(marks), state_bytes=states[-1][2])
