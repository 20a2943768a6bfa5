"""Statements that append blocks to logs.

At most one append succeeds after each event of a log. The statement inserts a block only if the event before the block is the
log's last event, and is not `done`. The primary key of the table (job, first event) rejects a second block after the same
event. A unique key on the last event would not be enough: the block of another writer may have another length, and is invisible
until it is committed.

All blocks of a group that change nothing else are inserted by one statement. A block with a checkpoint, a trim, a new epoch, a
changed record or `done` has a separate statement, which also updates the job's row. If a statement inserts no row, the stored
rows are read and compared: the same append may have been committed earlier, if the response of the database was lost.
"""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import orjson

from tidewire_server.store.database.block_rows import BlockRow, is_key
from tidewire_server.store.database.cached_log import AppendResult, BlockAppend
from tidewire_server.store.database.thread_tasks import Task
from tidewire_server.store.postgres.connections import (
    Command,
    Connection,
    Rows,
    Statement,
    outcome_of,
    run_each,
    transact,
)
from tidewire_server.store.store_errors import HeadMovedError

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

_SET_RECORD: Final = (
    "attempt = %(attempt)s, status = %(status)s, started_at = %(started_at)s, usage = %(usage)s"
)
_SET_ENDED: Final = f"""
    {_SET_RECORD}, owner = NULL, held = false, submit = NULL, cancelled = NULL, purge = false, keys = NULL, costs = NULL,
    ended_at = %(ended_at)s, expires_at = %(expires_at)s, done = %(done_message)s, log_until = %(log_until)s,
    kept_bytes = %(own_bytes)s::bigint
        + (SELECT coalesce(sum(octet_length(frames)), 0) FROM block WHERE job = %(job)s AND last > %(cut_seq)s)
        + (SELECT coalesce(sum(octet_length(state)), 0) FROM state
            WHERE job = %(job)s AND seq >= %(cut_seq)s AND seq <> %(state_seq)s)
        + (SELECT coalesce(sum(octet_length(content)), 0) FROM piece
            WHERE job = %(job)s AND seq >= %(cut_seq)s AND (seq > %(cut_seq)s OR is_state))
"""  # noqa: S608
_CHANGE: Final = """
    WITH added AS (
        INSERT INTO block (job, first, last, epoch, done, ends, frames)
        SELECT %(job)s::bigint, %(first)s::bigint, %(last)s::bigint, %(epoch)s::bigint, %(done)s::boolean, %(ends)s::bytea,
            %(frames)s::bytea
        WHERE EXISTS (SELECT FROM block
            WHERE job = %(job)s AND last = %(after)s::bigint AND epoch = %(after_epoch)s::bigint AND NOT done)
        ON CONFLICT DO NOTHING RETURNING job),
    more AS (
        INSERT INTO block (job, first, last, epoch, done, ends, frames)
        SELECT added.job, m.first, m.last, %(epoch)s::bigint, m.done, m.ends, m.frames
        FROM added, unnest(%(all_first)s::bigint[], %(all_last)s::bigint[], %(all_done)s::boolean[],
            %(all_ends)s::bytea[], %(all_frames)s::bytea[]) AS m (first, last, done, ends, frames)),
    checkpoint AS (
        INSERT INTO state (job, seq, epoch, columns, state)
        SELECT job, %(state_seq)s::bigint, %(state_epoch)s::bigint, %(columns)s::bytea, %(state)s::bytea FROM added
        WHERE %(state)s::bytea IS NOT NULL ON CONFLICT DO NOTHING),
    trimmed AS (DELETE FROM block b USING added a WHERE b.job = a.job AND b.last <= %(cut_seq)s),
    old_states AS (DELETE FROM state s USING added a WHERE s.job = a.job AND s.seq < %(cut_seq)s),
    old_pieces AS (DELETE FROM piece p USING added a
        WHERE p.job = a.job AND (p.seq < %(cut_seq)s OR p.seq = %(cut_seq)s AND NOT p.is_state)),
    -- Pieces of an append that an earlier owner has not committed.
    unused_pieces AS (DELETE FROM piece p USING added a
        WHERE p.job = a.job AND %(is_new_epoch)s AND p.seq > %(after)s AND p.key <> ALL (%(own_keys)s::bytea[])),
    tickets AS (DELETE FROM ticket t USING added a WHERE t.job = a.job AND %(ends_job)s::boolean)
    UPDATE job j SET base_epoch = %(base_epoch)s, base_seq = %(base_seq)s, starts = %(starts)s::bigint[],
        columns = %(columns)s::bytea, {changes} FROM added a WHERE j.number = a.job RETURNING a.job
"""
_RUN: Final = _CHANGE.format(changes=_SET_RECORD)
_END: Final = _CHANGE.format(changes=_SET_ENDED)

_STORED: Final = """
    SELECT b.job, b.first, b.last, b.epoch, b.done, b.ends, b.frames
    FROM unnest(%(jobs)s::bigint[], %(firsts)s::bigint[], %(lasts)s::bigint[]) AS a (job, first, last)
    JOIN block b ON b.job = a.job AND b.first >= a.first AND b.last <= a.last
    ORDER BY b.job, b.first
"""
ADD_PIECE: Final = """
    INSERT INTO piece (job, seq, is_state, key, number, content)
    VALUES (%(job)s, %(seq)s, %(is_state)s, %(key)s, %(number)s, %(content)s) ON CONFLICT DO NOTHING
"""


