"""Statements that append blocks to logs.

Exactly one append succeeds after each event of a log: the statement inserts a block only if the event that it follows is the
last one and is not `done`, and the primary key of the table (job, first event) refuses a second successor. A unique key on
the last event would not be enough, because an uncommitted block of a rival with another length is invisible.

All blocks of a group that change nothing else are inserted by one statement. A block with a checkpoint, a trim, a new epoch,
a changed record or `done` is one statement, put together from parts. If a statement inserts no row, the stored rows are read
and compared: the same append may have been committed before its answer was lost.
"""

from collections.abc import Sequence
from functools import cache, partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import orjson

from tidewire_server.store.block_rows import BlockRow, rows_of
from tidewire_server.store.cached_log import AppendResult, BlockAppend
from tidewire_server.store.interfaces import HeadMovedError
from tidewire_server.store.postgres.connections import Connection, Rows, Statement, outcome_of, transact
from tidewire_server.store.thread_tasks import Task

_PLAIN: Final = """
    INSERT INTO block (job, first, last, epoch, done, ends, frames)
    SELECT a.job, a.after + 1, a.last, a.epoch, false, a.ends, a.frames
    FROM unnest(%(jobs)s::bigint[], %(afters)s::bigint[], %(after_epochs)s::bigint[], %(all_last)s::bigint[],
        %(all_epoch)s::bigint[], %(all_ends)s::bytea[], %(all_frames)s::bytea[])
        AS a (job, after, after_epoch, last, epoch, ends, frames)
    WHERE EXISTS (SELECT FROM block b WHERE b.job = a.job AND b.last = a.after AND b.epoch = a.after_epoch AND NOT b.done)
    ORDER BY a.job
    ON CONFLICT DO NOTHING RETURNING job
"""

_ADDED: Final = """
    WITH added AS (
        INSERT INTO block (job, first, last, epoch, done, ends, frames)
        SELECT %(job)s::bigint, %(first)s::bigint, %(last)s::bigint, %(epoch)s::bigint, %(done)s::boolean, %(ends)s::bytea,
            %(frames)s::bytea
        WHERE EXISTS (SELECT FROM block
            WHERE job = %(job)s AND last = %(after)s::bigint AND epoch = %(after_epoch)s::bigint AND NOT done)
        ON CONFLICT DO NOTHING RETURNING job)
"""
_MORE: Final = """
    , more AS (
        INSERT INTO block (job, first, last, epoch, done, ends, frames)
        SELECT added.job, m.first, m.last, %(epoch)s::bigint, m.done, m.ends, m.frames
        FROM added, unnest(%(all_first)s::bigint[], %(all_last)s::bigint[], %(all_done)s::boolean[],
            %(all_ends)s::bytea[], %(all_frames)s::bytea[]) AS m (first, last, done, ends, frames))
"""
_CHECKPOINT: Final = """
    , checkpoint AS (
        INSERT INTO state (job, seq, epoch, columns, state)
        SELECT job, %(state_seq)s::bigint, %(state_epoch)s::bigint, %(columns)s::bytea, %(state)s::bytea FROM added
        ON CONFLICT DO NOTHING)
"""
_TRIMMED: Final = """
    , trimmed AS (DELETE FROM block b USING added a WHERE b.job = a.job AND b.last <= %(cut_seq)s)
    , old_states AS (DELETE FROM state s USING added a WHERE s.job = a.job AND s.seq < %(cut_seq)s)
"""
_TICKETS: Final = """
    , tickets AS (DELETE FROM ticket t USING added a WHERE t.job = a.job)
"""
_CHANGED: Final = """
    , changed AS (UPDATE job j SET {changes} FROM added a WHERE j.number = a.job RETURNING kept_bytes)
"""
_SET_RECORD: Final = (
    "attempt = %(attempt)s, status = %(status)s, started_at = %(started_at)s, usage = %(usage)s"
)
_SET_BASE: Final = "base_epoch = %(cut_epoch)s, base_seq = %(cut_seq)s"
_SET_EPOCH: Final = "starts = %(starts)s::bigint[], columns = %(columns)s::bytea"
SET_ENDED: Final = """
    owner = NULL, held = false, submit = NULL, cancelled = NULL, purge = false, keys = NULL, costs = NULL,
    ended_at = %(ended_at)s, expires_at = %(expires_at)s, done = %(done_message)s, log_until = %(log_until)s
"""
_SET_KEPT: Final = """
    kept_bytes = %(own_bytes)s::bigint
        + (SELECT coalesce(sum(octet_length(frames)), 0) FROM block WHERE job = %(job)s AND last > %(cut_seq)s)
        + (SELECT coalesce(sum(octet_length(state)), 0) FROM state
            WHERE job = %(job)s AND seq >= %(cut_seq)s AND seq <> %(state_seq)s)
"""

