"""Encode snapshots, which replace the whole state of a job. The first block of each attempt contains only a snapshot."""

import secrets
from collections.abc import Sequence
from typing import Final

import orjson
from pydantic import JsonValue

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.messages import SnapshotReason
from tidewire_server.store.log_interface import Block, StateAt

_FIRST: Final = Cursor(1, 1)

_EPOCH_STEPS: Final = 10_000
"""Upper bound of the random number that `next_epoch` adds to the epoch."""


def first_block(
    state: JsonValue,
    columns: Sequence[str],
    cursor: Cursor = _FIRST,
    reason: SnapshotReason = "start",
) -> tuple[Block, Document, int]:
    """Create the first block of a job's log, or of a new epoch of the log. The block contains only a snapshot.

    Args:
        state: The state of the job.
        columns: Paths of the columns.
        cursor: Id of the snapshot. See `next_epoch`.
        reason: The snapshot's `reason`.

    Returns:
        The block, the document to which the job's changes will be applied, and the size of the snapshot in bytes.

    Raises:
        DiffError: The state is not JSON that the protocol allows, or a column is not a JSON Pointer.
    """
    document = Document(state, columns)
    frame = snapshot_frame(cursor, state, columns, reason)
    return Block([frame], StateAt(cursor, document.columns, document.mark())), document, len(frame)


def next_epoch(head: Cursor) -> Cursor:
    """Return an id with a higher epoch for the next event after `head`. A restarted job continues with this id (TW-RES-033)."""
    # If the log of an earlier attempt was lost, readers may still hold event ids with the epoch of that log. If the new
    # attempt used the same epoch, the readers would mistake the new events for the lost events. A random increment of
    # the epoch makes that unlikely.
    return Cursor(head.epoch + 1 + secrets.randbelow(_EPOCH_STEPS), head.seq + 1)


def snapshot_fields(state: JsonValue, columns: Sequence[str], reason: SnapshotReason) -> bytes:
    """Encode the fields of a snapshot except its id. The caller must have validated the state with a `Document`."""
    data = orjson.dumps({"state": state, "columns": list(columns), "reason": reason})
    return b"event:snapshot\ndata:%b" % data


def snapshot_frame(cursor: Cursor, state: JsonValue, columns: Sequence[str], reason: SnapshotReason) -> bytes:
    """Encode a snapshot as a server-sent event. The caller must have validated the state with a `Document`."""
    return b"id:%d-%d\n%b\n\n" % (*cursor, snapshot_fields(state, columns, reason))


def snapshot_parts(cursor: Cursor, columns: Sequence[str], reason: SnapshotReason) -> tuple[bytes, bytes]:
    """Encode the two parts of a snapshot that precede and follow the JSON of the state."""
    head, _, tail = snapshot_frame(cursor, None, columns, reason).partition(b"null")
    return head, tail
