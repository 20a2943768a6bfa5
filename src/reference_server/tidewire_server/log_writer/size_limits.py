"""Size limits of a job's log: the bytes and ops of an event, and the bytes of the state.

Sizes of events are exact. The size of the state is an upper bound, because each change adds at most the size of its own
JSON. The state is measured only when this bound reaches the limit.
"""

from typing import Final

import orjson

from tidewire.protocol.document import Document
from tidewire_server.settings import Settings

MAX_EVENT_OPS: Final = 10_000
"""Default of the maximum number of ops of an event."""

_FRAMING: Final = 512
"""How many bytes of `max_event_bytes` are kept free for an event's list `check`, its field names and its line ends."""

_AROUND_STATE: Final = 48
"""Upper bound of the size of a snapshot's data without its state and its columns, in bytes."""


class SizeLimits:
    """Limits of one job.

    Attributes:
        event_bytes: Maximum size of the ops of an event, in bytes.
        event_ops: Maximum number of ops of an event.
        room: Number of bytes by which the state may grow before it must be measured. It is negative if changes that end
            items have used a part of the reserve.
        max_state_bytes: The setting of this name.
    """

    __slots__ = ("_envelope", "_reserve", "event_bytes", "event_ops", "max_state_bytes", "room")

    def __init__(
        self, settings: Settings, columns: tuple[str, ...], *, state_bytes: int, reserve: int, event_ops: int
    ) -> None:
        """Create the limits of a job whose state has the size `state_bytes`.

        Args:
            settings: The server's settings, with the limits of events and states.
            columns: Paths of the columns, which every snapshot contains.
            state_bytes: Upper bound of the size of a snapshot, in bytes.
            reserve: Number of bytes of `max_state_bytes` that are reserved for the changes that end an item.
            event_ops: See the attribute.
        """
        self.event_bytes: int = settings.max_event_bytes - _FRAMING
        self.event_ops = event_ops
        self.max_state_bytes = settings.max_state_bytes
        self.room: int = settings.max_state_bytes - reserve - state_bytes
        self._reserve = reserve
        self._envelope = len(orjson.dumps(columns)) + _AROUND_STATE

    @property
    def state_bytes(self) -> int:
        """Upper bound of the size of a snapshot, in bytes."""
        return self.max_state_bytes - self._reserve - self.room

    def admits(self, size: int, *, reserved: bool) -> bool:
        """Return whether the state can grow by `size` bytes without being measured.

        Args:
            size: Size of a change as JSON, in bytes.
            reserved: Whether the change may use the reserve.
        """
        return size <= self.room + (self._reserve if reserved else 0)

    def measure(self, document: Document, *, reserved: bool) -> bool:
        """Measure the state after a change, and return whether it is within the limit. If not, the caller undoes the change."""
        size = len(orjson.dumps(document.value())) + self._envelope
        room = self.max_state_bytes - self._reserve - size
        if room < (-self._reserve if reserved else 0):
            return False
        self.room = room
        return True
