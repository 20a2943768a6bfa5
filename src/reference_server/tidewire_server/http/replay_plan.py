"""How a stream opens: what a reader's cursor means for what the log holds.

  cursor                                        | log                    | the stream opens with
  ----------------------------------------------+------------------------+---------------------------------------------
  that of `done`                                | has ended              | nothing: 204
  none                                          | its head is a snapshot | that snapshot, as it was logged
  none                                          | anything else          | a snapshot at the head, `compacted`
  0-0                                           | whole                  | every event as it was logged
  0-0                                           | its start is trimmed   | a snapshot at the oldest place, `compacted`
  the id of an event                            | its successors are held| the event after it
  the id of an event                            | some were trimmed      | a snapshot at the head, `compacted`
  anything else: past the head, past the end of |                        | a snapshot at the head, `rewound`
    its epoch, of an unknown epoch              |                        |

The head of a log that has ended is, for a snapshot, the event before `done`: `done` follows it. A snapshot at the head
of a log is what opens an epoch: nothing else is logged as one.
"""

from enum import Enum
from typing import NamedTuple

from tidewire.protocol.cursor import BEGINNING, Cursor
from tidewire.protocol.messages import SnapshotReason
from tidewire_server.store.interfaces import Extent


class ReplayStart(Enum):
    """Where the snapshot that opens a stream is taken."""

    HEAD = "head"
    OLDEST = "oldest"


class ReplayPlan(NamedTuple):
    """What a stream begins with: a snapshot, or the events after a cursor; with neither, nothing follows at all."""

    snapshot: tuple[ReplayStart, SnapshotReason] | None = None
    after: Cursor | None = None


NOTHING = ReplayPlan()


def plan_replay(cursor: Cursor | None, extent: Extent) -> ReplayPlan:
    """Look up how a stream opens.

    Args:
        cursor: What the reader sent, None where it sent none.
        extent: What the log holds.
    """
    base, head, ended = extent.base, extent.head, extent.ended
    whole = base.seq == 0
    if cursor is None:
        before = extent.starts[-1].seq - 1
        if head.seq == before + 1 + ended and base.seq <= before:
            return ReplayPlan(after=extent.id_at(before))
        return ReplayPlan(snapshot=(ReplayStart.HEAD, "compacted"))
    if cursor == BEGINNING:
        return ReplayPlan(after=base) if whole else ReplayPlan(snapshot=(ReplayStart.OLDEST, "compacted"))
    if ended and cursor == head:
        return NOTHING
    if not extent.logged(cursor):
        return ReplayPlan(snapshot=(ReplayStart.HEAD, "rewound"))
    if cursor < base:
        return ReplayPlan(snapshot=(ReplayStart.HEAD, "compacted"))
    return ReplayPlan(after=cursor)