def encode_columns(columns: Sequence[str]) -> bytes:
    """Encode column pointers. They are not stored as texts, because a text of PostgreSQL cannot contain U+0000."""
    return orjson.dumps(columns)


def arrays_of(rows: Sequence[BlockRow]) -> dict[str, list[Any]]:
    """Return the members of rows as arrays: the parameters `all_first`, `all_last`, and so on."""
    return {f"all_{name}": [row[index] for row in rows] for index, name in enumerate(BlockRow._fields)}


class _Prepared:
    """An append that is ready to be sent."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.append: BlockAppend = task.work
        self.job = self.append.job
        self.rows, self.state, self.state_bytes = self.append.content
        plan = self.append.plan
        self.is_new_epoch = self.append.block.last.epoch != self.append.after.epoch
        changes = (
            *(plan.write, plan.cut, self.append.record_changed, self.append.ended),
            *(self.is_new_epoch, len(self.rows) > 1),
        )
        self.is_plain = not any(changes)
        """Whether the block only adds one row to the log."""

    def statement(self) -> Statement:
        """Return the statement of an append that is not plain."""
        append, at, base = self.append, self.append.block.state, self.append.extent.base
        own = [row.frames for row in self.rows] + ([] if self.state is None else [self.state])
        parameters = {
            "job": self.job,
            "after": append.after.seq,
            "after_epoch": append.after.epoch,
            **self.rows[0]._asdict(),
            **arrays_of(self.rows[1:]),
            "cut_seq": 0 if append.plan.cut is None else append.plan.cut.cursor.seq,
            "state_seq": -1 if self.state is None else at.cursor.seq,
            "state_epoch": at.cursor.epoch,
            "state": self.state,
            "base_epoch": base.epoch,
            "base_seq": base.seq,
            "starts": [number for start in append.extent.starts for number in start],
            "columns": encode_columns(at.columns),
            "own_bytes": sum(map(len, own)),
            "own_keys": [each for each in own if is_key(each)],
            "is_new_epoch": self.is_new_epoch,
            "ends_job": append.ended is not None,
            **append.record,
            **(append.ended or {}),
        }
        return _RUN if append.ended is None else _END, parameters

    def result(self, *, added: bool, stored: Sequence[BlockRow]) -> AppendResult:
        """Return the result of the append. If it has inserted no rows, the stored rows show whether it was committed earlier.

        Raises:
            HeadMovedError: Another writer has appended events, or the job was deleted.
        """
        if not added and list(stored) != self.rows:
            raise HeadMovedError(
                f"{self.append.after} is no longer the log's last event: another writer has appended events"
            )
        return AppendResult(self.state_bytes if added else None)


def run_appends(connection: Connection, tasks: list[Task]) -> None:
    """Append the blocks of all tasks in one transaction, sorted by job. A second block of the same job waits for the next
    transaction, because the result of a statement identifies a block only by its job.
    """
    waiting = [_Prepared(task) for task in tasks]
    waiting.sort(key=attrgetter("job"))
    while waiting:
        together = [next(each) for _, each in groupby(waiting, key=attrgetter("job"))]
        _run_together(connection, together)
        waiting = [each for each in waiting if not each.task.ended]


def run_large_appends(connection: Connection, tasks: list[Task]) -> None:
    """Run tasks one by one. Each is an append, or a command that writes a piece of a large append."""
    for task in tasks:
        (run_each if isinstance(task.work, Command) else run_appends)(connection, [task])


def _run_together(connection: Connection, together: list[_Prepared]) -> None:
    plain = [each for each in together if each.is_plain]
    statements = [_plain(plain)] if plain else []
    statements += [each.statement() for each in together if not each.is_plain]
    added = {job for rows in transact(connection, statements) for (job,) in rows}
    missing = [each for each in together if each.job not in added]
    stored = _stored(connection, missing) if missing else {}
    for each in together:
        result = partial(each.result, added=each.job in added, stored=stored.get(each.job, ()))
        each.task.outcome = outcome_of(result)


def _plain(appends: list[_Prepared]) -> Statement:
    parameters = {
        "jobs": [each.job for each in appends],
        "afters": [each.append.after.seq for each in appends],
        "after_epochs": [each.append.after.epoch for each in appends],
        **arrays_of([each.rows[0] for each in appends]),
    }
    return _PLAIN, parameters


def _stored(connection: Connection, missing: list[_Prepared]) -> dict[int, list[BlockRow]]:
    """Return the stored rows that have the sequence numbers of blocks that were not inserted."""
    parameters = {
        "jobs": [each.job for each in missing],
        "firsts": [each.rows[0].first for each in missing],
        "lasts": [each.rows[-1].last for each in missing],
    }
    found: Rows = connection.execute(_STORED, parameters, binary=True).fetchall()
    return {job: [BlockRow(*row[1:]) for row in rows] for job, rows in groupby(found, key=lambda row: row[0])}
