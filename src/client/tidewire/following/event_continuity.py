"""Decide by the id of a logged event whether a reader must apply it, has already applied it, or has missed earlier events.

A reader's cursor is the id of the last event that the reader has applied.
"""

from enum import Enum

from tidewire.protocol.cursor import Cursor


class Continuity(Enum):
    """Relation of a logged event to the state that a reader has."""

    NEXT = "next"
    """The event applies to the reader's current state. The reader applies the event."""
    REPEAT = "repeat"
    """The reader's state already includes the event. The reader drops the event and counts it as a repeat."""
    BROKEN = "broken"
    """The event does not apply to the reader's current state. The reader discards the event and requests a snapshot."""


# Decision table. `mine` is the reader's cursor, or None if the reader has no state. The base of an event is the seq of the
# state to which it applies: its member `on` if it has one, otherwise its seq - 1.
#
#   event                          | mine is None | id <= mine               | id > mine
#   -------------------------------+--------------+--------------------------+-----------------------------------------
#   snapshot, reason is "rewound"  | NEXT         | NEXT, cursor may go back | NEXT
#   snapshot, any other reason     | NEXT         | REPEAT                   | NEXT
#   diff, done                     | BROKEN       | REPEAT                   | NEXT if the event has the epoch of `mine`,
#                                  |              |                          |   and its base is the seq of `mine`;
#                                  |              |                          |   otherwise BROKEN


def continuity_of_snapshot(mine: Cursor | None, event: Cursor, *, rewound: bool) -> Continuity:
    """Classify a snapshot by its id.

    A snapshot with the reason `rewound` is always `NEXT`, even if its id is less than the reader's cursor.
    """
    if mine is None or rewound or event > mine:
        return Continuity.NEXT
    return Continuity.REPEAT


def continuity_of_change(mine: Cursor | None, event: Cursor, *, on: int | None = None) -> Continuity:
    """Classify a diff or a `done` event by its id, and by the state to which it applies.

    Args:
        mine: The reader's cursor, or None if the reader has no state.
        event: The id of the event.
        on: The event's member `on`, that is the seq of the state to which the event applies. None means the state directly
            before the event.
    """
    if mine is None:
        return Continuity.BROKEN
    if event <= mine:
        return Continuity.REPEAT
    base = event.seq - 1 if on is None else on
    return Continuity.NEXT if event.epoch == mine.epoch and base == mine.seq else Continuity.BROKEN
