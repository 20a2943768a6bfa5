"""Outcomes of the follower's table: what its caller must do after an event.

The caller performs an outcome as it is and makes no decisions.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from pydantic import JsonValue

from tidewire.protocol import messages
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document.document import TextChange, View
from tidewire.protocol.messages import Done
from tidewire.protocol.problems import Problem


class Cause(Enum):
    """Why the client closes a connection and opens another."""

    CUT = "cut"
    RESYNC = "resync"
    GOAWAY = "goaway"
    BUSY = "busy"


class FatalKind(Enum):
    """Why a stream ends before its job does."""

    PROTOCOL = "protocol"
    UNSUPPORTED = "unsupported"
    PROBLEM = "problem"
    TOO_LARGE = "too large"
    EXHAUSTED = "exhausted"


class Applied(NamedTuple):
    """An event was applied. No other visible outcome covers the seqs from `first_seq` to `cursor.seq`."""

    first_seq: int
    cursor: Cursor
    view: View
    texts: tuple[TextChange, ...]
    visible: bool
    """Whether the value of an item changed. If not, the next visible outcome covers these seqs, too."""
    snapshot: str | None = None
    """The reason, if the event was a snapshot."""
    done: Done | None = None
    diff: JsonValue = None
    """The diff, if the event was one."""
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """A `queue` or `progress` event. It does not change the state."""

    message: messages.Queue | messages.Progress


@dataclass(frozen=True, slots=True)
class Ignored:
    """An event without effect."""

    why: str


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Close the connection, wait, and request the stream again with `Follower.cursor` (without one if it is None)."""

    wait: float
    """Seconds to wait."""
    cause: Cause
    why: str


@dataclass(frozen=True, slots=True)
class Fatal:
    """End the stream with an error. The last state stays readable and is marked incomplete."""

    kind: FatalKind
    why: str
    problem: Problem | None = None


Outcome = Applied | Notice | Ignored | Reconnect | Fatal
