"""Classification of a logged event against the reader's cursor: next event, repeat, or break in the sequence."""

from enum import Enum

from tidewire.protocol.cursor import Cursor


class Continuity(Enum):
    """Relation of an event to the state that the reader holds."""

    NEXT = "next"
    """The event directly follows the reader's cursor. The reader applies it."""
    REPEAT = "repeat"
    """The reader's state already includes the event. The reader drops it and counts it."""
    BROKEN = "broken"
    """The event does not follow the reader's cursor. The reader must not use it and requests a snapshot."""


# Decision table. `mine` is the reader's cursor, None if the reader holds no state.
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
    """Classify a snapshot by its id. A snapshot with the reason `rewound` is always `NEXT`, even below the cursor."""
    if mine is None or rewound or event > mine:
        return Continuity.NEXT
    return Continuity.REPEAT


def continuity_of_change(mine: Cursor | None, event: Cursor, *, on: int | None = None) -> Continuity:
    """Classify a diff or a `done` event by its id and its base.

    Args:
        mine: The reader's cursor, or None if the reader holds no state.
        event: The id of the event.
        on: The event's `on` member, which is the seq that the event applies to. None means the seq before `event`.
    """
    if mine is None:
        return Continuity.BROKEN
    if event <= mine:
        return Continuity.REPEAT
    base = event.seq - 1 if on is None else on
    return Continuity.NEXT if event.epoch == mine.epoch and base == mine.seq else Continuity.BROKEN
