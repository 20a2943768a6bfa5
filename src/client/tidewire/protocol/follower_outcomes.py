"""What a follower says of what it was given: the outcomes of the table in `follower`.

Whoever drives a follower does what each of them says, and decides nothing.
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
    """Why a connection is given up and another is opened."""

    CUT = "cut"
    RESYNC = "resync"
    GOAWAY = "goaway"
    BUSY = "busy"


class FatalKind(Enum):
    """Whose fault ends a stream without its job's end."""

    PROTOCOL = "protocol"
    UNSUPPORTED = "unsupported"
    PROBLEM = "problem"
    TOO_LARGE = "too large"
    EXHAUSTED = "exhausted"


class Applied(NamedTuple):
    """The state moved. `first_seq`…`cursor.seq` is covered by this advance and by no other that is visible."""

    first_seq: int
    cursor: Cursor
    view: View
    texts: tuple[TextChange, ...]
    visible: bool
    """Whether a value changed: an advance that is not visible is covered by the next one that is."""
    snapshot: str | None = None
    """The reason of the snapshot that this was, if it was one."""
    done: Done | None = None
    diff: JsonValue = None
    """The diff that this was, if it was one."""
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """A `queue` or `progress` event: it may be shown, it changes nothing."""

    message: messages.Queue | messages.Progress


@dataclass(frozen=True, slots=True)
class Ignored:
    """Nothing to do."""

    why: str


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Close, wait, and GET again with `Follower.cursor` (None: without a cursor)."""

    wait: float
    """Seconds."""
    cause: Cause
    why: str


@dataclass(frozen=True, slots=True)
class Fatal:
    """Give up. The last state stays readable, marked incomplete."""

    kind: FatalKind
    why: str
    problem: Problem | None = None


Outcome = Applied | Notice | Ignored | Reconnect | Fatal
