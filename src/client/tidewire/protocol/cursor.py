"""Event ids (`Cursor`): their text form and their order.

An id has the form `epoch-seq`, where epoch and seq are decimal numbers without leading zeros. Ids are ordered by epoch,
then by seq. Within an epoch, seq increases by exactly 1 per event. If a server continues a job after a restart, the job
gets a new epoch, but its seq continues to increase. Two ids are reserved and never belong to a logged event. A client sends
`0-0` to request all events that the log still contains. A server sends `0-1` as the id of a fatal `problem` event, which
ends an event stream permanently.
"""

import re
from typing import NamedTuple

_ID = re.compile(r"([1-9][0-9]{0,9})-([1-9][0-9]{0,14})", re.ASCII)

MAX_SEQ = 10**15 - 1


class CursorError(ValueError):
    """A text is not a valid event id. The message quotes the text and shows the expected form."""


class Cursor(NamedTuple):
    """Id of an event, which is also a position in the job's log. Ids are compared by epoch, then by seq."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Parse the id of an event.

        Raises:
            CursorError: The text is not `epoch "-" seq`, where epoch has 1 to 10 digits, seq has 1 to 15 digits, and neither
                has a leading zero. The reserved ids `0-0` and `0-1` are rejected, too.
        """
        match = _ID.fullmatch(text)
        if match is None:
            raise CursorError(
                f"{text[:40]!r} is not an event id; an event id has the form EPOCH-SEQ, such as 1-17"
            )
        return cls(int(match[1]), int(match[2]))


BEGINNING = Cursor(0, 0)
"""Reserved cursor `0-0`, with which a client requests all events that the log still contains."""

ENDED_BY_PROBLEM = Cursor(0, 1)
"""Reserved id `0-1` of a fatal `problem` event. If a client reconnects with this cursor, the server responds with 204, so
that a browser stops reconnecting."""
