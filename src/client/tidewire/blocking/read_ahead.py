"""A reading that one thread brings in and another hands over.

The thread of the event loop fetches updates and makes blocks of them, at most `AHEAD` things or `AHEAD_BYTES` ahead; the
reader's thread takes from the blocks without crossing. It is the reader's thread that an interrupt hits, at any moment: so
what it takes stays where it is until it is counted as handed over, and all else happens on the other thread.
"""

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from tidewire.errors import ClientClosedError
from tidewire.jobs.update_iterator import UpdateBatch, UpdateIterator

AHEAD: Final = 512
"""Things that are brought in before the reader takes them: then reading waits, and the connection fills up."""
AHEAD_BYTES: Final = 2**20
"""Bytes of the stream, likewise: a thing may be as large as a state. The last one brought in may pass it."""

X = TypeVar("X")


class ReadAhead(Generic[X]):
    """See the top of this file."""

    def __init__(self, reading: UpdateIterator[X]) -> None:
        self._reading = reading
        self._blocks: deque[UpdateBatch[X]] = deque()
        self._brought = self._taken = 0
        """Things in all blocks, and in those that the reader is done with."""
        self._brought_bytes = self._taken_bytes = reading.received
        self._started = self._over = self._left = False
        self._fault: BaseException | None = None
        self._room: anyio.Event | None = None
        self._scope: anyio.CancelScope | None = None
        self._waiting = False
        self._wake: SimpleQueue[None] = SimpleQueue()
        # Held while updates become a block: who leaves must not give back half of one. The garbage collector may
        # leave on the very thread that holds it.
        self._lock = threading.RLock()

    # ---- on the reader's thread --------------------------------------------------------------------------------

    def next(self, portal: Callable[[], BlockingPortal]) -> UpdateBatch[X] | None:
        """Wait for the next block; None when all was handed over.

        Raises:
            TidewireError: The reading ended otherwise, or the client was closed.
        """
        reading = self._reading
        if self._blocks and self._blocks[0] is reading.block:
            self._taken += len(reading.block.items)
            self._taken_bytes = reading.block.received
            self._blocks.popleft()
        if self._room is not None and not self._is_behind(AHEAD // 2, AHEAD_BYTES // 2):
            portal().start_task_soon(self._go_on)
        if not self._started:
            self._started = True
            portal().start_task_soon(self._bring)
        while not self._blocks:
            if self._over:
                self._end()
                return None
            portal()
            self._waiting = True
            if not self._blocks and not self._over:
                self._wake.get()
            self._waiting = False
        reading.acquire(self._blocks[0])
        return reading.block

    def _end(self) -> None:
        reading = self._reading
        if reading.finished:
            return
        if self._fault is not None:
            reading.fail()
            raise self._fault
        reading.acquire(None)

    def leave(self) -> bool:
        """Return to the job what was not taken; whether there is something to stop."""
        with self._lock:
            if self._left:
                return False
            self._left = True
            if not self._reading.closed:
                self._reading.leave(self._blocks)
        return self._started and not self._reading.finished

    # ---- on the event loop's thread ----------------------------------------------------------------------------

    def _is_behind(self, things: int = AHEAD, received: int = AHEAD_BYTES) -> bool:
        """Whether the reader is so far behind what was brought in."""
        if self._brought - self._taken >= things:
            return True
        return self._brought_bytes - self._taken_bytes >= received

    async def _bring(self) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                while not self._left and self._made(await self._reading.fetch()):
                    if self._is_behind():
                        self._room = anyio.Event()
                        # It is looked at again after the other thread can see that it is waited for.
                        if self._is_behind():
                            await self._room.wait()
                        self._room = None
        except Exception as fault:  # noqa: BLE001 - it is raised where the reader is
            self._fault = fault
        except BaseException:
            self._fault = ClientClosedError("this client was closed meanwhile")
            raise
        finally:
            self._over = True
            self._wake.put(None)
            await self._reading.release()

    def _made(self, updates: list[Any]) -> bool:
        """Put a block of updates where the reader finds it; whether there may be another one."""
        with self._lock:
            block = None if self._left else self._reading.made_of(updates)
            if self._left:
                self._reading.requeue(updates if block is None else block.rest(entered=False))
                return False
            if block is None:
                return False
            self._brought += len(block.items)
            self._brought_bytes = block.received = self._reading.received
            self._blocks.append(block)
        if self._waiting:
            self._wake.put(None)
        return True

    async def _go_on(self) -> None:
        if self._room is not None:
            self._room.set()

    async def stop(self) -> None:
        """Bring in no more, and close the connection: the reader has left."""
        if self._scope is not None:
            self._scope.cancel()
        if self._over:
            await self._reading.release()
