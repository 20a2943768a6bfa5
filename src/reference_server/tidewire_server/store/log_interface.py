"""Protocols of a job's event log (`LogReader`, `Log`), and the blocks of events that are appended to it.

Every implementation follows these rules:

- The head of a log is its last event. The caller of `append` passes the head that it expects, and the call fails if
  another writer has appended events in the meantime. Two concurrent writers therefore cannot both succeed.
- `append` returns when the events are as durable as `Store.durability` promises. Readers do not see the events earlier.
- An append stores the events together with the changes to the job's record, in one atomic step.
- The `done` event is never trimmed. The state of a job is kept longer than its other events.
- A reader is only an offset into the log, so a slow or abandoned reader uses no other memory.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document.view import View
from tidewire_server.store.records import Extent, JobRecord


class StateAt(msgspec.Struct, frozen=True):
    """State of a job after one event has been applied, together with the id of that event."""

    cursor: Cursor
    columns: tuple[str, ...]
    mark: tuple[list[Any], int]
    """Result of `Document.mark` after the event."""

    @property
    def view(self) -> View:
        """View of the state. It is created on each access, because most states are never read."""
        return View(*self.mark)


class Block(msgspec.Struct, frozen=True):
    """Events that are appended to a log in one step. A block contains the encoded events and the state after them."""

    frames: Sequence[bytes]
    state: StateAt
    ended: JobRecord | None = None
    """Record of the ended job if the last event is `done`, and otherwise None. It is stored in the same atomic step as the
    block. If it is set, `state` is the state before `done`.
    """
    state_bytes: int = 0
    """Maximum size of the state as JSON in bytes. Set only if the last event is `done`."""

    @property
    def last(self) -> Cursor:
        """Id of the last event in the block."""
        epoch, seq = self.state.cursor
        return Cursor(epoch, seq + (self.ended is not None))

    @property
    def first(self) -> Cursor:
        """Id of the first event in the block."""
        epoch, seq = self.state.cursor
        return Cursor(epoch, seq + (self.ended is not None) - len(self.frames) + 1)


MAX_EPOCHS: Final = 100
"""Maximum number of epochs that a log remembers after its oldest events were trimmed.

A cursor from an epoch that the log has forgotten is treated as unknown.
"""


def extent_after(extent: Extent, block: Block) -> Extent:
    """Return the extent of a log after a block was appended. An epoch is forgotten only if all of its events were trimmed."""
    starts = extent.starts
    if starts[-1].epoch != block.last.epoch:
        starts = (*starts, block.first)
        while len(starts) > MAX_EPOCHS and starts[1].seq <= extent.base.seq:
            starts = starts[1:]
    return Extent(extent.base, block.last, block.ended is not None, starts, block.state.columns)


class LogChunk(NamedTuple):
    """Consecutive events of a log, in the encoding in which they are sent to clients. A chunk contains only complete
    events.
    """

    frames: bytes
    last: Cursor
    ended: bool
    """Whether the last event in the chunk is `done`."""


class LogReader(Protocol):
    """Read access to one job's log.

    A reader may keep using the log after the job is deleted or its events have expired. The log then behaves as if all
    events except `done` had been trimmed.
    """

    def extent(self) -> Extent:
        """Return the range of events that the log stores now."""
        ...

    async def read(self, after: Cursor, max_bytes: int) -> LogChunk | None:
        """Read the events that follow a cursor.

        Args:
            after: Id of the event after which to start. It must be in the range from `Extent.base` to `Extent.head`.
            max_bytes: Maximum size of the returned events. The first event is returned even if it alone is larger.

        Returns:
            The events, or an empty chunk if `after` is the last event. None if events after `after` were trimmed.

        Raises:
            StoreError: The events cannot be read at the moment.
        """
        ...

    async def state(self, *, oldest: bool = False) -> StateAt:
        """Return the state after the last event of the log. If `oldest` is true, return the oldest available state
        instead.

        If the log has ended, return the state before the `done` event, which does not change the stored state.

        Raises:
            StoreError: The state cannot be read at the moment.
        """
        ...

    def ephemeral_events(self, since: int) -> tuple[list[bytes], int]:
        """Return the ephemeral events (`queue`, `progress`) that are newer than the version `since`, and the current
        version.

        Pass 0 as `since` on the first call. On later calls, pass the version that the previous call returned.
        """
        ...

    def watch(self, wake: Callable[[Block | None], None]) -> Callable[[], None]:
        """Subscribe to the log. After every append and every new ephemeral event, the function `wake` is called on the
        event loop.

        The argument of `wake` is the appended block, or None for an ephemeral event. A reader that has already sent all
        earlier events can send the block without reading the log.

        Returns:
            A function that ends the subscription.
        """
        ...


class Log(LogReader, Protocol):
    """Write access to one job's log. A log has exactly one writer."""

    async def append(self, after: Cursor, block: Block) -> None:
        """Append a block atomically.

        Args:
            after: Id that the caller expects the log's last event to have.
            block: Events to append. Their sequence numbers continue from `after` without a gap. If the block starts a
                new epoch, its first event is a snapshot.

        Raises:
            HeadMovedError: The log's last event is not `after`. Nothing was appended.
            StoreError: The block could not be written. The caller may retry the same append.
        """
        ...

    def set_ephemeral_event(self, key: str, frame: bytes | None) -> None:
        """Replace the ephemeral event with this key, and wake the readers. If `frame` is None, remove the event."""
        ...
