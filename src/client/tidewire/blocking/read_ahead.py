"""`ReadAhead`, which fetches a job's updates on the event loop's thread for a loop on the caller's thread.

The event loop's thread fetches updates and converts them to blocks of items. It fetches at most `AHEAD` items or
`AHEAD_BYTES` more than the caller has consumed. The caller's thread iterates over the items of a block without
switching threads.

A KeyboardInterrupt can be raised on the caller's thread at any moment. Therefore an item stays in its block until it is
counted as delivered, and all other work is done on the event loop's thread.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from tidewire.errors import ClientClosedError, TidewireError
from tidewire.jobs.update_iterator import UpdateBatch, UpdateIterator

AHEAD: Final = 512
"""Maximum number of fetched items that the caller has not consumed. When this number is reached, fetching pauses, which
exerts backpressure on the server."""
AHEAD_BYTES: Final = 2**20
"""Maximum number of bytes that were read from the stream and that the caller has not consumed. The last fetch may
exceed this limit."""

X = TypeVar("X")


class ReadAhead(Generic[X]):
    """Reads a job's async iterator on the event loop's thread, and passes blocks of items to the caller's thread."""

    def __init__(self, iterator: UpdateIterator[X]) -> None:
        self._iterator = iterator
        self._blocks: deque[UpdateBatch[X]] = deque()
        self._fetched = self._consumed = 0
        """Number of items in all fetched blocks, and number of items in the blocks that the caller has consumed."""
        self._fetched_bytes = self._consumed_bytes = iterator.received
        self._started = self._finished = self._abandoned = False
        self._fault: BaseException | None = None
        self._space: anyio.Event | None = None
        self._scope: anyio.CancelScope | None = None
        self._waiting = False
        self._wake: SimpleQueue[None] = SimpleQueue()
        # A thread holds this lock while it converts updates to a block, so that `leave` cannot requeue an incomplete
        # block. The lock is reentrant, because the garbage collector may call `leave` on the thread that holds the
        # lock.
        self._lock = threading.RLock()

    # ---- on the caller's thread --------------------------------------------------------------------------------

    def next(self, portal: Callable[[], BlockingPortal]) -> UpdateBatch[X] | None:
        """Wait for the next block of items and return it; None after the last block.

        Raises:
            TidewireError: The client could not read the job, the job failed, or the client was closed.
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
        """Give the undelivered items back to the job, so that the next loop starts with them.

        Returns:
            Whether `stop` must be called on the event loop's thread.
        """
        with self._lock:
            if self._abandoned:
                return False
            self._abandoned = True
            if not self._iterator.closed:
                self._iterator.leave(self._blocks)
        return self._started and not self._iterator.finished

    # ---- on the event loop's thread ----------------------------------------------------------------------------

    def _is_behind(self, things: int = AHEAD, received: int = AHEAD_BYTES) -> bool:
        """Return whether the fetched items that the caller has not read yet reach one of the two limits."""
        if self._fetched - self._consumed >= things:
            return True
        return self._fetched_bytes - self._consumed_bytes >= received

    async def _fetch_all(self) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                while not self._abandoned and self._add_block(await self._iterator.fetch()):
                    if self._is_behind():
                        self._space = anyio.Event()
                        # Check again after the event was created. Before that, there was no event to set, and the
                        # caller's thread may have consumed blocks.
                        if self._is_behind():
                            await self._space.wait()
                        self._space = None
        except asyncio.CancelledError:
            self._fault = ClientClosedError("the client was closed during the loop")
            raise
        except TidewireError as fault:
            # Drop the frames of the background thread. They would hide the caller's own line in a traceback.
            self._fault = fault.with_traceback(None)
        except BaseException as fault:  # noqa: BLE001 - raised on the caller's thread; here it would end the event loop
            self._fault = fault
        finally:
            self._finished = True
            self._wake.put(None)
            await self._iterator.release()

    def _add_block(self, updates: list[Any]) -> bool:
        """Convert fetched updates to a block and append it to the blocks for the caller's thread. Returns whether to
        fetch more updates.
        """
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
        """Stop fetching and close the connection, after the caller has left the loop."""
        if self._scope is not None:
            self._scope.cancel()
        if self._finished:
            await self._iterator.release()
