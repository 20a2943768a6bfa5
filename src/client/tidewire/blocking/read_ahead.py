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

    def __init__(self, iterator: UpdateIterator[X]) -> None:
        self._iterator = iterator
        self._blocks: deque[UpdateBatch[X]] = deque()
        self._fetched = self._consumed = 0
        """Things in all blocks, and in those that the reader is done with."""
        self._fetched_bytes = self._consumed_bytes = iterator.received
        self._started = self._finished = self._abandoned = False
        self._fault: BaseException | None = None
        self._space: anyio.Event | None = None
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
        iterator = self._iterator
        if self._blocks and self._blocks[0] is iterator.block:
            self._consumed += len(iterator.block.items)
            self._consumed_bytes = iterator.block.received
            self._blocks.popleft()
        if self._space is not None and not self._is_behind(AHEAD // 2, AHEAD_BYTES // 2):
            portal().start_task_soon(self._resume)
        if not self._started:
            self._started = True
            portal().start_task_soon(self._fetch_all)
        while not self._blocks:
            if self._finished:
                self._end()
                return None
            portal()
            self._waiting = True
            if not self._blocks and not self._finished:
                self._wake.get()
            self._waiting = False
        iterator.acquire(self._blocks[0])
        return iterator.block

    def _end(self) -> None:
        iterator = self._iterator
        if iterator.finished:
            return
        if self._fault is not None:
            iterator.fail()
            raise self._fault
        iterator.acquire(None)

    def leave(self) -> bool:
        """Return to the job what was not taken; whether there is something to stop."""
        with self._lock:
            if self._abandoned:
                return False
            self._abandoned = True
            if not self._iterator.closed:
                self._iterator.leave(self._blocks)
        return self._started and not self._iterator.finished

    # ---- on the event loop's thread ----------------------------------------------------------------------------

    def _is_behind(self, things: int = AHEAD, received: int = AHEAD_BYTES) -> bool:
        """Whether the reader is so far behind what was brought in."""
        if self._fetched - self._consumed >= things:
            return True
        return self._fetched_bytes - self._consumed_bytes >= received

    async def _fetch_all(self) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                while not self._abandoned and self._add_block(await self._iterator.fetch()):
                    if self._is_behind():
                        self._space = anyio.Event()
                        # It is looked at again after the other thread can see that it is waited for.
                        if self._is_behind():
                            await self._space.wait()
                        self._space = None
        except Exception as fault:  # noqa: BLE001 - it is raised where the reader is
            self._fault = fault
        except BaseException:
            self._fault = ClientClosedError("this client was closed meanwhile")
            raise
        finally:
            self._finished = True
            self._wake.put(None)
            await self._iterator.release()

    def _add_block(self, updates: list[Any]) -> bool:
        """Put a block of updates where the reader finds it; whether there may be another one."""
        with self._lock:
            block = None if self._abandoned else self._iterator.build_batch(updates)
            if self._abandoned:
                self._iterator.requeue(updates if block is None else block.undelivered(entered=False))
                return False
            if block is None:
                return False
            self._fetched += len(block.items)
            self._fetched_bytes = block.received = self._iterator.received
            self._blocks.append(block)
        if self._waiting:
            self._wake.put(None)
        return True

    async def _resume(self) -> None:
        if self._space is not None:
            self._space.set()

    async def stop(self) -> None:
        """Bring in no more, and close the connection: the reader has left."""
        if self._scope is not None:
            self._scope.cancel()
        if self._finished:
            await self._iterator.release()