_STORED: Final = """
    SELECT b.job, b.first, b.last, b.epoch, b.done, b.ends, b.frames, j.kept_bytes
    FROM unnest(%(jobs)s::bigint[], %(firsts)s::bigint[], %(lasts)s::bigint[]) AS a (job, first, last)
    JOIN block b ON b.job = a.job AND b.first >= a.first AND b.last <= a.last JOIN job j ON j.number = b.job
    ORDER BY b.job, b.first
"""
_MEASURE: Final = """
    UPDATE job SET {columns}, kept_bytes =
        (SELECT coalesce(sum(octet_length(frames)), 0) FROM block WHERE job = %(job)s)
        + (SELECT coalesce(sum(octet_length(state)), 0) FROM state WHERE job = %(job)s)
    WHERE number = %(job)s RETURNING kept_bytes
"""


def save_end(job: int, record: tuple[Any, ...], ended: tuple[Any, ...]) -> Statement:
    """Return the statement that stores the record of an ended job, whose `done` event was appended before. Its row is the
    size of the job's events and states.
    """
    sql = _MEASURE.format(columns=f"{_SET_RECORD}, {SET_ENDED}")
    return Statement(sql, {"job": job, **_record(record), **_ended(ended)})


def _record(columns: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(("attempt", "status", "started_at", "usage"), columns, strict=True))


def _ended(columns: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(("ended_at", "expires_at", "done_message", "log_until"), columns, strict=True))


def encode_columns(columns: Sequence[str]) -> bytes:
    """Encode column pointers. They are not stored as texts, because a text of PostgreSQL cannot contain U+0000."""
    return orjson.dumps(columns)


def arrays_of(rows: Sequence[BlockRow]) -> dict[str, list[Any]]:
    """Return the members of rows as arrays: the parameters `all_first`, `all_last`, and so on."""
    return {f"all_{name}": [row[index] for row in rows] for index, name in enumerate(BlockRow._fields)}


_PARTS: Final = {"more": _MORE, "checkpoint": _CHECKPOINT, "cut": _TRIMMED, "ended": _TICKETS}
_SETS: Final = {
    "record": _SET_RECORD,
    "cut": _SET_BASE,
    "epoch": _SET_EPOCH,
    "ended": f"{SET_ENDED}, {_SET_KEPT}",
}


@cache
def _combined(changes: frozenset[str]) -> str:
    """Return the statement for a block that changes more than the log."""
    parts = [sql for name, sql in _PARTS.items() if name in changes]
    sets = [sql for name, sql in _SETS.items() if name in changes]
    if not sets:
        return "".join([_ADDED, *parts, "SELECT job, NULL FROM added"])
    parts.append(_CHANGED.format(changes=", ".join(sets)))
    return "".join(
        [_ADDED, *parts, "SELECT added.job, changed.kept_bytes FROM added LEFT JOIN changed ON true"]
    )


