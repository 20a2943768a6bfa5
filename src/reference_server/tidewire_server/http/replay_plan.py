"""Choose the first event of a stream.

The choice depends on the cursor that the reader sent, and on the events that the log stores:

cursor                              | log                        | first event of the stream
------------------------------------+----------------------------+---------------------------------------------------
id of `done`                        | has ended                  | none: the response is 204
no cursor                           | last event is a snapshot   | that snapshot, as it was logged
no cursor                           | any other                  | snapshot of the current state, `compacted`
0-0                                 | nothing trimmed            | the first event ever logged
0-0                                 | start trimmed              | snapshot of the oldest stored state, `compacted`
id of an event                      | stores all later events    | the event after the cursor
id of an event                      | some later events trimmed  | snapshot of the current state, `compacted`
any other, such as an id after the  | any                        | snapshot of the current state, `rewound`
  last event or an unknown epoch    |                            |

`compacted` and `rewound` are the reasons that the snapshots contain. If the log has ended, a snapshot of the current
state shows the state before `done`, and `done` follows the snapshot. The log itself contains a snapshot only as the
first event of an epoch.
"""

from enum import Enum
from typing import NamedTuple

from tidewire.protocol.cursor import BEGINNING, Cursor
from tidewire.protocol.messages import SnapshotReason
from tidewire_server.store.records import Extent


class ReplayStart(Enum):
    """State that the first snapshot of a stream contains."""

    HEAD = "head"
    OLDEST = "oldest"


class ReplayPlan(NamedTuple):
    """First event of a stream: a snapshot, or the event after the reader's cursor.

    If both members are None, the stream sends no event.
    """

    snapshot: tuple[ReplayStart, SnapshotReason] | None = None
    after: Cursor | None = None


NOTHING = ReplayPlan()


def plan_replay(cursor: Cursor | None, extent: Extent) -> ReplayPlan:
    """Choose the first event of a stream, according to the table at the top of this module.

    Args:
        cursor: Cursor that the reader sent, or None if the reader sent no cursor.
        extent: Range of events that the log stores.
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
