"""Encoding of a log's blocks as rows of a database table.

A block is one row, or several rows if it is large. A row contains whole events. An event or a state of more than `PIECE_BYTES`
is divided into pieces. The pieces are written one by one, so that the appends of other jobs wait for at most one piece. The row
that refers to the pieces is written last, and readers ignore pieces without a committed row.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import orjson

from tidewire.protocol import strict_json
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.sse import Decoder
from tidewire_server.store.log_interface import Block, StateAt
from tidewire_server.store.store_errors import StoreError

ROW_BYTES: Final = 64 * 1024
"""Size above which a block is stored in several rows. With smaller rows, a small read loads less data."""

PIECE_BYTES: Final = 1024 * 1024
"""Size in bytes above which the events of a row, or a state, are divided into pieces. It is also the size of a piece."""


class BlockRow(NamedTuple):
    """Row of consecutive events. `first` and `last` are the sequence numbers of its first and its last event."""

    first: int
    last: int
    epoch: int
    done: bool
    """Whether the last event is `done`."""
    ends: bytes
    """End offset of each event in `frames`, 4 bytes each."""
    frames: bytes
    """The events, or the key of their pieces."""

    def events(self) -> list[bytes]:
        """Return the events one by one."""
        ends = [0, *array("I", self.ends)]
        return [self.frames[start:end] for start, end in pairwise(ends)]


def rows_of(block: Block) -> list[BlockRow]:
    """Divide a block into rows of at most `ROW_BYTES`. An event that is larger has a row to itself."""
    epoch, last = block.last
    first = last - len(block.frames) + 1
    frames, ends = b"".join(block.frames), list(accumulate(map(len, block.frames)))
    if len(frames) <= ROW_BYTES:
        return [BlockRow(first, last, epoch, block.ended is not None, array("I", ends).tobytes(), frames)]
    rows, begin, done = [], 0, 0
    while done < len(ends):
        until = max(done + 1, bisect_right(ends, begin + ROW_BYTES))
        own = array("I", [end - begin for end in ends[done:until]]).tobytes()
        is_last = block.ended is not None and until == len(ends)
        part = frames[begin : ends[until - 1]]
        rows.append(BlockRow(first + done, first + until - 1, epoch, is_last, own, part))
        begin, done = ends[until - 1], until
    return rows


class Piece(NamedTuple):
    """Part of large events, or of a large state. The row itself then contains only the key of the pieces."""

    seq: int
    """Sequence number of the last event of the row, or of the last event before the state."""
    is_state: bool
    key: bytes
    """Key that all pieces of a content share: a zero byte, and the first 16 bytes of the content's SHA-256. Events and states
    never begin with a zero byte. Because of the hash, a repeated append writes the same pieces, and an append of another server
    cannot change them."""
    number: int
    """Index of the piece among the pieces with the same key, starting at 0."""
    content: bytes


class Content(NamedTuple):
    """Encoded events of a block, and the state after it, as a database stores them."""

    rows: list[BlockRow]
    state: bytes | None
    """The state after the block as JSON, or the key of its pieces, or None without a checkpoint."""
    state_bytes: int | None
    """Size of the state, or None without a checkpoint."""

    @classmethod
    def of(cls, block: Block, *, with_state: bool) -> "Content":
        """Encode a block, and the state after it if `with_state` is true."""
        state = orjson.dumps(block.state.view.value()) if with_state else None
        return cls(rows_of(block), state, None if state is None else len(state))

    def divided(self, state_seq: int) -> "tuple[Content, list[Piece]]":
        """Divide large events and a large state into pieces. Return the content with the keys of the pieces, and the pieces.

        Args:
            state_seq: Sequence number of the last event before the state.
        """
        pieces: list[Piece] = []
        rows = [
            row._replace(frames=_divide(pieces, row.last, row.frames, is_state=False)) for row in self.rows
        ]
        state = None if self.state is None else _divide(pieces, state_seq, self.state, is_state=True)
        return Content(rows, state, self.state_bytes), pieces


def is_key(content: bytes) -> bool:
    """Return whether the content of a row is the key of its pieces."""
    return content.startswith(b"\0")


def _divide(pieces: list[Piece], seq: int, content: bytes, *, is_state: bool) -> bytes:
    """Return the content if it is small. Otherwise add its pieces to the list, and return their key."""
    if len(content) <= PIECE_BYTES:
        return content
    key = b"\0" + sha256(content).digest()[:16]
    for number, start in enumerate(range(0, len(content), PIECE_BYTES)):
        pieces.append(Piece(seq, is_state, key, number, content[start : start + PIECE_BYTES]))
    return key


def events_after(
    rows: Iterable[tuple[int, bytes, bytes]], after: int, max_bytes: int
) -> tuple[bytes, int] | None:
    """Read events for `LogReader.read`.

    Args:
        rows: The members `last`, `ends` and `frames` of rows in the order of their events. The first row contains the event
            that follows `after`.
        after: Sequence number after which to start.
        max_bytes: Maximum size of the events, except for the first one.

    Returns:
        The events and the sequence number of the last of these events, or None if the first event to read was trimmed.
    """
    parts: list[bytes] = []
    last, remaining = after, max_bytes
    for row_last, packed, frames in rows:
        ends = array("I", packed)
        before = row_last - len(ends)
        if before > last:
            break
        skip = last - before
        start = ends[skip - 1] if skip else 0
        end = bisect_right(ends, start + remaining, skip)
        if end == skip and not parts:
            end += 1
        if end == skip:
            break
        parts.append(frames[start : ends[end - 1]])
        remaining -= len(parts[-1])
        last = before + end
        if end < len(ends) or remaining <= 0:
            break
    return (b"".join(parts), last) if parts else None


def apply_events(document: Document, frames: bytes) -> Document:
    """Apply encoded events to a state, and return the new state. It is a new document if an event is a snapshot.

    Raises:
        ValueError: The events do not match the state.
    """
    for event in Decoder().feed(frames):
        if event.type == "done":
            continue
        data: Any = strict_json.loads(event.data)
        if event.type == "snapshot":
            document = Document(data["state"], data["columns"])
        else:
            document.apply(data)
    return document


def state_of(
    checkpoint: tuple[int, int, bytes, bytes], rows: Iterable[tuple[int, int, bytes]], where: str
) -> StateAt:
    """Return the state of a log after the events of some rows.

    Args:
        checkpoint: Sequence number, epoch, columns and state of a checkpoint.
        rows: The members `last`, `epoch` and `frames` of the rows after the checkpoint, in the order of their events.
        where: Description of the log, for error messages.

    Raises:
        StoreError: The events cannot be applied to the state.
    """
    seq, epoch, columns, state = checkpoint
    document = Document(orjson.loads(state), orjson.loads(columns))
    for last, its_epoch, frames in rows:
        try:
            document = apply_events(document, frames)
        except ValueError as error:
            raise StoreError(
                f"the events of {where} cannot be applied to its state, so the log is damaged: {error}"
            ) from None
        seq, epoch = last, its_epoch
    return StateAt(Cursor(epoch, seq), document.columns, document.mark())
