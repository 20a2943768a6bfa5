"""Event ids and what a reader does with one.

An id is `epoch "-" seq`, both decimal without leading zeros. Ids are ordered by epoch, then seq. Inside an epoch seq
grows by exactly 1, and goes on growing over epochs. Two ids never name an event: `0-0` asks for everything the log
still holds, `0-1` ends an event stream for good after a fatal in-band problem.
"""

import re
from enum import Enum
from typing import NamedTuple

_ID = re.compile(r"([1-9][0-9]{0,9})-([1-9][0-9]{0,14})", re.ASCII)

MAX_SEQ = 10**15 - 1


class CursorError(ValueError):
    """A text that should be an event id is none; says which text and what an id looks like."""


class Cursor(NamedTuple):
    """The id of an event, and by it a place in a job's log. Compares as the protocol orders ids."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Read the id of an event.

        Raises:
            CursorError: The text is not `epoch "-" seq` with 1…10 and 1…15 digits and no leading zero. The
                reserved `0-0` and `0-1` name no event and are refused here as well.
        """
        match = _ID.fullmatch(text)
        if match is None:
            raise CursorError(f"{text[:40]!r} is no event id: expected EPOCH-SEQ, such as 1-17")
        return cls(int(match[1]), int(match[2]))


BEGINNING = Cursor(0, 0)
"""As a cursor: everything that the log still holds."""

ENDED_BY_PROBLEM = Cursor(0, 1)
"""The id of a fatal in-band problem; a request with this cursor is answered 204."""


class Continuity(Enum):
    """Where an event stands to what its reader holds."""

    NEXT = "next"
    """It continues exactly from here: apply it."""
    REPEAT = "repeat"
    """It is known already: drop it and count it."""
    BROKEN = "broken"
    """It does not continue from here: nothing of it may be used; ask for a snapshot."""


# What an id means to a reader that holds `mine` (None: it holds nothing).
#
#   event                          | mine is None | id <= mine        | id > mine
#   -------------------------------+--------------+-------------------+--------------------------------------------
#   snapshot, reason is "rewound"  | NEXT         | NEXT (it may go back) | NEXT
#   snapshot, any other reason     | NEXT         | REPEAT            | NEXT
#   diff, done                     | BROKEN       | REPEAT            | NEXT if epoch is mine and its base is my seq,
#                                  |              |                   | else BROKEN
#
# The base of an event is its `on`, else its seq - 1.


def standing_of_snapshot(mine: Cursor | None, event: Cursor, *, rewound: bool) -> Continuity:
    """Judge a snapshot by the table above."""
    if mine is None or rewound or event > mine:
        return Continuity.NEXT
    return Continuity.REPEAT


def standing_of_change(mine: Cursor | None, event: Cursor, *, on: int | None = None) -> Continuity:
    """Judge a diff or `done` by the table above.

    Args:
        mine: The id up to which the reader holds the state, or None.
        event: The event's own id.
        on: The seq that the event says it applies on, where it says so.
    """
    if mine is None:
        return Continuity.BROKEN
    if event <= mine:
        return Continuity.REPEAT
    base = event.seq - 1 if on is None else on
    return Continuity.NEXT if event.epoch == mine.epoch and base == mine.seq else Continuity.BROKEN
