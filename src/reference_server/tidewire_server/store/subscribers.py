"""Subscriptions to a log, and the log's ephemeral events. Ephemeral events are sent to readers, but not stored."""

import asyncio
from collections.abc import Callable
from typing import Final

from tidewire_server.store.interfaces import Block

PER_TURN: Final = 100
"""Maximum number of subscribers that are called in one turn of the event loop.

A call takes about 10 microseconds. With thousands of readers, requests of other callers are served between the turns.
"""


class Subscribers:
    """Subscribers and ephemeral events of one log. All methods must be called on one event loop.

    If there are more than `PER_TURN` subscribers, they are called in several turns of the event loop. These turns form
    one pass. Blocks that are appended during a pass are joined and delivered in the next pass. The next pass begins
    after a pause as long as the previous pass, so that passes take at most half of the event loop's time.
    """

    __slots__ = ("_ephemeral", "_in_pass", "_pending", "_version", "_watchers")

    def __init__(self) -> None:
        self._watchers: dict[object, Callable[[Block | None], None]] = {}
        self._ephemeral: dict[str, tuple[int, bytes]] = {}
        self._version = 0
        self._in_pass = False
        self._pending: list[Block | None] = []
        """Blocks to deliver in the next pass. A None in the list represents an ephemeral event."""

    def ephemeral_events(self, since: int) -> tuple[list[bytes], int]:
        """Return the ephemeral events that are newer than a version. See `LogReader.ephemeral_events`."""
        if since == self._version:
            return [], since
        return [frame for version, frame in self._ephemeral.values() if version > since], self._version

    def watch(self, wake: Callable[[Block | None], None]) -> Callable[[], None]:
        """Subscribe a callback. See `LogReader.watch`."""
        key = object()
        self._watchers[key] = wake

        def stop() -> None:
            self._watchers.pop(key, None)

        return stop

    def set_ephemeral_event(self, key: str, frame: bytes | None) -> None:
        """Set or remove the ephemeral event of a key. See `Log.set_ephemeral_event`."""
        if frame is None:
            self._ephemeral.pop(key, None)
            return
        self._version += 1
        self._ephemeral[key] = (self._version, frame)
        self.wake()

    def clear_ephemeral_events(self) -> None:
        """Remove all ephemeral events."""
        self._ephemeral.clear()

    def wake(self, block: Block | None = None) -> None:
        """Call every subscriber with the appended block, or with None for an ephemeral event."""
        if self._in_pass:
            self._pending.append(block)
        elif len(self._watchers) <= PER_TURN:
            for wake in tuple(self._watchers.values()):
                wake(block)
        else:
            self._in_pass = True
            loop = asyncio.get_running_loop()
            self._run_turn(loop, [block], tuple(self._watchers), loop.time())

    def _run_turn(
        self,
        loop: asyncio.AbstractEventLoop,
        blocks: list[Block | None],
        keys: tuple[object, ...],
        began: float,
    ) -> None:
        """Call the next `PER_TURN` subscribers of a pass."""
        for key in keys[:PER_TURN]:
            if (wake := self._watchers.get(key)) is not None:
                for block in blocks:
                    wake(block)
        if rest := keys[PER_TURN:]:
            loop.call_soon(self._run_turn, loop, blocks, rest, began)
        else:
            loop.call_later(loop.time() - began, self._end_pass, loop)

    def _end_pass(self, loop: asyncio.AbstractEventLoop) -> None:
        blocks, self._pending = self._pending, []
        self._in_pass = bool(blocks)
        if blocks:
            self._run_turn(loop, _joined(blocks), tuple(self._watchers), loop.time())


def _joined(blocks: list[Block | None]) -> list[Block | None]:
    """Join consecutive blocks of one epoch, so that each subscriber is called once for all of them."""
    joined: list[Block | None] = []
    for block in blocks:
        last = joined[-1] if joined else None
        if block is not None and last is not None and last.state.cursor.epoch == block.state.cursor.epoch:
            joined[-1] = Block((*last.frames, *block.frames), block.state, block.done)
        elif block is not None:
            joined.append(block)
    return [*joined, None] if None in blocks else joined
