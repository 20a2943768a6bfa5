"""Outcomes that a `Follower` returns after it has processed an event. The outcome determines what the caller does next.

The `Follower` makes all decisions, and its caller only carries out the outcome.
"""

from enum import Enum
from typing import NamedTuple

from tidewire.protocol import messages
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document.document import TextChange, View
from tidewire.protocol.messages import Done
from tidewire.protocol.problems import Problem
from tidewire.protocol.strict_json import JsonValue


class Cause(Enum):
    """Reason why the client closes a connection and opens a new one."""

    CUT = "cut"
    RESYNC = "resync"
    GOAWAY = "goaway"
    BUSY = "busy"
    POLL = "poll"
    """The stream delivers nothing, and the client reads the job repeatedly."""


class FatalKind(Enum):
    """Reason why the client stops reading a stream although the job has not ended."""

    PROTOCOL = "protocol"
    UNSUPPORTED = "unsupported"
    PROBLEM = "problem"
    TOO_LARGE = "too large"
    EXHAUSTED = "exhausted"


class Applied(NamedTuple):
    """Outcome of an event that was applied to the job's state.

    The events of a job are numbered, and the number (`seq`) is a part of the event's id. Some events change nothing
    that an application sees. A visible outcome therefore covers all events after the previous visible outcome, from
    `first_seq` to `cursor.seq`.
    """

    first_seq: int
    cursor: Cursor
    view: View
    texts: tuple[TextChange, ...]
    visible: bool
    """Whether the event changed the value of an item."""
    snapshot: str | None = None
    """The snapshot's `reason` if the event was a snapshot, otherwise None."""
    done: Done | None = None
    diff: JsonValue = None
    """The diff if the event was a diff, otherwise None."""
    columns: tuple[str, ...] = ()


class Notice(NamedTuple):
    """Outcome of a `queue` or `progress` event, which does not change the job's state."""

    message: messages.Queue | messages.Progress


class Ignored(NamedTuple):
    """Outcome of an event that had no effect."""

    why: str


class Reconnect(NamedTuple):
    """Close the connection, wait, and request the stream again with `Follower.cursor` as the cursor.

    If `Follower.cursor` is None, the request must have no cursor, so that the server sends a snapshot.
    """

    wait: float
    """Time to wait before the request, in seconds."""
    cause: Cause
    why: str


class Fatal(NamedTuple):
    """Stop reading the stream and raise an error. The application can still read the last state, which is marked as
    incomplete.
    """

    kind: FatalKind
    why: str
    problem: Problem | None = None


Outcome = Applied | Notice | Ignored | Reconnect | Fatal
