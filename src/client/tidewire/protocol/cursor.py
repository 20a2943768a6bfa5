"""Event ids (`Cursor`): their text form and their order.

An id is `epoch "-" seq`, two decimal numbers without leading zeros. Ids are ordered by epoch, then by seq. Within an
epoch, seq increases by exactly 1 per event. A new epoch does not restart seq. Two reserved ids never belong to a logged
event: `0-0` requests everything that the log still holds, and `0-1` permanently ends an event stream after a fatal
in-band problem.
"""

import re
from typing import NamedTuple

_ID = re.compile(r"([1-9][0-9]{0,9})-([1-9][0-9]{0,14})", re.ASCII)

MAX_SEQ = 10**15 - 1


class CursorError(ValueError):
    """Malformed event id. The message quotes the text and shows the expected form."""


class Cursor(NamedTuple):
    """Id of an event, which is also a position in the job's log. Compares by epoch, then by seq."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Parse the id of an event.

        Raises:
            CursorError: The text is not `epoch "-" seq`, with 1 to 10 and 1 to 15 digits and no leading zero. The
                reserved ids `0-0` and `0-1` are rejected as well, because no event has them.
        """
        match = _ID.fullmatch(text)
        if match is None:
            raise CursorError(f"{text[:40]!r} is not an event id: expected EPOCH-SEQ, such as 1-17")
        return cls(int(match[1]), int(match[2]))


BEGINNING = Cursor(0, 0)
"""Reserved cursor `0-0`, which requests everything that the log still holds."""

ENDED_BY_PROBLEM = Cursor(0, 1)
"""Reserved id `0-1` of a fatal in-band problem. The server responds with 204 to a request that has this cursor."""
