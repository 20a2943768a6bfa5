"""Appends that are kept as they came until somebody looks.

A run is lent room: bytes that its place may grow by before any bound is near. While there is room, an append is checked
for what only it can be blamed for, and noted; the document, the encoding and the signal wait for the run to be
gathered. Whoever needs to know more takes the room away, and the next append goes the long way.

    Pending.append, Pending.row ──► opens a run ──► Stream.append, Stream.row note pieces while there is room
                                        ▲                            │
                          commit, any other change, a read ──► Pending.gather

A run for the one text of a job outlives the commit: what comes after it is most often its next piece.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from tidewire.protocol.document.json_values import admit_all, is_text

WORST_BYTES: Final = 6
"""Bytes of JSON that one code point may take: an escaped control character."""

MAX_RUN: Final = 24 * 1024
"""Bytes that a run is lent at most."""


class TextBuffer:
    """Pieces for one text. Guarded by the lock of its job."""

    __slots__ = ("awake", "closed", "lent", "path", "pieces", "room", "signal")

    def __init__(self, path: str, lent: int, signal: Callable[[], None]) -> None:
        """Begin with nothing.

        Args:
            path: Where the text stands.
            lent: Bytes of JSON that the text may grow by.
            signal: Called with the first piece after a commit.
        """
        self.signal = signal
        self.awake = True
        """Whether a commit is to come that takes what waits here."""
        self.closed = False
        self.path = path
        self.lent = lent
        self.room = lent // WORST_BYTES
        """Code points that it still takes."""
        self.pieces: list[str] = []

    def add(self, piece: str) -> bool:
        """Take a piece, if there is room, and it is text, and something."""
        if 0 < len(piece) <= self.room and (piece.isascii() or is_text(piece)):
            self.room -= len(piece)
            self.pieces.append(piece)
            if not self.awake:
                self.awake = True
                self.signal()
            return True
        return False

    def take(self) -> list[str]:
        """Give what waits, and begin again with as much room."""
        pieces, self.pieces = self.pieces, []
        self.room, self.awake = 0 if self.closed else self.lent // WORST_BYTES, False
        return pieces

    def end(self) -> None:
        """Take no more until it is lent room again."""
        self.room = 0

    def close(self) -> None:
        """Take no more, ever."""
        self.room, self.closed = 0, True


class RowBuffer:
    """Rows for all columns of a job, encoded. Guarded by the lock of its job."""

    __slots__ = ("depth", "kinds", "lent", "parts", "room", "rows")

    def __init__(self, kinds: Sequence[bool], depth: int, lent: int) -> None:
        """Begin with nothing.

        Args:
            kinds: Of each column, whether it is a text.
            depth: Levels of nesting that a member may have.
            lent: Bytes of JSON that the columns may grow by.
        """
        self.kinds = kinds
        self.depth = depth
        self.lent = lent
        self.room = lent
        """Bytes that it still takes."""
        self.rows: list[list[Any]] = []
        self.parts: list[bytes] = []

    def add(self, members: Sequence[Any]) -> bool:
        """Take a row, if there is room and it fits the columns."""
        if not self.room or len(members) != len(self.kinds):
            return False
        try:
            row = admit_all(members, self.depth)
        except ValueError:  # the long way says what is wrong, and knows more types
            return False
        for member, text in zip(row, self.kinds, strict=True):
            if text and type(member) is not str:
                return False
        part = orjson.dumps(["r", *row])
        if len(part) >= self.room:
            return False
        self.room -= len(part) + 1
        self.rows.append(row)
        self.parts.append(part)
        return True

    def end(self) -> None:
        """Take no more."""
        self.room = 0


NO_TEXTS: Final = TextBuffer("", 0, lambda: None)
NO_ROWS: Final = RowBuffer((), 0, 0)
"""Runs that take nothing."""