class _Prepared:
    """An append that is ready to be sent."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.append: BlockAppend = task.work
        self.job = self.append.job
        self.rows = rows_of(self.append.block)
        self.state_bytes: int | None = None
        changes = {
            "more": len(self.rows) > 1,
            "checkpoint": self.append.plan.write,
            "cut": self.append.plan.cut is not None,
            "epoch": self.append.block.last.epoch != self.append.after.epoch,
            "record": self.append.record is not None,
            "ended": self.append.ended is not None,
        }
        self.changes = frozenset(name for name, is_changed in changes.items() if is_changed)
        """What the block changes, except that it adds one row to the log."""

    def statement(self) -> Statement:
        """Return the statement of an append that is not plain."""
        append, first = self.append, self.rows[0]
        at, cut = append.block.state, append.plan.cut
        parameters: dict[str, Any] = {
            "job": self.job,
            "after": append.after.seq,
            "after_epoch": append.after.epoch,
            **first._asdict(),
            "cut_seq": 0 if cut is None else cut.cursor.seq,
            "cut_epoch": 0 if cut is None else cut.cursor.epoch,
            "state_seq": at.cursor.seq if append.plan.write else -1,
            "state_epoch": at.cursor.epoch,
            "columns": encode_columns(at.columns),
        }
        own_bytes = sum(len(row.frames) for row in self.rows)
        if append.plan.write:
            parameters["state"] = state = orjson.dumps(at.view.value())
            self.state_bytes = len(state)
            own_bytes += len(state)
        parameters |= arrays_of(self.rows[1:])
        if "epoch" in self.changes:
            parameters["starts"] = [number for start in append.extent.starts for number in start]
        if append.record is not None:
            parameters |= _record(append.record)
        if append.ended is not None:
            parameters |= _ended(append.ended) | {"own_bytes": own_bytes}
        return Statement(_combined(self.changes), parameters)

    def compare(self, stored: Sequence[BlockRow], kept_bytes: int) -> AppendResult:
        """Return the result of an append that inserted no row, if an earlier try has stored the same rows.

        Raises:
            HeadMovedError: Another writer has appended events, or the job was deleted.
        """
        if list(stored) != self.rows:
            raise HeadMovedError(
                f"{self.append.after} is no longer the log's last event: another writer has appended events"
            )
        return AppendResult(kept_bytes=kept_bytes)


def run_appends(connection: Connection, tasks: list[Task]) -> None:
    """Append the blocks of all tasks in one transaction, sorted by job. A second block of the same job waits for the next
    transaction, because the result of a statement names only jobs.
    """
    waiting = [_Prepared(task) for task in tasks]
    waiting.sort(key=attrgetter("job"))
    while waiting:
        together = [next(each) for _, each in groupby(waiting, key=attrgetter("job"))]
        _run_together(connection, together)
        waiting = [each for each in waiting if not each.task.ended]


def _run_together(connection: Connection, together: list[_Prepared]) -> None:
    plain = [each for each in together if not each.changes]
    others = [each for each in together if each.changes]
    statements = ([_plain(plain)] if plain else []) + [each.statement() for each in others]
    found = transact(connection, [statements])[0]
    added: dict[int, int] = {row[0]: row[1] or 0 for rows in found[bool(plain) :] for row in rows}
    if plain:
        added |= {row[0]: 0 for row in found[0]}
    missing = [each for each in together if each.job not in added]
    stored = _stored(connection, missing) if missing else {}
    for each in together:
        if each.job in added:
            each.task.outcome = AppendResult(each.state_bytes, added[each.job])
        else:
            rows, kept_bytes = stored.get(each.job, ([], 0))
            each.task.outcome = outcome_of(partial(each.compare, rows, kept_bytes))


def _plain(appends: list[_Prepared]) -> Statement:
    parameters = {
        "jobs": [each.job for each in appends],
        "afters": [each.append.after.seq for each in appends],
        "after_epochs": [each.append.after.epoch for each in appends],
        **arrays_of([each.rows[0] for each in appends]),
    }
    return Statement(_PLAIN, parameters)


def _stored(connection: Connection, missing: list[_Prepared]) -> dict[int, tuple[list[BlockRow], int]]:
    """Return the stored rows that have the sequence numbers of blocks that were not inserted."""
    parameters = {
        "jobs": [each.job for each in missing],
        "firsts": [each.rows[0].first for each in missing],
        "lasts": [each.rows[-1].last for each in missing],
    }
    found: Rows = connection.execute(_STORED, parameters, binary=True).fetchall()
    return {
        job: ([BlockRow(*row[1:7]) for row in rows], rows[0][7] or 0)
        for job, rows in ((job, list(each)) for job, each in groupby(found, key=lambda row: row[0]))
    }
