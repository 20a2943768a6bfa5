"""Statements that append blocks to logs.

At most one append succeeds after each event of a log. The statement inserts a block only if the event before the block is the
log's last event, and is not `done`. The primary key of the table (job, first event) rejects a second block after the same
event. A unique key on the last event would not be enough: the block of another writer may have another length, and is invisible
until it is committed.

A block with a checkpoint, a trim, a new epoch, a changed record or `done` has another statement, which also updates the job's row.
If a statement inserts no row, the stored rows are read and compared: the same append may have been committed earlier, if the
response of the database was lost.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from tidewire_server.store.database.block_rows import BlockRow, Content, is_key
from tidewire_server.store.database.cached_log import AppendResult, BlockAppend
from tidewire_server.store.postgres.connections import Command, Rows
from tidewire_server.store.postgres.database_threads import DatabaseThread
from tidewire_server.store.store_errors import HeadMovedError

# This statement inserts the blocks of several jobs that change nothing else.
_ADD: Final = """
    INSERT INTO block (job, first, last, epoch, done, ends, frames)
    SELECT a.job, a.first, a.last, a.epoch, false, a.ends, a.frames
    FROM unnest(%(job)s::bigint[], %(after)s::bigint[], %(after_epoch)s::bigint[], %(first)s::bigint[], %(last)s::bigint[],
        %(epoch)s::bigint[], %(ends)s::bytea[], %(frames)s::bytea[]) AS a (job, after, after_epoch, first, last, epoch, ends, frames)
    WHERE EXISTS (SELECT FROM block b WHERE b.job = a.job AND b.last = a.after AND b.epoch = a.after_epoch AND NOT b.done)
    ORDER BY a.job
    ON CONFLICT DO NOTHING RETURNING job
"""
_SET_RECORD: Final = (
    "attempt = %(attempt)s, status = %(status)s, started_at = %(started_at)s, usage = %(usage)s"
)
_SET_ENDED: Final = f"""
    {_SET_RECORD}, owner = NULL, held = false, submit = NULL, cancelled = NULL, purge = false, keys = NULL, costs = NULL,
    ended_at = %(ended_at)s, expires_at = %(expires_at)s, done = %(done_message)s, log_until = %(log_until)s
"""
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
    SELECT first, last, epoch, done, ends, frames FROM block
    WHERE job = %(job)s AND first >= %(first)s AND last <= %(head)s ORDER BY first
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


async def append_block(
    thread: DatabaseThread, append: BlockAppend, then: Callable[[AppendResult], None]
) -> None:
    """Append a block to a log, or find that the same append was committed earlier.

    Args:
        thread: Thread that runs the statement.
        append: The block, with the other changes.
        then: Function that is called on the event loop after the commit, even if the caller was cancelled.

    Raises:
        HeadMovedError: Another writer has appended events, or the job was deleted.
        StoreError: The database failed, or did not return in time.
    """
    content = append.content

    def is_stored(found: list[Rows]) -> bool:
        added, *stored = found
        return bool(added) or [BlockRow(*row) for row in stored[0]] == content.rows

    def committed(found: list[Rows]) -> None:
        if is_stored(found):
            then(AppendResult(content.state_bytes))

    if not is_stored(await thread.do(_command(append, content), committed)):
        raise HeadMovedError(
            f"{append.after} is no longer the log's last event: another writer has appended events"
        )


def _command(append: BlockAppend, content: Content) -> Command:
    block, plan, rows, state = append.block, append.plan, content.rows, content.state
    is_new_epoch = block.last.epoch != append.after.epoch
    parameters = {
        "job": append.job,
        "after": append.after.seq,
        "after_epoch": append.after.epoch,
        "head": block.last.seq,
        **rows[0]._asdict(),
    }
    changes = (plan.write, plan.cut, append.record_changed, append.ended, is_new_epoch, len(rows) > 1)
    if not any(changes):
        return Command([_ADD], parameters, otherwise=_STORED, order=append.job, merges=True)
    at, base = block.state, append.extent.base
    own = [row.frames for row in rows] + ([] if state is None else [state])
    parameters |= {
        **arrays_of(rows[1:]),
        "cut_seq": 0 if plan.cut is None else plan.cut.cursor.seq,
        "state_seq": at.cursor.seq,
        "state_epoch": at.cursor.epoch,
        "state": state,
        "base_epoch": base.epoch,
        "base_seq": base.seq,
        "starts": [number for start in append.extent.starts for number in start],
        "columns": encode_columns(at.columns),
        "own_keys": [each for each in own if is_key(each)],
        "is_new_epoch": is_new_epoch,
        "ends_job": append.ended is not None,
        **append.record,
        **(append.ended or {}),
    }
    sql = _RUN if append.ended is None else _END
    return Command([sql], parameters, otherwise=_STORED, order=append.job)
