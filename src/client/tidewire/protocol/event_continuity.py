"""Whether a logged event continues from the cursor that a reader holds: the next one, a repeat, or a break."""

from enum import Enum

from tidewire.protocol.cursor import Cursor


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


def continuity_of_snapshot(mine: Cursor | None, event: Cursor, *, rewound: bool) -> Continuity:
    """Judge a snapshot by the table above."""
    if mine is None or rewound or event > mine:
        return Continuity.NEXT
    return Continuity.REPEAT


def continuity_of_change(mine: Cursor | None, event: Cursor, *, on: int | None = None) -> Continuity:
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
